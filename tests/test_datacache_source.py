"""Where samples come from: records, images and functions of a number."""

import os
import pathlib
import time
from concurrent import futures

import numpy as np
import pytest
import tensorflow as tf

import datacache
from custom_ops.datacache_store import datacache_store as native
from datacache import directories, index, memory
from datacache.local import LocalCopies
from tests import datacache_help as help_

pytest_plugins = ("tests.datacache_fixtures",)


@pytest.mark.parametrize("copied", [False, True])
def test_records_are_indexed_once(copied, pattern, shm, tmp_path, monkeypatch):
    """By whoever asks first: for the length, or for a cache; other versions of samples need no other."""
    indexed = []
    record_index = native.record_index
    monkeypatch.setattr(
        native, "record_index", lambda *file: [indexed.append(file), record_index(*file)][1]
    )
    source, local = datacache.TFRecords(pattern), tmp_path / "local" if copied else None
    assert len(source) == 150
    for version in "12":
        cache = datacache.DataCache(source, help_.decode_record, local, version=version, memory_dir=str(shm))
        help_.numbers_of(cache.dataset(16, epochs=1))
    assert len(indexed) == 3
    again = datacache.TFRecords(pattern)
    datacache.DataCache(again, help_.decode_record, local, version="3", memory_dir=str(shm))
    assert len(indexed) == 3
    assert len(again) == 150
    unkept = datacache.TFRecords(pattern)
    datacache.DataCache(unkept, help_.decode_record, memory=0, memory_dir=str(shm))
    assert len(indexed) == 6


@pytest.mark.parametrize("copied", [False, True])
def test_who_comes_while_records_are_indexed_waits(copied, pattern, shm, tmp_path, monkeypatch):
    indexed, record_index = [], native.record_index

    def slowly(*file):
        indexed.append(file)
        time.sleep(0.2)
        return record_index(*file)

    monkeypatch.setattr(native, "record_index", slowly)
    sources = [datacache.TFRecords(pattern) for _ in range(4)]
    with futures.ThreadPoolExecutor() as pool:
        copies = LocalCopies(tmp_path / "local" if copied else None)
        list(pool.map(lambda source: source.open(copies, str(shm)), sources))
    assert len(indexed) == 3 and [len(source) for source in sources] == [150] * 4


@pytest.mark.parametrize("copied", [False, True])
def test_an_index_waits_for_its_own_alone(copied, pattern, shm, tmp_path):
    """What is being indexed is not cleared; another source's index is made beside it, or found."""
    slow, other = datacache.TFRecords(pattern), datacache.TFRecords(help_.records(tmp_path / "other"))
    copies = LocalCopies(tmp_path / "local" if copied else None)
    with futures.ThreadPoolExecutor() as pool, index.place(copies, str(shm), slow.fingerprint):
        pool.submit(other.open, copies, str(shm)).result(timeout=10)
        if not copied:
            with pytest.raises(directories.InUse):
                memory.clear(memory.root_of(str(shm)) / f"{memory.INDEX}{slow.fingerprint[:32]}")


@pytest.mark.parametrize("copied", [False, True])
def test_a_url(copied, shm, tmp_path):
    """Any file system of TensorFlow's; here its own in memory."""
    directory = f"ram://{tmp_path.name}"
    tf.io.gfile.makedirs(directory)
    for path in pathlib.Path(help_.records(tmp_path / "source")).parent.iterdir():
        with tf.io.gfile.GFile(f"{directory}/{path.name}", "wb") as file:
            file.write(path.read_bytes())
    cache = help_.cache(f"{directory}/*.tfrecord", shm, tmp_path / "local" if copied else None)
    before = native.read_stats()
    for _ in range(2):
        assert sorted(np.concatenate(help_.numbers_of(cache.dataset(16, epochs=1)))) == list(range(150))
    after = native.read_stats()
    assert after.copies - before.copies == 0 and after.local_reads - before.local_reads == 150 * copied


