"""The named experiments: the same result by two or more ways, from inside a Horovod worker."""

import dataclasses
from collections.abc import Callable

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.topology import Group, Topology

SIZES = [1 << 10, 64 << 10, 1 << 20, 16 << 20]  # bytes of float32 per worker
CALLS = 64  # collectives in one function where the cost of a call itself is measured

Variant = Callable[[tf.Tensor], object]


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Ways of computing one thing.

    Args:
      name: what is computed.
      variants: by name, functions of this worker's vector; the first is ours.
      expected: this worker's result from the vectors of all workers, [P, n].
      sizes: bytes of the vector.
      calls: collectives in one run of a variant; times are divided by it.
    """

    name: str
    variants: dict[str, Variant]
    expected: Callable[[np.ndarray], np.ndarray]
    sizes: list[int]
    calls: int = 1


def process_sets(
    topology: Topology,
) -> tuple[dict[Group, hvd.ProcessSet], list[hvd.ProcessSet]]:
    """Returns ({group: this worker's process set}, all sets, as `hvd.init` must be told them)."""
    own, all_sets = {}, []
    for group in (Group.LOCAL, Group.CROSS):
        workers = [dataclasses.replace(topology, rank=r) for r in range(topology.num_workers)]
        for ranks in sorted({worker.ranks(group) for worker in workers}):
            all_sets.append(hvd.ProcessSet(list(ranks)))
            if topology.rank in ranks:
                own[group] = all_sets[-1]
    return own, all_sets


def _shard(total, topology, group):
    size, index = topology.size(group), topology.index(group)
    return np.split(total, size)[index]


def group_experiments(comm: Collectives, sets: dict[Group, hvd.ProcessSet]) -> list[Experiment]:
    """All-to-all with empty splits against process sets; our way alone where `sets` is empty."""
    topology = comm.topology
    found = []

    def compare(name, ours, theirs, expected):
        variants = {"all-to-all": ours} | ({"process sets": theirs} if sets else {})
        found.append(Experiment(name, variants, expected, SIZES))

    for group in (Group.LOCAL, Group.CROSS):
        label, ranks, own = group.name, list(topology.ranks(group)), sets.get(group)
        compare(
            f"all_reduce {label}",
            lambda x, group=group: comm.all_reduce(x, group),
            lambda x, own=own, name=label: hvd.allreduce(
                x, op=hvd.Sum, name=f"ar_{name}", process_set=own
            ),
            lambda xs, ranks=ranks: xs[ranks].sum(axis=0),
        )
        compare(
            f"reduce_scatter {label}",
            lambda x, group=group: comm.reduce_scatter(x, group),
            lambda x, own=own, name=label: hvd.reducescatter(
                x, op=hvd.Sum, name=f"rs_{name}", process_set=own
            ),
            lambda xs, ranks=ranks, group=group: _shard(xs[ranks].sum(axis=0), topology, group),
        )
        compare(
            f"all_gather {label}",
            lambda x, group=group: comm.all_gather(x, group),
            lambda x, own=own, name=label: hvd.allgather(x, name=f"ag_{name}", process_set=own),
            lambda xs, ranks=ranks: xs[ranks].reshape(-1),
        )

    def torus_by_sets(x):
        shard = hvd.reducescatter(x, op=hvd.Sum, name="t_rs", process_set=sets[Group.LOCAL])
        shard = hvd.allreduce(shard, op=hvd.Sum, name="t_ar", process_set=sets[Group.CROSS])
        return hvd.allgather(shard, name="t_ag", process_set=sets[Group.LOCAL])

    def torus(x):
        shard = comm.reduce_scatter(x, Group.LOCAL)
        return comm.all_gather(comm.all_reduce(shard, Group.CROSS), Group.LOCAL)

    compare("2D torus all-reduce", torus, torus_by_sets, lambda xs: xs.sum(axis=0))
    return found


def reduce_scatter_experiments(comm: Collectives) -> list[Experiment]:
    """Reduce-scatter over all workers: our all-to-alls and local sums, or Horovod's own."""
    return [
        Experiment(
            "reduce_scatter GLOBAL",
            {
                "all-to-alls + sums": comm.reduce_scatter,
                "hvd.reducescatter": lambda x: hvd.reducescatter(x, op=hvd.Sum, name="rs"),
                "hvd.allreduce": lambda x: _own_part(hvd.allreduce(x, op=hvd.Sum, name="ar"), comm),
            },
            lambda xs: _shard(xs.sum(axis=0), comm.topology, Group.GLOBAL),
            SIZES,
        )
    ]


def _own_part(x, comm):
    return tf.split(x, comm.topology.num_workers)[comm.topology.rank]


def overhead_experiments(comm: Collectives) -> list[Experiment]:
    """What names, order and counting cost per call: a small tensor, many calls in one function."""

    def bare(x, i):
        return hvd.allreduce(x, op=hvd.Sum, name=f"bare.{i}")

    def chained(reduce):
        def run(x):
            first = x
            for i in range(CALLS):
                x = first + 0.0 * reduce(x, i)
            return reduce(x, CALLS)

        return run

    return [
        Experiment(
            "independent all_reduce",
            {
                "Collectives": lambda x: tf.add_n([comm.all_reduce(x) for _ in range(CALLS)]),
                "bare Horovod": lambda x: tf.add_n([bare(x, i) for i in range(CALLS)]),
            },
            lambda xs: CALLS * xs.sum(axis=0),
            [16],
            CALLS,
        ),
        Experiment(
            "chained all_reduce",
            {
                "Collectives": chained(lambda x, _: comm.all_reduce(x)),
                "bare Horovod": chained(lambda x, i: bare(x, f"c{i}")),
            },
            lambda xs: xs.sum(axis=0),
            [16],
            CALLS + 1,
        ),
    ]
