"""DataCache from files to batches, in one process: what is read once, and what begins anew."""

import doctest
import os
import pathlib
import re
import time

import numpy as np
import pytest
import tensorflow as tf

import datacache
import datacache.cache
import datacache.warming
from custom_ops.datacache_store import datacache_store as native
from tests import datacache_help as help_

pytest_plugins = ("tests.datacache_fixtures",)


def test_records_once_per_epoch_and_decoded_once(pattern, shm, tmp_path):
    cache = help_.cache(pattern, shm, tmp_path / "local")
    before = cache.stats()
    for epoch in range(3):  # one after the other: a pipeline begins the next before the last has ended
        batches = help_.numbers_of(cache.dataset(16, start=10 * epoch, epochs=epoch + 1))
        assert len(batches) == cache.steps_per_epoch(16) == 10
        assert sorted(np.concatenate(batches)) == list(range(150))
    stats = cache.stats()
    assert stats["stored"] == 150
    assert (stats["memory_misses"], stats["memory_hits"]) == (150, 300)
    assert stats["local_reads"] - before["local_reads"] == 150
    assert stats["original_reads"] == before["original_reads"]  # the files were copied by the index


def test_statistics_of_each_level(pattern, shm, tmp_path):
    files = sum(path.stat().st_size for path in pathlib.Path(pattern).parent.iterdir())
    first = native.read_stats()
    cache = help_.cache(pattern, shm, tmp_path / "local", memory=50 * 256)
    before = cache.stats()
    assert before["original_bytes"] - first.original_bytes == files
    assert before["local_bytes"] - first.local_bytes == files  # the index is made of the copies
    begin = time.monotonic()
    for epoch in range(2):
        help_.numbers_of(cache.dataset(16, start=10 * epoch, epochs=epoch + 1))
    seconds = time.monotonic() - begin
    stats = cache.stats()
    assert (stats["memory_hits"], stats["memory_misses"]) == (50, 250)
    assert stats["memory_hit_rate"] == 50 / 300
    assert stats["local_reads"] - before["local_reads"] == 250 and 0 < stats["local_hit_rate"] <= 1
    assert stats["original_bytes"] == before["original_bytes"]
    assert stats["memory_bytes"] == 50 * (256 - 64)
    for level in ("memory", "local"):
        assert stats[f"{level}_bytes_per_second"] == stats[f"{level}_bytes"] / stats[f"{level}_seconds"] > 0
    assert stats["batches"] - before["batches"] == 20
    assert 0 < stats["stall_seconds"] - before["stall_seconds"] < seconds


def test_each_copy_is_looked_up_once(shm, tmp_path, monkeypatch):
    """Of a million files that takes seconds."""
    source = datacache.ImageFolder(str(help_.images(tmp_path / "images")))
    copies, asked = datacache.cache.LocalCopies, []
    path = copies.path
    monkeypatch.setattr(copies, "path", lambda *args: asked.append(args[1]) or path(*args))
    cache = datacache.DataCache(source, help_.decode_image, tmp_path / "local", memory_dir=str(shm))
    list(cache.dataset(8, epochs=1))
    assert sorted(asked) == sorted(file.path for file in source.files)


def test_waiting_for_a_slow_source_is_counted(shm):
    """All that the consumer does is wait."""
    def slow(i):
        return tf.py_function(lambda i: time.sleep(0.01) or i, [i], tf.int64)

    source = datacache.Samples(64, lambda i: tf.ensure_shape(slow(i), []), "slow")
    cache = datacache.DataCache(source, lambda i: i, version="slow", memory_dir=str(shm))
    batches = iter(cache.dataset(16, epochs=1))
    begin = time.monotonic()
    for _ in batches:
        pass
    seconds = time.monotonic() - begin
    assert seconds / 2 < cache.stats()["stall_seconds"] <= seconds


def test_a_slow_consumer_waits_for_nothing(pattern, shm, tmp_path):
    """What it does not ask for is not waited for, nor counted."""
    cache = help_.cache(pattern, shm, tmp_path / "local")
    batches = iter(cache.dataset(16))
    for _ in range(8):
        next(batches)
        time.sleep(0.25)
    assert cache.stats()["batches"] == 8
    assert cache.stats()["stall_seconds"] < 1  # of more than two


@pytest.mark.parametrize("batch", [8, 10])  # batches of several sizes, and of one alone
@pytest.mark.parametrize("shuffle", ["local", "global"])
def test_warm_reads_a_workers_part(batch, shuffle, pattern, shm, capsys):
    """Then its first epoch finds everything, with "local" every epoch."""
    cache = help_.cache(pattern, shm, nodes=2)
    with pytest.raises(ValueError, match="nodes=2: which part"):
        cache.warm()
    second = tf.distribute.InputContext(2, 1, 2)
    cache.warm(batch, seed=3, shuffle=shuffle, input_context=second)
    read = native.read_stats().original_reads
    assert cache.stats()["stored"] == 75 and capsys.readouterr().out == ""  # the first worker tells
    again, first = help_.cache(pattern, shm, nodes=2), tf.distribute.InputContext(2, 0, 2)
    again.dataset(batch, None, 3, shuffle, first)
    assert capsys.readouterr().out == ""  # all of this node's is there
    epochs = 2 if shuffle == "local" else 1
    numbers = help_.numbers_of(cache.dataset(batch, None, 3, shuffle, second, epochs=epochs))
    assert len(np.concatenate(numbers)) == 75 * epochs
    assert native.read_stats().original_reads == read


