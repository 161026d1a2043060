"""From a list of gradients to their sum: buckets, state, and the chosen communication."""

import tensorflow as tf

from tf_sparse_strategy.bucketing import BucketPlan, BucketSpec, TensorSpec
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.communication.base import Communication
from tf_sparse_strategy.communication.dense import Dense, scheme_of
from tf_sparse_strategy.embedding import slices
from tf_sparse_strategy.gradient_kinds import (
    all_finite,
    coalesced,
    has_constant_indices,
    repeats,
    values_of,
)
from tf_sparse_strategy.memory import Memory, key_of
from tf_sparse_strategy.residual import LEFT, WAITS, State, commit, sum_with


class GradientReducer:
    """Sums lists of gradients over the workers.

    Dense gradients travel in buckets through `communication`, which may remember something of each
    bucket: `memory`. Small vectors, of which it would drop entries, are summed exactly instead, in buckets of
    their own. `tf.IndexedSlices` are sparse already and lose nothing: indices and values of all workers are
    gathered one after the other. Gradients of slices (embedding/slices.py) are sums over the workers as they
    come; only the rows of one id are added up.

    What schemes remember is written once all buckets of a list are reduced, and only if all of it, and
    all gathered slices, are finite: a step that loss scaling will skip changes no residual.

    Args:
      communication: sums one flat bucket.
      collectives: of this worker.
      bucket_bytes: size limit of a bucket, bytes.
    """

    def __init__(self, communication: Communication, collectives: Collectives, bucket_bytes: int):
        self.communication = communication
        # The one that sums: a lone worker sends nothing, so nothing is left out.
        self.scheme = communication if collectives.topology.num_workers > 1 else Dense()
        self._collectives = collectives
        self._bucket_bytes = bucket_bytes
        self.memory = Memory(self.scheme, collectives)
        self.probe = None  # a `GradientProbe`, which functions traced from now on are to feed

    def begin_step(self) -> None:
        """To be called before a step, which may reduce several lists, e.g. one of each optimizer."""
        self.memory.turns.begin_step()
        if self.probe is not None:
            self.probe.begin_step()

    @tf.autograph.experimental.do_not_convert
    def reduce(self, pairs) -> list:
        """Returns the sums over workers of `[(gradient, variable), …]`, in the same order.

        Raises:
          ValueError: a variable has no static shape, or a gradient of slices would need momentum.
        """
        if self.communication.momentum is not None:
            _refuse_slices(pairs, self.communication)
        reduced = [None] * len(pairs)
        columns, rows, dense = [], [], []  # of tables, of other IndexedSlices; and the rest
        alone = self._collectives.topology.num_workers == 1
        has_nothing_to_add = alone and not self.memory.is_restored
        for position, (gradient, variable) in enumerate(pairs):
            if slices.of(variable) is not None:
                reduced[position] = coalesced(gradient)
                columns.append(position)
            elif isinstance(gradient, tf.IndexedSlices):
                reduced[position] = gradient if alone else self._reduce_rows(gradient)
                rows.append(position)
            elif has_nothing_to_add:
                reduced[position] = gradient
            else:
                dense.append((position, _shaped(gradient, variable), variable))
        if has_nothing_to_add:
            self.memory.looks_for_none = True
        if not dense:  # of slices nothing is remembered
            return reduced
        specs = [_spec(gradient, variable) for _, gradient, variable in dense]
        n = sum(spec.size for spec in specs)
        exact_vectors = self.scheme.sets_vectors_apart(self._collectives.topology, n)
        plan = BucketPlan.build(specs, self._bucket_bytes, exact_vectors)
        states = self.memory.of(plan, [variable for _, _, variable in dense])
        due = None if self.probe is None else self.probe.due()
        for bucket, state in zip(plan.buckets, states, strict=True):
            members = [dense[p] for p in bucket.positions]
            summed = self._reduce_bucket(bucket, state, [g for _, g, _ in members], due)
            for (position, _, _), gradient in zip(members, summed, strict=True):
                reduced[position] = gradient
        if any(state.staged for state in states):
            exact = [reduced[p].values for p in rows]
            for bucket, state in zip(plan.buckets, states, strict=True):
                if not state.staged:  # summed exactly, without a verdict of its own
                    exact += [reduced[dense[p][0]] for p in bucket.positions]
            commit(states, self._are_finite(exact, [values_of(reduced[p]) for p in columns]))
        return reduced

    def _are_finite(self, exact, columns) -> list[tf.Tensor]:
        """Verdicts, alike on all workers, on sums that all hold and on columns that each has of its own."""
        finite = [all_finite(g) for g in exact]
        if columns:
            here = tf.reduce_all([all_finite(g) for g in columns])
            finite.append(self._collectives.all_reduce(here, op="min", purpose="finite"))
        return finite

    def reduce_sparse(self, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        """Gathers all workers' slices: indices of several workers add up where they are applied."""
        gather = self._collectives.all_gather
        return tf.IndexedSlices(
            gather(gradient.values, purpose="sparse_gradient_values"),
            gather(gradient.indices, purpose="sparse_gradient_indices"),
            gradient.dense_shape,
        )

    def _reduce_rows(self, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        """As one process has it: rows that the program looks up come once, those of data as often as there.

        Optimizers of Keras 3 do not add them up: Adam would square a row's parts, and clipping adds squares.
        """
        gathered = self.reduce_sparse(gradient)
        if not has_constant_indices(gradient):
            return gathered
        own, indices, p = gradient.indices, gathered.indices, self._collectives.topology.num_workers
        size, n = tf.size(indices), own.shape[0]
        # Programs may look up others on each worker, or the same for each sample: none come together then.
        alike = tf.reduce_all(indices == tf.gather(own, tf.range(size) % n))
        same = tf.reduce_all([size == p * n, alike, tf.logical_not(repeats(own))])
        times, once = tf.where(same, p, 1), tf.where(same, n, size)
        shape = tf.concat([[times, once], tf.shape(gathered.values)[1:]], axis=0)
        summed = tf.reduce_sum(tf.reshape(gathered.values, shape), axis=0)
        summed = tf.ensure_shape(summed, gathered.values.shape)
        return tf.IndexedSlices(summed, indices[:once], gradient.dense_shape)

    def _reduce_bucket(self, bucket: BucketSpec, state: State, gradients: list, due) -> list:
        flat = [tf.reshape(gradient, [-1]) for gradient in gradients]
        packed = flat[0] if len(flat) == 1 else tf.concat(flat, axis=0)
        summed = self._sum(packed, state, scheme_of(bucket, self.scheme))
        if due is not None:
            self.probe.note(due, packed, summed, state)
        parts = [summed] if len(flat) == 1 else tf.split(summed, bucket.sizes)
        return [
            tf.reshape(part, spec.shape) for part, spec in zip(parts, bucket.tensors, strict=True)
        ]

    def _sum(self, packed: tf.Tensor, state: State, scheme: Communication) -> tf.Tensor:
        if LEFT not in state:
            return scheme.reduce(packed, state, self._collectives)
        share = self.scheme.share(self._collectives.topology)
        own = {name: variable for name, variable in state.items() if name not in (LEFT, WAITS)}

        def by_scheme(bucket, lossless):
            others = State(own, lossless)
            summed = tf.ensure_shape(scheme.reduce(bucket, others, self._collectives), packed.shape)
            return summed, (others.staged, others.verdict(summed))

        waits = state[WAITS].read_value()
        summed, left, done, (staged, finite) = sum_with(state[LEFT], packed, waits > 0, share, by_scheme)
        state.stage(finite, **staged, **{LEFT: left, WAITS: tf.where(done, 0, waits)})
        return summed


def _refuse_slices(pairs, communication) -> None:
    for gradient, variable in pairs:
        if isinstance(gradient, tf.IndexedSlices) or slices.of(variable) is not None:
            raise ValueError(
                f"communication={communication!r} applies momentum to dense gradients only; that of variable "
                f"{variable.name!r} is tf.IndexedSlices. Use HiTopK and the optimizer's momentum, or "
                "tf.convert_to_tensor(gradient) in a loop of your own."
            )


def _shaped(gradient, variable: tf.Variable) -> tf.Tensor:
    """`gradient`, whose shape TensorFlow may not know, e.g. behind the loop of an LSTM."""
    gradient = tf.convert_to_tensor(gradient)
    if gradient.shape.is_fully_defined():
        return gradient
    return tf.ensure_shape(gradient, variable.shape)


def _spec(gradient: tf.Tensor, variable: tf.Variable) -> TensorSpec:
    if not gradient.shape.is_fully_defined():
        raise ValueError(
            f"variable {variable.name!r} has the unknown shape {variable.shape}; buckets need static shapes. "
            "Make it without shape=."
        )
    return TensorSpec(
        key=key_of(variable),
        shape=tuple(gradient.shape.as_list()),
        dtype=gradient.dtype.name,
        itemsize=gradient.dtype.size,
    )
