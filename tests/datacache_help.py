"""Sources, decoders and caches that DataCache's tests and their subprocesses share."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import tensorflow as tf

import datacache

SIDE = 24
ENVIRONMENT = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


def records(directory: pathlib.Path, files: int = 3, per_file: int = 50, first: int = 0) -> str:
    """TFRecord files of numbered samples; returns their pattern."""
    directory.mkdir(exist_ok=True)
    for file in range(files):
        with tf.io.TFRecordWriter(str(directory / f"{file}.tfrecord")) as writer:
            for row in range(per_file):
                number = first + file * per_file + row
                writer.write(number.to_bytes(8, "little") + bytes([number % 251] * (40 + number % 7)))
    return str(directory / "*.tfrecord")


def decode_record(record):
    """The number, and 100 bytes that follow from it."""
    number = tf.io.decode_raw(tf.strings.substr(record, 0, 8), tf.int64)[0]
    return {"number": number, "data": expected_data(number)}


def expected_data(number):
    return tf.cast((tf.range(100, dtype=tf.int64) * 7 + number) % 256, tf.uint8)


def check_batch(batch) -> np.ndarray:
    """The numbers of a batch whose data must be theirs."""
    numbers = batch["number"].numpy()
    expected = (np.arange(100) * 7 + numbers[:, None]) % 256
    np.testing.assert_array_equal(batch["data"].numpy(), expected)
    return numbers


def numbers_of(dataset) -> list[np.ndarray]:
    """The numbers of each batch."""
    return [check_batch(batch) for batch in dataset]


def images(directory: pathlib.Path, classes: int = 2, per_class: int = 12) -> pathlib.Path:
    """JPEG files in one folder per class; an image's mean tells which it is."""
    for label in range(classes):
        folder = directory / f"class_{label}"
        folder.mkdir(parents=True)
        for i in range(per_class):
            value = (label * per_class + i) * 9
            pixels = tf.fill([SIDE, SIDE, 3], tf.constant(value, tf.uint8))
            (folder / f"{i:03}.jpg").write_bytes(tf.io.encode_jpeg(pixels).numpy())
    return directory


def decode_image(data, label):
    return tf.ensure_shape(tf.io.decode_jpeg(data, channels=3), [SIDE, SIDE, 3]), label


def cache(pattern: str, shm: pathlib.Path, local=None, **arguments) -> datacache.DataCache:
    """A cache of `records`, whose store is in `shm`."""
    source = datacache.TFRecords(pattern)
    return datacache.DataCache(source, decode_record, local, memory_dir=str(shm), **arguments)


def worker(pattern, shm, local="-", epochs=2, prefix=()) -> subprocess.Popen:
    """Starts tests/datacache_worker.py."""
    module = [sys.executable, "-m", "tests.datacache_worker"]
    arguments = [pattern, str(shm), str(local), str(epochs)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*prefix, *module, *arguments], stdout=pipe, stderr=pipe, env=ENVIRONMENT, text=True
    )


def finished(process: subprocess.Popen) -> tuple[dict, str, str]:
    """The statistics of a worker that ended well, and all it printed."""
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1]), out, err


def ran(script: str, *arguments, prefix=()) -> tuple[str, str]:
    """What a process that runs `script` prints, on its standard output and error; it must end well."""
    command = [*prefix, sys.executable, "-c", script, *map(str, arguments)]
    result = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout, result.stderr


def with_mounts(script: str) -> list[str]:
    """A command prefix: a mount namespace of its own, in which this shell script has run."""
    return ["unshare", "--mount", "--map-root-user", "sh", "-c", f'{script} && exec "$@"', "sh"]


def in_small_tmpfs(mount: pathlib.Path, size: str) -> list[str]:
    """A command prefix: a mount namespace of its own in which `mount` is a tmpfs of that size."""
    return with_mounts(f'mount -t tmpfs -o size={size} tmpfs "{mount}"')


def flip(path: pathlib.Path, offset: int) -> None:
    """Damages a bit of a file."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))
