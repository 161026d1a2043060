"""Does the alpha-beta model predict what our collectives take? On an emulated cluster (root, Linux).

make bench-cost_model                         measures three link speeds, publishes; some 6 minutes
python -m benchmarks.cost_model.main --quick  one speed, two nodes of one worker; prints only
"""

from benchmarks import cluster, report
from benchmarks.cost_model import tables
from tf_sparse_strategy.cluster import Netlab

RATES = ("100mbit", "200mbit", "1gbit")
NODES, LOCAL = 4, 2


def measure(quick: bool) -> dict:
    """One job per link speed."""
    nodes, local, rates = (2, 1, RATES[1:2]) if quick else (NODES, LOCAL, RATES)
    jobs = {}
    for rate in rates:
        with Netlab(nodes, local, rate) as lab:
            arguments = ("--rounds", "2") if quick else ()
            jobs[str(lab.rate / 1e6)] = cluster.run(lab, "benchmarks.cost_model.measure", *arguments)
    return {"nodes": nodes, "local": local, "jobs": jobs}


if __name__ == "__main__":
    report.main("cost_model", __doc__, measure, tables.render)
