"""What does a step look like, with and without what hides communication?

make bench-timelines    draws docs/images/*.svg; two minutes; root, Linux
"""

import argparse
import dataclasses

from benchmarks import cluster
from benchmarks.report import ROOT
from tf_sparse_strategy import timeline, trace
from tf_sparse_strategy.cluster import Netlab

RATES = {"overlap": "1gbit", "scheduling_2d": "50mbit"}  # of two nodes, by picture


def main() -> None:
    """Draws all pictures."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    for picture, rate in RATES.items():
        with Netlab(2, 1, rate) as lab:
            traces = cluster.run(lab, "benchmarks.timelines.worker", "--picture", picture)
        path = ROOT / "docs" / "images" / f"{picture}.svg"
        timeline.draw(path, {title: first_worker(content) for title, content in traces.items()})
        print(f"{path} shows the first of two workers, which a link of {rate}/s joins")


def first_worker(content: dict) -> list[trace.Span]:
    """The bars of rank 0, from time 0 on."""
    spans = trace.spans_of(content)[0][0]
    start = min(span.begin for span in spans)
    return [dataclasses.replace(s, begin=s.begin - start, end=s.end - start) for s in spans]


if __name__ == "__main__":
    main()
