"""Hooks for sums over workers: gradients by the chosen communication, all else by dense collectives."""

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import distribute_utils, reduce_util, values
from tensorflow.python.ops import control_flow_util

from tf_sparse_strategy.embedding import slices
from tf_sparse_strategy.extended.batches import component, is_per_replica, opened
from tf_sparse_strategy.gradient_kinds import coalesced, has_constant_indices, values_of
from tf_sparse_strategy.input import if_counted

ReduceOp = reduce_util.ReduceOp
_GradientList = list[tuple[tf.Tensor | tf.IndexedSlices, tf.Variable]]


class Reductions:
    """`StrategyExtended`'s hooks for sums over workers."""

    def reduce_gradients(self, pairs: _GradientList, are_counted: bool = False) -> list:
        """Sums gradients over the workers by the chosen communication.

        Args:
          pairs: (gradient, variable) as one optimizer sees them, None gradients left out.
          are_counted: whether they have been `counted_gradients`, e.g. those of several batches.

        Returns:
          The summed gradients, in order.
        """
        return self.gradients.reduce(self.checked_gradients(pairs, are_counted))

    def checked_gradients(self, pairs: _GradientList, are_counted: bool) -> _GradientList:
        """`pairs`, checked to be those of all workers, and counted."""
        self._refuse_xla()
        if self._size > 1 and tf.compat.v1.executing_eagerly_outside_functions():
            self._same_variables.check(pairs)
        return list(pairs) if are_counted else self.counted_gradients(pairs)

    def counted_gradients(self, pairs: _GradientList) -> _GradientList:
        """`pairs`, or zeros where no row of this worker's batch counts."""
        counts = self.batch_counts()
        if counts is None:
            return list(pairs)
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
        def reduce(x):
            if distribute_utils.is_mirrored(x):
                if reduce_op == ReduceOp.MEAN:
                    return x
                raise ValueError(
                    "reduce(SUM) got a mirrored value, which is the same on all workers already. "
                    "Reduce a per-replica value, or multiply by num_replicas_in_sync."
                )
            is_metrics = isinstance(x, values.SyncOnReadVariable)  # of rows that count, whatever these are
            x = x.values[0] if is_metrics else component(x)
            x = _number_as_tensor(x, destinations)
            return self._all_reduce(*((reduce_op, x) if is_metrics else self.by_rows(reduce_op, x)))

        return tf.nest.map_structure(reduce, value, expand_composites=False)

    def by_rows(self, reduce_op, x):
        """(the reduction, this worker's part of it), so that within Keras's steps each row counts once.

        A floating mean becomes a sum weighed by rows; a sum leaves out what counts for nothing.
        """
        counts = self.batch_counts()
        if counts is None or isinstance(x, (tf.SparseTensor, tf.RaggedTensor)):
            return reduce_op, x
        values = tf.convert_to_tensor(values_of(x))
        if reduce_op == ReduceOp.MEAN:
            if not (values.dtype.is_floating or values.dtype.is_complex):
                return reduce_op, x
            values = values * tf.cast(self.loss_weight(), values.dtype)
        if isinstance(x, tf.IndexedSlices):
            kept, indices = if_counted(values, counts), if_counted(x.indices, counts)
            return ReduceOp.SUM, tf.IndexedSlices(kept, indices, x.dense_shape)
        return ReduceOp.SUM, self.masked(values)

    def loss_weight(self) -> tf.Tensor | None:
        """Share of the global batch that this worker's rows are, float64; or None outside Keras's steps."""
        batch = self.batch
        return None if batch is None else batch.share

    def _batch_reduce_to(self, reduce_op, value_destination_pairs, options):
        pairs = [(component(value), to) for value, to in value_destination_pairs]
        if reduce_op == ReduceOp.SUM and _are_gradients(pairs):
            if self.chunked is not None:
                self.chunked.refuse_tf_keras()
            if self.delayed is not None and any(slices.of(to) is not None for _, to in pairs):
                self.delayed.tell("optimizers of tf_keras update whole tables")
            self.gradients.communication.check_optimizer(None)
            return self.reduce_gradients([(coalesced(gradient), to) for gradient, to in pairs])
        return [self._reduce_to(reduce_op, value, to, options) for value, to in pairs]

    def _replica_ctx_all_reduce(self, reduce_op, value, options=None):
        reduce_op = reduce_op_of(reduce_op)
        return tf.nest.map_structure(
            lambda x: self._all_reduce(reduce_op, x), value, expand_composites=False
        )

    def _gather_to_implementation(self, value, destinations, axis, options):
        self._refuse_xla()
        value = _own(value)
        if axis == 0:
            return self.collectives.all_gather(value)
        order = list(range(value.shape.rank))
        order[0], order[axis] = axis, 0
        gathered = self.collectives.all_gather(tf.transpose(value, order))
        return tf.transpose(gathered, order)

    def reduce_along(self, reduce_op, value, axis):
        """`Strategy.reduce` with an axis: sums, and counts for MEAN, before it reduces."""
        self._refuse_xla()
        reduce_op = reduce_op_of(reduce_op)

        def reduce(x):
            x = _own(x)
            summed = self.collectives.all_reduce(self.masked(tf.reduce_sum(x, axis=axis)))
            if reduce_op == ReduceOp.SUM:
                return summed
            from_start = tf.math.floormod(axis, tf.rank(x))  # tf.gather knows no negative axes
            sizes = tf.gather(tf.shape(x, tf.int64), from_start)
            count = self.collectives.all_reduce(self.masked(tf.reduce_prod(sizes)))
            return summed / tf.cast(count, summed.dtype)

        return tf.nest.map_structure(reduce, value, expand_composites=False)

    def gather_predictions(self, outputs, args):
        """All workers' rows of `predict`'s outputs, in rank order, without rows of no account."""
        # Of `predict_on_batch`, every worker has been given the whole batch.
        if self._size == 1 or not any(is_per_replica(x) for x in tf.nest.flatten(args)):
            return outputs
        self._refuse_xla()
        _, batch, _ = opened(args)

        def gather(x):
            """Of a number beside the rows, as a loss, the mean over all rows; another scalar is rank 0's."""
            if isinstance(x, tf.RaggedTensor):
                lengths = self.collectives.all_gather(x.row_lengths())
                return tf.RaggedTensor.from_row_lengths(gather(x.values), lengths, validate=False)
            if isinstance(x, tf.SparseTensor):
                raise TypeError(
                    "predict: an output is a SparseTensor; have the model return tf.sparse.to_dense of it."
                )
            x = tf.convert_to_tensor(x)  # an eager step may return NumPy's
            if x.shape.rank == 0:
                if not x.dtype.is_floating:
                    return gather(x[tf.newaxis])[0]
                share = 1 / self._size if batch is None else batch.share
                # A worker without rows has computed on one of no account.
                return self.collectives.all_reduce(tf.math.multiply_no_nan(x, tf.cast(share, x.dtype)))
            checks = [] if x.shape[1:].is_fully_defined() else [self._same_shapes(x)]
            with tf.control_dependencies(checks):
                return self._gather_strings(x) if x.dtype == tf.string else self.collectives.all_gather(x)

        def counted(x):
            is_whole = isinstance(x, tf.SparseTensor) or tf.TensorShape(getattr(x, "shape", ())).rank == 0
            return x if is_whole else if_counted(x, batch.rows > 0)

        if batch is not None:  # whose rows a model may make into other numbers of rows
            outputs = tf.nest.map_structure(counted, outputs)
        return tf.nest.map_structure(gather, outputs)

    def _gather_strings(self, x):
        """As `all_gather`: their bytes travel one string after the other, beside their lengths."""
        joined = tf.strings.reduce_join(tf.reshape(x, [-1]))
        lengths = self.collectives.all_gather(tf.strings.length(x))
        bytes_of_all = self.collectives.all_gather(tf.io.decode_raw(joined, tf.uint8))
        letters = tf.constant([bytes([letter]) for letter in range(256)])
        whole = tf.strings.reduce_join(tf.gather(letters, tf.cast(bytes_of_all, tf.int32)))
        flat = tf.reshape(lengths, [-1])
        return tf.reshape(tf.strings.substr(whole, tf.cumsum(flat, exclusive=True), flat), tf.shape(lengths))

    def _same_shapes(self, x):
        """Fails on all workers where their outputs differ in more than the number of rows."""
        own = tf.shape(x)[1:]
        extremes = self.collectives.all_reduce(tf.concat([own, -own], axis=0), op="max", purpose="shapes")
        most, least = tf.split(extremes, 2)
        return tf.debugging.assert_equal(
            most,
            -least,
            "predict: an output has other dimensions on other workers, as of rows padded to the longest of "
            "a worker. Pad them to one length, as by TextVectorization(output_sequence_length=...).",
        )

    def _broadcast_to(self, tensor, destinations):
        if isinstance(tensor, tf.IndexedSlices):  # of `scatter_update`, and of other lengths on other workers
            given = slice(None) if self._rank == 0 else slice(0)
            parts = (tf.convert_to_tensor(part)[given] for part in (tensor.values, tensor.indices))
            return tf.IndexedSlices(*map(self.collectives.all_gather, parts), tensor.dense_shape)
        tensor = tf.convert_to_tensor(_number_as_tensor(tensor, destinations))
        if getattr(destinations, "_counts_steps", False):
            return tensor  # the same everywhere: asking rank 0 would cost every step a message to all
        self._refuse_xla()
        return self.collectives.broadcast(tensor)


