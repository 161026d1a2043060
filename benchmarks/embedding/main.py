"""What does a step of a large embedding table cost, divided by columns and in four other ways?

make bench-embedding                         four tables; 2, 4, 8 workers; publishes; 1.5 hours; root, Linux
python -m benchmarks.embedding.main --quick  a small table on 2 workers; prints only
"""

from benchmarks import cluster, report
from benchmarks.embedding import settings, tables
from tf_sparse_strategy.cluster import Netlab

PLACES = ((2, 1), (2, 2), (4, 2))  # nodes, workers on each
RATE = "200mbit"
# By itself glibc keeps freed blocks of up to 32 MB, in each thread, for what the thread may want next.
GIVES_BACK = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}


def measure(quick: bool) -> dict:
    """Three jobs per table and placement: times and bytes; memory; memory with what glibc keeps."""
    jobs, held = [], []
    for nodes, local in PLACES[:1] if quick else PLACES:
        with Netlab(nodes, local, RATE) as lab:
            for name in settings.known(quick):
                more = ["--quick"] if quick else []
                used, kept = [
                    cluster.run(lab, "benchmarks.embedding.held", name, *more, environment=allocator)
                    for allocator in (GIVES_BACK, None)
                ]
                held.append({**used, "kept": kept["training"]})
                more += ["--rounds", "3"] if quick else []
                job = cluster.run(lab, "benchmarks.embedding.measure", name, *more)
                jobs.append({"nodes": nodes, **job})
    return {"jobs": jobs, "held": held}


if __name__ == "__main__":
    report.main("embedding", __doc__, measure, tables.render)
