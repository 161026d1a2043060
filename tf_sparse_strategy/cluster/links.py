"""`tss doctor --measure`: what the links between the workers of this job cost."""

from __future__ import annotations

import pathlib

from tf_sparse_strategy import collectives, devices, link_measurement
from tf_sparse_strategy.communication import Dense, Torus2D
from tf_sparse_strategy.cost_model import LinkModel
from tf_sparse_strategy.topology import Topology

GRADIENT = 25_000_000  # elements, 100 MB: about ResNet-50


def measure(file: pathlib.Path | None) -> None:
    """Measures as all workers of a job; the first one prints the model, and keeps it in `file`.

    Raises:
      ValueError: there is no job, and so no link.
    """
    collectives.start()
    devices.pin()
    topology = collectives.find_topology()
    if topology.num_workers == 1:
        raise ValueError(
            "--measure needs a job of at least two workers: run it under the launcher, e.g. "
            "`horovodrun --gloo -np 8 -H vm1:4,vm2:4 tss doctor --measure`."
        )
    model = link_measurement.measure(collectives.Collectives(topology))
    if topology.rank == 0:
        print(describe(model, topology), flush=True)
        if file:
            file.write_text(model.to_json() + "\n")


def describe(model: LinkModel, topology: Topology) -> str:
    """The model in words, and what it predicts for a gradient of 100 MB."""
    lines = [
        f"links of {topology.num_workers} workers on {topology.num_nodes} nodes:",
        f"  a collective starts after {model.phase * 1e3:.2f} ms, an all-to-all after "
        f"{(model.phase + model.exchange) * 1e3:.2f} ms",
    ]
    links = (
        ("inside a node", model.local_alpha, model.local_beta, "of each worker"),
        ("between nodes", model.cross_alpha, model.cross_beta, "of each node"),
    )
    for where, alpha, beta, whose in links:
        speed = (
            f"{alpha * 1e6:.0f} µs a message, {8e-6 / beta:.0f} Mbit/s {whose}" if beta else "none"
        )
        lines.append(f"  {where}: {speed}")
    for scheme in (Dense(), Torus2D()):
        if topology.is_uniform:
            seconds = scheme.cost(GRADIENT, topology, model).seconds
            name = type(scheme).__name__.lower()
            lines.append(
                f"  {4e-6 * GRADIENT:.0f} MB of gradients by {name}: {seconds:.3f} s predicted"
            )
    return "\n".join(lines)
