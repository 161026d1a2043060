"""The digits example on real workers: it learns, reports and draws; the goal is enforced."""

import dataclasses

import numpy as np
import pytest
from absl import flags

from examples.digits import config as config_lib
from examples.digits import main, train

SHORT = config_lib.Config(epochs=3, global_batch_size=66)


@pytest.fixture(scope="module")
def run(comm, tmp_path_factory):
    import tf_sparse_strategy as tss

    strategy = tss.SparseStrategy()
    config = dataclasses.replace(SHORT, output_dir=str(tmp_path_factory.mktemp("digits")))
    return config, strategy, train.train(config, strategy)


def test_split_is_stratified_and_fixed():
    (train_x, train_y), (test_x, test_y) = train.load(seed=0)
    assert train_x.shape == (1347, 8, 8, 1) and test_x.shape == (450, 8, 8, 1)
    assert train_x.min() == 0 and train_x.max() == 1
    assert np.ptp(np.bincount(test_y)) <= 3
    again = train.load(seed=0)
    np.testing.assert_array_equal(again[1][0], test_x)
    assert (train.load(seed=1)[1][1] != test_y).any()


def test_it_learns(run, topology):
    config, _, result = run
    assert len(result.history["loss"]) == config.epochs
    assert result.history["loss"][-1] < 0.5 * result.history["loss"][0]
    assert result.test_accuracy > 0.85
    sent = result.history["bytes_per_step"][-1]
    assert (sent > 280_000) == (topology.num_workers > 1)  # the gradients at least


def test_workers_agree(run, comm):
    """The model, and so its accuracy, is the same on every worker."""
    import tensorflow as tf

    result = run[2]
    mine = tf.constant([[result.test_loss, result.test_accuracy]], tf.float64)
    everyone = comm.all_gather(mine).numpy()
    np.testing.assert_array_equal(everyone, np.repeat(mine, len(everyone), axis=0))


def test_report_names_a_picture(run, topology, capsys):
    config, strategy, result = run
    if topology.rank > 0:
        return
    main.report(config, strategy, result)
    printed = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert printed["workers"] == str(topology.num_workers)
    with open(printed["picture"], "rb") as file:
        assert file.read(8) == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("goal, code", [(0.0, 0), (1.0, 1)])
def test_exit_code_follows_the_goal(run, monkeypatch, capsys, goal, code):
    config, strategy, result = run
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["main"])
    poor = dataclasses.replace(result, test_accuracy=0.9)
    monkeypatch.setattr(train, "train", lambda *_: poor)
    monkeypatch.setattr(main.tss, "SparseStrategy", lambda **_: strategy)
    monkeypatch.setattr(
        config_lib, "from_flags", lambda: dataclasses.replace(config, goal=goal)
    )
    assert main.main(["main"]) == code
    failed = "FAILED: test accuracy 90.00% is below the goal" in capsys.readouterr().err
    assert failed == bool(code)


@pytest.mark.parametrize("bad", [{"epochs": 0}, {"learning_rate": -1.0}, {"goal": 97}])
def test_settings_are_checked(bad):
    with pytest.raises(ValueError, match=f"{next(iter(bad))}=.* must be"):
        config_lib.Config(**bad)