def reduce_op_of(op: str | ReduceOp) -> ReduceOp:
    """TensorFlow's constant for the name of a reduction; of other libraries' numbers none."""
    try:
        return ReduceOp(op.upper() if isinstance(op, str) else op)
    except ValueError:
        raise ValueError(f'reduce_op={op!r} is not "sum", "mean" or a tf.distribute.ReduceOp.') from None


def _own(value):
    """This worker's, also of a variable that is summed when it is read."""
    value = component(value)
    return tf.convert_to_tensor(value.values[0] if isinstance(value, values.SyncOnReadVariable) else value)


def _counted_gradient(gradient, variable, counts):
    """`gradient`, or zeros where no row counts, whatever the loss made of the row; no copy."""
    if slices.of(variable) is not None:
        return gradient  # of all workers' rows that count
    if isinstance(slices.tensorflows(gradient), tf.Variable):
        return gradient  # in which a step of the user's adds up several batches
    if isinstance(gradient, tf.IndexedSlices) and has_constant_indices(gradient):  # which all workers have
        values = tf.where(counts, gradient.values, tf.zeros_like(gradient.values))
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    if isinstance(gradient, tf.IndexedSlices):
        values, indices = (if_counted(x, counts) for x in (gradient.values, gradient.indices))
        return tf.IndexedSlices(values, indices, gradient.dense_shape)
    return tf.cond(counts, lambda: tf.identity(gradient), lambda: tf.zeros_like(gradient))


def _number_as_tensor(value, destinations):
    """What is no tensor yet, and may differ between workers, in the dtype of the variable it is for."""
    if not isinstance(value, (int, float, np.ndarray, np.generic)):
        return value
    return tf.convert_to_tensor(value, getattr(destinations, "dtype", None))


def _are_gradients(pairs) -> bool:
    """tf_keras optimizers hand over (gradient, variable) pairs, mostly trainable ones; nothing else does."""
    to = [variable for _, variable in pairs]
    return all(isinstance(v, values.MirroredVariable) for v in to) and any(v.trainable for v in to)
