"""How much of a link's rate do collectives use, with each of TCP's congestion controls?

make bench-congestion_control                         measures, publishes; 8 minutes; root, Linux
python -m benchmarks.congestion_control.main --quick  two nodes, once; prints only
"""

from benchmarks import cluster, report
from benchmarks.congestion_control import tables
from tf_sparse_strategy.cluster import Netlab
from tf_sparse_strategy.cluster.rate import parse_rate

CLUSTERS, ROUNDS, TIMES = ((4, 1, "100mbit"), (8, 1, "100mbit"), (4, 2, "100mbit")), 3, 6
TCPS = ("cubic", "bbr")


def measure(quick: bool) -> dict:
    """On each cluster, jobs with each congestion control, in turns."""
    clusters, rounds = (((2, 1, "100mbit"),), 1) if quick else (CLUSTERS, ROUNDS)
    found = []
    for nodes, local, rate in clusters:
        jobs = {tcp: [] for tcp in TCPS}
        for number in range(rounds):
            for tcp in TCPS if number % 2 else TCPS[::-1]:
                with Netlab(nodes, local, rate, tcp=tcp) as lab:
                    worker = "benchmarks.congestion_control.worker"
                    jobs[tcp].append(cluster.run(lab, worker, "--times", str(TIMES)))
        found.append({"nodes": nodes, "local": local, "rate": parse_rate(rate), "jobs": jobs})
    return {"clusters": found}


if __name__ == "__main__":
    report.main("congestion_control", __doc__, measure, tables.render)
