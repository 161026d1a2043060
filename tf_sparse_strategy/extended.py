"""The strategy's seam into TensorFlow: the only module that imports private TensorFlow API.

Built on `MirroredExtended` with one device per process: variables are TensorFlow's own
`MirroredVariable` and `SyncOnReadVariable` with one component each, so reading, saving, checkpoints
and AutoCast are TensorFlow's. Replica functions are called directly, without a replica thread:
collectives work in nested functions, conditions and loops.

What arrives here, and where it goes:

| caller                                      | arrives in                 | goes to            |
|---------------------------------------------|----------------------------|--------------------|
| Keras 3 optimizers (keras_hooks.py)         | reduce_gradients           | Communication      |
| tf_keras optimizers: (gradient, variable)   | _batch_reduce_to           | Communication      |
| SyncBatchNormalization, `ctx.all_reduce`    | _batch_reduce_to           | dense collectives  |
| metrics, assignments, `strategy.reduce`     | _reduce_to                 | dense collectives  |
"""

import contextlib
import threading

import tensorflow as tf
from tensorflow.python.data.experimental.ops import distribute as data_distribute
from tensorflow.python.distribute import (
    device_util,
    distribute_lib,
    distribute_utils,
    input_lib,
    input_ops,
    mirrored_strategy,
    reduce_util,
    values,
)
from tensorflow.python.eager import context, record
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_util
from tensorflow.python.trackable import base as trackable
from tensorflow.python.training.saving import saveable_object

from tf_sparse_strategy import agreement, keras_callers
from tf_sparse_strategy import input as input_pipeline
from tf_sparse_strategy.call_site import plain_variable_class
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.communication.base import Communication
from tf_sparse_strategy.embedding import slices
from tf_sparse_strategy.gradients import GradientReducer, coalesced
from tf_sparse_strategy.metrics import StepCounter
from tf_sparse_strategy.overlap.divided import Divided
from tf_sparse_strategy.overlap.updates import ChunkedUpdates
from tf_sparse_strategy.overlap.variables import variable_class
from tf_sparse_strategy.scheduling.updates import DelayedUpdates
from tf_sparse_strategy.sharding_policy import Sharding

ReduceOp = reduce_util.ReduceOp
_GradientList = list[tuple[tf.Tensor | tf.IndexedSlices, tf.Variable]]


class SyncOnReadVariable(values.SyncOnReadVariable):
    """A per-worker value, e.g. a metric's total, in which rows of no account do not count."""

    def _counted(self, value):
        extended = self._distribute_strategy.extended
        if distribute_lib.in_cross_replica_context() or extended.batch is None:
            return value
        return extended.masked(tf.cast(value, self.dtype))

    def assign_add(self, value, *args, **kwargs):
        return super().assign_add(self._counted(value), *args, **kwargs)

    def assign_sub(self, value, *args, **kwargs):
        return super().assign_sub(self._counted(value), *args, **kwargs)

    def assign(self, value, *args, **kwargs):
        extended = self._distribute_strategy.extended
        if distribute_lib.in_cross_replica_context():
            value = tf.convert_to_tensor(value, self.dtype)  # e.g. an HDF5 dataset being loaded
        elif (batch := extended.batch) is not None:
            value = tf.where(batch.rows > 0, tf.cast(value, self.dtype), self.values[0])
        return super().assign(value, *args, **kwargs)

    def _get_cross_replica(self):
        if self._distribute_strategy.extended.is_alone:
            return self.values[0].read_value()
        return super()._get_cross_replica()


_VARIABLE_CLASSES = {
    **distribute_utils.VARIABLE_CLASS_MAPPING,
    tf.VariableSynchronization.ON_READ: SyncOnReadVariable,
}
_CHUNKED_CLASSES = {
    **_VARIABLE_CLASSES,
    tf.VariableSynchronization.ON_WRITE: variable_class(values.MirroredVariable),
}
_SLICE_CLASSES = {
    tf.VariableSynchronization.ON_WRITE: slices.variable_class(
        variable_class(values.MirroredVariable), saveable_object.SaveSpec
    )
}


