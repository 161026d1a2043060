"""Variables of a strategy's scope: one component each, with values that all workers agree on."""

import contextlib

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib, distribute_utils, values
from tensorflow.python.eager import record
from tensorflow.python.framework import ops
from tensorflow.python.trackable import base as trackable

from tf_sparse_strategy import agreement, keras_callers
from tf_sparse_strategy.embedding import slices
from tf_sparse_strategy.extended import generators
from tf_sparse_strategy.hooking import while_set
from tf_sparse_strategy.overlap.variables import check_read, check_write, variable_class


class _SaveableOfSum(values._SyncOnReadSaveable):
    """Restores a sum so that all its workers' shares are the sum."""

    def restore(self, restored_tensors, restored_shapes):
        [value] = restored_tensors
        return super().restore([self._sync_on_read_variable.divisible(value)], restored_shapes)


class SyncOnReadVariable(values.SyncOnReadVariable):
    """A per-worker value, e.g. a metric's total, in which rows of no account do not count."""

    def divisible(self, value):
        """What TensorFlow, which divides it by P, makes this worker's part of `value`.

        Of integers P times an exact part, so that the parts add up.
        """
        if self.aggregation != tf.VariableAggregation.SUM or not self.dtype.is_integer:
            return value
        topology = self._distribute_strategy.extended.collectives.topology
        workers, value = topology.num_workers, tf.cast(value, self.dtype)
        return workers * (value // workers + tf.cast(topology.rank < value % workers, self.dtype))

    def _gather_saveables_for_checkpoint(self):
        return {trackable.VARIABLE_VALUE_KEY: lambda name=self._common_name: _SaveableOfSum(self, name)}

    @property
    def _is_of_rows(self):
        """Or it counts steps, or keeps what is each worker's own."""
        return self.aggregation in (tf.VariableAggregation.SUM, tf.VariableAggregation.MEAN)

    def _counted(self, value):
        extended = self._distribute_strategy.extended
        if distribute_lib.in_cross_replica_context() or not (extended.is_tagged and self._is_of_rows):
            return value
        return extended.masked(tf.cast(value, self.dtype))

    def assign_add(self, value, *args, **kwargs):
        return super().assign_add(self._counted(value), *args, **kwargs)

    def assign_sub(self, value, *args, **kwargs):
        return super().assign_sub(self._counted(value), *args, **kwargs)

    def assign(self, value, *args, **kwargs):
        extended = self._distribute_strategy.extended
        if distribute_lib.in_cross_replica_context() or not distribute_lib.has_strategy():
            # E.g. an HDF5 dataset being loaded.
            value = self.divisible(tf.convert_to_tensor(value, self.dtype))
        elif (
            self._is_of_rows
            and (counts := extended.batch_counts()) is not None
            and not keras_callers.is_reset()
        ):
            value = tf.where(counts, tf.cast(value, self.dtype), self.values[0])
        return super().assign(value, *args, **kwargs)

    def _get_cross_replica(self):
        if self._distribute_strategy.extended.is_alone:
            return self.values[0].read_value()
        return super()._get_cross_replica()


VARIABLE_CLASSES = {
    **distribute_utils.VARIABLE_CLASS_MAPPING,
    tf.VariableSynchronization.ON_READ: SyncOnReadVariable,
}
CHUNKED_CLASSES = {
    **VARIABLE_CLASSES,
    tf.VariableSynchronization.ON_WRITE: variable_class(values.MirroredVariable),
}
_SLICE_CLASSES = {
    tf.VariableSynchronization.ON_WRITE: slices.variable_class(variable_class(values.MirroredVariable))
}


class Variables:
    """`StrategyExtended`'s hooks for variables."""

    def alone(self):
        """While this lasts, reading or making a variable here asks nobody: values are this worker's."""
        return while_set(self._local, alone=True)

    @contextlib.contextmanager
    def first_draws(self):
        """While this lasts, the first worker may draw numbers alone; all go on from there. Collective."""
        with self.slices.making(None), self.alone():
            yield
            self.follow_first()

    def follow_first(self) -> None:
        """Brings this process's generators of random numbers to where the first worker's are. Collective."""
        if self._size > 1:
            generators.follow_first(self.collectives)

    def keeping_generators(self):
        """While this lasts, one worker may draw random numbers that others do not; it goes on from before."""
        return generators.kept()

    @property
    def is_alone(self) -> bool:
        """Whether `alone()` lasts in this thread."""
        return self._local.alone

    def _initial_value_of_all(self, **kwargs):
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
            # Functions of datasets, which send nothing, may be the first to draw by Keras's generator.
            seed = tf.get_static_value(value) if value.dtype.is_integer else None
            if seed is None or not tf.compat.v1.executing_eagerly_outside_functions():
                return agreement.broadcast_same(name, value, self.collectives)
            with tf.init_scope():
                seed = agreement.broadcast_same(name, tf.constant(seed), self.collectives).numpy()
            return tf.constant(seed)

        return from_rank_0

    def _create_variable(self, next_creator, **kwargs):
        # There is one device; but a slot beside a slice of a table is a slice as well.
        partition = self.slices.partition_beside(kwargs.pop("colocate_with", None))
        if partition is None and keras_callers.is_layer_statistic(kwargs):
            kwargs["synchronization"] = tf.VariableSynchronization.ON_WRITE
            kwargs["aggregation"] = tf.VariableAggregation.MEAN

        def create(**kwargs):
            if partition is None:
                kwargs["initial_value"] = self._initial_value_of_all(**kwargs)
            with ops.device(self._devices[0]), record.stop_recording():
                return [next_creator(**kwargs)]

        variable = distribute_utils.create_mirrored_variable(
            self._container_strategy(),
            create,
            self._variable_classes if partition is None else _SLICE_CLASSES,
            distribute_utils.VARIABLE_POLICY_MAPPING,
            **kwargs,
        )
        if not self.is_alone:  # read in agreement.py: names, shapes and dtypes may be those of others
            self._made = variable._number = self._made + 1
        variable._counts_steps = keras_callers.is_step_counter(kwargs)  # read in _broadcast_to
        if partition is not None:
            self.slices.add(variable, partition)
        return variable

    def _update(self, var, fn, args, kwargs, group):
        # `fn` is given TensorFlow's variables, past their guards.
        check_write(var)
        for read in tf.nest.flatten((args, kwargs)):
            check_read(read)
        return super()._update(var, fn, args, kwargs, group)