def test_without_memory_and_without_copies(pattern, shm):
    cache = help_.cache(pattern, shm, memory=0)
    assert sorted(np.concatenate(help_.numbers_of(cache.dataset(16, epochs=1)))) == list(range(150))
    assert list(shm.iterdir()) == []
    stats = cache.stats()
    assert stats["stored"] == stats["capacity"] == stats["memory_hit_rate"] == 0


def test_warm_names_what_cannot_be_decoded(tmp_path, pattern, shm, monkeypatch):
    folder = help_.images(tmp_path / "images", per_class=100)
    (folder / "class_1" / "042.jpg").write_bytes(b"no image")
    cache = datacache.DataCache(
        datacache.ImageFolder(str(folder)), help_.decode_image, memory_dir=str(shm)
    )
    for at_once, arguments in ((1 << 20, {}), (50, {"batch_size": 7})):
        monkeypatch.setattr(datacache.warming, "_SEEN_AT_ONCE", at_once)  # a look each, and one in five
        with pytest.raises(ValueError, match="class_1/042.jpg cannot be read or decoded: .*image"):
            cache.warm(progress=False, **arguments)

    def decode(record):
        wrong = tf.strings.length(record) > 0
        return tf.ensure_shape(tf.cond(wrong, lambda: tf.zeros([2]), lambda: tf.zeros([3])), [3])

    records = datacache.TFRecords(pattern)
    cache = datacache.DataCache(records, decode, memory_dir=str(shm), version="wrong")
    with pytest.raises(ValueError, match="the record at byte 0 of .*cannot be read or decoded: .*shape"):
        cache.warm(progress=False)

    def read(number):
        if number == 70:
            raise OSError("the disk is on fire")
        return np.float32(number)

    samples = datacache.Samples(100, lambda i: tf.numpy_function(read, [i], tf.float32), "numbers")
    cache = datacache.DataCache(samples, lambda x: tf.ensure_shape(x, []), memory_dir=str(shm), version="1")
    with pytest.raises(ValueError, match="sample 70 cannot be read or decoded: .*(\n.*)*on fire"):
        cache.warm(progress=False)


def test_a_second_run_begins_warm(pattern, shm, tmp_path):
    help_.cache(pattern, shm, tmp_path / "local").warm(progress=False)
    second = help_.cache(pattern, shm, tmp_path / "local")
    before = second.stats()
    help_.numbers_of(second.dataset(16, epochs=1))
    after = second.stats()
    assert after["memory_misses"] == before["memory_misses"]
    assert after["original_reads"] == before["original_reads"]


def test_a_changed_source_begins_anew(pattern, shm, tmp_path):
    local = tmp_path / "local"
    help_.cache(pattern, shm, local).warm(progress=False)
    help_.records(tmp_path / "source", first=1000)
    cache = help_.cache(pattern, shm, local)
    assert cache.stats()["stored"] == 0
    assert sorted(np.concatenate(help_.numbers_of(cache.dataset(16, epochs=1)))) == list(range(1000, 1150))


def test_two_versions_side_by_side(pattern, shm):
    one = help_.cache(pattern, shm, version="one")
    two = help_.cache(pattern, shm, version="two")
    one.warm(progress=False)
    assert (one.stats()["stored"], two.stats()["stored"]) == (150, 0)
    two.warm(progress=False)
    assert one.memory.path != two.memory.path
    assert two.stats()["stored"] == 150


def test_what_does_not_fit_is_read_again(pattern, shm, tmp_path, capsys):
    sample_bytes = 64 + 64 + 128
    cache = help_.cache(pattern, shm, tmp_path / "local", memory=40 * sample_bytes)
    for epoch in range(3):
        before = cache.stats()
        seen = help_.numbers_of(cache.dataset(16, start=10 * epoch, epochs=epoch + 1))
        assert sorted(np.concatenate(seen)) == list(range(150))
        hits = cache.stats()["memory_hits"] - before["memory_hits"]
        assert hits == (40 if epoch else 0)  # a fixed part: nothing is evicted
    assert "40 of them (27%) fit" in capsys.readouterr().out


def test_the_forecast_is_printed_once_and_only_before_filling(pattern, shm, capsys):
    cache = help_.cache(pattern, shm)
    cache.dataset(16)
    cache.dataset(16)
    assert capsys.readouterr().out.count("datacache: 150 decoded samples") == 1
    cache.warm(progress=False)
    help_.cache(pattern, shm).dataset(16)
    assert capsys.readouterr().out == ""


