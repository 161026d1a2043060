"""Which collectives ran, and when this rank computed, in some steps of a training: a Chrome trace."""

import dataclasses
import secrets
import time

from absl import logging

from tf_sparse_strategy import agreement, clocks, computing, stall, trace
from tf_sparse_strategy.collectives import Collectives


class Recorder:
    """Records a range of steps on this rank, from now until `stop`.

    Args:
      collectives: of this worker; its clock ticks only in functions that are traced from now on.
      steps: which.
    """

    def __init__(self, collectives: Collectives, steps: range):
        self._collectives = collectives
        self._collectives.sites.timers += 1
        self._is_timer = True
        self._steps = steps
        self._spans = []
        self._untimed: set[str] = set()  # places traced before
        self._profile = self._time = None

    @property
    def has_recorded(self) -> bool:
        """Whether a step has been."""
        return bool(self._spans)

    def begin(self, step: int, length: int) -> None:
        """`length` steps begin, in one call."""
        if step < self._steps.stop and self._steps.start < step + length:
            if self._profile is None:
                self._profile = computing.Profile()
            self._before = self._collectives.sites.sites()
            self._time = time.time()

    def end(self, step: int) -> None:
        """They have ended."""
        if self._time is None:
            return
        sites = self._collectives.sites
        after, end = sites.sites(), time.time()
        bar = trace.Span(trace.STEPS, f"step {step}", int(self._time * 1e6), int(end * 1e6), {})
        places = trace.site_spans(self._before, after, sites.clock_start, step)
        self._untimed |= {place.line for place in places if place.begin <= sites.clock_start * 1e6}
        self._spans += [bar, *(place for place in places if place.line not in self._untimed)]
        self._time = None

    def stop(self) -> list[stall.Interval]:
        """Records no more; when this rank computed."""
        self._collectives.sites.timers -= self._is_timer
        self._is_timer = False
        return [] if self._profile is None else self._profile.stop()

    def write(self, path: str) -> dict[str, float]:
        """Stops, writes the bars, and returns `stall.rates` of all ranks. Collective."""
        bars = self.stop()
        steps = [bar for bar in self._spans if bar.line == trace.STEPS]
        first = min((bar.begin for bar in steps), default=0)
        last = max((bar.end for bar in steps), default=0)
        self._spans += [
            trace.Span(trace.COMPUTE, trace.COMPUTE, begin, end, {})
            for begin, end in bars
            if first < end and begin < last
        ]
        topology = self._collectives.topology
        if "{rank}" in path:
            run = agreement.gather(secrets.token_hex(8), self._collectives)[0]
            own = trace.chrome_trace({topology.rank: self._spans}, topology.nodes, run)
            _write(path.replace("{rank}", str(topology.rank)), own)
        else:
            rows = agreement.to_first([dataclasses.astuple(span) for span in self._spans], self._collectives)
            if topology.rank == 0:
                spans = {rank: [trace.Span(*fields) for fields in row] for rank, row in enumerate(rows)}
                apart = clocks.offsets(spans, topology.nodes)
                ranks = clocks.aligned(spans, topology.nodes, apart)
                _write(path, trace.chrome_trace(ranks, topology.nodes))
        if self._untimed and topology.rank == 0:
            logging.warning(
                "%s lacks collectives (%d, such as %s) of a tf.function that was traced before "
                "CommunicationMonitor(trace=...) was there: give it to the first fit of the model.",
                path,
                len(self._untimed),
                min(self._untimed),
            )
        times = None if self._untimed else stall.times(self._spans)
        found = agreement.gather(times and dataclasses.asdict(times), self._collectives)
        return stall.rates([None if row is None else stall.Times(**row) for row in found])


def _write(path: str, content: dict) -> None:
    """If that is possible: training goes on."""
    try:
        trace.write(path, content)
    except OSError as error:
        logging.warning("The trace cannot be written: %s", error)
