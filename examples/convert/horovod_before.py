"""Digits, for `hvd.DistributedOptimizer`: what docs/convert_your_script.md begins with."""

import horovod.tensorflow.keras as hvd
import keras
import tensorflow as tf
from sklearn import datasets

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
keras.utils.set_random_seed(0)
BATCH = 32  # rows of a step, of one worker

digits = datasets.load_digits()
images, labels = (digits.images / 16.0).astype("float32"), digits.target
training = tf.data.Dataset.from_tensor_slices((images[:1500], labels[:1500]))
training = training.shard(hvd.size(), hvd.rank())
training = training.shuffle(1500, seed=0).batch(BATCH, drop_remainder=True).repeat()
test = tf.data.Dataset.from_tensor_slices((images[1500:], labels[1500:])).batch(BATCH)

model = keras.Sequential(
    [
        keras.Input([8, 8]),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.025 * hvd.size(), momentum=0.9)),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)

callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
]
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint("digits.keras"))
steps = 1500 // (BATCH * hvd.size())
verbose = 1 if hvd.rank() == 0 else 0
model.fit(training, steps_per_epoch=steps, epochs=6, callbacks=callbacks, verbose=verbose)
loss, accuracy = model.evaluate(test, verbose=0)
if hvd.rank() == 0:
    print(f"test accuracy {accuracy:.4f}")