@pytest.mark.parametrize("copied", [False, True])
def test_a_url_of_images(copied, shm, tmp_path):
    directory = f"ram://{tmp_path.name}"
    folder = help_.images(tmp_path / "images")
    for path in folder.glob("*/*.jpg"):
        target = f"{directory}/{path.relative_to(folder)}"
        tf.io.gfile.makedirs(target.rpartition("/")[0])
        with tf.io.gfile.GFile(target, "wb") as file:
            file.write(path.read_bytes())
    sources = [datacache.ImageFolder(place) for place in (directory, str(folder))]
    place = {"memory": 0, "local_dir": tmp_path / "local"} if copied else {"memory_dir": str(shm)}
    caches = [datacache.DataCache(source, help_.decode_image, **place) for source in sources]
    batches = [next(iter(cache.dataset(24, epochs=1))) for cache in caches]
    for one, other in zip(*map(tf.nest.flatten, batches), strict=True):
        np.testing.assert_array_equal(one, other)


def test_copies_of_all_lengths(tmp_path):
    """They are copied in blocks, of 256 KB, 1 MB, 4 MB, and then 8 MB each."""
    ends = np.cumsum([1 << 18, 1 << 20, 1 << 22, 1 << 23, 1 << 23])
    lengths = [0, 1, *(int(end) + more for end in ends for more in (-1, 0, 1))]
    rng, folder = np.random.default_rng(0), tmp_path / "files" / "of_one_class"
    folder.mkdir(parents=True)
    for i, length in enumerate(lengths):
        (folder / f"{i:02}.jpg").write_bytes(rng.bytes(length))

    def decode(data, label):
        return tf.strings.length(data), tf.strings.to_hash_bucket_fast(data, 1 << 62)

    found = [
        datacache.DataCache(datacache.ImageFolder(str(folder.parent)), decode, place, memory=0).load(
            tf.range(len(lengths), dtype=tf.int64)
        )
        for place in (None, tmp_path / "local")
    ]
    np.testing.assert_array_equal(found[0][0], lengths)
    for original, copied in zip(*found, strict=True):
        np.testing.assert_array_equal(original, copied)
    copies = (tmp_path / "local" / "files").glob("*/*")
    assert sorted(copy.stat().st_size - 24 for copy in copies) == lengths


def test_files_are_known_from_every_working_directory(tmp_path, monkeypatch):
    """Else "data/*" of two of them might be taken for the same."""
    pattern, images = help_.records(tmp_path / "data"), help_.images(tmp_path / "images")
    whole = [datacache.TFRecords(pattern), datacache.ImageFolder(str(images))]
    monkeypatch.chdir(tmp_path)
    pattern = os.path.relpath(pattern)
    spelled = [datacache.TFRecords(pattern), datacache.ImageFolder("images")]
    spelled.append(datacache.TFRecords(sorted(tf.io.gfile.glob(pattern))))
    whole.append(whole[0])
    (tmp_path / "run[1]").mkdir()
    monkeypatch.chdir(tmp_path / "run[1]")  # whose name is no pattern
    spelled.append(datacache.TFRecords(os.path.join("..", pattern)))
    whole.append(whole[0])
    assert [s.fingerprint for s in spelled] == [w.fingerprint for w in whole]


