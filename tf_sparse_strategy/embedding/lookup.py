"""Looking up rows of tables, whole or divided by columns (exchange.py)."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from tf_sparse_strategy.embedding import slices
from tf_sparse_strategy.embedding.exchange import Exchange
from tf_sparse_strategy.embedding.requests import Request, checked, distinct
from tf_sparse_strategy.input import if_counted


def lookup(requests: Sequence[Request]) -> list[tf.Tensor]:
    """Rows [n, D] for each request, together in one exchange. Collective when tables are slices.

    Raises:
      tf.errors.InvalidArgumentError: an id is out of range, on all workers.
    """
    held = slices.divided(requests[0].table)
    if held is None:
        return [_from_whole(request, *distinct(request)) for request in requests]
    counts = held.slices.counts()
    if counts is None:
        return Exchange(requests, held.slices).rows()
    counted = [dataclasses.replace(r, ids=if_counted(r.ids, counts)) for r in requests]
    exchanged = Exchange(counted, held.slices).rows()
    return [
        _rows_or_zeros(request, rows, counts) for request, rows in zip(requests, exchanged, strict=True)
    ]


def _rows_or_zeros(request: Request, rows: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """What was looked up, or as many zeros where nothing was."""
    number, width = tf.size(request.ids), slices.whole_shape(request.table)[1]
    if tf.executing_eagerly():  # or a branch without `rows` would send no gradient, for which others wait
        return tf.concat([rows, tf.zeros([number - len(rows), width], rows.dtype)], axis=0)
    return tf.cond(counts, lambda: tf.identity(rows), lambda: tf.zeros([number, width], rows.dtype))


def _from_whole(request: Request, ids: tf.Tensor, place: tf.Tensor) -> tf.Tensor:
    rows = tf.gather(slices.local(request.table), checked(request, ids, ["0"], tf.zeros_like(ids)))
    if request.wire_dtype is not None:  # one worker rounds as several do
        rows = tf.cast(tf.cast(rows, request.wire_dtype), rows.dtype)
        rows = tf.reshape(rows, tf.shape(rows))  # whose gradient adds up what repeats, before it is rounded
    # Cast last, so that the gradients of a repeated id are added up in the table's dtype.
    return tf.cast(tf.gather(rows, place), request.dtype)
