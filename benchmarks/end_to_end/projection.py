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


def links_of(measured: LinkModel, rate: float) -> LinkModel:
    """The measured links, with others between nodes.

    Args:
      measured: on emulated links of `rate` bits per second.

    Returns:
      The same share of the nominal rate at 25 Gbit/s; latencies, starts and selection as measured, which of
      more workers may take longer.
    """
    return dataclasses.replace(measured, cross_beta=measured.cross_beta * rate / ETHERNET)


def schemes(density: float) -> dict[str, Communication]:
    """Those that are projected, by name."""
    return {
        names.DENSE: Dense(),
        names.TORUS: Torus2D(),
        names.HITOPK: HiTopK(density),
        names.SHARDED: ShardedTopK(density),
    }


def seconds(links: LinkModel, density: float) -> dict[str, dict[str, dict[str, float]]]:
    """[cluster][model][way]: of one sum of all gradients, in one bucket."""
    found: dict = {}
    for cluster, (nodes, local) in CLUSTERS.items():
        place = Topology(tuple(rank // local for rank in range(nodes * local)), rank=0)
        found[cluster] = {
            model: {name: scheme.cost(n, place, links).seconds for name, scheme in schemes(density).items()}
            for model, n in ELEMENTS.items()
        }
    return found


def middle(jobs: dict) -> LinkModel:
    """The medians of the links that the jobs measured; `jobs` is what `worker.py` writes."""
    links = [job["links"] for job in jobs.values()]
    return LinkModel(**{name: statistics.median(link[name] for link in links) for name in links[0]})


def errors(jobs: dict) -> dict[str, list[float]]:
    """Measured by predicted seconds of one sum: of each scheme that is projected, one for each job."""
    return {
        name: [statistics.median(job["sums"][name]) / job["predicted"][name] for job in jobs.values()]
        for name in schemes(density=1.0)
    }