def test_images(tmp_path, shm):
    folder = help_.images(tmp_path / "images")
    help_.images(folder / ".hidden")
    (folder / ".hidden" / "class_0").rename(folder / ".class")
    source = datacache.ImageFolder(str(folder))
    assert source.class_names == ["class_0", "class_1"] and len(source) == 24
    for local in (None, tmp_path / "local"):
        cache = datacache.DataCache(source, help_.decode_image, local, memory_dir=str(shm))
        for _ in range(2):
            for pixels, labels in cache.dataset(8, epochs=1):
                numbers = np.round(pixels.numpy().mean(axis=(1, 2, 3)) / 9)
                np.testing.assert_array_equal(numbers // 12, labels)
    assert cache.stats()["memory_hits"] >= 48


def test_samples_by_number(shm):
    source = datacache.Samples(10, lambda i: (i, 2 * i))
    cache = datacache.DataCache(source, lambda i, j: tf.stack([i, j]), memory_dir=str(shm))
    assert cache.sample(4).numpy().tolist() == [4, 8]
    rows = np.concatenate([batch.numpy() for batch in cache.dataset(3, epochs=1)])
    assert sorted(rows.tolist()) == [[i, 2 * i] for i in range(10)]


def test_a_list_of_what_was_read_is_as_good_as_a_tuple(shm):
    """`tf.numpy_function` returns one."""
    def read(i):
        return tf.numpy_function(lambda number: (number, 2 * number), [i], [tf.int64, tf.int64])

    source = datacache.Samples(6, read)
    cache = datacache.DataCache(
        source, lambda i, j: [tf.reshape(i, []), tf.reshape(j, [])], memory_dir=str(shm), version="1"
    )
    found = [x.numpy() for x in next(iter(cache.dataset(6, lambda i, j: (i, j), epochs=1)))]
    assert sorted(zip(*found, strict=True)) == [(i, 2 * i) for i in range(6)]


def test_two_functions_of_numbers_are_two_sources(shm):
    def source(images):
        return datacache.Samples(10, lambda i: tf.gather(images, i))

    for images in (np.arange(10), np.arange(10) * 5):
        cache = datacache.DataCache(source(images), lambda x: x, memory_dir=str(shm))
        rows = np.concatenate([batch.numpy() for batch in cache.dataset(5, epochs=1)])
        assert sorted(rows.tolist()) == images.tolist()
    assert source(np.arange(10)).fingerprint == source(np.arange(10)).fingerprint


def test_a_read_function_that_tells_nothing_needs_a_fingerprint():
    class Images:
        def read(self, i):
            return i

    with pytest.raises(ValueError, match="pass fingerprint="):
        datacache.Samples(10, Images().read)
    one, other = (datacache.Samples(10, Images().read, name) for name in ("mnist", "fashion"))
    assert one.fingerprint != other.fingerprint


def test_a_list_of_files_is_in_the_order_of_their_names(tmp_path):
    """`glob.glob` has another on each machine, and samples are told apart by their numbers."""
    help_.records(tmp_path)
    paths = sorted(str(path) for path in tmp_path.glob("*.tfrecord"))
    one, other = (datacache.TFRecords(files) for files in (paths, paths[::-1]))
    assert one.paths == other.paths == paths and one.fingerprint == other.fingerprint


def test_files_without_records(tmp_path, shm):
    for name in ("a", "b"):
        tf.io.TFRecordWriter(str(tmp_path / name)).close()
    for local in (None, tmp_path / "copies"):
        with pytest.raises(ValueError, match="The source has no samples"):
            help_.cache(str(tmp_path / "[ab]"), shm, local)


def test_names_that_are_not_utf8(tmp_path, shm):
    folder = os.path.join(os.fsencode(tmp_path), b"images", b"class")
    os.makedirs(folder)
    pixels = tf.io.encode_jpeg(tf.zeros([help_.SIDE, help_.SIDE, 3], tf.uint8)).numpy()
    with open(os.path.join(folder, b"caf\xe9.jpg"), "wb") as file:
        file.write(pixels)
    os.makedirs(os.path.join(folder, b"no image.jpg"))
    for local in (None, tmp_path / "copies"):
        source = datacache.ImageFolder(str(tmp_path / "images"))
        cache = datacache.DataCache(source, help_.decode_image, local, memory_dir=str(shm), memory=0)
        [(images, labels)] = cache.dataset(1, epochs=1)
        assert len(cache) == 1 and images.shape[0] == len(labels) == 1


def test_records_of_names_that_are_not_utf8(tmp_path, shm):
    path = os.path.join(os.fsencode(tmp_path), b"caf\xe9")
    with tf.io.TFRecordWriter(str(tmp_path / "plain")) as writer:
        writer.write(b"record")
    os.rename(tmp_path / "plain", path)
    for local in (None, tmp_path / "copies"):
        source = datacache.TFRecords([os.fsdecode(path)])
        where = {"memory": 0, "memory_dir": str(shm)}
        cache = datacache.DataCache(source, tf.strings.length, local, version="1", **where)
        [lengths] = cache.dataset(1, epochs=1)
        assert lengths.numpy().tolist() == [len(b"record")]


def test_numbers_of_samples_may_be_numpys(shm):
    source = datacache.Samples(np.int64(3), lambda i: tf.cast(i, tf.float32), fingerprint="1")
    assert len(datacache.DataCache(source, lambda x: x, memory_dir=str(shm))) == 3


def test_an_index_that_was_killed_half_way_is_removed(tmp_path, shm):
    pattern = help_.records(tmp_path)
    help_.cache(pattern, shm).memory._lease.release()
    [directory] = memory.indices_in(memory.root_of(str(shm)))
    (directory / "index.npy.tmp.dead").write_bytes(b"0" * 99)
    help_.cache(pattern, shm)
    assert sorted(path.name for path in directory.iterdir()) == [".datacache", "index.npy"]
