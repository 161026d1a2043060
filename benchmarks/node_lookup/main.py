"""What does it save that the workers of a node look rows of a table up as one?

make bench-node_lookup                         8 workers on 4 and on 2 nodes; publishes; 13 minutes; root
python -m benchmarks.node_lookup.main --quick  a small table on 4 workers; prints only
"""

from benchmarks import cluster, report
from benchmarks.embedding import settings
from benchmarks.node_lookup import tables
from tf_sparse_strategy.cluster import Netlab

PLACES, RATE = ((4, 2), (2, 4)), "200mbit"  # nodes, workers on each


def measure(quick: bool) -> dict:
    """A job per table and placement."""
    jobs = []
    for nodes, local in ((2, 2),) if quick else PLACES:
        with Netlab(nodes, local, RATE) as lab:
            for name in settings.known(quick):
                more = ["--quick", "--rounds", "2"] if quick else []
                job = cluster.run(lab, "benchmarks.node_lookup.worker", name, *more)
                jobs.append({"nodes": nodes, "local": local, **job})
    return {"jobs": jobs}


if __name__ == "__main__":
    report.main("node_lookup", __doc__, measure, tables.render)
