"""The oracle: what one process without a strategy computes on the whole global batch.

Rank 0 alone computes it and sends it to the others, so the workers' programs differ in the models
they build, as users' programs do.
"""

import contextlib

import numpy as np
import tensorflow as tf

FEATURES = 6


def regression(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(x [rows, 6], y [rows, 1]) of a smooth function with noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, FEATURES)).astype("float32")
    y = np.tanh(x[:, :1] * 2 - x[:, 1:2]) + 0.1 * rng.normal(size=(rows, 1))
    return x, y.astype("float32")


def dataset(rows: int, batch: int, seed: int = 0) -> tf.data.Dataset:
    """`regression` in global batches."""
    return tf.data.Dataset.from_tensor_slices(regression(rows, seed)).batch(batch)


def mlp(keras, normalization=None):
    """Two dense layers, with a normalization layer between them if given."""
    inputs = keras.Input((FEATURES,))
    hidden = keras.layers.Dense(8, activation="tanh")(inputs)
    if normalization is not None:
        hidden = normalization(hidden)
    return start(keras.Model(inputs, keras.layers.Dense(1)(hidden)))


def start(model, seed: int = 1):
    """Gives `model` kernels that depend on the seed alone."""
    rng = np.random.default_rng(seed)
    model.set_weights(
        [
            rng.normal(scale=0.4, size=w.shape).astype(w.dtype) if w.ndim > 1 else w
            for w in model.get_weights()
        ]
    )
    return model


def outcome(model, history, **more) -> dict[str, np.ndarray]:
    """All that two runs are compared by: weights, the epochs' logs, and `more`."""
    weights = {f"weight {i}": w for i, w in enumerate(model.get_weights())}
    return {**weights, **{f"log {k}": v for k, v in sorted(history.history.items())}, **more}


def single_process(comm, experiment, like: dict) -> dict[str, np.ndarray]:
    """What `experiment(nullcontext)` gives on rank 0, on every worker; shaped `like` this."""
    if comm.topology.rank == 0:
        like = experiment(contextlib.nullcontext)
    arrays = [np.asarray(value, "float64") for value in like.values()]
    flat = tf.constant(np.concatenate([a.ravel() for a in arrays]))
    parts = np.split(
        comm.broadcast(flat, purpose="oracle").numpy(), np.cumsum([a.size for a in arrays])[:-1]
    )
    return {name: part.reshape(a.shape) for name, part, a in zip(like, parts, arrays, strict=True)}


def compare(comm, strategy, experiment, rtol=1e-6, atol=3e-6) -> dict[str, np.ndarray]:
    """Runs `experiment(scope)` under `strategy` and asserts that one process gets the same.

    Args:
      experiment: (a function that makes the scope to build in) -> `outcome(...)`.
      rtol: relative tolerance.
      atol: absolute tolerance; test_oracle.py says why these.

    Returns:
      What the strategy got.

    Raises:
      AssertionError: the oracle differs.
    """
    ours = experiment(strategy.scope)
    assert_same(ours, single_process(comm, experiment, ours), rtol, atol)
    return ours


def assert_same(ours: dict, expected: dict, rtol=1e-6, atol=3e-6) -> None:
    """Asserts that two outcomes agree within |ours - expected| <= atol + rtol |expected|."""
    for name, value in expected.items():
        np.testing.assert_allclose(ours[name], value, rtol=rtol, atol=atol, err_msg=name)


def assert_identical(comm, value) -> None:
    """Asserts that `value` has the same bits on every worker."""
    mine = np.asarray(value)
    reference = comm.broadcast(tf.constant(mine), purpose="identical").numpy()
    np.testing.assert_array_equal(mine, reference)
