"""Collectives over three groups of workers: the only module that loads Horovod's library.

Every worker must call the same methods in the same order. LOCAL and CROSS groups are built from Horovod's
global all-to-all with empty splits outside the group: no process sets, which must be known before
`hvd.init`, negotiate one by one, turn a dead peer into an abort, and have returned wrong reduce-scatters.
(Their small all-reduces are faster.) A reduce-scatter is an all-to-all and a local sum: Horovod's own is
never cached and, on Gloo, slower for large vectors, on process sets several times. Over all workers it is
two, first within the nodes: else each worker of a node would send its own contribution to the other nodes,
G times the bytes over the node's one link. Measured in docs/group_collectives.md.

Cost of one call with n bytes per worker, S workers in the group (see traffic.py):

| method                  | messages per worker | bytes sent per worker |
|-------------------------|---------------------|-----------------------|
| all_reduce GLOBAL       | 2(P-1)              | 2n(P-1)/P             |
| all_reduce LOCAL, CROSS | 2(S-1)              | 2n(S-1)/S             |
| reduce_scatter          | S-1; by nodes G+M-2 | n(S-1)/S              |
| all_gather              | S-1                 | n(S-1)                |
| all_to_all              | S-1                 | n(S-1)/S              |
| broadcast GLOBAL        | <= ceil(log2 P)     | <= n ceil(log2 P)     |
"""

import hashlib

import tensorflow as tf

from tf_sparse_strategy import launcher, sent_bytes, traffic, wire
from tf_sparse_strategy.call_site import CallSites, depending_on
from tf_sparse_strategy.topology import Group, Topology

try:
    import horovod.tensorflow as hvd
except ImportError as error:
    raise ImportError(
        "tf_sparse_strategy needs Horovod 0.28.1 built for this TensorFlow, and importing it "
        f"failed: {error}. PyPI's sdist does not build as it is; run `make setup` or "
        "`python tools/horovod/build.py` from the source tree."
    ) from error

_OPS = {"sum": hvd.Sum, "min": hvd.Min, "max": hvd.Max}


def start(message_limit: float = 30.0, stall_limit: float = 1860.0) -> None:
    """Starts Horovod; does nothing when it runs already. Touches no TensorFlow device.

    Args:
      message_limit: seconds after which Horovod takes a worker that sends nothing for lost, and after which
        it aborts this process when another has not started; $HOROVOD_GLOO_TIMEOUT_SECONDS goes before.
      stall_limit: seconds after which Horovod fails on all workers where some have not called what others
        have, be nobody there who knows why; $HOROVOD_STALL_SHUTDOWN_TIME_SECONDS goes before.
    """
    if not hvd.is_initialized():
        launcher.set_limits(message_limit, stall_limit)
        with launcher.notice_of_missing_workers():
            hvd.init()


def find_topology() -> Topology:
    """Returns where the workers stand; collective.

    Nodes are told apart by the host name the launcher gave, so any placement of ranks is found.
    """
    key = int.from_bytes(hashlib.blake2b(launcher.host_name().encode(), digest_size=7).digest(), "big")
    if hvd.size() == 1:
        return Topology(nodes=(0,), rank=0)
    with tf.device("CPU:0"):  # which all have: that one lacks a GPU is still to be found out
        keys = hvd.allgather(tf.constant([key], tf.int64), name="topology")
    return Topology.from_node_keys(keys.numpy().tolist(), hvd.rank())


def local_rank() -> int:
    """Which accelerator of its machine this worker uses."""
    return hvd.local_rank()


def features() -> dict[str, bool]:
    """Which transports Horovod's library was built with; needs no start."""
    return {"gloo": bool(hvd.gloo_built()), "nccl": bool(hvd.nccl_built())}


def _check_countable(x) -> None:
    if not (hvd.nccl_built() and "GPU" in x.device):  # NCCL's sums and broadcasts count further
        wire.check_countable(x)


