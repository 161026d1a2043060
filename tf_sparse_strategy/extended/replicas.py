"""The replica of this process: who it is among the others, and how it runs a step."""

import contextlib
import threading

import tensorflow as tf
from tensorflow.python.distribute import device_util, distribute_lib, mirrored_strategy
from tensorflow.python.framework import ops

from tf_sparse_strategy import agreement
from tf_sparse_strategy import input as input_pipeline
from tf_sparse_strategy.call_site import plain_variable, refuse_gradient_of_branch
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.communication.base import Communication
from tf_sparse_strategy.embedding import slices
from tf_sparse_strategy.extended.batches import component, opened
from tf_sparse_strategy.extended.datasets import Datasets
from tf_sparse_strategy.extended.reductions import Reductions, reduce_op_of
from tf_sparse_strategy.extended.sharding import Sharding
from tf_sparse_strategy.extended.shuffles import Shuffles
from tf_sparse_strategy.extended.variables import CHUNKED_CLASSES, VARIABLE_CLASSES, Variables
from tf_sparse_strategy.gradients import GradientReducer
from tf_sparse_strategy.hooking import while_set
from tf_sparse_strategy.metrics import StepCounter
from tf_sparse_strategy.overlap.divided import Divided
from tf_sparse_strategy.overlap.updates import ChunkedUpdates
from tf_sparse_strategy.scheduling.updates import DelayedUpdates


class ReplicaContext(distribute_lib.ReplicaContext):
    """The context in which a replica function runs."""

    @property
    def devices(self):
        return self._strategy.extended.worker_devices

    def merge_call(self, merge_fn, args=(), kwargs=None):
        # A traced function's gradient may be built in a later step than the function, whose context is gone.
        current = tf.distribute.get_replica_context()
        is_ours = isinstance(current, ReplicaContext) and current.strategy is self.strategy
        return super(ReplicaContext, current if is_ours else self).merge_call(merge_fn, args, kwargs)

    def all_reduce(self, reduce_op, value, options=None):
        extended, all_reduce = self._strategy.extended, super().all_reduce

        def reduce(x):  # weighed here, not below, so that gradients are as well
            if isinstance(x, tf.Variable):
                x = tf.convert_to_tensor(x)  # this worker's: eagerly TensorFlow would hand on the variable
            return all_reduce(*extended.by_rows(reduce_op_of(reduce_op), x), options)

        return tf.nest.map_structure(reduce, value, expand_composites=False)

    def all_gather(self, value, axis, options=None):
        counts = self._strategy.extended.batch_counts()
        if counts is not None and axis == 0:
            value = tf.nest.map_structure(lambda x: _of_account(tf.convert_to_tensor(x), counts), value)
        return super().all_gather(value, axis, options)


def _of_account(x, counts):
    """A batch's rows if they count; all of what is no batch, whose length is known when it is traced."""
    return x if x.shape[:1].is_fully_defined() else input_pipeline.if_counted(x, counts)


class _Step(threading.local):
    """Of the thread: the step that it is in."""

    running = False  # whether a step is under way
    tagged = False  # and works on a batch that tells how many of its rows count
    alone = False  # whether the other workers do something else meanwhile


