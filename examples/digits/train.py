"""Data, model and training. Lines that mention `tss` or `strategy` are all that is not plain Keras."""

import dataclasses

import keras
import tensorflow as tf
from sklearn import datasets, model_selection

import tf_sparse_strategy as tss
from examples.digits.config import Config

CLASSES = 10


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run gave: its history, and loss and accuracy on the test images."""

    history: dict[str, list[float]]
    test_loss: float
    test_accuracy: float


def load(seed: int):
    """Returns ((images, labels) to train on, (images, labels) to test on).

    1,797 images [8, 8, 1] in 0..1, a quarter of each class for the test.
    """
    digits = datasets.load_digits()
    images = (digits.images / 16.0).astype("float32")[..., None]
    train_x, test_x, train_y, test_y = model_selection.train_test_split(
        images, digits.target, test_size=0.25, stratify=digits.target, random_state=seed
    )
    return (train_x, train_y), (test_x, test_y)


def build_model() -> keras.Model:
    """A convolutional network of 38,000 parameters."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input([8, 8, 1]),
            layers.Conv2D(32, 3, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(64, activation="relu"),
            layers.Dense(CLASSES),
        ]
    )


def train(config: Config, strategy: tss.SparseStrategy) -> Result:
    """Trains and tests one model; every worker calls this alike and gets the same result."""
    keras.utils.set_random_seed(config.seed)
    (train_x, train_y), test = load(config.seed)
    batch = config.global_batch_size
    shuffled = tf.data.Dataset.from_tensor_slices((train_x, train_y)).shuffle(
        len(train_x), seed=config.seed
    )
    steps = -(-len(train_x) // batch)

    with strategy.scope():
        model = build_model()
        model.compile(
            optimizer=keras.optimizers.Adam(
                keras.optimizers.schedules.CosineDecay(config.learning_rate, config.epochs * steps)
            ),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )

    tested = tf.data.Dataset.from_tensor_slices(test).batch(4 * batch)
    callbacks = [
        keras.callbacks.ProgbarLogger(),  # before the monitor, whose numbers would lengthen its lines
        tss.callbacks.CommunicationMonitor(log_dir=config.output_dir),
    ]
    history = model.fit(
        shuffled.batch(batch),
        epochs=config.epochs,
        validation_data=tested,
        callbacks=callbacks,
        verbose=1,
    )
    loss, accuracy = model.evaluate(tested, verbose=0)
    return Result(history.history, loss, accuracy)
