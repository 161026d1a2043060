"""One worker of a job in which something goes wrong (tests/test_failures.py).

    python failure_worker.py FAULT RANK DIRECTORY

RANK does what FAULT names in the second of three epochs. `DIRECTORY` gets the backups of
`BackupAndRestore` and, from rank 0 after a whole run, result.json.
"""

import atexit
import json
import os
import pathlib
import signal
import sys
import threading
import time

import keras
import numpy as np
import tensorflow as tf

import tf_sparse_strategy as tss
from tf_sparse_strategy import collectives

SILENCE_LIMIT, STALL_LIMIT = 4.0, 7.0
X = np.linspace(-1, 1, 32, dtype=np.float32)[:, np.newaxis]
DATA = {"x": X, "y": 3 * X + 1}


def build():
    layers = [keras.layers.Input([1]), keras.layers.Dense(1, kernel_initializer="ones")]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss="mse", metrics=["mae"])
    return model


def fit(model, callbacks):
    history = model.fit(
        **DATA, epochs=3, batch_size=8, shuffle=False, verbose=0, callbacks=callbacks
    )
    return history.epoch, [weight.tolist() for weight in model.get_weights()]


class Fault(keras.callbacks.Callback):
    """Does it, once, in the middle of the second epoch."""

    def __init__(self, what):
        super().__init__()
        self._epoch = None
        self._do = getattr(self, f"_{what}")

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self._epoch, batch) == (1, 1):
            print(f"fault at {time.time()}", flush=True)
            self._do()

    def _kill(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def _stop(self):
        os.kill(os.getpid(), signal.SIGSTOP)

    def _raise(self):
        raise ValueError("a bad row")

    def _raise_beside_a_thread(self):
        """That Python would wait for before it ends."""
        threading.Thread(target=time.sleep, args=(600,)).start()
        raise ValueError("a bad row")

    def _raise_before_a_long_exit(self):
        atexit.register(time.sleep, 600)
        raise ValueError("a bad row")

    _handled = _raise_before_a_quick_exit = _raise  # see main

    def _kill_before_a_child(self):
        """That has inherited all connections."""
        if os.fork() == 0:
            os.closerange(0, 3)  # but what the test listens to
            time.sleep(30)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    def _leave(self):
        sys.exit(0)

    def _sleep(self):
        time.sleep(600)

    def _result(self):
        self.model.metrics[0].result()

    def _predict(self):
        self.model.predict(X, verbose=0)

    def _variable(self):
        with self.model.distribute_strategy.scope():
            tf.Variable(1.0)

    def _save(self):
        self.model.save(pathlib.Path(sys.argv[3], "saved.keras"))

    def _linger(self):
        """For the test to do it from outside."""
        pathlib.Path(sys.argv[3], "lingering").touch()
        time.sleep(5)


def main():
    fault, guilty, directory = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
    if fault == "raise_before_a_quick_exit":
        collectives.start()
        atexit.register(os._exit, 1)  # runs after the watchdog's, and before Horovod's, which takes a while
    strategy = tss.SparseStrategy(silence_limit=SILENCE_LIMIT, stall_limit=STALL_LIMIT)
    rank = strategy.topology.rank
    with strategy.scope():
        model = build()
    callbacks = [keras.callbacks.BackupAndRestore(directory / "backup")]
    if fault != "none" and rank == guilty:
        callbacks.append(Fault(fault))
    try:
        epochs, weights = fit(model, callbacks)
    except Exception:
        if fault != "handled":
            raise
        sys.exit(3)
    if rank == 0:
        _, expected = fit(build(), [])  # one process, without a strategy, without a failure
        result = {"epochs": epochs, "weights": weights, "expected": expected}
        (directory / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
