"""Does SparseStrategy cost anything against what it is built on, and against TensorFlow's own strategy?

make bench-dense_training                         measures, publishes; some 20 minutes; root, Linux
python -m benchmarks.dense_training.main --quick  two nodes of one worker; prints only; a minute or two
"""

from benchmarks import cluster, report
from benchmarks.dense_training import tables
from tf_sparse_strategy.cluster import Netlab

# (nodes, workers per node, rate, width of the hidden layers)
CLUSTERS = {
    "4 nodes of 2 workers, 200 Mbit/s": (4, 2, "200mbit", 512),
    "2 nodes of 2 workers, 1 Gbit/s": (2, 2, "1gbit", 512),
    "1 node of 2 workers, a tiny model": (1, 2, "1gbit", 8),  # what a step costs besides bytes
}
# Horovod's settings under which both, it and we, are run; the best of each counts.
SETTINGS = {
    "default": {},
    "no fusion": {"HOROVOD_FUSION_THRESHOLD": "0"},
    "cycle 5 ms": {"HOROVOD_CYCLE_TIME": "5"},
}
# Bytes of a message of MultiWorkerMirroredStrategy: all gradients, and as many as SparseStrategy's buckets.
PACKS = {"": 0, "packs of 1 MiB": 1 << 20}
ROUNDS, STEPS = 6, 4


def measure(quick: bool) -> dict:
    """Jobs one after the other: each of Horovod's settings, then those of TensorFlow's strategy, in turn."""
    clusters, settings, rounds = CLUSTERS, SETTINGS, ROUNDS
    if quick:
        clusters = {"2 nodes of 1 worker, 200 Mbit/s": (2, 1, "200mbit", 128)}
        settings, rounds = {"default": {}}, 2
    found = {}
    for name, (nodes, local, rate, width) in clusters.items():
        common = ("--width", str(width), "--rounds", str(rounds), "--steps", str(STEPS))
        place = ("--nodes", str(nodes), "--local", str(local))
        folder = "benchmarks.dense_training"
        with Netlab(nodes, local, rate) as lab:
            jobs = []
            for setting, variables in settings.items():
                job = cluster.run(lab, f"{folder}.horovod_worker", *common, environment=variables)
                jobs.append({"setting": setting, **job})
                for pack, size in PACKS.items():
                    given = (*common, *place, "--pack", str(size))
                    job = cluster.run(lab, f"{folder}.multi_worker_mirrored", *given)
                    jobs.append({"setting": pack, **job})
        found[name] = {"nodes": nodes, "local": local, "jobs": jobs}
    return {"clusters": found}


if __name__ == "__main__":
    report.main("dense_training", __doc__, measure, tables.render)
