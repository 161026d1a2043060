"""One optimizer's divided update that ends with whole weights, and slots of which a worker holds a part."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tf_sparse_strategy.embedding import slices
from tf_sparse_strategy.embedding.partition import ChunkPartition
from tf_sparse_strategy.overlap.update import ChunkedUpdate, key


class UpdateAtOnce(ChunkedUpdate):
    """As its parent, but the weights are gathered in the step that has changed their chunks.

    The variables always hold what counts: a chunk is cut from them before each update. The optimizer's slots
    are made as parts (`embedding.slices`), and are the very variables that the inner optimizer updates.
    """

    leaves_behind = False

    def begin(self) -> list[tf.Tensor]:
        """Nothing: the weights are there."""
        return []

    def update(self, gradients, variables, learning_rate, others=0.0):
        """As its parent's."""
        self._find_slots()
        return super().update(gradients, variables, learning_rate, others)

    def part_beside(self, variable: Any) -> tuple[Any, ChunkPartition] | None:
        """(chunk, its partition) that a slot beside `variable` is made from; None: it is made whole."""
        if not self.divides(variable):
            return None
        workers = self._collectives.topology.num_workers
        return self._shards[key(variable)], ChunkPartition(tuple(variable.shape), workers)

    def check_read(self, name: str) -> None:
        """Nothing: variables are never behind."""

    def check_write(self, name: str) -> None:
        """Nothing, likewise."""

    def _finish(self, summed, variables):
        del summed  # a bucket need not wait for the others
        updated = {self._positions[key(v)] for v in variables}
        for number, positions in enumerate(self._buckets):
            if present := [p for p in positions if p in updated]:
                self._gathering([self._pairs[p] for p in present], number)()

    def _take_slots(self, pairs: Iterable) -> list:
        for slot, inner in pairs:
            if slices.of(slot) is None:
                raise ValueError(
                    f"overlap=ShardedUpdate: {type(self.optimizer).__name__} makes the slot {slot.name!r} "
                    "whole. Let its build make slots by add_variable_from_reference or "
                    "add_optimizer_variables, after super().build."
                )
            inner._value = slot._value
        return []
