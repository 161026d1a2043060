"""From measurements to Markdown. Pure."""

import statistics

from benchmarks.congestion_control.settings import EXCHANGES, bytes_sent
from benchmarks.report import environment_line, number, spread, table
from tf_sparse_strategy.cluster.rate import PAYLOAD


def of_rate(operation: str, seconds: float, nodes: int, local: int, rate: float) -> float:
    """The part of a link's rate at which a node sent what it had to.

    Args:
      operation: of settings.
      seconds: that it took.
      nodes, local: M, and G workers on each.
      rate: of the links, bits per second.
    """
    return bytes_sent(operation, nodes, local) * 8 / (PAYLOAD * rate) / seconds


def render(results: dict) -> str:
    """The answer, and a table per cluster."""
    parts = [environment_line(results), "\n".join(map(_verdict, results["clusters"]))]
    for cluster in results["clusters"]:
        parts += [f"### {_place(cluster)}", _table(cluster)]
    return "\n\n".join(parts)


def _place(cluster):
    return f"{cluster['nodes']} nodes of {cluster['local']}, links of {cluster['rate'] / 1e6:g} Mbit/s"


def _parts(cluster, tcp, operation):
    """Of the rate, each time."""
    seconds = [second for job in cluster["jobs"][tcp] for second in job[operation]["seconds"]]
    place = cluster["nodes"], cluster["local"], cluster["rate"]
    return [of_rate(operation, second, *place) for second in seconds]


def _verdict(cluster):
    said = ", ".join(
        f"{statistics.median(_parts(cluster, tcp, EXCHANGES)):.0%} with {tcp}" for tcp in cluster["jobs"]
    )
    return f"- {_place(cluster)}: {EXCHANGES} use {said} of a link's rate."


def _table(cluster):
    rows = []
    for operation in next(iter(cluster["jobs"].values()))[0]:
        for tcp, jobs in cluster["jobs"].items():
            times = sum(len(job[operation]["seconds"]) for job in jobs)
            rows.append(
                [
                    operation,
                    tcp,
                    spread(_parts(cluster, tcp, operation), 100),
                    number(sum(job[operation]["packets sent again"] for job in jobs) / times),
                    f"{sum(job[operation]['timeouts'] for job in jobs) / times:.2g}",
                ]
            )
    return table(
        ["operation", "TCP", "% of the rate", "packets sent again, each time, all nodes", "timeouts"], rows
    )
