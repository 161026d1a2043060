"""Which elements of a variable a worker owns: chunk r of P, c = ceil(n/P) elements, the last ones padded.

By variable, not by bucket: which buckets there are says nothing about who owns what.
"""

from collections.abc import Sequence

import tensorflow as tf

from tf_sparse_strategy.embedding.partition import ChunkPartition


def size(elements: int, workers: int) -> int:
    """c, elements of a chunk.

    Example:
      >>> size(10, 4)
      3
    """
    return -(-elements // workers)


def rows(x: tf.Tensor, workers: int) -> tf.Tensor:
    """All chunks of `x`, [P, c], padded with zeros.

    Example:
      >>> rows(tf.constant([[1, 2, 3], [4, 5, 6], [7, 8, 9]]), 4).numpy().tolist()
      [[1, 2, 3], [4, 5, 6], [7, 8, 9], [0, 0, 0]]
    """
    n = x.shape.num_elements()
    chunk = size(n, workers)
    flat = tf.reshape(x, [-1])
    if chunk * workers != n:
        flat = tf.pad(flat, [[0, chunk * workers - n]])
    return tf.reshape(flat, [workers, chunk])


def own(x: tf.Tensor, workers: int, rank: int) -> tf.Tensor:
    """Worker `rank`'s chunk of `x`, [c]."""
    return ChunkPartition(tuple(x.shape), workers).of(x, rank)


def whole(chunks: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """What `rows` was made from; the inverse.

    Example:
      >>> whole(rows(tf.range(10), 4), [10]).numpy().tolist()
      [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    n = tf.TensorShape(shape).num_elements()
    flat = tf.reshape(chunks, [-1])
    return tf.reshape(flat if flat.shape[0] == n else flat[:n], shape)


def widest(dtypes: Sequence[tf.DType]) -> tf.DType:
    """The floating dtype that all of these fit into: theirs, if they are one, else float32 or float64.

    Example:
      >>> widest([tf.float16, tf.bfloat16]), widest([tf.float16, tf.float16])
      (tf.float32, tf.float16)
    """
    if len(set(dtypes)) == 1:
        return dtypes[0]
    return tf.float64 if tf.float64 in dtypes else tf.float32


def pack(tensors: Sequence[tf.Tensor], workers: int) -> tf.Tensor:
    """[P * sum(c)]: what goes to worker 0, chunk by chunk, then to worker 1 …: a reduce-scatter's."""
    parts = [rows(x, workers) for x in tensors]
    joined = parts[0] if len(parts) == 1 else tf.concat(parts, axis=1)
    return tf.reshape(joined, [-1])
