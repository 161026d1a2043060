"""What schemes compute is measured alike on all workers, and sends nothing but the result."""

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.communication import HiTopK, LinkModel, ShardedTopK
from tf_sparse_strategy.communication.work import selection_seconds
from tf_sparse_strategy.topology import Topology

DEAR = LinkModel(0.0, 0.0, 0.0, 0.0, selection=1.0)


@pytest.mark.parametrize("scheme", [HiTopK(0.01), ShardedTopK(0.01, True, "float16", "delta")], ids=str)
def test_computing_takes_time(scheme, topology):
    """At least some of a read of memory, at most a microsecond per element."""
    apart = Collectives(Topology(tuple(range(topology.num_workers)), topology.rank))
    _, before = apart.traffic()
    found = selection_seconds(apart, scheme)
    _, after = apart.traffic()
    assert (after.total - before.total) <= 64 * topology.num_workers  # one number is agreed on
    if topology.num_workers == 1:
        assert found == 0
        return
    assert 1e-10 < found < 1e-6
    everyone = apart.all_gather(tf.constant([found], tf.float64)).numpy()
    np.testing.assert_array_equal(everyone, found)


def test_nothing_is_computed_where_nothing_is_dropped(topology):
    together = Collectives(Topology((0,) * topology.num_workers, topology.rank))
    assert HiTopK(0.01).cost(1000, together.topology, DEAR).seconds == 0
    assert selection_seconds(together, HiTopK(0.01)) == 0
