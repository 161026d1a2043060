"""Workers that differ are told so, all of them, before the first step."""

import re
import time

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
from tf_sparse_strategy import agreement

DATA = {"x": np.ones([12, 3], np.float32), "y": np.ones([12, 1], np.float32)}


def test_gather(comm, topology):
    value = {"rank": topology.rank, "text": "é\n" * topology.rank}
    everyone = agreement.gather(value, comm)
    assert everyone == [{"rank": r, "text": "é\n" * r} for r in range(topology.num_workers)]


def test_together(comm, topology):
    with agreement.together(comm):
        pass
    error, words = (KeyError, "x") if topology.rank == 1 else (RuntimeError, "rank 1: KeyError: 'x'")
    with pytest.raises(error, match=words), agreement.together(comm):
        if topology.rank == 1:
            raise KeyError("x")


def test_an_error_is_not_what_the_loss_of_others_caused(comm, topology):
    """Which the watchdog would take for Horovod's, where the others are lost while they are told."""

    class Lost:
        def __init__(self):
            self.topology = topology

        def all_gather(self, *args, **kwargs):
            raise OSError("connection closed")

    with pytest.raises(KeyError) as caught, agreement.together(Lost()):
        raise KeyError("x")
    assert caught.value.__cause__ is caught.value.__context__ is None
    with pytest.raises(OSError, match="closed"), agreement.together(Lost()):
        pass


def test_an_error_of_an_operation_is_told_without_where_it_was_made():
    @tf.function
    def step(x):
        tf.debugging.Assert(x > 2, ["id out of range:", x])
        return tf.py_function(lambda x: x / 0, [x], tf.int32)

    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        step(tf.constant(1))
    assert "defined at" in str(caught.value)
    assert re.match(
        r"InvalidArgumentError: Graph execution error:\n\nassertion failed: \[id out of range:\] \[1\]\n",
        agreement.told(caught.value),
    )
    with pytest.raises(tf.errors.OpError) as caught:
        step(tf.constant(3))
    assert '  File "' in agreement.told(caught.value)  # the function's own


def test_an_error_that_cannot_be_told(comm, topology):
    class Mute(Exception):
        def __str__(self):
            return self.detail

    error, words = (Mute, None) if topology.rank == 1 else (RuntimeError, "rank 1: Mute: <exception str")
    with pytest.raises(error, match=words), agreement.together(comm):
        if topology.rank == 1:
            raise Mute()


def test_an_error_that_nobody_comes_to_hear_of_is_said(topology, monkeypatch, caplog):
    """The others may wait in a collective within the block, until the watchdog ends this process."""

    class Waits:
        def __init__(self):
            self.topology = topology

        def all_gather(self, *args, **kwargs):
            time.sleep(2)
            raise OSError("connection closed")

    monkeypatch.setattr(agreement, "_NOTICE_SECONDS", 0.05)
    with pytest.raises(KeyError), agreement.together(Waits()):
        raise KeyError("x")
    assert ("do not come to hear of it" in caplog.text) == (topology.num_workers > 1)
    caplog.clear()
    with pytest.raises(OSError), agreement.together(Waits()):
        pass
    assert not caplog.text


def test_require_same(comm, topology):
    agreement.require_same({"a": 1}, comm, "Do it.")
    last = topology.num_workers - 1
    facts = {"a": 1, "b": topology.rank == last} | ({"c": "x"} if topology.rank == last else {})
    others = ", ".join(map(str, range(last)))
    with pytest.raises(ValueError) as caught:
        agreement.require_same(facts, comm, "Do it.")
    assert str(caught.value).splitlines() == [
        "the workers differ:",
        f"  b: false on rank {others}; true on rank {last}",
        f'  c: null on rank {others}; "x" on rank {last}',
        "Do it.",
    ]
    many = {f"fact {n}": topology.rank for n in range(7)}
    with pytest.raises(ValueError, match="fact 4: .*\n  and 2 more\nDo it."):
        agreement.require_same(many, comm, "Do it.")


