"""Residuals of one run made to fit another: pure functions of NumPy arrays.

Neither the number of nodes or workers, nor the buckets, nor the scheme need be those of the run that
saved. A holder's residual (residual.py) is put together from its shards, cut into the tensors of its
buckets, and joined and cut again as the new run does; holder h's goes to holder h mod H'. No element is
added to another unless H' < H, so that the sum over holders is kept exactly then, and to float32
rounding otherwise.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Layout(NamedTuple):
    """How one run keeps the residuals of a list of tensors.

    Args:
      sizes: elements of each tensor of the list.
      buckets: the positions in the list that each bucket joins, in its order.
      places: (holder, shard) of each worker in rank order.
    """

    sizes: Sequence[int]
    buckets: Sequence[Sequence[int]]
    places: Sequence[Sequence[int]]

    @property
    def holders(self) -> int:
        """H."""
        return 1 + max(holder for holder, _ in self.places)

    @property
    def shards(self) -> int:
        """S."""
        return 1 + max(shard for _, shard in self.places)


Tensors = list[dict[int, np.ndarray]]  # of each holder: position in the list -> elements


def merge(layout: Layout, residuals: Sequence[Sequence[np.ndarray]]) -> Tensors:
    """Returns each holder's residual of each tensor.

    Args:
      layout: of the run that saved.
      residuals: of each bucket, every worker's shard in rank order.
    """
    tensors: Tensors = [{} for _ in range(layout.holders)]
    for positions, shards in zip(layout.buckets, residuals, strict=True):
        ends = np.cumsum([layout.sizes[p] for p in positions])
        for holder in range(layout.holders):
            own = sorted(
                (shard, rank) for rank, (h, shard) in enumerate(layout.places) if h == holder
            )
            whole = np.concatenate([shards[rank] for _, rank in own])[: ends[-1]]
            tensors[holder].update(zip(positions, np.split(whole, ends[:-1]), strict=True))
    return tensors


def split(layout: Layout, tensors: Tensors, rank: int) -> list[np.ndarray]:
    """Returns one worker's shard of each bucket, float32, padded with zeros.

    Args:
      layout: of the run that restores.
      tensors: from `merge`; tensors that no bucket of its run held start from zero.
      rank: the worker.
    """
    holder, shard = layout.places[rank]
    mine = tensors[holder :: layout.holders]
    found = []
    for positions in layout.buckets:
        whole = np.concatenate([_sum(mine, p, layout.sizes[p]) for p in positions])
        length = -(-len(whole) // layout.shards)
        part = whole[shard * length : (shard + 1) * length]
        found.append(np.pad(part, (0, length - len(part))))
    return found


def _sum(holders: Tensors, position: int, size: int) -> np.ndarray:
    """One addition for each holder after the first: a lone holder's bits are kept, -0 included."""
    parts = [tensors[position] for tensors in holders if position in tensors]
    total = parts[0] if parts else np.zeros(size, np.float32)
    for part in parts[1:]:
        total = total + part
    return total