class ReplicaContext(distribute_lib.ReplicaContext):
    """The context in which a replica function runs."""

    @property
    def devices(self):
        return self._strategy.extended.worker_devices

    def all_reduce(self, reduce_op, value, options=None):
        # Masked here, not below, so that the gradient of a row of no account is masked as well.
        masked = tf.nest.map_structure(
            lambda x: x if isinstance(x, tf.IndexedSlices) else self._strategy.extended.masked(x),
            value,
            expand_composites=False,
        )
        return super().all_reduce(reduce_op, masked, options)


class StrategyExtended(mirrored_strategy.MirroredExtended):
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
        overlap: Divided | None = None,
        delay_rows: bool = False,
    ):
        distribute_lib.StrategyExtendedV1.__init__(self, container_strategy)
        self.collectives = collectives
        self.gradients = GradientReducer(communication, collectives, bucket_bytes)
        self.gradients.memory.distribute_strategy = container_strategy
        self.slices = slices.Slices(collectives, self.masked)
        self.steps = StepCounter()
        alone = collectives.topology.num_workers == 1
        self.chunked = None if overlap is None or alone else ChunkedUpdates(overlap, collectives)
        self._local = threading.local()
        self.delayed = DelayedUpdates(self._local) if delay_rows and not alone else None
        self.slices.delayed = self.delayed
        self._variable_classes = _VARIABLE_CLASSES if self.chunked is None else _CHUNKED_CLASSES
        self._same_variables = agreement.SameVariables(collectives)
        topology = collectives.topology
        self._rank, self._size = topology.rank, topology.num_workers
        self._initialize_single_worker((device_util.resolve(device),))
        self._task_id = self._rank  # Keras names by it what workers beside the chief write
        self._is_chief = self._rank == 0
        self.experimental_enable_get_next_as_optional = True
        with tf.device("CPU:0"):
            self._counted = plain_variable_class()([1, 1], dtype=tf.int64, trainable=False)
        self._sharding = Sharding(collectives, _auto_shard, _batch_size)
        if self._size > 1:
            agreement.agree_on_seed(context.global_seed(), collectives)

    # ---- who we are -----------------------------------------------------------------------------

    @property
    def _num_replicas_in_sync(self):
        return self._size

    def _in_multi_worker_mode(self):
        return self._size > 1

    def _use_merge_call(self):
        return True

    @property
    def _retrace_functions_for_each_device(self):
        # Part of what TensorFlow finds a traced function by: a function that is called within steps of tagged
        # batches, where rows are masked, and within others, is traced for each.
        return getattr(self._local, "tagged", False)

    def _get_local_replica_id(self, replica_id_in_sync_group):
        return 0

    def _get_replica_id_in_sync_group(self, replica_id):
        return self._rank

    @property
    def experimental_between_graph(self):
        return True

    @property
    def experimental_should_init(self):
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

    @contextlib.contextmanager
    def alone(self):
        """While this lasts, reading or making a variable here asks nobody: values are this worker's."""
        outer, self._local.alone = self.is_alone, True
        try:
            yield
        finally:
            self._local.alone = outer

    @property
    def is_alone(self) -> bool:
        """Whether `alone()` lasts in this thread."""
        return getattr(self._local, "alone", False)

    # ---- variables ------------------------------------------------------------------------------

    def _get_variable_creator_initial_value(self, replica_id, device, primary_var, **kwargs):
        initial_value = kwargs["initial_value"]
        if self._size == 1 or self.is_alone:
            return initial_value

        def from_rank_0():
            value = initial_value() if callable(initial_value) else initial_value
            if isinstance(value, trackable.CheckpointInitialValue):
                value = value.wrapped_value
            value = tf.convert_to_tensor(value, dtype=kwargs.get("dtype"))
            if value.dtype in (tf.string, tf.resource, tf.variant):
                return value
            name = kwargs.get("name") or "unnamed"
            return agreement.broadcast_same(name, value, self.collectives)

        return from_rank_0

    def _create_variable(self, next_creator, **kwargs):
        # There is one device; but a slot beside a slice of a table is a slice as well.
        partition = self.slices.partition_beside(kwargs.pop("colocate_with", None))
        statistic = partition is None and keras_callers.is_layer_statistic(kwargs)
        if statistic:
            kwargs["synchronization"] = tf.VariableSynchronization.ON_WRITE
            kwargs["aggregation"] = tf.VariableAggregation.MEAN

        def create(**kwargs):
            device = self._devices[0]
            if partition is None:
                kwargs["initial_value"] = self._get_variable_creator_initial_value(
                    replica_id=0, device=device, primary_var=None, **kwargs
                )
            with ops.device(device), record.stop_recording():
                return [next_creator(**kwargs)]

        variable = distribute_utils.create_mirrored_variable(
            self._container_strategy(),
            create,
            self._variable_classes if partition is None else _SLICE_CLASSES,
            distribute_utils.VARIABLE_POLICY_MAPPING,
            **kwargs,
        )
        variable._weighs_rows = statistic  # read in _reduce_to
        variable._counts_steps = keras_callers.is_step_counter(kwargs)  # read in _broadcast_to
        if partition is not None:
            self.slices.add(variable, partition)
        return variable

    # ---- running --------------------------------------------------------------------------------

    @property
    def batch(self) -> input_pipeline.Batch | None:
        """The rows and total of the tagged batch now being worked on, if Keras gave one.

        Read from a variable: functions that are traced within one step are called in others.
        """
        if not getattr(self._local, "tagged", False):
            return None
        rows, total = tf.unstack(self._counted)
        return input_pipeline.Batch(None, rows, total)

    def _call_for_each_replica(self, fn, args, kwargs):
        args, batch, ahead = _opened(args)
        kwargs = tf.nest.map_structure(_component, kwargs, expand_composites=False)
        outer = self._local.__dict__.copy()
        begins = not outer.get("running", False)  # Keras's loss scaling calls again from within
        self._local.running = True
        self._local.tagged = outer.get("tagged", False) or batch is not None
        try:
            replica = ReplicaContext(self._container_strategy(), replica_id_in_sync_group=self._rank)
            with ops.device(self._devices[0]), replica:
                if not begins:
                    return fn(*args, **kwargs)
                self._begin_step(args, batch)
                with _step_of(self.chunked) as held, _step_of(self.delayed, ahead and ahead.following, held):
                    return fn(*args, **kwargs)
        finally:
            self._local.__dict__.clear()
            self._local.__dict__.update(outer)

    def _begin_step(self, args, batch):
        """Notes how many rows count in this step."""
        self.steps.add(args, None if batch is None else batch.rows)
        self.gradients.begin_step()
        if self._size > 1 and tf.compat.v1.executing_eagerly_outside_functions():
            counted = (1, self._size) if batch is None else (batch.rows, batch.total)
            with tf.device("CPU:0"):
                self._counted.assign(tf.stack([tf.cast(n, tf.int64) for n in counted]))

    def masked(self, x: tf.Tensor) -> tf.Tensor:
        """`x`, or zeros where this worker's batch counts for nothing."""
        batch = self.batch
        return x if batch is None else tf.where(batch.rows > 0, x, tf.zeros_like(x))

    # ---- reductions -----------------------------------------------------------------------------

    def reduce_gradients(self, pairs: _GradientList) -> list:
        """Sums gradients over the workers by the chosen communication.

        Args:
          pairs: (gradient, variable) as one optimizer sees them, None gradients left out.

        Returns:
          The summed gradients, in order.
        """
        return self.gradients.reduce(self.counted_gradients(pairs))

    def counted_gradients(self, pairs: _GradientList) -> _GradientList:
        """`pairs`, checked to be those of all workers; zeros where no row of this worker counts."""
        self._refuse_xla()
        if self._size > 1 and tf.compat.v1.executing_eagerly_outside_functions():
            self._same_variables.check(pairs)
        batch = self.batch
        if batch is None:
            return list(pairs)
        counts = batch.rows > 0
        return [(_counted_gradient(gradient, to, counts), to) for gradient, to in pairs]

    def _refuse_xla(self):
        """Raises where a collective is traced into a function that XLA is to compile."""
        graph = tf.compat.v1.get_default_graph()
        if self._size > 1 and control_flow_util.GraphOrParentsInXlaContext(graph):
            raise ValueError(
                f"jit_compile=True: XLA cannot compile a step in which {self._size} workers communicate. "
                "Pass jit_compile='auto' (Keras 3) or False to compile(), or jit-compile only functions "
                "within the step that do not communicate."
            )

    def _all_reduce(self, reduce_op, value):
        """All-reduces what this process holds of one value."""
        self._refuse_xla()
        if isinstance(value, tf.IndexedSlices):
            summed = self.gradients.reduce_sparse(value)
            if reduce_op == ReduceOp.MEAN:
                return tf.IndexedSlices(summed.values / self._size, summed.indices, summed.dense_shape)
            return summed
        if isinstance(value, (tf.SparseTensor, tf.RaggedTensor)):
            raise TypeError(
                f"reduce got a {type(value).__name__}; only dense tensors and tf.IndexedSlices can be "
                "reduced over workers. Convert it first (tf.sparse.to_dense, .to_tensor())."
            )
        summed = self.collectives.all_reduce(value)
        return summed / self._size if reduce_op == ReduceOp.MEAN else summed

    def _reduce_to(self, reduce_op, value, destinations, options):
        weight = self.loss_weight() if getattr(destinations, "_weighs_rows", False) else None

        def reduce(x):
            if distribute_utils.is_mirrored(x):
                if reduce_op == ReduceOp.MEAN:
                    return x
                raise ValueError(
                    "reduce(SUM) got a mirrored value, which is the same on all workers already. "
                    "Reduce a per-replica value, or multiply by num_replicas_in_sync."
                )
            x = x.values[0] if isinstance(x, values.SyncOnReadVariable) else _component(x)
            x = _number_as_tensor(x, destinations)
            if weight is not None:
                self._refuse_xla()
                x = tf.convert_to_tensor(x)
                weighted = self.masked(x * tf.cast(weight, x.dtype))
                return self.collectives.all_reduce(weighted, purpose="statistics")
            if reduce_op == ReduceOp.SUM and not isinstance(x, tf.IndexedSlices):
                x = self.masked(x)
            return self._all_reduce(reduce_op, x)

        return tf.nest.map_structure(reduce, value, expand_composites=False)

    def loss_weight(self) -> tf.Tensor | None:
        """Share of the global batch that this worker's rows are, or None outside Keras's steps."""
        batch = self.batch
        return None if batch is None else tf.cast(batch.rows, tf.float32) / tf.cast(batch.total, tf.float32)

    def _batch_reduce_to(self, reduce_op, value_destination_pairs, options):
        pairs = [(_component(value), to) for value, to in value_destination_pairs]
        if reduce_op == ReduceOp.SUM and _are_gradients(pairs):
            if self.chunked is not None:
                self.chunked.refuse_tf_keras()
            self.gradients.communication.check_optimizer(None)
            return self.reduce_gradients([(coalesced(gradient), to) for gradient, to in pairs])
        return [self._reduce_to(reduce_op, value, to, options) for value, to in pairs]

    def _replica_ctx_all_reduce(self, reduce_op, value, options=None):
        reduce_op = _reduce_op(reduce_op)
        return tf.nest.map_structure(
            lambda x: self._all_reduce(reduce_op, x), value, expand_composites=False
        )

    def _gather_to_implementation(self, value, destinations, axis, options):
        value = tf.convert_to_tensor(_component(value))
        if axis == 0:
            return self.collectives.all_gather(value)
        order = list(range(value.shape.rank))
        order[0], order[axis] = axis, 0
        gathered = self.collectives.all_gather(tf.transpose(value, order))
        return tf.transpose(gathered, order)

    def reduce_along(self, reduce_op, value, axis):
        """`Strategy.reduce` with an axis: sums, and counts for MEAN, before it reduces."""
        reduce_op = _reduce_op(reduce_op)

        def reduce(x):
            x = tf.convert_to_tensor(_component(x))
            summed = self.collectives.all_reduce(tf.reduce_sum(x, axis=axis))
            if reduce_op == ReduceOp.SUM:
                return summed
            from_start = tf.math.floormod(axis, tf.rank(x))  # tf.gather knows no negative axes
            sizes = tf.gather(tf.shape(x, tf.int64), from_start)
            count = self.collectives.all_reduce(tf.reduce_prod(sizes))
            return summed / tf.cast(count, summed.dtype)

        return tf.nest.map_structure(reduce, value, expand_composites=False)

    def gather_predictions(self, outputs, args):
        """All workers' rows of `predict`'s outputs, in rank order, without rows of no account."""
        self._refuse_xla()
        _, batch, _ = _opened(args)

        def gather(rows):
            return self.collectives.all_gather(rows if batch is None else rows[: batch.rows])

        return tf.nest.map_structure(gather, outputs)

    def local_value(self, value):
        """This process's part of a structure of per-replica values, a tagged batch opened."""
        [local], _, _ = _opened([value])
        return local

    def _broadcast_to(self, tensor, destinations):
        tensor = tf.convert_to_tensor(_number_as_tensor(tensor, destinations))
        if getattr(destinations, "_counts_steps", False):
            return tensor  # the same everywhere: asking rank 0 would cost every step a message to all
        return self.collectives.broadcast(tensor)

    # ---- input ----------------------------------------------------------------------------------

    def _make_input_context(self):
        return distribute_lib.InputContext(self._size, self._rank, self._size)

    def _experimental_distribute_dataset(self, dataset, options):
        _refuse_per_replica(options)
        consumer = keras_callers.consumer()
        part, agreement = self._sharding.share(dataset, consumer)
        if self.delayed is not None and consumer == "fit":
            part = input_pipeline.look_ahead(part)
        return self._distributed(part, agreement)

    def _distribute_datasets_from_function(self, dataset_fn, options):
        _refuse_per_replica(options)
        dataset = dataset_fn(self._make_input_context())
        agreement = None if self._size == 1 else "all"
        return self._distributed(dataset, agreement)

    def _distributed(self, dataset, agreement):
        if agreement == "all":
            endless = dataset.cardinality() == tf.data.INFINITE_CARDINALITY
            if bool(self.collectives.all_reduce(endless, op="min", purpose="endless")):
                agreement = None
        return DistributedDataset(
            input_workers=self._input_workers_with_options(_HOST_ITERATOR),
            strategy=self._container_strategy(),
            dataset=input_pipeline.without_tuning(dataset.prefetch(tf.data.AUTOTUNE)),
            options=_HOST_ITERATOR,
            agreement=agreement,
        )

    def _experimental_distribute_values_from_function(self, value_fn):
        value = value_fn(distribute_lib.ValueContext(self._rank, self._size))
        return distribute_utils.regroup([value], always_wrap=True)

    def _make_dataset_iterator(self, dataset):
        raise _v1_error("make_dataset_iterator")

    def _make_input_fn_iterator(self, input_fn, replication_mode=None):
        raise _v1_error("make_input_fn_iterator")

    def _experimental_make_numpy_dataset(self, numpy_input, session):
        raise _v1_error("experimental_make_numpy_dataset")


