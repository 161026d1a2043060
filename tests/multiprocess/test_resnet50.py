"""The ImageNet recipe on two workers of two nodes: the whole path in small, and resumed at the switch."""

import dataclasses
import functools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from examples.common import strategy as strategy_lib
from examples.resnet50 import config as config_lib
from examples.resnet50 import images, main, train
from examples.resnet50 import input as input_lib
from examples.resnet50.config import Phase
from tests.multiprocess.kept_files import Keep

SWITCH = 2  # epoch from which sizes are others and sums exact
# "auto" might decide differently in two runs that are to give the same.
TINY = dataclasses.replace(
    config_lib.RECIPES["tiny"],
    phases=(Phase(32, SWITCH), Phase(48, 1, batch=16, min_area=0.5, rectangles=True)),
    pto="on",
    resume=True,
)


@pytest.fixture
def stores(monkeypatch, tmp_path):
    """Decoded images are kept where the test's files are."""
    cache = functools.partial(input_lib.DataCache, memory_dir=str(tmp_path))
    monkeypatch.setattr(input_lib, "DataCache", cache)


def accuracy_one_by_one(model, config, strategy):
    """(top-1, top-5) of each image of the last phase's validation, by the model alone."""
    data = input_lib.Data(config, strategy)
    phase, count = config.phases[-1], data.size("validation")
    load = data.cache("validation", config.canvas(phase)).load
    top1 = top5 = 0
    batch = config.validation_batch_size
    for step in input_lib.validation_steps(data.aspects(), batch, 1, phase.size, rectangles=True):
        canvases, aspects, labels = load(tf.constant(step.ids[step.counts > 0]))
        boxes = images.middle_boxes(aspects, phase.size, step.height, step.width)
        logits = model(images.cut(canvases, boxes, step.height, step.width), training=False)
        best = np.argsort(-logits.numpy(), axis=1)
        top1 += int((best[:, 0] == labels.numpy()).sum())
        top5 += int((best[:, :5] == labels.numpy()[:, None]).any(1).sum())
    return top1 / count, top5 / count


def test_the_whole_path_and_resuming_at_the_switch(stores, comm, topology, shared_tmp, capsys):
    whole, again = shared_tmp / "whole", shared_tmp / "again"
    config = dataclasses.replace(TINY, output_dir=str(whole))
    strategy = strategy_lib.start(config)
    keep = Keep(SWITCH, whole, again, topology)
    result = train.train(config, strategy, [keep])
    history = result.history

    assert len(history["loss"]) == config.epochs and np.isfinite(history["loss"]).all()
    sent = history["cross_bytes_per_step"]
    assert max(sent[:SWITCH]) < 0.2 * sent[SWITCH]
    assert history["datacache_hit_rate"][1] == 1.0  # decoded in the first epoch
    found = accuracy_one_by_one(keep.model, config, strategy)
    assert (result.top1, result.top5) == pytest.approx(found, abs=1e-6)
    assert result.top1 > 0.3 and result.top5 >= config.goal  # of 8 classes

    if topology.rank == 0:
        header, *rows = (whole / "dawnbench.tsv").read_text().splitlines()
        assert header == "epoch\thours\ttop1Accuracy\ttop5Accuracy"
        last = [float(word) for word in rows[-1].split("\t")]
        assert len(rows) == config.epochs and last[0] == config.epochs
        assert last[2:] == pytest.approx([100 * result.top1, 100 * result.top5], abs=1e-3)
        lines = (whole / "mllog.txt").read_text().splitlines()
        keys = [json.loads(line.removeprefix(":::MLLOG "))["key"] for line in lines]
        assert keys.index("run_start") < keys.index("epoch_start") < keys.index("eval_start")
        assert keys.count("eval_accuracy") == config.epochs and keys[-1] == "run_stop"
        assert capsys.readouterr().out.count("images/s") == config.epochs
    comm.barrier()  # the copy is whole

    phases = tuple(phase._replace(batch=8) for phase in config.phases)
    other = dataclasses.replace(config, output_dir=str(again), phases=phases)
    with pytest.raises(ValueError, match="batch_of_epoch_0=8 must be"):
        train.train(other, strategy_lib.start(other))
    resumed = keras.callbacks.Callback()
    config = dataclasses.replace(config, output_dir=str(again))
    rest = train.train(config, strategy_lib.start(config), [resumed])
    assert len(rest.history["loss"]) == config.epochs - SWITCH
    pairs = zip(keep.model.get_weights(), resumed.model.get_weights(), strict=True)
    assert max(np.linalg.norm(b - a) / (np.linalg.norm(a) + 1e-6) for a, b in pairs) < 0.2
    if topology.rank == 0:
        rows = (again / "dawnbench.tsv").read_text().splitlines()[1:]
        assert [int(row.split("\t")[0]) for row in rows] == list(range(1, config.epochs + 1))
        hours = [float(row.split("\t")[1]) for row in rows]
        assert hours == sorted(hours)
        lines = (again / "mllog.txt").read_text().splitlines()
        assert [json.loads(line.removeprefix(":::MLLOG "))["key"] for line in lines] == keys


@pytest.mark.parametrize("check, code", [(True, 1), (False, 0)])
def test_exit_code_follows_the_goal(monkeypatch, capsys, strategy, topology, check, code):
    poor = train.Result({}, top1=0.5, top5=0.9)
    monkeypatch.setattr(train, "train", lambda *_: poor)
    monkeypatch.setattr(strategy_lib, "start", lambda _: strategy)
    assert main.main(dataclasses.replace(TINY, goal=0.95, check=check)) == code
    failed = "top-5 accuracy 90.00% misses the goal of 95.00%" in capsys.readouterr().err
    assert failed == (bool(code) and topology.rank == 0)


def test_a_batch_of_more_images_than_there_are(strategy, shared_tmp):
    config = dataclasses.replace(TINY, global_batch_size=4096, output_dir=str(shared_tmp))
    with pytest.raises(ValueError, match="global_batch_size=4096.* is more than the 192 images"):
        train.train(config, strategy)
