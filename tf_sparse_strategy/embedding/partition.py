"""Which columns of a table, or elements of any variable, belong to which of P workers; pure."""

import dataclasses
import math

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class ColumnPartition:
    """Divides the D columns of a table into P runs, the first D mod P of them one column longer.

    Args:
      rows: L, the table's rows.
      columns: D, its columns; workers beyond the D-th own none.
      workers: P.

    Raises:
      ValueError: a number is not positive, or there are too many rows for 32-bit ids.

    Example:
      >>> ColumnPartition(rows=10, columns=5, workers=3).widths
      (2, 2, 1)
      >>> ColumnPartition(rows=10, columns=5, workers=3).bounds(1)
      (2, 4)
    """

    rows: int
    columns: int
    workers: int

    def __post_init__(self):
        for name, number in dataclasses.asdict(self).items():
            if number < 1:
                raise ValueError(f"ColumnPartition({name}={number}): must be at least 1.")
        if self.rows >= 1 << 31:
            raise ValueError(f"rows={self.rows}: ids travel as int32; divide the table in two.")

    @property
    def shape(self) -> tuple[int, int]:
        """(L, D) of the whole table."""
        return self.rows, self.columns

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each worker."""
        least, more = divmod(self.columns, self.workers)
        return tuple(least + (rank < more) for rank in range(self.workers))

    def bounds(self, rank: int) -> tuple[int, int]:
        """(first, one past the last) column of worker `rank`."""
        first = sum(self.widths[:rank])
        return first, first + self.widths[rank]

    @property
    def goes_by_rows(self) -> bool:
        """Whether the whole is read and written in runs of rows: where columns are really divided."""
        return self.workers > 1

    def of(self, table, rank: int):
        """Worker `rank`'s columns of `table`, an array or a tensor [n, D]."""
        first, end = self.bounds(rank)
        return table[:, first:end]

    def chunks(self, elements: int, first: int = 0, end: int | None = None):
        """(first, one past the last) row of runs of about `elements` elements each, in rows [first, end)."""
        step, end = max(1, elements // self.columns), self.rows if end is None else end
        for start in range(first, end, step):
            yield start, min(start + step, end)

    @property
    def grid(self) -> "ColumnPartition":
        """The columns in which the workers' parts are gathered: these."""
        return self

    def whole(self, grid):
        """What a gathered `grid` stands for: itself."""
        return grid


@dataclasses.dataclass(frozen=True)
class ChunkPartition:
    """Gives worker r the elements [r c, (r+1) c), c = ceil(n/P), of a variable of n elements.

    The last chunks are padded with zeros, so that all have c elements.

    Args:
      shape: of the whole variable, n > 0 elements.
      workers: P.

    Example:
      >>> partition = ChunkPartition(shape=(2, 3), workers=4)
      >>> [partition.of(np.arange(6).reshape(2, 3), rank).tolist() for rank in range(4)]
      [[0, 1], [2, 3], [4, 5], [0, 0]]
    """

    shape: tuple[int, ...]
    workers: int

    goes_by_rows = False

    @property
    def grid(self) -> ColumnPartition:
        """[c, P]: worker r's chunk is column r."""
        elements = math.prod(self.shape)
        return ColumnPartition(-(-elements // self.workers), self.workers, self.workers)

    def of(self, value, rank: int):
        """Worker `rank`'s chunk, [c], of the whole `value`, an array or a tensor."""
        rows, library = self.grid.rows, tf if tf.is_tensor(value) else np
        mine = library.reshape(value, [-1])[rank * rows : (rank + 1) * rows]
        return library.pad(mine, [[0, rows - mine.shape[0]]])

    def whole(self, grid):
        """What a gathered `grid` stands for, an array of `shape`."""
        return grid.T.reshape(-1)[: math.prod(self.shape)].reshape(self.shape)


Partition = ColumnPartition | ChunkPartition
