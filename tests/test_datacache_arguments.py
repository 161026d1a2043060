"""DataCache: what it refuses, and takes, as arguments."""

import numpy as np
import pytest
import tensorflow as tf

import datacache
from tests import datacache_help as help_

pytest_plugins = ("tests.datacache_fixtures",)


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        (lambda i: tf.strings.as_string(i), "numbers"),
        (lambda i: tf.zeros([i]), "fully defined"),
        (lambda i: tf.sparse.eye(3), "numbers"),
    ],
)
def test_samples_that_cannot_be_stored(decode, message, shm):
    with pytest.raises(ValueError, match=message):
        datacache.DataCache(datacache.Samples(3, lambda i: i), decode, memory_dir=str(shm))


def test_sources_that_are_not_there(tmp_path):
    with pytest.raises(ValueError, match="no file matches"):
        datacache.TFRecords(str(tmp_path / "*"))
    with pytest.raises(ValueError, match="no folders with images"):
        datacache.ImageFolder(str(tmp_path))
    with pytest.raises(ValueError, match="is a directory"):
        datacache.TFRecords(str(tmp_path))
    with pytest.raises(ValueError, match="n=0"):
        datacache.Samples(0, lambda i: i)


def test_arguments_of_other_kinds(pattern, shm):
    with pytest.raises(TypeError, match="source='images': must be"):
        datacache.DataCache("images", help_.decode_image)
    with pytest.raises(TypeError, match="source=.*ImageFolder.*: must be"):
        datacache.DataCache(datacache.ImageFolder, help_.decode_image)
    with pytest.raises(TypeError, match="decode=None: must be a function"):
        datacache.DataCache(datacache.TFRecords(pattern), None)
    cache = help_.cache(pattern, shm)
    with pytest.raises(TypeError, match="batch_size='32'"):
        cache.dataset("32")
    with pytest.raises(TypeError, match="seed=0.5"):
        cache.dataset(16, seed=0.5)
    with pytest.raises(ValueError, match="start=-3"):
        cache.dataset(16, start=-3)
    with pytest.raises(TypeError, match="start=True"):
        cache.dataset(16, start=True)
    numpys = cache.dataset(np.uint8(16), seed=np.uint32(4_000_000_000), epochs=1)
    ours = cache.dataset(16, seed=4_000_000_000, epochs=1)
    for one, other in zip(help_.numbers_of(numpys), help_.numbers_of(ours), strict=True):
        np.testing.assert_array_equal(one, other)


def test_too_few_rows_for_the_workers(pattern, shm):
    cache = help_.cache(pattern, shm)
    context = tf.distribute.InputContext(4, 0, 4)
    with pytest.raises(ValueError, match="drop_remainder"):
        cache.dataset(148, input_context=context)
    cache.dataset(148, input_context=context, drop_remainder=True)


def test_several_replicas_per_worker_are_refused(pattern, shm):
    cache = help_.cache(pattern, shm)
    with pytest.raises(ValueError, match="4 replicas on 2 workers"):
        cache.dataset(16, input_context=tf.distribute.InputContext(2, 0, 4))
    parts = [cache.dataset(16, input_context=tf.distribute.InputContext(2, p), epochs=1) for p in (0, 1)]
    assert sorted(np.concatenate([n for part in parts for n in help_.numbers_of(part)])) == list(range(150))
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])  # one replica, and one worker
    dataset = strategy.distribute_datasets_from_function(
        lambda context: cache.dataset(16, epochs=1, input_context=context)
    )
    assert sorted(np.concatenate(help_.numbers_of(dataset))) == list(range(150))


def test_a_batch_of_one_row_for_each_worker(pattern, shm):
    workers = tf.distribute.InputContext(148, 0, 148)
    dataset = help_.cache(pattern, shm).dataset(148, input_context=workers, epochs=1, drop_remainder=True)
    assert [len(numbers) for numbers in help_.numbers_of(dataset)] == [1]
