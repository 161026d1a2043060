"""The digits example on two workers of two nodes: it learns and keeps its goals."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import flags

from examples.common import command_line
from examples.common import strategy as strategy_lib
from examples.digits import config as config_lib
from examples.digits import main, train
from tests.multiprocess.digits_runs import DENSE, SHORT, trained


@pytest.fixture(scope="module")
def dense(comm, tmp_path_factory):
    config = dataclasses.replace(DENSE, output_dir=str(tmp_path_factory.mktemp("dense")))
    return config, *trained(config)


def test_split_is_stratified_and_fixed():
    (train_x, train_y), (test_x, test_y) = train.load(seed=0)
    assert train_x.shape == (1347, 8, 8, 1) and test_x.shape == (450, 8, 8, 1)
    assert train_x.min() == 0 and train_x.max() == 1
    assert np.ptp(np.bincount(test_y)) <= 3
    again = train.load(seed=0)
    np.testing.assert_array_equal(again[1][0], test_x)
    assert (train.load(seed=1)[1][1] != test_y).any()


def test_the_rate_rises_and_falls_once():
    optimizer = train.make_optimizer(config_lib.RECIPES["record"], steps=70)
    rates = [float(optimizer._learning_rate(step)) for step in range(70)]
    assert np.argmax(rates) == 19 and rates[19] == pytest.approx(8.0)
    assert all(np.diff(rates[:20]) > 0) and all(np.diff(rates[20:]) < 0)
    assert rates[69] == pytest.approx(0.08)
    by_sgd = dataclasses.replace(config_lib.RECIPES["record"], optimizer="sgd", pto=None)
    found = train.make_optimizer(by_sgd, steps=70)
    assert isinstance(found, keras.optimizers.SGD) and found.momentum == 0.9


def test_dense_learns_and_workers_agree(dense, comm):
    config, _, result = dense
    assert len(result.history["loss"]) == config.epochs
    assert result.test_accuracy > 0.92
    mine = tf.constant([[result.test_loss, result.test_accuracy]], tf.float64)
    everyone = comm.all_gather(mine).numpy()
    np.testing.assert_array_equal(everyone, np.repeat(mine, len(everyone), axis=0))


def test_half_precision_and_overlap(comm, tmp_path):
    config = dataclasses.replace(
        SHORT, phases=((8, 1),), dtype="mixed_float16", overlap="dear", output_dir=str(tmp_path)
    )
    seen = keras.callbacks.Callback()
    strategy, result = trained(config, callbacks=[seen])
    assert isinstance(seen.model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert strategy.extended.chunked is not None
    assert np.isfinite(result.test_loss)
    assert keras.config.dtype_policy().name == "float32"


def test_report_names_a_picture(dense, topology, capsys):
    if topology.rank > 0:
        return
    main.report(*dense)
    printed = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert printed["workers"] == str(topology.num_workers)
    with open(printed["picture"], "rb") as file:
        assert file.read(8) == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("given, code", [({"goal": 0.0}, 0), ({"goal": 1.0}, 1)])
def test_exit_code_follows_the_goal(dense, monkeypatch, capsys, given, code):
    """The first worker says why."""
    config, strategy, result = dense
    poor = dataclasses.replace(result, test_accuracy=0.9)
    monkeypatch.setattr(train, "train", lambda *_: poor)
    monkeypatch.setattr(strategy_lib, "start", lambda _: strategy)
    config = dataclasses.replace(config, **given)
    assert main.main(config) == code
    assert main.main(dataclasses.replace(config, check=False)) == 0
    assert main.main(dataclasses.replace(config, synthetic=True)) == 0  # noise has no goal
    failed = "FAILED: test accuracy 90.00% misses the goal" in capsys.readouterr().err
    assert failed == (bool(code) and strategy.topology.rank == 0)


def test_flags_change_the_recipe():
    def parsed(*arguments):
        line = flags.FlagValues()
        command_line.define(config_lib.RECIPES, line)
        line(["main", *arguments])
        return command_line.chosen(config_lib.RECIPES, line)

    assert parsed() == SHORT
    given = ("--recipe=record", "--phases=8:2,12:1", "--sparse_epochs=2", "--pto=off", "--nocheck")
    record = config_lib.RECIPES["record"]
    changed = {"phases": ((8, 2), (12, 1)), "sparse_epochs": 2, "pto": "off", "check": False}
    assert parsed(*given) == dataclasses.replace(record, **changed)


BAD = [
    {"phases": ()},
    {"phases": ((8, 0),)},
    {"global_batch_size": 0},
    {"overlap": "yes"},
    {"learning_rate": -1.0},
    {"optimizer": "rmsprop"},
    {"label_smoothing": 1.0},
    {"sparse_epochs": 11, "density": 0.1},
    {"density": 0.1},
    {"pto": "on"},
    {"goal": 97},
]


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_settings_are_checked(bad):
    with pytest.raises(ValueError, match=f"{next(iter(bad))}=.* must be"):
        dataclasses.replace(SHORT, **bad)
