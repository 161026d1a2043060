"""A process is killed at random points; the next one goes on with what is there."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from custom_ops.datacache_store import datacache_store as native
from datacache import command, order
from datacache import local as local_level
from datacache.callbacks import Resume
from tests import datacache_help as help_
from tests.thorough import thorough

pytest_plugins = ("tests.datacache_fixtures",)
SAMPLES = 300  # of the store that is filled: so many that it takes as long as starting does
KILLED_FITS = 10
BATCH = 15

# What DataCache does, without the pipeline whose tracing would take most of the time: copies, index, store.
# TensorFlow must not run before a fork: the parent only imports.
FORKED = """
import os, random, signal, sys
import tensorflow as tf
import datacache
from custom_ops.datacache_store import datacache_store as native
from datacache import local as local_level, memory as memory_level
from tests import datacache_help as help_
pattern, shm, local, samples = *sys.argv[1:4], int(sys.argv[4])
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        signal.alarm(100)  # should the test fail and leave it
        source = datacache.TFRecords(pattern)
        source.open(local_level.LocalCopies(local))
        read = source.reader()
        ids = random.Random(line).sample(range(samples), samples)
        sample = help_.decode_record(*read(tf.constant(ids[0], tf.int64)))
        specs = [tf.TensorSpec.from_tensor(x) for x in tf.nest.flatten(sample)]
        name = memory_level.identity(source.fingerprint, "v", samples, specs)
        memory = memory_level.Memory(shm, name, samples, specs, "auto", {})
        while True:
            for i in ids:
                values = tf.nest.flatten(help_.decode_record(*read(tf.constant(i, tf.int64))))
                native.put(memory.path, tf.constant([i], tf.int64), [x[None] for x in values])
    print(child, flush=True)
    os.waitpid(child, 0)
"""


def seconds_to_fill(shm: pathlib.Path) -> float:
    """Until all samples of the only store are there: how long this machine needs at present."""
    begin = time.monotonic()
    while time.monotonic() < begin + 60:
        if any(native.store_stats(str(store)).stored == SAMPLES for store in shm.glob("*/*/store")):
            return time.monotonic() - begin
        time.sleep(0.02)
    raise AssertionError("the worker fills nothing")


# The same for training; what it saves is where the next one goes on.
FITTED = """
import os, signal, sys
from tests import datacache_help as help_, test_datacache_kills as kills
pattern, shm, local, saved = sys.argv[1:]
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        signal.alarm(250)
        os.dup2(2, 1)  # its standard output is the parent's
        kills.trained(help_.cache(pattern, shm, local), 10**6, saved)
    print(child, flush=True)
    os.waitpid(child, 0)
"""


def started(script: str, *arguments) -> subprocess.Popen:
    """A process that forks a child for each line that it reads."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=help_.ENVIRONMENT, text=True,
    )


def forked(parent: subprocess.Popen, point: int) -> int:
    """The number of its next child."""
    parent.stdin.write(f"{point}\n")
    parent.stdin.flush()
    return int(parent.stdout.readline())


def trained(cache, epochs: int, saved=None) -> list[np.ndarray]:
    """The weights of a small model; with `saved`, a directory, from where an earlier call was killed."""
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential([tf.keras.layers.Input([100]), tf.keras.layers.Dense(1)])
    model.compile(tf.keras.optimizers.SGD(0.001), "mse")
    resume = saved and Resume(saved, model, every=3)
    steps = cache.steps_per_epoch(BATCH)

    def rows(batch):
        return tf.cast(batch["data"], tf.float32) / 256, tf.cast(batch["number"], tf.float32)[:, None]

    for span in resume.spans(epochs, steps) if resume else order.spans(0, epochs, steps):
        dataset = cache.dataset(BATCH, rows, start=span.start)
        model.fit(dataset, callbacks=[resume] if resume else [], verbose=0, **span.fit_arguments())
    return model.get_weights()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("points", [60, pytest.param(200, marks=thorough)])