# A plain iterator over the dataset. The other kind, MultiDeviceIterator, crashes when it is dropped
# while its thread still prefetches (TensorFlow 2.20).
_HOST_ITERATOR = tf.distribute.InputOptions(
    experimental_fetch_to_device=False,
    experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
)


def _auto_shard(dataset, num_shards, index):
    return input_ops.auto_shard_dataset(dataset, num_shards, index, num_shards)


def _batch_size(dataset) -> int:
    return int(data_distribute.compute_batch_size(dataset))


def _v1_error(method: str) -> NotImplementedError:
    return NotImplementedError(
        f"{method} belongs to TensorFlow 1; use strategy.experimental_distribute_dataset(dataset)."
    )


def _refuse_per_replica(options):
    if options and options.experimental_replication_mode == (
        tf.distribute.InputReplicationMode.PER_REPLICA
    ):
        raise NotImplementedError(
            "InputReplicationMode.PER_REPLICA is meaningless with one replica per process; leave "
            "experimental_replication_mode at PER_WORKER."
        )


def _reduce_op(op: str | ReduceOp) -> ReduceOp:
    return ReduceOp(op.upper()) if isinstance(op, str) else op


def _counted_gradient(gradient, variable, counts):
    """`gradient`, or zeros where no row counts, whatever the loss made of the row; no copy."""
    if slices.of(variable) is not None:
        return gradient  # of all workers' rows: each masked its own
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.where(counts, gradient.values, tf.zeros_like(gradient.values))
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return tf.cond(counts, lambda: tf.identity(gradient), lambda: tf.zeros_like(gradient))


