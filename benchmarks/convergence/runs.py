"""The schemes that are compared, as epochs go by."""

from tf_sparse_strategy.communication import (
    Communication,
    Dense,
    HiTopK,
    OkTopK,
    Piecewise,
    ShardedTopK,
)

DENSITY, SGDS_DENSITY = 0.01, 0.0002
DENSE, HALF = "dense", "HiTopK for 13 of 28 epochs, then dense"
SGD = f"HiTopK {SGDS_DENSITY:.2%}, SGD"
CONTROL = f"{SGD}, no error feedback"
ADAM = {"dense": "dense, Adam", "HiTopK": "HiTopK, Adam"}
THROUGHOUT = {"HiTopK": HiTopK, "ShardedTopK": ShardedTopK, "OkTopK": OkTopK}
WARM_UP = (0.25, 0.0625, 0.016)  # densities before DENSITY, of Lin et al., ICLR 2018


def warmed_up(kind, steps: int) -> Communication:
    """`kind` throughout, in `steps` steps from a high density to DENSITY."""
    starts = [round(steps * i / len(WARM_UP)) for i in range(len(WARM_UP) + 1)]
    return Piecewise([(s, kind(d)) for s, d in zip(starts, (*WARM_UP, DENSITY), strict=True)], unit="step")


def digits(epochs: int, warm_up: int) -> dict[str, Communication]:
    """By name; `warm_up` in steps."""
    found = {DENSE: Dense()}
    found |= {name: warmed_up(kind, warm_up) for name, kind in THROUGHOUT.items()}
    half = max(1, round(epochs * 13 / 28))
    found[HALF] = Piecewise([(0, HiTopK(DENSITY)), (half, Dense())])
    found[SGD], found[CONTROL] = HiTopK(SGDS_DENSITY), HiTopK(SGDS_DENSITY, error_feedback=False)
    return found


def words(warm_up: int) -> dict[str, Communication]:
    """By name; `warm_up` in steps."""
    warm_up = max(len(WARM_UP), warm_up)
    found = {DENSE: Dense()} | {name: warmed_up(kind, warm_up) for name, kind in THROUGHOUT.items()}
    return found | {adams: found[name] for name, adams in ADAM.items()}
