"""Names, remedies and cost functions of the schemes; their sums are tested under real workers."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_strategy import communication
from tf_sparse_strategy.communication import (
    Dense,
    Float16,
    GTopK,
    HiTopK,
    LinkModel,
    OkTopK,
    ShardedTopK,
    TopKAllGather,
    Torus2D,
)
from tf_sparse_strategy.communication.packing import Packing
from tf_sparse_strategy.communication.sharded_topk import Dealing
from tf_sparse_strategy.topology import Group, Topology
from tf_sparse_strategy.traffic import Bytes

# Easy to tell apart in a sum: a local message 1 s + 10 s/byte, one across nodes 1e6 s + 1e7 s/byte.
MODEL = LinkModel(local_alpha=1.0, local_beta=10.0, cross_alpha=1e6, cross_beta=1e7)
FREE = LinkModel(0.0, 0.0, 0.0, 0.0)
TWO_BY_TWO = Topology(nodes=(0, 0, 1, 1), rank=0)
MESSAGES = [HiTopK, TopKAllGather, ShardedTopK, GTopK]  # of a fixed size
SCHEMES = [*MESSAGES, OkTopK]


def test_get_by_name_and_by_instance():
    assert communication.get("dense") == Dense()
    assert communication.get("torus2d") == Torus2D()
    assert communication.get("hitopk") == HiTopK() and communication.get("shardedtopk") == ShardedTopK()
    assert communication.get("topkallgather") == TopKAllGather()
    assert communication.get("float16") == Float16(Dense())
    scheme = Torus2D()
    assert communication.get(scheme) is scheme


def test_unknown_names_list_the_known_ones():
    known = r"communication='ring' is unknown.*'dense', .*'hitopk', .*'torus2d'"
    with pytest.raises(ValueError, match=known):
        communication.get("ring")


def test_a_name_that_is_nearly_known():
    with pytest.raises(ValueError, match="'HiTopK' is unknown.*Did you mean 'hitopk'"):
        communication.get("HiTopK")
    with pytest.raises(ValueError, match=r"'piecewise' is unknown.*mean tss.communication.Piecewise\("):
        communication.get("piecewise")
    with pytest.raises(ValueError, match=r"mean tss.communication.Guarded\(HiTopK\(0.01\), limit=2.0\)"):
        communication.get("guarded")


@pytest.mark.parametrize(("wrong", "kind"), [(None, "NoneType"), (3, "int"), (Dense, "class")])
def test_neither_name_nor_scheme(wrong, kind):
    with pytest.raises(TypeError, match=rf"communication=.* is a {kind}; pass one of \['auto', 'dense'"):
        communication.get(wrong)


def test_schemes_are_values():
    assert {Dense(), Dense(), Torus2D()} == {Dense(), Torus2D()}
    with pytest.raises(dataclasses.FrozenInstanceError):
        Dense().name = "other"
    for kind in SCHEMES:
        assert kind(0.01) == dataclasses.replace(kind(0.5), density=0.01) and hash(kind(0.01))


def test_dense_on_one_node():
    # 2 (P-1) = 6 messages of 12/4 elements = 12 bytes at 1 + 10 * 12 s.
    cost = Dense().cost(12, Topology(nodes=(0, 0, 0, 0), rank=1), MODEL)
    assert cost.seconds == 6 * 121
    assert cost.bytes == Bytes(local=72)


def test_dense_between_nodes_is_as_slow_as_its_slowest_link():
    cost = Dense().cost(12, TWO_BY_TWO, MODEL)
    assert cost.seconds == 6 * (1e6 + 12 * 1e7)
    assert cost.bytes == Bytes(cross=72)  # rank 0 passes on to rank 3, which Gloo puts before it
    assert Dense().cost(12, dataclasses.replace(TWO_BY_TWO, rank=1), MODEL).bytes == Bytes(local=72)


def test_torus2d_by_hand():
    # Four exchanges of two hops. Shard of 12/2 = 6 elements, 24 bytes: inside the node twice 24 bytes;
    # across, both workers of a node send half a shard, 12 bytes, twice.
    cost = Torus2D().cost(12, TWO_BY_TWO, MODEL)
    assert cost.seconds == 4 * 2 * 1e6 + 2 * 240 + 2 * 2 * 12e7
    assert cost.bytes == Bytes(local=48, cross=24)


@pytest.mark.parametrize("scheme", [Dense(), Torus2D()])
def test_float16_sends_half_of_what_its_scheme_does(scheme):
    whole, half = (s.cost(12, TWO_BY_TWO, MODEL) for s in (scheme, Float16(scheme)))
    assert (2 * half.bytes.local, 2 * half.bytes.cross) == (whole.bytes.local, whole.bytes.cross)
    assert half.messages == whole.messages and half.seconds < whole.seconds
    assert Float16(scheme).bucket_bytes == scheme.bucket_bytes


def test_float16_of_what_is_not_exact():
    with pytest.raises(TypeError, match=r"Float16\(scheme=HiTopK\(.*must be Dense.*wire_dtype"):
        Float16(HiTopK(0.01))
    with pytest.raises(ValueError, match="same number of workers"):
        Float16(Torus2D()).validate(Topology((0, 0, 1), 0))


def test_torus2d_pads_what_does_not_divide():
    # 13 elements: shards of 7, in halves of 4 between nodes.
    assert Torus2D().cost(13, TWO_BY_TWO, MODEL).bytes == Bytes(local=2 * 28, cross=2 * 16)


def test_torus2d_with_one_worker_per_node_and_on_one_node():
    apart = Torus2D().cost(12, Topology(nodes=(0, 1), rank=0), MODEL)
    assert (apart.seconds, apart.bytes) == (2 * (2e6 + 24e7), Bytes(cross=48))
    together = Torus2D().cost(12, Topology(nodes=(0, 0), rank=0), MODEL)
    assert (together.seconds, together.bytes) == (2 * (2 + 240), Bytes(local=48))


@pytest.mark.parametrize("scheme", [Dense(), Torus2D()])
def test_one_worker_costs_nothing(scheme):
    cost = scheme.cost(1000, Topology(nodes=(0,), rank=0), MODEL)
    assert (cost.seconds, cost.bytes) == (0, Bytes())


def test_what_oktopk_renews_costs_its_share_of_a_step():
    """Two nodes of one: 3 collectives each step, a gather every 4th, a consensus (of one cut) every 8th."""
    apart, phases = Topology((0, 1), 0), LinkModel(0.0, 0.0, 0.0, 0.0, phase=1.0)
    scheme = communication.OkTopK(0.1, threshold_period=4, boundary_period=8)
    assert scheme.cost(1000, apart, phases).seconds == 3 + 1 / 4 + 1 / 8
    pairs = Topology((0, 0, 1, 1), 0)  # whose exact sum between nodes is two collectives; and two are inside
    assert scheme.cost(1000, pairs, phases).seconds == 5 + 1 / 4 + 2 / 8
    bytes_each = LinkModel(0.0, 0.0, 0.0, 1.0)
    exchanged, gathered, notes = 8 * 50, 8 * 50, 8  # K = 100, half of it to the other node
    renewed, agreed = 400 / 4, (4 + 4) / 8  # all sums; one int64, there and back in halves
    assert scheme.cost(1000, apart, bytes_each).seconds == exchanged + gathered + notes + renewed + agreed


def test_torus2d_crosses_nodes_g_times_less_than_dense():
    n, nodes = 1 << 20, tuple(node for node in range(4) for _ in range(4))
    workers = [Topology(nodes=nodes, rank=rank) for rank in range(16)]
    assert all(worker.size(Group.LOCAL) == 4 for worker in workers)
    across = sum(Torus2D().cost(n, worker, MODEL).bytes.cross for worker in workers)
    assert across == 16 * 2 * (4 * n // 4) * 3 // 4
    slowest = max(Dense().cost(n, worker, MODEL).bytes.cross for worker in workers)
    assert slowest / Torus2D().cost(n, workers[0], MODEL).bytes.cross == pytest.approx(5.0)


def test_torus2d_refuses_uneven_nodes_with_the_remedy():
    uneven = Topology(nodes=(0, 0, 1), rank=0)
    with pytest.raises(
        ValueError, match=r"same number of workers.*\(2, 1\).*communication='dense'"
    ):
        Torus2D().validate(uneven)
    Torus2D().validate(TWO_BY_TWO)
    Dense().validate(uneven)


@pytest.mark.parametrize(
    "scheme, nodes, rank, says",
    [
        (HiTopK(), (0, 0), 0, True),
        (HiTopK(), (0, 0), 1, False),
        (HiTopK(), (0, 1), 0, False),
        (HiTopK(), (0,), 0, False),
        (TopKAllGather(), (0, 0), 0, False),
    ],
)
def test_sending_everything_is_said(scheme, nodes, rank, says, caplog):
    scheme.validate(Topology(nodes, rank))
    assert ("on one node everything is sent" in caplog.text) == says


@pytest.mark.parametrize("n", [1, 2, 3, 17, 1000, 1001, 200_000])
@pytest.mark.parametrize("blocks", [1, 2, 3, 8])
def test_each_block_is_dealt_a_part_of_each_layer(n, blocks):
    """Nothing is lost, padding is zero, and of 1/8 of a vector every block gets its share."""
    dealing, x = Dealing(n, blocks), np.arange(1, n + 1, dtype="float32")
    dealt = dealing.deal(dealing.padded(tf.constant(x))).numpy()
    assert sorted(dealt[dealt != 0]) == sorted(x)
    place = dealing.place(np.arange(blocks)[:, np.newaxis], np.arange(dealing.length))
    np.testing.assert_array_equal(np.pad(x, (0, dealt.size - n))[place], dealt)
    if n >= 1000:
        first = ((0 < dealt) & (dealt <= n / 8)).sum(axis=1)
        np.testing.assert_allclose(first, n / 8 / blocks, rtol=0.15)


@pytest.mark.parametrize("blocks", [2, 3, 8])
def test_the_last_places_are_dealt_without_wrapping(blocks):
    """Of a vector that nearly has more elements than int32 can count."""
    dealing = Dealing(2**31 - 2**16, blocks)
    positions = np.arange(dealing.length - 3, dealing.length, dtype=np.int32)
    place = dealing.place(tf.range(blocks)[:, tf.newaxis], tf.constant(positions)).numpy()
    run, wide = dealing.run, positions.astype(np.int64)
    whole = (wide // run * blocks + np.arange(blocks)[:, np.newaxis]) * run + wide % run
    np.testing.assert_array_equal(place, whole)
    assert place.max() == blocks * dealing.length - 1 > 2**31 - 2**17


def test_sharded_volume_does_not_grow_with_nodes():
    n, density = 1 << 20, 0.01
    bound = 2 * 4 * density * n  # bytes: 2k words
    for m in (4, 16, 64):
        apart = Topology(tuple(range(m)), 0)
        sent = ShardedTopK(density).cost(n, apart, FREE).bytes.cross
        assert sent / (bound * (m - 1) / m) == pytest.approx(2, rel=0.02)
        coded = ShardedTopK(density, wire_dtype="float16", index_coding="delta")
        assert coded.cost(n, apart, FREE).bytes.cross / (bound * (m - 1) / m) < 0.8
        twice, thrice = (dataclasses.replace(coded, applied=applied) for applied in (2, 3))
        assert twice.cost(n, apart, FREE).bytes.cross / (bound * (m - 1) / m) < 1.2
        assert thrice.cost(n, apart, FREE).bytes.cross < 0.8 * sent  # as docs/communication.md says
        assert HiTopK(density).cost(n, apart, FREE).bytes.cross == pytest.approx(bound * (m - 1), rel=0.01)


WRONG = [(kind, {"density": density}) for kind in SCHEMES for density in (0, 1.5, "0.1")]
WRONG += [(kind, {"wire_dtype": "int8"}) for kind in MESSAGES]
WRONG += [(kind, {"index_coding": "gaps"}) for kind in MESSAGES]
WRONG += [(kind, {"selector": "random"}) for kind in MESSAGES]
WRONG += [(ShardedTopK, {"applied": applied}) for applied in (0.5, math.inf, math.nan)]
WRONG += [(OkTopK, {"threshold_period": period}) for period in (0, 2.0)]
WRONG += [(OkTopK, {"boundary_period": -1})]


def test_a_dtype_is_its_name():
    """Or checkpoints would take one scheme for two."""
    for kind in (*MESSAGES, communication.Auto):
        assert repr(kind(wire_dtype=tf.float16)) == repr(kind(wire_dtype="float16"))


@pytest.mark.parametrize("kind, wrong", WRONG, ids=str)
def test_arguments_are_checked(kind, wrong):
    argument, value = next(iter(wrong.items()))
    with pytest.raises(ValueError, match=rf"{kind.__name__}\({argument}={value!r}\)"):
        kind(**wrong)


def test_values_of_16_bits_are_sent_as_such_at_density_one():
    """Where all entries travel, and float32 ones go by `Dense`."""
    apart, coded = Topology((0, 1), 0), {"wire_dtype": "float16", "index_coding": "delta"}
    sent = HiTopK(1.0, **coded).cost(1000, apart, FREE).bytes.cross
    assert sent == 4 * Packing(1000, 1000, **coded).words < 4 * 1000
