"""What this worker waits in."""

from tf_sparse_strategy.call_site import CallSites
from tf_sparse_strategy.watchdog import source_line


class Waits:
    """Reads the places' counters of begun and ended calls.

    A call in a graph that failed, and whose error the program caught, is never counted as ended. It
    is told from a wait, which always stands in a running graph, when no graph runs.

    Args:
      sites: of this worker.
    """

    def __init__(self, sites: CallSites):
        self._sites = sites
        self._open: dict[str, tuple[int, int]] = {}  # as last read, while no graph ran
        self._failed: dict[str, int] = {}  # calls of each place that will never end

    def now(self) -> frozenset[tuple[str, int]]:
        """(operation, number of its call) of each wait. For one thread, a few times per limit."""
        calls = self._sites.in_flight()
        in_graphs = {name: call for name, call in calls.items() if not name.endswith(".eager")}
        if source_line.runs_graph_function():
            self._open = {}
        else:
            # Twice the same: the first time, a graph may have ended between the two readings above.
            for name in in_graphs.keys() & self._open.keys():
                if in_graphs[name] == self._open[name]:
                    self._failed[name] = in_graphs[name][1]
            self._open, in_graphs = in_graphs, {}
        return frozenset(
            (name, number)
            for name, (number, unended) in calls.items()
            if name.endswith(".eager")
            or (name in in_graphs and unended > self._failed.get(name, 0))
        )