class Collectives:
    """The collective operations of one worker; counts the bytes they send.

    Methods work eagerly and in `tf.function`, also inside loops and conditions that all workers
    take alike. Dtypes: see wire.py.

    Args:
      topology: where the workers are; from `find_topology()`. Make it outside `strategy.scope()`.

    Attributes:
      sites: the places in the program where this worker communicates, and what each has moved.
      silent: whether what is called or traced from now on sends nothing, as if this worker were sent what
        it sends: results have their shapes (of tables, if P divides their columns), not their values. By what
        a step is shorter then, it waits for communication: its computation stall. To be set on all workers
        alike, for a model that is thrown away.

    Example:
      >>> start()
      >>> collectives = Collectives(find_topology())
      >>> collectives.all_reduce(tf.ones([3])).numpy()     # P times that on P workers
      array([1., 1., 1.], dtype=float32)
    """

    def __init__(self, topology: Topology):
        self.topology = topology
        self.silent = False
        self.sites = CallSites()

    def traffic(self) -> tuple[int, traffic.Bytes]:
        """(collective calls, bytes sent by link class) of this worker since it started."""
        return self.sites.traffic()

    @tf.autograph.experimental.do_not_convert
    def all_reduce(
        self, x: tf.Tensor, group: Group = Group.GLOBAL, op: str = "sum", purpose: str = "value"
    ) -> tf.Tensor:
        """Returns the element-wise `op` of `x` over the group, on each of its workers.

        Args:
          x: same shape and dtype on every worker.
          group: who takes part.
          op: "sum", "min" or "max".
          purpose: part of the operation's name.

        Raises:
          TypeError: the dtype has no exact carrier.
          ValueError: `op` is unknown, or `x` has 2^31 elements or more.
          tf.errors.FailedPreconditionError: shapes or dtypes differ between workers.
        """
        if op not in _OPS:
            raise ValueError(f"op={op!r} is not one of {sorted(_OPS)}.")
        x = tf.convert_to_tensor(x)
        if self.topology.is_trivial(group):
            return tf.identity(x)
        carried, restore = wire.for_reduction(x, op)
        if group is Group.GLOBAL:
            _check_countable(carried)
            cost = sent_bytes.of_tensor(traffic.ring_all_reduce, self.topology, carried)
            reduced = self._run(
                f"all_reduce_{op}",
                purpose,
                cost,
                carried,
                lambda name, x: hvd.mpi_ops._allreduce(
                    x, name=name, op=_OPS[op], ignore_name_scope=True
                ),
                alone=tf.identity,
            )
        elif op == "sum":
            flat = tf.reshape(carried, [-1])
            shard = self.reduce_scatter(flat, group, purpose)
            reduced = self.all_gather(shard, group, purpose)[: tf.size(flat)]
        else:
            everyone = self.all_gather(carried[tf.newaxis], group, purpose)
            reduced = (tf.reduce_min if op == "min" else tf.reduce_max)(everyone, axis=0)
        return restore(tf.reshape(reduced, tf.shape(carried)))

    @tf.autograph.experimental.do_not_convert
    def reduce_scatter(
        self, x: tf.Tensor, group: Group = Group.GLOBAL, purpose: str = "value"
    ) -> tf.Tensor:
        """Sums `x` [n] over the group and returns this worker's shard [ceil(n/S)].

        Worker i of the group owns elements [i c, (i+1) c), c = ceil(n/S); the last shards are
        padded with zeros when S does not divide n. Contributions are added in rank order; where equally
        many workers, more than one, are on each of several nodes, those of a node first.

        Raises:
          TypeError: the dtype has no exact carrier.
          ValueError: `x` is not a vector.
        """
        x = tf.convert_to_tensor(x)
        if x.shape.rank != 1:
            raise ValueError(
                f"reduce_scatter got shape {x.shape}; it shards a vector. Pass tf.reshape(x, [-1])."
            )
        if self.topology.is_trivial(group):
            return tf.identity(x)
        size = self.topology.size(group)
        carried, restore = wire.for_reduction(x, "sum")
        n, row = tf.shape(carried)[0], carried.shape[1:]  # a complex number is a row of two floats
        chunk = (n + size - 1) // size
        padded = tf.pad(carried, [[0, chunk * size - n]] + [[0, 0]] * len(row))
        if group is Group.GLOBAL and self.topology.is_nested:
            chunks = tf.reshape(padded, [size, chunk, *row])
            by_column = tf.reshape(tf.gather(chunks, self.topology.by_column()), [size * chunk, *row])
            of_node = self._sum_parts(by_column, Group.LOCAL, purpose)
            shard = self._sum_parts(of_node, Group.CROSS, purpose)
        else:
            shard = self._sum_parts(padded, group, purpose)
        if x.shape.is_fully_defined():
            shard.set_shape([-(-x.shape[0] // size), *row])
        return restore(shard)

    @tf.autograph.experimental.do_not_convert
    def all_gather(
        self, x: tf.Tensor, group: Group = Group.GLOBAL, purpose: str = "value"
    ) -> tf.Tensor:
        """Concatenates `x` [n_i, ...] of the group's workers along axis 0, in rank order.

        n_i may differ between workers (and be 0); the other dimensions must agree.

        Raises:
          ValueError: `x` is a scalar.
          tf.errors.InvalidArgumentError: the result would have 2^31 elements or more.
        """
        x = tf.convert_to_tensor(x)
        if x.shape.rank == 0:
            raise ValueError(
                "all_gather got a scalar; it concatenates along axis 0. Pass value[tf.newaxis]."
            )
        if self.topology.is_trivial(group):
            return tf.identity(x)
        size = self.topology.size(group)
        carried, restore = wire.for_moving(x)
        if group is Group.GLOBAL:
            cost = sent_bytes.of_tensor(traffic.ring_all_gather, self.topology, carried)
            gathered = self._run(
                "all_gather",
                purpose,
                cost,
                carried,
                lambda name, x: hvd.allgather(x, name=name, ignore_name_scope=True),
                alone=lambda x: tf.concat([x] * size, axis=0),
            )
        elif size == 2:
            pair = [carried, self._swap(carried, group, "all_gather", purpose)]
            gathered = tf.concat(pair if self.topology.index(group) == 0 else pair[::-1], axis=0)
        else:
            copies = tf.concat([carried] * size, axis=0)
            gathered = self._exchange(copies, tf.shape(carried)[0], group, "all_gather", purpose)
        return restore(gathered)

    @tf.autograph.experimental.do_not_convert
    def all_to_all(
        self,
        x: tf.Tensor,
        splits: tf.Tensor | None = None,
        group: Group = Group.GLOBAL,
        purpose: str = "value",
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Sends `splits[i]` rows of `x` to worker i of the group.

        Args:
          x: [n, ...].
          splits: int [S] rows for each worker, summing to n; equal parts by default.

        Returns:
          (rows received in rank order, int32 [S] rows received from each worker).

        Raises:
          ValueError: `x` has 2^31 elements or more.
          tf.errors.InvalidArgumentError: `splits` do not sum to n.
        """
        x = tf.convert_to_tensor(x)
        ranks = self.topology.ranks(group)
        if splits is None:
            splits = tf.fill([len(ranks)], tf.shape(x)[0] // len(ranks))
        splits = tf.cast(splits, tf.int32)
        # Horovod would drop the rows that no split names.
        named = tf.reduce_sum(splits)
        if tf.executing_eagerly():
            tf.debugging.assert_equal(
                named,
                tf.shape(x)[0],
                "all_to_all: splits must sum to the rows of x; without splits, the group's size must "
                "divide them.",
            )
        # In a graph assertions run in the order of the program: one all-to-all would wait for what those
        # before it wait for. A row that is not there is an error as well, which has this name.
        with tf.name_scope("all_to_all_splits_must_sum_to_the_rows_of_x"), tf.device("CPU:0"):
            zero = tf.gather([0], tf.cast(named != tf.shape(x)[0], tf.int32))
        splits += zero
        if self.topology.is_trivial(group):
            return depending_on(x, zero), splits  # checked, even if nobody reads the splits
        carried, restore = wire.for_moving(x)
        received = self._all_to_all(carried, splits, group, "all_to_all", purpose)
        return restore(received[0]), tf.gather(received[1], ranks)

    @tf.autograph.experimental.do_not_convert
    def broadcast(self, x: tf.Tensor, purpose: str = "value") -> tf.Tensor:
        """Returns rank 0's `x` on every worker; shape and dtype must agree.

        Raises:
          ValueError: `x` has 2^31 elements or more.
        """
        x = tf.convert_to_tensor(x)
        if self.topology.num_workers == 1:
            return tf.identity(x)
        carried, restore = wire.for_moving(x)
        _check_countable(carried)
        cost = sent_bytes.of_tensor(traffic.binomial_broadcast, self.topology, carried)
        return restore(
            self._run(
                "broadcast",
                purpose,
                cost,
                carried,
                lambda name, x: hvd.broadcast(x, 0, name=name, ignore_name_scope=True),
                alone=tf.identity,
            )
        )

    def barrier(self) -> None:
        """Returns once every worker has called it. Eager only."""
        self.all_reduce(tf.zeros([], tf.int32), purpose="barrier")

    def _run(self, kind, purpose, cost, x, issue, alone):
        """`CallSites.run` of `issue`, or of `alone`, which gives a result of that shape from `x`."""
        if self.silent:
            return self.sites.run(kind, purpose, traffic.Bytes(0, 0), x, lambda _, x: alone(x))
        return self.sites.run(kind, purpose, cost, x, issue)

    def _sum_parts(self, x, group, purpose):
        """The sum over the group of this worker's part of `x`, whose length the group's size divides."""
        size = self.topology.size(group)
        rows = tf.shape(x)[0] // size
        if size == 2:
            here, halves = self.topology.index(group), (x[:rows], x[rows:])
            return halves[here] + self._swap(halves[1 - here], group, "reduce_scatter", purpose)
        parts = self._exchange(x, rows, group, "reduce_scatter", purpose)
        return tf.reduce_sum(tf.reshape(parts, [size, rows, *x.shape[1:]]), axis=0)

    def _swap(self, x, group, kind, purpose):
        """What the other worker of a pair sends for `x`; nothing is copied on its way to this one itself."""
        splits = tf.shape(x)[0] * tf.one_hot(1 - self.topology.index(group), 2, dtype=tf.int32)
        return self._all_to_all(x, splits, group, kind, purpose)[0]

    def _exchange(self, x, rows, group, kind, purpose):
        """All-to-all in which every worker of the group gets `rows` rows of `x`, in rank order."""
        splits = tf.fill([self.topology.size(group)], rows)
        return self._all_to_all(x, splits, group, kind, purpose)[0]

    def _all_to_all(self, x, splits, group, kind, purpose):
        ranks = self.topology.ranks(group)
        everyone = tf.scatter_nd(
            [[rank] for rank in ranks], splits, [self.topology.num_workers]
        )
        received_splits = []

        def issue(name, x):
            with tf.device("CPU:0"):
                on_host = tf.identity(everyone)
            rows, counts = hvd.alltoall(x, splits=on_host, name=name, ignore_name_scope=True)
            received_splits.append(counts)
            return rows

        def as_sent(x):
            received_splits.append(everyone)
            return tf.identity(x)

        wire.check_countable(x)
        cost = sent_bytes.of_parts(self.topology, ranks, x, splits)
        rows = self._run(f"{kind}_{group.value}", purpose, cost, x, issue, as_sent)
        return rows, received_splits[0]
