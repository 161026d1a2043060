"""What does a step of a large embedding table cost, divided by columns and in four other ways?

make bench-embedding                         three tables; 2, 4 and 8 workers; publishes; an hour; root, Linux
python -m benchmarks.embedding.main --quick  a small table on 2 workers; prints only
"""

from benchmarks import cluster, report
from benchmarks.embedding import settings, tables
from tf_sparse_strategy.cluster import Netlab

PLACES = ((2, 1), (2, 2), (4, 2))  # nodes, workers on each
RATE = "200mbit"


def measure(quick: bool) -> dict:
    """Two jobs per table and placement: one for times and bytes, one for memory, which is not shared."""
    jobs, held = [], []
    for nodes, local in PLACES[:1] if quick else PLACES:
        with Netlab(nodes, local, RATE) as lab:
            for name in settings.known(quick):
                more = ["--quick"] if quick else []
                held.append(cluster.run(lab, "benchmarks.embedding.held", name, *more))
                more += ["--rounds", "3"] if quick else []
                job = cluster.run(lab, "benchmarks.embedding.measure", name, *more)
                jobs.append({"nodes": nodes, **job})
    return {"jobs": jobs, "held": held}


if __name__ == "__main__":
    report.main("embedding", __doc__, measure, tables.render)