def test_the_first_worker_shows_a_bar_of_its_part(pattern, shm, capsys):
    help_.cache(pattern, shm).warm(16, input_context=tf.distribute.InputContext(2, 0, 2))
    said = capsys.readouterr().out
    assert "75/75" in said and "decoded samples" in said


def test_augmentation_follows_from_the_seed(pattern, shm):
    cache = help_.cache(pattern, shm)

    def augment(number, data, seed):
        noise = tf.map_fn(lambda s: tf.random.stateless_uniform([], s), seed, tf.float32)
        return number, noise

    def of(**arguments):
        run = cache.dataset(16, lambda batch, seed: augment(**batch, seed=seed), epochs=2, **arguments)
        return [(n.numpy().tolist(), x.numpy().tolist()) for n, x in run]

    first = of()
    assert first == of()
    assert first != of(seed=1)
    assert of(start=7) == first[7:]  # from any step
    noise = {}
    for numbers, values in first:
        for number, value in zip(numbers, values, strict=True):
            noise.setdefault(number, set()).add(value)
    assert all(len(values) == 2 for values in noise.values())  # another one in each epoch


def test_iterators_can_be_saved(pattern, shm, tmp_path):
    cache = help_.cache(pattern, shm)
    iterator = iter(cache.dataset(16))
    for _ in range(4):
        next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "iterator"))
    expected = [help_.check_batch(next(iterator)).tolist() for _ in range(12)]
    iterator = iter(cache.dataset(16))
    tf.train.Checkpoint(iterator=iterator).restore(path)
    assert [help_.check_batch(next(iterator)).tolist() for _ in range(12)] == expected


def test_a_dataset_is_not_tuned(pattern, shm):
    """The end of a tuned iterator may wait for tuning's thread."""
    assert help_.cache(pattern, shm).dataset(16).options().autotune.enabled is False


def test_shapes_and_cardinality(pattern, shm):
    cache = help_.cache(pattern, shm)
    assert cache.dataset(16).element_spec["data"].shape == [None, 100]
    assert cache.dataset(15).element_spec["data"].shape == [15, 100]
    assert cache.dataset(16, drop_remainder=True).element_spec["data"].shape == [16, 100]
    assert cache.dataset(16).cardinality() == tf.data.INFINITE_CARDINALITY
    assert cache.dataset(16, epochs=2).cardinality() == 20
    assert cache.dataset(16, epochs=2, drop_remainder=True).cardinality() == 18


def test_files_are_private(pattern, shm, tmp_path):
    help_.cache(pattern, shm, tmp_path / "local").warm(progress=False)
    # The second keeps samples encoded that have no room decoded, and has no copies.
    def large(record):
        return tf.repeat(help_.decode_record(record)["number"], 2500)

    cache = datacache.DataCache(
        datacache.TFRecords(pattern), large, memory_dir=str(shm), memory=1_500_000, version="large"
    )
    cache.warm(progress=False)
    assert os.path.getsize(cache.memory.encoded_path) > 0
    for root in (*shm.iterdir(), tmp_path / "local"):
        for directory, _, files in os.walk(root):
            assert os.stat(directory).st_mode & 0o777 == 0o700, directory
            for name in files:
                mode = os.stat(os.path.join(directory, name)).st_mode & 0o777
                assert mode & 0o077 == 0, name


def test_the_document_runs(tmp_path, shm, monkeypatch):
    text = (pathlib.Path(__file__).parents[1] / "docs" / "datacache.md").read_text()
    blocks = "\n".join(re.findall(r"```python\n(.*?)```", text, re.S))
    for shown, here in {
        "/mnt/nfs/images": str(help_.images(tmp_path / "images")),
        "/mnt/ssd/cache": str(tmp_path / "local"),
        "/mnt/shared": str(tmp_path / "shared"),
        'memory="auto",': f'memory="auto", memory_dir={str(shm)!r},',
        "epochs=28": "epochs=2",
        "256": "24",  # as many as there are: what is left of an epoch is dropped
    }.items():
        assert shown in blocks
        blocks = blocks.replace(shown, here)
    model = tf.keras.Sequential(
        [tf.keras.layers.Input([192, 192, 3]), tf.keras.layers.Flatten(), tf.keras.layers.Dense(2)]
    )
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "document", "model": model, "strategy": tf.distribute.MirroredStrategy(["CPU:0"])}
    exec(blocks, names)
    assert names["cache"].stats()["stored"] == 24
    assert names["resume"].step == 2
    pixels, labels = next(iter(names["dataset"]))
    assert (pixels.shape, pixels.dtype, labels.shape) == ([24, 192, 192, 3], tf.uint8, [24])


def test_the_examples_of_the_module():
    assert doctest.testmod(datacache.cache).failed == 0
