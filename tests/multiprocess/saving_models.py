"""Small models, and the runs of `fit`, that the tests of saving share."""

import contextlib
import os

import numpy as np

X = np.random.RandomState(0).rand(16, 4).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def build(keras, strategy=None, seed=0):
    """A compiled model with slots, statistics and metrics, outside any scope by default."""
    keras.utils.set_random_seed(seed)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input((4,)),
                keras.layers.Dense(6, activation="tanh"),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(1),
            ]
        )
        adam = keras.optimizers.Adam(0.05)
        # Eagerly: tracing would take longer than all these tests do.
        model.compile(optimizer=adam, loss="mse", metrics=["mae"], run_eagerly=True)
    return model


def fit(model, epochs=1, **kwargs):
    """Two steps an epoch, in a fixed order."""
    kwargs = {"verbose": 0, "shuffle": False, "batch_size": 8, **kwargs}
    return model.fit(X, Y, epochs=epochs, **kwargs)


def state(model):
    """All numbers a later step depends on: weights, statistics, slots, iterations."""
    variables = model.optimizer.variables
    slots = variables() if callable(variables) else variables
    return [np.array(v) for v in (*model.weights, *slots)]


def assert_same_state(one, other):
    """Exactly: nothing is computed between saving and loading."""
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def assert_same_everywhere(comm, arrays):
    """All workers hold rank 0's numbers."""
    for array in arrays:
        np.testing.assert_array_equal(array, comm.broadcast(array, purpose="expected"))


def tree(directory) -> list:
    """The files below a directory, relative to it, sorted."""
    return sorted(
        os.path.relpath(os.path.join(parent, name), directory)
        for parent, _, names in os.walk(directory)
        for name in names
    )


def interruption(keras, at_epoch):
    class Interruption(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == at_epoch:
                raise RuntimeError("interrupted")

    return Interruption()


def assert_the_first_is_asked(comm, monkeypatch, file, save):
    """Before `save` replaces `file`, and it alone."""
    rank = comm.topology.rank
    for answer, replaced in (("n", False), ("y", True)):
        said = answer if rank == 0 else None  # which would be an error
        monkeypatch.setattr("builtins.input", lambda *_, said=said: said)
        if rank == 0:
            file.write_bytes(b"mine")
        comm.barrier()
        save()
        comm.barrier()
        assert (file.read_bytes() != b"mine") == replaced
        comm.barrier()
