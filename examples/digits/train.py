"""Data, model and training: plain Keras but for the lines that mention `tss` or `strategy`."""

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


def as_dataset(images, labels) -> tf.data.Dataset:
    """Returns the pairs one by one, without tf.data's tuner: memory needs no tuning."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return tf.data.Dataset.from_tensor_slices((images, labels)).with_options(options)


def build_model() -> keras.Model:
    """A convolutional network of 36,000 parameters."""
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
    training, test = (as_dataset(*split) for split in load(config.seed))
    batch = config.global_batch_size
    steps = -(-len(training) // batch)
    # One dataset without end: at each epoch's end, making a new iterator can take seconds.
    training = training.shuffle(len(training), seed=config.seed).batch(batch).repeat()
    test = test.batch(4 * batch)

    with strategy.scope():
        model = build_model()
        model.compile(
            optimizer=keras.optimizers.Adam(
                keras.optimizers.schedules.CosineDecay(config.learning_rate, config.epochs * steps)
            ),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )

    callbacks = [
        keras.callbacks.ProgbarLogger(),  # first: the monitor's numbers would lengthen its lines
        tss.callbacks.CommunicationMonitor(log_dir=config.output_dir),
    ]
    history = model.fit(
        training,
        epochs=config.epochs,
        steps_per_epoch=steps,
        validation_data=test,
        callbacks=callbacks,
        shuffle=False,  # the dataset does
        verbose=1,
    )
    loss, accuracy = model.evaluate(test, verbose=0)
    return Result(history.history, loss, accuracy)