def _component(value):
    """This process's part of a per-replica value; variables are left whole."""
    if isinstance(value, values.DistributedValues) and not isinstance(value, values.DistributedVariable):
        return value.values[0]
    return value


def _opened(args):
    """(this process's part of `args` with a tagged batch opened, its Batch or None, its Ahead or None)."""
    args = tf.nest.map_structure(_component, args, expand_composites=False)
    args, batch = input_pipeline.opened(args, input_pipeline.Batch)
    args, ahead = input_pipeline.opened(args, input_pipeline.Ahead)
    return args, batch, ahead


def _number_as_tensor(value, destinations):
    """A Python number, which may differ between workers, in the dtype of the variable it is for."""
    if not isinstance(value, (int, float)):
        return value
    return tf.convert_to_tensor(value, getattr(destinations, "dtype", None))


def _step_of(part, *args):
    return contextlib.nullcontext() if part is None else part.step_under_way(*args)


def _are_gradients(pairs) -> bool:
    """tf_keras optimizers hand over (gradient, trainable variable) pairs; nothing else does."""
    return all(isinstance(to, values.MirroredVariable) and to.trainable for _, to in pairs)


class _IteratorSpec(input_lib.DistributedIteratorSpec):
    """Carries how workers agree that data is left into tf.functions that take the iterator."""

    def __init__(self, *args, agreement=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.agreement = agreement

    value_type = property(lambda self: DistributedIterator)

    def _serialize(self):
        return (*super()._serialize(), self.agreement)

    def _from_components(self, components):
        return DistributedIterator(
            input_workers=self._input_workers,
            components=components,
            element_spec=self._element_spec,
            strategy=self._strategy,
            cardinality=self._cardinality,
            options=self._options,
            agreement=self.agreement,
        )


class DistributedIterator(input_lib.DistributedIterator):
    """Yields this worker's batches; ends on all workers at the same step.

    Args:
      agreement: None where the pipeline itself ends everywhere at once; "all" to end when any worker
        has no more; "rows" (tagged batches) to end when no worker has any row left.
    """

    def __init__(self, *args, agreement=None, **kwargs):
        super().__init__(*args, **kwargs)
        self._agreement = agreement

    @property
    def element_spec(self):
        return self._element_spec

    @property
    def _type_spec(self):
        return _IteratorSpec(
            self._input_workers,
            self._element_spec,
            self._strategy,
            self._options,
            self._cardinality,
            agreement=self._agreement,
        )

    def get_next(self, name=None):
        with distribute_lib.enter_or_assert_strategy(self._strategy):
            if distribute_lib.get_replica_context() is not None:
                raise ValueError(
                    "next(iterator) was called in a replica function; call it outside and pass the "
                    "batch: strategy.run(fn, args=(next(iterator),))."
                )
        if self._agreement is None:
            return self._get_next_no_partial_batch_handling()
        optional, more, total = self._poll()
        return tf.cond(more, lambda: self._value(optional, total), self._end)

    def get_next_as_optional(self):
        optional, more, total = self._poll()
        return tf.cond(
            more,
            lambda: tf.experimental.Optional.from_value(self._value(optional, total)),
            lambda: tf.experimental.Optional.empty(self._element_spec),
        )

    def _poll(self):
        """(this worker's optional, whether the workers go on, rows of all where they agree by rows)."""
        [optional] = self._iterators[0].get_next_as_optional_list()
        collectives = self._strategy.extended.collectives
        if self._agreement is None:
            return optional, optional.has_value(), None
        if self._agreement == "all":
            return optional, agreement.all_have_data(optional, collectives), None
        total = agreement.total_rows(optional, collectives)
        return optional, total > 0, total

    def _value(self, optional, total):
        value = optional.get_value()
        if total is not None:
            value = value._replace(total=total)
        return input_lib._create_per_replica([value], self._strategy)

    def _end(self):
        """Raises OutOfRangeError; in a graph, when it runs."""
        nothing = tf.data.Dataset.from_tensors(0).take(0)
        with tf.control_dependencies([iter(nothing).get_next()]):
            return self._get_next_no_partial_batch_handling()


class DistributedDataset(input_lib.DistributedDatasetsFromFunction):
    """This worker's part of a dataset."""

    def __init__(self, input_workers, strategy, dataset, options, agreement):
        input_context = strategy.extended._make_input_context()
        super().__init__(input_workers, strategy, [input_context], lambda _: dataset, options=options)
        self._agreement = agreement

    @property
    def element_spec(self):
        return self._element_spec

    def __iter__(self):
        plain = super().__iter__()
        iterator = DistributedIterator(
            input_workers=self._input_workers,
            iterators=plain._iterators,
            strategy=self._strategy,
            cardinality=self._cardinality,
            options=self._options,
            agreement=self._agreement,
        )
        iterator._element_spec = self._element_spec
        return iterator
