"""Brute force for the MSTopK tests: integer keys, fully sorted."""

import ml_dtypes
import numpy as np

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)


def keys(x: np.ndarray) -> np.ndarray:
    """|x| as integers that order like it: NaN > Inf > finite, and -0 == +0."""
    bits = {2: np.uint16, 4: np.uint32}[x.dtype.itemsize]
    return (x.view(bits) & bits(np.iinfo(bits).max >> 1)).astype(np.int64)


def by_magnitude(x: np.ndarray, k: int) -> np.ndarray:
    """Indices of the k largest |x| along the last axis, by falling magnitude, ties by rising index."""
    return np.argsort(-keys(x), axis=-1, kind="stable")[..., :k]


def top_k(x: np.ndarray, k: int) -> np.ndarray:
    """The same, ascending."""
    return np.sort(by_magnitude(x, k), axis=-1)


def adversarial(name: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """A float32 vector of length n on which top-k implementations go wrong."""
    x = rng.standard_normal(n).astype(np.float32)
    at = rng.permutation(n)
    if name == "nan_and_inf":
        x[at[: n // 3]] = np.nan
        x[at[n // 3 : n // 2]] = rng.choice([np.inf, -np.inf])
    elif name == "one_nan":
        x[at[:1]] = np.nan
    elif name == "zeros":
        x[:] = rng.choice(np.float32([0.0, -0.0]), n)
    elif name == "constant":
        x[:] = -0.25
    elif name == "clipped":
        x = np.clip(x, -0.5, 0.5)
    elif name == "denormal":
        x *= np.float32(1e-41)
    elif name == "sparse":
        x[at[n // 50 :]] = 0
    elif name == "mixed_scales":
        x[at[: n // 200]] *= 1000
    elif name == "ascending":
        x = np.sort(x)
    elif name == "descending":
        x = np.sort(x)[::-1].copy()
    elif name == "periodic":
        x = np.float32(np.arange(n) % 7)
    elif name == "few_values":
        x = np.float32(rng.integers(-2, 3, n))
    elif name != "normal":
        raise ValueError(f"name is {name!r}; it must be one of ADVERSARIAL.")
    return x


ADVERSARIAL = (
    "normal", "nan_and_inf", "one_nan", "zeros", "constant", "clipped", "denormal", "sparse",
    "mixed_scales", "ascending", "descending", "periodic", "few_values",
)  # fmt: skip


def long_case(name: str, rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """A vector of one block to three, of which a sample is taken; k, small as often as large."""
    n = int(2 ** rng.uniform(14.1, 19.5))
    k = int(n ** rng.uniform(0, 1))
    return adversarial(name, n, rng), k
