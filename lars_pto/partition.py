"""Who computes what: tensors divided over workers by cost; pure functions of integers."""

from collections.abc import Sequence
from typing import NamedTuple


class Piece(NamedTuple):
    """Elements [begin, end) of the flattened tensor number `tensor`."""

    tensor: int
    begin: int
    end: int


Division = tuple[tuple[Piece, ...], ...]  # for each worker its pieces, by rising tensor and begin


def whole_tensors(sizes: Sequence[int], costs: Sequence[float], workers: int) -> Division:
    """Gives each tensor to one worker: the dearest first, each to the least loaded worker.

    The largest load is at most 4/3 of the best possible, but never below the largest cost. Equal
    costs and loads are taken in order of index, so all workers make the same division.

    Args:
      sizes: elements of each tensor.
      costs: cost of each tensor, any unit.
      workers: P.

    Returns:
      P tuples, some empty where there are fewer tensors than workers.

    Example:
      >>> whole_tensors([5, 5, 9], costs=[5, 5, 9], workers=2)
      ((Piece(tensor=2, begin=0, end=9),), (Piece(tensor=0, begin=0, end=5), Piece(tensor=1, begin=0, end=5)))

    Source: Graham, "Bounds on Multiprocessing Timing Anomalies", 1969.
    """
    loads = [0.0] * workers
    shares: list[list[int]] = [[] for _ in range(workers)]
    for tensor in sorted(range(len(sizes)), key=lambda i: (-costs[i], i)):
        worker = min(range(workers), key=loads.__getitem__)
        loads[worker] += costs[tensor]
        shares[worker].append(tensor)
    return tuple(tuple(Piece(t, 0, sizes[t]) for t in sorted(share)) for share in shares)


def split_tensors(
    sizes: Sequence[int], costs: Sequence[float], workers: int, unit: int
) -> Division:
    """Gives each worker 1/P of the total cost, cutting tensors at multiples of `unit` elements.

    All tensors stand in a row and the row is cut into P stretches of equal cost; a cut inside a
    tensor moves to the nearest multiple of `unit` or to the tensor's end. So a load is off by at most
    the cost of `unit` elements, and a tensor below half of `unit` stays whole.

    Args:
      sizes: elements of each tensor.
      costs: cost of each tensor, any unit.
      workers: P.
      unit: elements.

    Returns:
      P tuples; one after the other they list all pieces in the order of the row.

    Example:
      >>> split_tensors([8, 2], costs=[8, 2], workers=2, unit=1)
      ((Piece(tensor=0, begin=0, end=5),), (Piece(tensor=0, begin=5, end=8), Piece(tensor=1, begin=0, end=2)))

    Source: McNaughton, "Scheduling with Deadlines and Loss Functions", 1959.
    """
    share = sum(costs) / workers
    shares: list[list[Piece]] = [[] for _ in range(workers)]
    start = 0.0  # cost of all tensors before this one
    latest = 0  # the worker that has the end of the row so far
    for tensor, (size, cost) in enumerate(zip(sizes, costs, strict=True)):
        if size == 0 or cost == 0:
            shares[latest].append(Piece(tensor, 0, size))
            continue
        ends = [(share * worker - start) / cost * size for worker in range(1, workers)]
        cuts = [0, *(_cut(end, size, unit) for end in ends), size]
        for worker in range(workers):
            if cuts[worker] < cuts[worker + 1]:
                shares[worker].append(Piece(tensor, cuts[worker], cuts[worker + 1]))
                latest = worker
        start += cost
    return tuple(map(tuple, shares))


def _cut(end: float, size: int, unit: int) -> int:
    """Where to cut a tensor of `size` elements when a share ends at element `end`, maybe outside."""
    if end <= 0 or end >= size:
        return 0 if end <= 0 else size
    return min(round(end / unit) * unit, size)