def test_killed_at_random_points(tmp_path, shm, points):
    """A process that copies, indexes and fills is killed at any moment; the next goes on with what is there.

    Between kills something is taken away at random, so that there is always something to write.
    """
    pattern = help_.records(tmp_path / "source", files=2, per_file=SAMPLES // 2)
    local = tmp_path / "local"
    verify = ["verify", "--memory-dir", str(shm), "--local-dir", str(local)]
    chance = random.Random(1)
    parent = started(FORKED, pattern, shm, local, SAMPLES)
    half_filled = longest = 0
    for point in range(points):
        child = forked(parent, point)
        if not longest:
            longest = 1.2 * seconds_to_fill(shm)
        else:
            time.sleep(chance.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        filled = False
        for store in shm.glob("*/*/store"):
            assert native.verify(str(store)) == 0, point
            stored = native.store_stats(str(store)).stored
            half_filled, filled = half_filled + (0 < stored < SAMPLES), stored == SAMPLES
            if chance.random() < 0.7:
                store.unlink()
        longest *= 0.8 if filled else 1.05  # other work on the machine comes and goes
        for copy in local_level.copies_in(local):
            assert native.check_copy(str(copy)), point
            if chance.random() < 0.3:
                copy.unlink()
        for index in local.glob("index/*.npy"):
            if chance.random() < 0.3:
                index.unlink()
        if point % 20 == 0:
            assert command.main(verify) == 0, point
    parent.stdin.close()
    assert parent.wait(timeout=60) == 0
    assert half_filled > points // 10  # it was killed while it worked
    cache = help_.cache(pattern, shm, local, version="v")
    assert len(list(shm.glob("*/*/.datacache"))) == 1  # the workers' store is the cache's
    assert not [path for path in local.glob("**/*.tmp.*") if path.suffix != ".lock"]  # half written
    assert sorted(np.concatenate(help_.numbers_of(cache.dataset(16, epochs=1)))) == list(range(SAMPLES))
    uncached = help_.cache(pattern, shm, memory=0)
    for one, other in zip(trained(cache, 2), trained(uncached, 2), strict=True):
        np.testing.assert_array_equal(one, other)
    assert command.main(verify) == 0


def steps_saved(directory: pathlib.Path) -> int:
    newest = tf.train.latest_checkpoint(str(directory))
    return int(newest.rpartition("-")[2]) if newest else 0


@pytest.mark.timeout(600)
def test_a_fit_that_is_killed_at_random_points(tmp_path, shm):
    """Killed while it starts, fills, trains or saves, it has in the end trained as if it never had been.

    The store is taken away at random, so that it is filled again.
    """
    pattern = help_.records(tmp_path / "source", files=2, per_file=30)
    local, saved = tmp_path / "local", tmp_path / "saved"
    chance = random.Random(2)
    parent = started(FITTED, pattern, shm, local, saved)
    longest = went_on = 0
    for point in range(KILLED_FITS):
        before = steps_saved(saved)
        child = forked(parent, point)
        begin = time.monotonic()
        if not longest:
            while steps_saved(saved) < 8:
                assert time.monotonic() < begin + 200, "the child trains nothing"
                time.sleep(0.02)
            longest = 2 * (time.monotonic() - begin)
        else:
            time.sleep(chance.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        trained_on = steps_saved(saved) > before
        went_on += trained_on
        longest *= 0.8 if trained_on else 1.25  # other work on the machine comes and goes
        for store in shm.glob("*/*/store"):
            assert native.verify(str(store)) == 0, point
            if chance.random() < 0.3:
                store.unlink()
        assert all(native.check_copy(str(copy)) for copy in local_level.copies_in(local)), point
    parent.stdin.close()
    assert parent.wait(timeout=60) == 0
    assert 2 <= went_on < KILLED_FITS  # it was killed while it started, and while it trained
    assert command.main(["verify", "--memory-dir", str(shm), "--local-dir", str(local)]) == 0
    epochs = 1 + -(-steps_saved(saved) * BATCH // 60)
    killed = trained(help_.cache(pattern, shm, local), epochs, saved)
    uncached = trained(help_.cache(pattern, shm, memory=0), epochs)
    for one, other in zip(killed, uncached, strict=True):
        np.testing.assert_array_equal(one, other)
