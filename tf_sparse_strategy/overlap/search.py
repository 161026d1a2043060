"""Which size of buckets to try next, by Bayesian optimisation. Pure; knows neither TensorFlow nor workers."""

import importlib.util
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

SMALLEST, LARGEST = 10**6, 10**8  # bytes, as in the paper
START = 25 << 20  # bytes, as in the paper
TRIALS = 9
_GRID = 200  # sizes, before those of one plan are joined
_XI = 0.1  # standard deviations of the speeds tried so far


def require_library() -> None:
    """Raises ImportError where scikit-learn, which models the speeds, is not installed."""
    if importlib.util.find_spec("sklearn") is None:
        raise ImportError(
            "fusion='auto' needs scikit-learn, which is not installed: pip install "
            "scikit-learn, or give a number of bytes, e.g. fusion=25 << 20."
        )


def candidates(plan_of: Callable[[int], Hashable]) -> list[int]:
    """Sizes of 1 to 100 MB, one for each plan that they make; `START` stands for its own.

    Args:
      plan_of: the buckets that a size in bytes makes.

    Example:
      >>> candidates(lambda size: min(size // 10_000_000, 1))
      [1000000, 26214400]
    """
    sizes = {plan_of(START): START}
    for size in np.geomspace(SMALLEST, LARGEST, _GRID).astype(int).tolist():
        sizes.setdefault(plan_of(size), size)
    return sorted(sizes.values())


def suggest(sizes: Sequence[int], seconds: Mapping[int, float]) -> int | None:
    """The size that promises most, or None after `TRIALS` of them, or when all have been tried.

    A Gaussian process (Matern 5/2 of a length of 2.5-fold sizes, and white noise) models the speeds
    v = 1/seconds, standardised. With mean m(x), standard deviation s(x) and the best speed so far v*, the
    size taken has the largest expected improvement

        EI(x) = (m - v* - xi) Phi(z) + s phi(z),   z = (m - v* - xi) / s,   xi = 0.1.

    Args:
      sizes: to choose from, bytes.
      seconds: of a step, by the sizes tried so far; at least one.

    Example:
      >>> suggest([1_000_000, 5_000_000, 25_000_000], {1_000_000: 0.2, 25_000_000: 0.1})
      5000000

    Source: Zhang et al., "DeAR", ICDCS 2023, section IV; its xi has the unit of a speed, ours has none.
    """
    left = [size for size in sizes if size not in seconds]
    if not left or len(seconds) >= TRIALS:
        return None
    from scipy.special import ndtr

    speeds = 1 / np.array(list(seconds.values()))
    speeds = (speeds - speeds.mean()) / (speeds.std() or 1.0)
    mean, deviation = _model(_axis(seconds), speeds, _axis(left))
    gain = mean - speeds.max() - _XI
    z = gain / deviation
    improvement = gain * ndtr(z) + deviation * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    return left[int(np.argmax(improvement))]


def _axis(sizes):
    """[n, 1], from 0 for the smallest to 1 for the largest."""
    sizes = np.array(list(sizes), float)[:, None]
    return np.log(sizes / SMALLEST) / np.log(LARGEST / SMALLEST)


def _model(x, y, at):
    """Mean and standard deviation at the points `at`, of a process that passes near y(x)."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Matern, WhiteKernel

    # Not fitted (optimizer=None): nine points say little about lengths and noise.
    kernel = Matern(length_scale=0.2, nu=2.5) + WhiteKernel(noise_level=0.01)
    process = GaussianProcessRegressor(kernel, optimizer=None).fit(x, y)
    return process.predict(at, return_std=True)
