"""The schemes that are compared, as epochs go by."""

import functools

from tf_sparse_strategy.communication import (
    Communication,
    Dense,
    HiTopK,
    OkTopK,
    Piecewise,
    ShardedTopK,
)

DENSITY = 0.01
DENSE, HALF, CONTROL = "dense", "HiTopK for 13 of 28 epochs, then dense", "HiTopK, no error feedback"
THROUGHOUT = {"HiTopK": HiTopK, "ShardedTopK": ShardedTopK, "OkTopK": OkTopK}
WARM_UP = (0.25, 0.0625, 0.016)  # densities before DENSITY, of Lin et al., ICLR 2018


def warmed_up(kind, steps: int) -> Communication:
    """`kind` throughout, in `steps` steps from a high density to DENSITY."""
    starts = [round(steps * i / len(WARM_UP)) for i in range(len(WARM_UP) + 1)]
    return Piecewise([(s, kind(d)) for s, d in zip(starts, (*WARM_UP, DENSITY), strict=True)], unit="step")


def digits(epochs: int, steps: int) -> dict[str, Communication]:
    """By name, for `epochs` of `steps` steps."""
    found = {DENSE: Dense()}
    found |= {name: warmed_up(kind, 4 * steps) for name, kind in THROUGHOUT.items()}
    half = max(1, round(epochs * 13 / 28))
    found[HALF] = Piecewise([(0, HiTopK(DENSITY)), (half, Dense())])
    found[CONTROL] = warmed_up(functools.partial(HiTopK, error_feedback=False), 4 * steps)
    return found


def words(steps: int) -> dict[str, Communication]:
    """By name, for epochs of `steps` steps."""
    warm_up = max(len(WARM_UP), steps // 2)
    return {DENSE: Dense()} | {name: warmed_up(kind, warm_up) for name, kind in THROUGHOUT.items()}
