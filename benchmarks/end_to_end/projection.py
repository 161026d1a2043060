"""What larger clusters would need for one sum of gradients, by the cost model: a projection. Pure."""

import dataclasses
import statistics

from benchmarks.end_to_end import names
from tf_sparse_strategy.communication import Communication, Dense, HiTopK, ShardedTopK, Torus2D
from tf_sparse_strategy.cost_model import LinkModel
from tf_sparse_strategy.topology import Topology

CLUSTERS = {"16 nodes of 8 workers": (16, 8), "128 nodes of 8 workers": (128, 8)}
ELEMENTS = {"ResNet-50": 25_557_032, "VGG-19": 143_667_240, "Transformer, 110 M": 110_000_000}
ETHERNET = 25e9  # bits per second
ASSUMED_LOCAL_BETA = 1 / 12e9  # seconds per byte between accelerators of a node


def links_of(measured: dict[str, float], rate: float) -> LinkModel:
    """The measured links, with others between nodes.

    Args:
      measured: arguments of LinkModel, on emulated links of `rate` bits per second.

    Returns:
      The same share of the nominal rate at 25 Gbit/s; latencies and starts as measured, which of more workers
      may take longer.
    """
    return LinkModel(**{**measured, "cross_beta": measured["cross_beta"] * rate / ETHERNET})


def schemes(density: float) -> dict[str, Communication]:
    """Those that are projected, by name."""
    return {
        names.DENSE: Dense(),
        names.TORUS: Torus2D(),
        names.HITOPK: HiTopK(density),
        names.SHARDED: ShardedTopK(density),
    }


def seconds(
    links: LinkModel, selection: dict[str, float], density: float
) -> dict[str, dict[str, dict[str, float]]]:
    """[cluster][model][way]: of one sum of all gradients, in one bucket.

    Args:
      links: of the cluster.
      selection: what ways that select compute, per element.
      density: of these ways.
    """
    found: dict = {}
    for cluster, (nodes, local) in CLUSTERS.items():
        place = Topology(tuple(rank // local for rank in range(nodes * local)), rank=0)
        found[cluster] = {model: {} for model in ELEMENTS}
        for name, scheme in schemes(density).items():
            own = dataclasses.replace(links, selection=selection.get(name, 0.0))
            for model, n in ELEMENTS.items():
                found[cluster][model][name] = scheme.cost(n, place, own).seconds
    return found


def middle(jobs: dict, part: str) -> dict[str, float]:
    """The medians of a part of what the jobs measured; `jobs` is what `worker.py` writes."""
    parts = [job[part] for job in jobs.values()]
    return {name: statistics.median(each[name] for each in parts) for name in parts[0]}


def errors(jobs: dict) -> dict[str, list[float]]:
    """Measured by predicted seconds of one sum: of each scheme that is projected, one for each job."""
    return {
        name: [statistics.median(job["sums"][name]) / job["predicted"][name] for job in jobs.values()]
        for name in schemes(density=1.0)
    }