class StrategyExtended(Variables, Reductions, Datasets, mirrored_strategy.MirroredExtended):
    """tf.distribute's hooks for one replica per process, P processes.

    Args:
      container_strategy: the `SparseStrategy`.
      collectives: how this process talks to the others.
      communication: how gradients are summed.
      bucket_bytes: size limit of one bucket of gradients, bytes.
      device: this process's device.
      overlap: whether and how updates are divided over the workers, to overlap more communication.
      delay_rows: whether rows of tables may be updated in the next step.
    """

    def __init__(
        self,
        container_strategy,
        collectives: Collectives,
        communication: Communication,
        bucket_bytes: int,
        device: str,
        overlap: Divided | None,
        delay_rows: bool,
    ):
        distribute_lib.StrategyExtendedV1.__init__(self, container_strategy)
        self.collectives = collectives
        self.gradients = GradientReducer(communication, collectives, bucket_bytes)
        self.gradients.memory.distribute_strategy = container_strategy
        self.slices = slices.Slices(collectives, self.batch_counts)
        self.steps = StepCounter()
        alone = collectives.topology.num_workers == 1
        self.chunked = None if overlap is None or alone else ChunkedUpdates(overlap, collectives)
        self.gradients.memory.takes_up = self.chunked is None  # else sums of gradients go another way
        self._local = _Step()
        self.delayed = DelayedUpdates(self._local) if delay_rows and not alone else None
        self.slices.delayed = self.delayed
        self._variable_classes = VARIABLE_CLASSES if self.chunked is None else CHUNKED_CLASSES
        self._same_variables = agreement.SameVariables(collectives)
        self._made = 0  # variables, by all workers together
        topology = collectives.topology
        self._rank, self._size = topology.rank, topology.num_workers
        self._initialize_single_worker((device_util.resolve(device),))
        self._task_id = self._rank  # Keras names by it what workers beside the chief write
        self._is_chief = self._rank == 0
        self.experimental_enable_get_next_as_optional = True
        self._counted = plain_variable([1, 1], "CPU:0", dtype=tf.int64)
        self._sharding = Sharding(collectives)
        self.shuffles = Shuffles(collectives)

    # ---- who we are -----------------------------------------------------------------------------

    @property
    def _num_replicas_in_sync(self):
        return self._size

    def _in_multi_worker_mode(self):
        return self._size > 1

    def _use_merge_call(self):
        return True

    def _get_local_replica_id(self, replica_id_in_sync_group):
        return 0

    def _get_replica_id_in_sync_group(self, replica_id):
        return self._rank

    @property
    def experimental_between_graph(self):
        return True

    @property
    def should_checkpoint(self):
        return self._is_chief

    @property
    def should_save_summary(self):
        return self._is_chief

    @property
    def _num_gpus_per_worker(self):
        return 0  # only used by TensorFlow to warn about undistributed datasets

    # ---- running --------------------------------------------------------------------------------

    @property
    def is_tagged(self) -> bool:
        """Whether a step is under way whose batch tells how many of its rows count."""
        return self._local.tagged

    @property
    def batch(self) -> input_pipeline.Batch | None:
        """The rows and total of the tagged batch now being worked on, if Keras gave one.

        Read from a variable: functions that are traced within one step are called in others.
        """
        if not self._local.tagged:
            return None
        refuse_gradient_of_branch()
        rows, total = tf.unstack(self._counted)
        return input_pipeline.Batch(None, rows, total)

    def _call_for_each_replica(self, fn, args, kwargs):
        args, batch, ahead = opened(args)
        kwargs = tf.nest.map_structure(component, kwargs, expand_composites=False)
        begins = not self._local.running  # Keras's loss scaling calls again from within
        replica = ReplicaContext(self._container_strategy(), replica_id_in_sync_group=self._rank)
        under_way = while_set(self._local, running=True, tagged=self._local.tagged or batch is not None)
        with under_way, ops.device(self._devices[0]), replica:
            if not begins:
                return fn(*args, **kwargs)
            # A graph that finds no more data must change and send nothing: Keras asks until there is none.
            data = tf.nest.flatten((args, kwargs), expand_composites=True)
            data = [x for x in data if tf.is_symbolic_tensor(x)]
            with tf.control_dependencies([tf.group(*data)] if data else []):
                self._begin_step(args, batch)
                with _step_of(self.chunked) as held, _step_of(self.delayed, ahead and ahead.following, held):
                    return fn(*args, **kwargs)

    def _begin_step(self, args, batch):
        """Notes how many rows count in this step."""
        if self.chunked is not None and self.chunked.gathers:  # also to evaluate
            self._refuse_xla()
        self.steps.add(args, None if batch is None else batch.rows)
        self.gradients.begin_step()
        if self._size > 1 and tf.compat.v1.executing_eagerly_outside_functions():
            counted = (1, self._size) if batch is None else (batch.rows, batch.total)
            with tf.device("CPU:0"):
                self._counted.assign(tf.stack([tf.cast(n, tf.int64) for n in counted]))

    def batch_counts(self) -> tf.Tensor | None:
        """Whether a row of this worker's batch counts; None for batches without a tag, of which all do."""
        batch = self.batch
        return None if batch is None else batch.rows > 0

    def masked(self, x: tf.Tensor) -> tf.Tensor:
        """`x`, or zeros where this worker's batch counts for nothing."""
        counts = self.batch_counts()
        return x if counts is None else tf.where(counts, x, tf.zeros_like(x))

    def last_weight(self) -> float:
        """This worker's share of the rows of the last step, tagged or not."""
        rows, total = self._counted.numpy().tolist()
        return rows / total

    def in_replica(self, fn):
        """What `fn` returns in this worker's replica, outside of any step."""
        with ReplicaContext(self._container_strategy(), replica_id_in_sync_group=self._rank):
            return fn()

    def local_value(self, value):
        """This process's part of a structure of per-replica values, a tagged batch opened."""
        [local], _, _ = opened([value])
        return local


def _step_of(part, *args):
    return contextlib.nullcontext() if part is None else part.step_under_way(*args)
