"""What workers keep for themselves becomes their node's, and back, as schemes of both kinds take turns."""

import numpy as np
import pytest
import tensorflow as tf

from tests.multiprocess import sparse_runs
from tf_sparse_strategy.communication import (
    DGC,
    Auto,
    Dense,
    Guarded,
    HiTopK,
    LinkModel,
    OkTopK,
    Piecewise,
    ShardedTopK,
    TopKAllGather,
)
from tf_sparse_strategy.communication.auto import CHOICE
from tf_sparse_strategy.communication.switching import EPOCH, own_name
from tf_sparse_strategy.gradients import GradientReducer
from tf_sparse_strategy.residual import AGE
from tf_sparse_strategy.topology import Topology

N = 101  # not a multiple of the two workers of a node
MIXED = [
    (0, HiTopK(0.05)),
    (2, TopKAllGather(0.05)),
    (4, ShardedTopK(0.05)),
    (5, Dense()),
    (6, OkTopK(0.05, flat=True)),
    (8, HiTopK(0.05, wire_dtype="float16")),
]
STEPS = 10


def run_through(run, data, step=None):
    """Whether anything is kept, by step; in each, what was sent and what is kept are everything."""
    n, rank = data.shape[-1], run.collectives.topology.rank
    step, sent, kept = step or run.step, np.zeros(n), []
    for done, g in enumerate(data, 1):
        sent += step(tf.constant(g[rank])).numpy()
        rest = run.kept(n)
        np.testing.assert_array_equal(sent + rest, data[:done].sum(axis=(0, 1)))
        kept.append(rest.any())
    return kept


@pytest.mark.parametrize(
    "mode, dtype, flush",
    [("function", "float32", True), ("function", "float16", False), ("eager", "float16", True)],
)
def test_what_workers_keep_becomes_their_nodes_and_back(here, mode, dtype, flush):
    p = here.topology.num_workers
    run = sparse_runs.Run(Piecewise(MIXED, unit="step", flush=flush), here, N, dtype)
    step = run.step if mode == "function" else run.eager_step
    kept = run_through(run, sparse_runs.integers(3, p, N, STEPS), lambda g: step(tf.cast(g, dtype)))
    assert kept == [p > 1 and not (flush and number == 5) for number in range(STEPS)]


def test_on_one_node_its_schemes_sum_exactly_what_workers_kept(topology):
    p = topology.num_workers
    run = sparse_runs.Run(Piecewise(MIXED, unit="step"), sparse_runs.placed(topology, [0] * p), N)
    kept = run_through(run, sparse_runs.integers(3, p, N, STEPS))
    assert kept == [p > 1 and number in (2, 3, 6, 7) for number in range(STEPS)]


@pytest.mark.parametrize("nodes", ["one", "pairs"])
def test_schemes_that_switch_themselves_take_turns(topology, here, nodes):
    """Guarded sums exactly in each of its steps, a Piecewise goes by its own phases."""
    p = topology.num_workers
    guarded = Guarded(ShardedTopK(0.05), limit=1e-9, every=1, action="dense")
    within = Piecewise([(0, HiTopK(0.05)), (1, TopKAllGather(0.05))], unit="step")
    phases = [(0, TopKAllGather(0.05)), (2, guarded), (4, TopKAllGather(0.05)), (6, within)]
    place = here if nodes == "pairs" else sparse_runs.placed(topology, [0] * p)
    run = sparse_runs.Run(Piecewise(phases, unit="step"), place, N)
    kept = run_through(run, sparse_runs.integers(3, p, N, 9))
    after = nodes == "pairs"
    assert kept == [p > 1 and k for k in (True, True, False, False, True, True, after, True, True)]


def test_momentum_is_found_within_others():
    within = Piecewise([(0, Piecewise([(0, DGC())])), (5, TopKAllGather())])
    with pytest.raises(ValueError, match="some of its schemes apply momentum"):
        within.validate(Topology((0, 1), 0))


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_fewer_elements_than_workers(here, n):
    run = sparse_runs.Run(Piecewise(MIXED, unit="step"), here, n)
    run_through(run, sparse_runs.integers(3, here.topology.num_workers, n, STEPS))


def test_a_residual_with_room_for_workers_is_their_nodes_until_then(here):
    """Bit for bit what it is without such phases."""
    p, rank = here.topology.num_workers, here.topology.rank
    nodes = [(0, HiTopK(0.05)), (3, ShardedTopK(0.05))]
    mixed, plain = (
        sparse_runs.Run(Piecewise(phases, unit="step"), here, N)
        for phases in ([*nodes, (9, TopKAllGather())], nodes)
    )
    for g in sparse_runs.floats(3, p, N, 6):
        mine = tf.constant(g[rank])
        np.testing.assert_array_equal(mixed.step(mine), plain.step(mine))
    np.testing.assert_array_equal(mixed.kept(N), plain.kept(N))


def test_a_step_that_is_not_finite_leaves_all_where_it_was(here):
    """Also the first one of a node's scheme, by which what workers kept was to become their node's."""
    p, rank = here.topology.num_workers, here.topology.rank
    run = sparse_runs.Run(Piecewise([(0, TopKAllGather(0.05)), (2, HiTopK(0.05))], unit="step"), here, N)
    data, sent = sparse_runs.integers(3, p, N, 4), np.zeros(N)
    for number, g in enumerate(data):
        if number == 2 and p > 1:
            before = run.bits()
            run.step(tf.fill([N], np.inf))
            assert run.bits() == before
        sent += run.step(tf.constant(g[rank])).numpy()
    np.testing.assert_array_equal(sent + run.kept(N), data.sum(axis=(0, 1)))


