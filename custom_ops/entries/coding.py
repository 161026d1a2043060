"""Ascending indices in few bits: Elias-Fano coding.

The low l bits of K indices stand as they are, one after the other; then a field of U bits in which entry i
sets bit (index_i >> l) + i, so that zeros between ones count the differences. K of N indices take fewest bits
with l = floor(log2 N/K), and then U = K + ((N - 1) >> l).
"""

import tensorflow as tf

from custom_ops.entries.entries import operations

_CPU = "CPU:0"  # beside GPUs, too: 4 bytes of an index go there, and fewer come back


def encode_indices(indices: tf.Tensor, low_bits: int, upper_bits: int) -> tf.Tensor:
    """Ascending indices as bits. Cost: one pass, a few ns for each index, by one thread per row.

    Args:
      indices: int32 [R, K], ascending in each row; K static.
      low_bits: l, 0 to 31.
      upper_bits: U, at least K.

    Returns:
      int32 [R, ceil((K l + U) / 32)].

    Raises:
      tf.errors.InvalidArgumentError: an index is negative, less than the one before, or does not fit; or l,
        U or the shape is none of these (in a graph a wrong rank is a ValueError).

    Example:
      >>> words = encode_indices([[5, 8, 9, 15]], low_bits=2, upper_bits=8)
      >>> decode_indices(words, 4, low_bits=2, upper_bits=8).numpy().tolist(), words.shape[1]
      ([[5, 8, 9, 15]], 1)

    Source: Elias, "Efficient storage and retrieval by content and address of static files", JACM 1974.
    """
    indices = tf.convert_to_tensor(indices, tf.int32)
    with tf.device(_CPU):
        return operations().encode_indices(indices=indices, low_bits=low_bits, upper_bits=upper_bits)


def decode_indices(words: tf.Tensor, k: int, low_bits: int, upper_bits: int) -> tf.Tensor:
    """What `encode_indices` encoded. Cost: as there.

    Args:
      words: int32 [R, ceil((k l + U) / 32)].
      k: K, indices in a row, 0 to U.
      low_bits: l, as they were encoded with.
      upper_bits: U, likewise.

    Returns:
      int32 [R, k], ascending in each row.

    Raises:
      tf.errors.InvalidArgumentError: the words are not those of k indices, or k, l, U or the shape is none of
        these (in a graph a wrong rank is a ValueError).

    Example:
      >>> words = encode_indices([[3, 3, 4]], low_bits=0, upper_bits=8)
      >>> decode_indices(words, 3, low_bits=0, upper_bits=8).numpy().tolist()
      [[3, 3, 4]]

    Source: as of `encode_indices`.
    """
    words = tf.convert_to_tensor(words, tf.int32)
    with tf.device(_CPU):
        return operations().decode_indices(words=words, k=k, low_bits=low_bits, upper_bits=upper_bits)


tf.no_gradient("EncodeIndices")
tf.no_gradient("DecodeIndices")
