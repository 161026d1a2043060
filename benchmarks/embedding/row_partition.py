"""A table divided by rows, Parallax's rule on all-to-alls: row i is on worker i mod P.

Each worker asks the owners for the distinct rows that it needs, and sends them their gradients; a row's
owner adds them up and updates it. The load is that of the worker that owns the hottest rows.

Source: Kim et al., "Parallax", EuroSys 2019, without its servers.
"""

import tensorflow as tf


class RowPartition:
    """This worker's rows of a table.

    Args:
      table: the whole table, float32 [L, D]; the rows of this worker are kept.
      collectives: of this worker.
    """

    def __init__(self, table, collectives):
        self._workers = collectives.topology.num_workers
        self._collectives = collectives
        self.rows = tf.Variable(table[collectives.topology.rank :: self._workers])

    def step(self, ids: tf.Tensor, gradient_of, learning_rate: float) -> tf.Tensor:
        """Looks up `ids` [n], and descends along `gradient_of(rows)` [n, D]; returns the rows.

        Three exchanges: ids to owners; rows back; gradients to owners.
        """
        exchange = self._collectives.all_to_all
        distinct, place = tf.unique(ids)
        owner = distinct % self._workers
        order = tf.argsort(owner, stable=True)
        counts = tf.math.bincount(owner, minlength=self._workers, maxlength=self._workers)
        asked, asking = exchange(tf.gather(distinct, order), counts, purpose="row_ids")
        mine = asked // self._workers
        found, _ = exchange(tf.gather(self.rows, mine), asking, purpose="rows")
        found = tf.gather(found, tf.math.invert_permutation(order))
        rows = tf.gather(found, place)
        summed = tf.math.unsorted_segment_sum(gradient_of(rows), place, tf.size(distinct))
        to_add, _ = exchange(tf.gather(summed, order), counts, purpose="row_gradients")
        self.rows.scatter_sub(tf.IndexedSlices(learning_rate * to_add, mine))
        return rows