# ---- arguments and versions ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "argument, values",
    [
        ("communication", ["dense", "torus2d"]),
        ("bucket_bytes", [1 << 20, 1 << 21]),
        ("silence_limit", [40, 50]),
        ("stall_limit", [100, float("inf")]),
    ],
)
def test_different_arguments(topology, argument, values):
    with pytest.raises(ValueError, match="the workers differ:\n  SparseStrategy's .* on rank 1"):
        tss.SparseStrategy(**{argument: values[topology.rank == 1]})


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"communication": "dnese"}, "communication='dnese' is unknown"),
        ({"bucket_bytes": 0}, "bucket_bytes=0 must be a whole number greater than 0"),
        ({"silence_limit": "long"}, "silence_limit='long' must be a number greater than 0"),
        ({"stall_limit": 3}, "stall_limit=3 must be .* at least silence_limit=45"),
    ],
)
@pytest.mark.parametrize("everywhere", [True, False])
def test_wrong_arguments(topology, arguments, words, everywhere):
    mine = everywhere or topology.rank == 1
    error = ValueError if mine else RuntimeError
    with pytest.raises(error, match=words if mine else f"rank 1: ValueError: {words}"):
        tss.SparseStrategy(**(arguments if mine else {}))


@pytest.mark.parametrize("module", [tf, keras3, tss])
def test_different_versions(monkeypatch, topology, module):
    if topology.rank == 1:
        monkeypatch.setattr(module, "__version__", "9.9")
    with pytest.raises(ValueError, match=rf'{module.__name__}: .*; "9.9" on rank 1\n.*packages'):
        tss.SparseStrategy()


def test_different_keras(monkeypatch, topology):
    if topology.rank == 1:
        monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    with pytest.raises(ValueError, match='TF_USE_LEGACY_KERAS: null on rank 0.* "1" on rank 1'):
        tss.SparseStrategy()


# ---- models --------------------------------------------------------------------------------------


def test_variables_of_different_shapes(keras, strategy, topology):
    units = 5 if topology.rank == 1 else 4
    with strategy.scope(), pytest.raises(ValueError) as caught:
        keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(units)])
    for words in ("variable being created", "kernel", "[3, 4] float32", "[3, 5] float32"):
        assert words in str(caught.value)
    assert "on rank 1" in str(caught.value)


def test_variables_of_different_dtypes(strategy, topology):
    with strategy.scope(), pytest.raises(ValueError, match=r"'v' \[\] float64\" on rank 1"):
        tf.Variable(1.0, dtype=tf.float64 if topology.rank == 1 else tf.float32, name="v")


def model_of(keras, names):
    layers = [keras.layers.Dense(3, name=name) for name in names]
    model = keras.Sequential([keras.layers.Input([3]), *layers])
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("eagerly", [True, False])
def test_variables_in_another_order(keras, strategy, topology, eagerly):
    """Their shapes agree, so that each gradient would be added to another variable's."""
    names = ["left", "right"] if topology.rank == 1 else ["right", "left"]
    with strategy.scope():
        model = model_of(keras, names)
        model.run_eagerly = eagerly
    before = model.get_weights()
    with pytest.raises(ValueError) as caught:
        model.fit(DATA["x"], DATA["x"], batch_size=12, verbose=0)
    assert "gradient 0: " in str(caught.value) and "left/kernel [3, 3]" in str(caught.value)
    assert "Build the same model" in str(caught.value)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_an_extra_model_on_one_worker_is_no_difference(keras, strategy, topology):
    """Keras then numbers the layers differently."""
    if topology.rank == 1:
        keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(3)])
    with strategy.scope():
        layers = [keras.layers.Dense(4), keras.layers.Dense(1)]
        model = keras.Sequential([keras.layers.Input([3]), *layers])
        model.compile("sgd", "mse")
    model.fit(**DATA, batch_size=12, verbose=0)


def test_lists_are_compared_once(comm, topology):
    same = agreement.SameVariables(comm)
    variables = [tf.Variable([1.0], name="a"), tf.Variable(2, name="b")]
    pairs = [(None, variable) for variable in variables]
    for _ in range(3):
        calls, _ = comm.traffic()
        same.check(pairs)
        counted = comm.traffic()[0] - calls
    assert counted == 0
    same.check(pairs[:1])  # another list: another optimizer
    with pytest.raises(ValueError, match="gradient 1: .*null on rank 1"):
        same.check(pairs[::-1] if topology.rank != 1 else pairs[1:])


def test_a_dtype_that_cannot_be_reduced(strategy):
    with pytest.raises(TypeError, match="string"):
        strategy.reduce("SUM", tf.constant(["a"]), axis=None)
