"""Messages of K values and their indices, of one fixed size, in one int32 buffer.

A fixed size keeps Horovod's negotiation cached, one buffer makes one operation of two. A message of K
entries of a vector of N elements is

    [K values | K indices | 1 if every contribution to it is finite, else 0]

| part    | coding                  | bits                                   | K = N/100 |
|---------|-------------------------|----------------------------------------|-----------|
| values  | float32                 | 32 K                                   | 32        |
|         | float16, bfloat16       | 16 K                                   | 16        |
| indices | "int32"                 | 32 K                                   | 32        |
|         | "delta" (Elias-Fano)    | l K + K + N/2^l, l = floor(log2 N/K)   | 8.6       |

each rounded up to whole words; the entropy of K of N indices is 8.1 bits each at K = N/100. "delta" needs
ascending indices, and is lossless (custom_ops/entries/coding.py).

16 bits lose the value's tail; `lost` says what, for the residual to keep. A finite value never becomes
infinite: it is cut to the format's largest.
"""

import dataclasses

import tensorflow as tf

from custom_ops import decode_indices, encode_indices
from tf_sparse_strategy import wire

WIRE_DTYPES = (None, "float16", "bfloat16")
INDEX_CODINGS = ("int32", "delta")
_MAX_ELEMENTS = 2**31 - 1


def check_elements(n: int) -> None:
    """Raises ValueError where `n` elements have no int32 index."""
    if n > _MAX_ELEMENTS:
        raise ValueError(
            f"a vector of n={n} gradient elements does not fit int32 indices (at most {_MAX_ELEMENTS}). "
            "Split the variable."
        )


@dataclasses.dataclass(frozen=True)
class Packing:
    """The format of one message.

    Args:
      n: elements of the vector that indices point into, at most 2^31 - 1.
      k: entries of a message, 1 <= k <= n.
      wire_dtype: None (float32), "float16" or "bfloat16".
      index_coding: "int32" or "delta".

    Raises:
      ValueError: n elements have no int32 index, or k is out of range.

    Example:
      >>> packing = Packing(n=1000, k=10, wire_dtype="float16", index_coding="delta")
      >>> packing.words      # 5 of values, 3 of indices, 1; without coding 21
      9
    """

    n: int
    k: int
    wire_dtype: str | None = None
    index_coding: str = "int32"

    def __post_init__(self):
        if not 1 <= self.k <= self.n:
            raise ValueError(f"k={self.k} of n={self.n} elements; a message holds 1 to n of them.")
        check_elements(self.n)

    @property
    def words(self) -> int:
        """Length of a message in int32 words."""
        return self._value_words + self._index_words + 1

    @property
    def _value_words(self) -> int:
        return self.k if self.wire_dtype is None else -(-self.k // 2)

    @property
    def _index_words(self) -> int:
        if self.index_coding == "int32":
            return self.k
        return -(-(self.k * self._low_bits + self._upper_bits) // 32)

    @property
    def _low_bits(self) -> int:
        """floor(log2(N/K))."""
        return (self.n // self.k).bit_length() - 1

    @property
    def _upper_bits(self) -> int:
        return self.k + ((self.n - 1) >> self._low_bits)

    def pack(self, values: tf.Tensor, indices: tf.Tensor, finite: tf.Tensor) -> tf.Tensor:
        """Returns int32 [R, words], one message in each row.

        Args:
          values: float32 [R, K].
          indices: int32 [R, K], ascending in each row.
          finite: scalar bool.
        """
        flag = tf.fill([tf.shape(values)[0], 1], tf.cast(finite, tf.int32))
        return tf.concat([self._pack_values(values), self._pack_indices(indices), flag], axis=1)

    def unpack(self, messages: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns (values float32 [R, K], indices int32 [R, K], scalar bool: all are finite)."""
        messages = tf.reshape(messages, [-1, self.words])
        sizes = [self._value_words, self._index_words, 1]
        values, indices, flags = tf.split(messages, sizes, axis=1)
        return self._unpack_values(values), self._unpack_indices(indices), tf.reduce_all(flags > 0)

    def lost(self, values: tf.Tensor) -> tf.Tensor | None:
        """`values` minus what arrives of them, exact unless cut; None where all arrives."""
        if self.wire_dtype is None:
            return None
        return values - tf.cast(self._rounded(values), tf.float32)

    def _rounded(self, values):
        return wire.narrow(values, self.wire_dtype)

    def _pack_values(self, values):
        if self.wire_dtype is None:
            return tf.bitcast(values, tf.int32)
        halves = tf.pad(self._rounded(values), [[0, 0], [0, self.k % 2]])
        return tf.bitcast(tf.reshape(halves, [-1, self._value_words, 2]), tf.int32)

    def _unpack_values(self, words):
        if self.wire_dtype is None:
            return tf.bitcast(words, tf.float32)
        halves = tf.bitcast(words, tf.as_dtype(self.wire_dtype))
        flat = tf.reshape(halves, [-1, 2 * self._value_words])
        return tf.cast(flat[:, : self.k], tf.float32)

    def _pack_indices(self, indices):
        if self.index_coding == "int32":
            return indices
        return encode_indices(indices, self._low_bits, self._upper_bits)

    def _unpack_indices(self, words):
        if self.index_coding == "int32":
            return words
        return decode_indices(words, self.k, self._low_bits, self._upper_bits)
