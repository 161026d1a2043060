"""Digits, for MultiWorkerMirroredStrategy: what docs/convert_your_script.md begins with."""

import json
import os

import keras
import tensorflow as tf
from sklearn import datasets

index = int(os.environ["WORKER_INDEX"])
os.environ["TF_CONFIG"] = json.dumps(
    {
        "cluster": {"worker": ["vm1:2222", "vm2:2222"]},
        "task": {"type": "worker", "index": index},
    }
)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
keras.utils.set_random_seed(0)
BATCH = 64 * strategy.num_replicas_in_sync

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

path = "digits.keras" if index == 0 else f"/tmp/not_kept_{index}.keras"
callbacks = [keras.callbacks.ModelCheckpoint(path)]
model.fit(training, epochs=6, callbacks=callbacks)
loss, accuracy = model.evaluate(test, verbose=0)
if index == 0:
    print(f"test accuracy {accuracy:.4f}")
