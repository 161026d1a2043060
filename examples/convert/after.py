"""Digits, converted: one script for 1 to P workers."""

import keras
import tensorflow as tf
from sklearn import datasets

import tf_sparse_strategy as tss

strategy = tss.SparseStrategy()
keras.utils.set_random_seed(0)
BATCH = 128  # rows of a step, of all workers together

digits = datasets.load_digits()
images, labels = (digits.images / 16.0).astype("float32"), digits.target
training = tf.data.Dataset.from_tensor_slices((images[:1500], labels[:1500]))
training = training.shuffle(1500, seed=0).batch(BATCH)
test = tf.data.Dataset.from_tensor_slices((images[1500:], labels[1500:])).batch(BATCH)

with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input([8, 8]),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

callbacks = [keras.callbacks.ModelCheckpoint("digits.keras")]
model.fit(training, epochs=6, callbacks=callbacks)
loss, accuracy = model.evaluate(test, verbose=0)
if strategy.topology.rank == 0:
    print(f"test accuracy {accuracy:.4f}")
