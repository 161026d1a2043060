"""What pipelines are made of, and the options that workers need on them."""

import os

import pytest
import tensorflow as tf

from tf_sparse_strategy import pipelines


def test_autotuning_is_off_unless_asked_for():
    dataset = tf.data.Dataset.range(4).map(lambda x: x, num_parallel_calls=tf.data.AUTOTUNE)
    untuned = pipelines.without_tuning(dataset).options().autotune
    assert untuned.enabled is False and untuned.initial_parallelism == os.cpu_count()
    options = tf.data.Options()
    options.autotune.initial_parallelism = 3
    untuned = pipelines.without_tuning(dataset.with_options(options)).options().autotune
    assert untuned.enabled is False and untuned.initial_parallelism == 3
    options.autotune.enabled = True
    options.deterministic = False
    asked = pipelines.without_tuning(dataset.with_options(options)).options()
    assert asked.autotune.enabled and asked.deterministic is False


def test_files_are_shared_out_unless_rows_are_counted(tmp_path):
    """Names may be, but for a shuffle before it, which TensorFlow takes out."""
    paths = [str(tmp_path / name) for name in "ab"]
    names = tf.data.Dataset.from_tensor_slices(paths)
    lines = tf.data.TextLineDataset
    fine = [lines(paths), names.take(1).interleave(lines), lines(paths).take(-1), lines(paths).skip(0)]
    fine += [names.shard(2, 0).interleave(lines), lines(paths).shard(1, 0)]
    fine += [names.shuffle(2).interleave(lines), names.interleave(lambda name: lines(name).skip(1))]
    for dataset in fine:
        assert pipelines.reason_against_files(dataset.batch(2)) is None
    shuffled = names.shuffle(2, seed=1, reshuffle_each_iteration=False)
    counted = [lines(paths).take(1), lines(paths).shard(2, 0), lines(paths).skip(1), lines(paths).enumerate()]
    counted += [tf.data.Dataset.zip((lines(paths), lines(paths))), shuffled.skip(1).interleave(lines)]
    counted += [lines(shuffled.skip(1)), tf.data.TFRecordDataset(shuffled.skip(1))]
    for dataset in counted:
        assert "count" in pipelines.reason_against_files(dataset.batch(2))
    for name in ("", str(tmp_path / "cache")):  # `predict`, or `adapt` before, would read it whole
        assert "`cache`" in pipelines.reason_against_files(lines(paths).cache(name).shuffle(2).batch(2))


def test_names_of_files_are_compared_without_their_directories():
    here, there = (pipelines.strings(tf.data.TFRecordDataset([f"/{d}/a", f"/{d}/b"])) for d in ("x", "y"))
    assert len(here) == 1 and here == there == pipelines.strings(tf.data.TextLineDataset(["/z/a", "/z/b"]))
    assert here[0][:2] == [2, "/a"]
    other = tf.data.Dataset.from_tensor_slices((["/x/b", "/x/a"], [0, 1]))
    assert here != pipelines.strings(other.batch(2)) != pipelines.strings(tf.data.Dataset.range(2)) == []
    days, others = (tf.data.TFRecordDataset([f"/x/{a}/0", f"/x/{b}/0"]) for a, b in ("12", "21"))
    assert pipelines.strings(days) != pipelines.strings(others)
    [images] = pipelines.strings(tf.data.Dataset.from_tensor_slices([b"\xff" * 10**6, b""]))
    assert images[0] == 2 and len(images[1]) == 100


def test_reads_files(tmp_path):
    path = str(tmp_path / "lines.txt")
    assert pipelines.reads_files(tf.data.TextLineDataset(path).map(tf.strings.length).batch(2))
    assert pipelines.reads_files(tf.data.TFRecordDataset(path).repeat())
    files = tf.data.Dataset.from_tensors(path).interleave(tf.data.TextLineDataset)
    assert pipelines.reads_files(files.batch(2))
    assert not pipelines.reads_files(tf.data.Dataset.range(3).batch(2))


def test_unseeded_shuffles_of_rows():
    """Not within rows, as of augmentation; nor where TensorFlow is seeded."""
    tf.random.set_seed(None)
    data = tf.data.Dataset.range(6)
    within = data.batch(3).map(tf.random.shuffle)
    assert not pipelines.has_unseeded_shuffle(within)
    assert pipelines.has_unseeded_shuffle(data.shuffle(6).batch(2).prefetch(1))
    assert pipelines.has_unseeded_shuffle(tf.data.Dataset.sample_from_datasets([data, data]))
    assert not pipelines.has_unseeded_shuffle(tf.data.Dataset.sample_from_datasets([data, data], seed=0))
    assert not pipelines.has_unseeded_shuffle(data.shuffle(6, seed=0))
    tf.random.set_seed(0)
    assert not pipelines.has_unseeded_shuffle(data.shuffle(6))


def test_long_and_shared_pipelines():
    chain = twice = tf.data.Dataset.range(1)
    for _ in range(1100):
        chain = chain.concatenate(tf.data.Dataset.range(1))
    for _ in range(40):
        twice = twice.concatenate(twice)
    assert len(list(pipelines.stages(chain))) == 2201
    assert len(list(pipelines.stages(twice))) == 41
    assert pipelines.reason_against_files(chain) is pipelines.reason_against_files(twice) is None


def test_readers(tmp_path):
    """Each by itself, without what its names come from."""
    names = tf.data.Dataset.from_tensor_slices([str(tmp_path)]).repeat(2)
    lines, files = tf.data.TextLineDataset([str(tmp_path)]), names.interleave(tf.data.TFRecordDataset)
    data = lines.shuffle(3).concatenate(files.map(tf.identity)).repeat(2).batch(2)
    assert list(pipelines.readers(data)) == [lines, files]
    assert not list(pipelines.readers(tf.data.Dataset.range(3).batch(2)))


def unordered(n=64):
    return tf.data.Dataset.range(n).map(tf.identity, num_parallel_calls=4, deterministic=False)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: tf.data.Dataset.range(8).batch(4), False),
        (lambda: tf.data.Dataset.range(8).map(tf.identity, 4, deterministic=True).batch(4), False),
        (lambda: unordered().batch(4).prefetch(1), True),
        (lambda: tf.data.Dataset.range(2).flat_map(lambda _: unordered()).batch(4), True),
    ],
)
def test_stages_in_any_order_are_told_of(make, told, caplog):
    """Each worker takes slices of what must be the same batches."""
    assert pipelines.in_order(make()).options().deterministic is None
    assert ("deterministic=False" in caplog.text) == told


def test_a_service_whose_order_is_of_each_worker_is_told_of(caplog):
    """Of one with a name, TensorFlow itself says that it is dealt out."""
    service = tf.data.experimental.service.distribute
    data = tf.data.Dataset.range(8).batch(4)
    server = tf.data.experimental.service.DispatchServer()
    data = data.apply(service("distributed_epoch", server.target))
    pipelines.in_order(data)
    assert "job_name" in caplog.text


def test_an_option_for_any_order_is_not_followed():
    options = tf.data.Options()
    options.deterministic = False
    dataset = tf.data.Dataset.range(8).batch(4).with_options(options)
    assert pipelines.in_order(dataset).options().deterministic is True