@pytest.mark.parametrize("saved_after", [1, 3, 5, 7])
def test_every_bit_comes_back(comm, here, topology, saved_after):
    variables = [tf.Variable(tf.zeros(shape)) for shape in sparse_runs.SHAPES]
    scheme = Piecewise(MIXED, unit="step")
    old = GradientReducer(scheme, here, bucket_bytes=64)
    for seed in range(saved_after):
        sparse_runs.step(old, variables, topology, seed)
    blob = sparse_runs.moved(comm, old.memory.serialize())
    new = GradientReducer(scheme, here, bucket_bytes=64)
    new.memory.deserialize(blob)
    for seed in range(saved_after, saved_after + 3):
        steps = [sparse_runs.step(reducer, variables, topology, seed) for reducer in (old, new)]
        np.testing.assert_array_equal(*steps)
    for one, two in zip(sparse_runs.kept(old), sparse_runs.kept(new), strict=True):
        np.testing.assert_array_equal(one, two)


BY_WORKERS = Piecewise([(0, TopKAllGather(0.05)), (9, HiTopK(0.05))])
BY_NODES = Piecewise([(0, HiTopK(0.05)), (9, TopKAllGather(0.05))])


@pytest.mark.parametrize(
    "first, second, moves",
    [
        pytest.param(BY_WORKERS, HiTopK(0.3), False, id="to a node's scheme"),
        pytest.param(HiTopK(0.05), BY_WORKERS, False, id="from it"),
        pytest.param(BY_WORKERS, BY_NODES, False, id="to a node's phase"),
        pytest.param(BY_NODES, BY_WORKERS, False, id="from it, too"),
        pytest.param(BY_NODES, BY_NODES, True, id="on other nodes"),
    ],
)
def test_another_run_takes_all_of_it(comm, here, topology, first, second, moves):
    """Whole numbers: what was sent before and after, and what is left, add up to all.

    Where it `moves`, each worker was a node before.
    """
    p, rank = topology.num_workers, topology.rank
    weights = [tf.Variable(tf.zeros([N, 1]))]
    data, sent = sparse_runs.integers(3, p, N, 4), np.zeros([N, 1])

    def steps(reducer, gradients):
        nonlocal sent
        for g in gradients:
            mine = tf.constant(g[rank][:, np.newaxis])
            sent += reducer.reduce([(mine, weights[0])])[0].numpy()

    before = sparse_runs.apart(topology) if moves else here
    old = GradientReducer(first, before, bucket_bytes=1 << 20)
    steps(old, data[:2])
    blob = sparse_runs.moved(comm, old.memory.serialize())
    new = GradientReducer(second, here, bucket_bytes=1 << 20)
    new.memory.deserialize(blob)
    steps(new, data[2:])
    rest = sparse_runs.sent_in_all(new, weights)
    np.testing.assert_array_equal(sent[:, 0] + rest, data.sum(axis=(0, 1)))


def auto(here, density, dtype="float32"):
    """A run of Auto, which measures nothing, and the numbers of its schemes by their names."""
    model = LinkModel(0.0, 0.0, 0.0, 1e-3, selection=1e-12)
    run = sparse_runs.Run(Auto(density, links=model).prepare(here), here, N, dtype)
    schemes = run.scheme.schemes(here.topology)
    return run, {type(scheme).__name__: number for number, scheme in enumerate(schemes)}


def test_autos_schemes_follow_each_other(here):
    """Each after each, whatever it would choose."""
    run, schemes = auto(here, 0.05)
    numbers = schemes.values()
    order = [second for first in numbers for both in numbers for second in (first, both)]
    next_number = iter(order)

    def step(gradient):
        run.variables[CHOICE].assign(next(next_number))
        return run.step(gradient)

    run_through(run, sparse_runs.integers(3, here.topology.num_workers, N, len(order)), step)


def test_what_float16_could_not_take_is_not_lost_when_the_nodes_scheme_returns(here):
    """The first worker holds all of the rest then, not its shard alone."""
    p, each = here.topology.num_workers, 2048.0
    run, schemes = auto(here, 0.02, "float16")
    gradient, sent = tf.fill([N], tf.constant(each, tf.float16)), np.zeros(N)
    for name in (*["HiTopK"] * 70, "Dense", *["HiTopK"] * 2):
        run.variables[CHOICE].assign(schemes.get(name, 0))
        sent += run.step(gradient).numpy()
    np.testing.assert_array_equal(sent + run.kept(N), np.full(N, 73 * p * each))


def test_thresholds_are_made_anew_where_a_phase_begins_again(here):
    """`fit` counts epochs from 0 again: those of large residuals would let next to nothing pass."""
    run = sparse_runs.Run(Piecewise([(0, OkTopK(0.1)), (1, Dense())]), here, N)
    gradient = tf.range(N, dtype=tf.float32)
    ages = []
    for epoch in (0, 0, 0, 1, 1, 0, 0):
        run.variables[next(k for k in run.variables if own_name(k) == EPOCH)].assign(epoch)
        run.step(gradient)
        ages.append(int(run.variables[f"0.{AGE}"]))
    assert ages == [1, 2, 3, 3, 3, 1, 2]
