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

DENSITY, LITTLE = 0.01, 0.0002
KINDS = (HiTopK, ShardedTopK, OkTopK)
DENSE, RECIPE = "dense", "the recipe: HiTopK for 13 of 28 epochs, then Torus2D"
AS_RECIPE = {f"{kind.__name__} in HiTopK's place": kind for kind in (ShardedTopK, OkTopK)}
OF_RECIPE = (RECIPE, *AS_RECIPE)
AT_ONCE = f"HiTopK, {DENSITY:.0%} from the start"
FEW = f"HiTopK {LITTLE:.2%}"
FEW_SGD = {f"{kind.__name__} {LITTLE:.2%}, SGD": kind for kind in KINDS}
CONTROLLED = {FEW: HiTopK, **FEW_SGD}  # that error feedback helps them is asserted
WITHOUT = {name: f"{name}, no error feedback" for name in (AT_ONCE, *CONTROLLED)}
WORDS_WITHOUT = {f"{kind.__name__}, no error feedback": kind for kind in KINDS}
DENSE_SGD = "dense, SGD"
ADAM = {"dense": "dense, Adam", "HiTopK": "HiTopK, Adam"}


def _applying(entries: int) -> dict:
    """By name, a ShardedTopK that applies so many for each sent, in short messages."""
    coded = functools.partial(ShardedTopK, applied=entries, wire_dtype="float16", index_coding="delta")
    return {f"ShardedTopK, applied={entries}, fp16 + delta": coded}


THROUGHOUT = {"HiTopK": HiTopK, "ShardedTopK": ShardedTopK, **_applying(1), **_applying(3), "OkTopK": OkTopK}
OF_DIGITS = THROUGHOUT | _applying(2)
OF_SGD = {f"{kind.__name__}, SGD": kind for kind in KINDS}
BY_SGD = {DENSE_SGD, *OF_SGD, *FEW_SGD, *(WITHOUT[name] for name in FEW_SGD)}  # of digits; others by LARS
SHARED = tuple(kind.__name__ for kind in KINDS)  # on nodes of two workers, which share a residual, too
WARM_UP = 2 / 7  # part of a run; of digits, as long as their learning rate grows
BEFORE = (0.25, 0.0625, 0.016)  # densities in it, of Lin et al., ICLR 2018


def warmed_up(kind, steps: int) -> Communication:
    """`kind` throughout a run of `steps` steps, which begins with high densities."""
    warm_up = max(len(BEFORE), int(WARM_UP * steps))
    starts = [round(warm_up * i / len(BEFORE)) for i in range(len(BEFORE) + 1)]
    return Piecewise([(s, kind(d)) for s, d in zip(starts, (*BEFORE, DENSITY), strict=True)], unit="step")


def digits(recipe: Piecewise, steps: int) -> dict[str, Communication]:
    """By name, for a run of `steps` steps."""
    found = {DENSE: Dense()}
    found |= {name: warmed_up(kind, steps) for name, kind in (OF_DIGITS | OF_SGD).items()}
    found[RECIPE] = recipe
    for name, kind in AS_RECIPE.items():
        found[name] = Piecewise([(0, kind(DENSITY)), *recipe.phases[1:]])
    for name, without in WITHOUT.items():
        kind, density = CONTROLLED.get(name, HiTopK), LITTLE if name in CONTROLLED else DENSITY
        found[name], found[without] = kind(density), kind(density, error_feedback=False)
    return found | {DENSE_SGD: Dense()}


def words(steps: int) -> dict[str, Communication]:
    """By name, for a run of `steps` steps."""
    found = {DENSE: Dense()} | {name: warmed_up(kind, steps) for name, kind in THROUGHOUT.items()}
    for name, kind in WORDS_WITHOUT.items():
        found[name] = warmed_up(functools.partial(kind, error_feedback=False), steps)
    return found | {adams: found[name] for name, adams in ADAM.items()}
