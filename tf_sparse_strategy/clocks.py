"""How far the clocks of different nodes are apart, as the ends of common operations show. Pure."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from tf_sparse_strategy.trace import Span

Spans = Mapping[int, Sequence[Span]]


def aligned(ranks: Spans, nodes: Sequence[int], ahead: Mapping[int, int]) -> dict[int, list[Span]]:
    """Each rank's bars by the clock of the first rank's node, from which others are `ahead` (`offsets`).

    Example:
      >>> bars = {0: [Span("g.all_reduce_sum.f.0", "", 5, 9, {"step": 0})],
      ...         1: [Span("g.all_reduce_sum.f.0", "", 107, 109, {"step": 0})]}
      >>> apart = offsets(bars, nodes=[0, 1])
      >>> [(bar.begin, bar.end) for bar in aligned(bars, [0, 1], apart)[1]]
      [(7, 9)]
    """
    return {
        rank: [
            dataclasses.replace(s, begin=s.begin - ahead[nodes[rank]], end=s.end - ahead[nodes[rank]])
            for s in spans
        ]
        for rank, spans in ranks.items()
    }


def offsets(ranks: Spans, nodes: Sequence[int]) -> dict[int, int]:
    """By node, microseconds by which its clock is ahead of the first rank's; 0 where nothing is known.

    An operation in which all take part ends everywhere at about the same time: the offset is the median of
    the differences. It also ends nowhere before it has begun everywhere, which bounds the offset, except a
    broadcast, which is left out. Ranks of one node have one clock.

    Args:
      ranks: each one's bars.
      nodes: the node of each rank of the job.
    """
    first, *_ = sorted(ranks)
    common = _common_operations(ranks[first])
    found = {nodes[rank]: 0 for rank in ranks}
    for node in set(found) - {nodes[first]}:
        pairs = [
            (common[key], span)
            for rank in ranks
            if nodes[rank] == node
            for key, span in _common_operations(ranks[rank]).items()
            if key in common
        ]
        if pairs:
            apart = round(statistics.median(theirs.end - ours.end for ours, theirs in pairs))
            least = max(theirs.begin - ours.end for ours, theirs in pairs)
            most = min(theirs.end - ours.begin for ours, theirs in pairs)
            found[node] = min(max(apart, least), most)
    return found


def _common_operations(spans):
    return {
        (span.line, span.details["step"]): span
        for span in spans
        if span.is_collective and ".broadcast." not in span.line
    }
