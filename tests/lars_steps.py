"""Six steps of five layers, which other libraries' LARS and LAMB take too; needs NumPy alone."""

import numpy as np

SHAPES = {
    "first_kernel": (4, 3),
    "first_bias": (3,),
    "batch_norm_gamma": (3,),
    "zero_kernel": (3, 5),  # starts at 0, where no ratio is
    "head_kernel": (5, 2),  # has no gradient in the third step
}
EXCLUDED = ["bias", "batch_norm"]
RATES = [0.5, 1.0, 2.0, 2.0, 1.0, 0.25]
LARS = dict(momentum=0.9, weight_decay=0.01, trust_coefficient=0.05)
LAMB = dict(beta_1=0.9, beta_2=0.99, epsilon=1e-6, weight_decay=0.1)


def weights() -> dict[str, np.ndarray]:
    """Each layer's initial weights, float64."""
    rng = np.random.default_rng(11)
    drawn = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
    return drawn | {"zero_kernel": np.zeros(SHAPES["zero_kernel"])}


def gradients() -> list[dict[str, np.ndarray]]:
    """Each step's gradients, float64."""
    rng = np.random.default_rng(12)
    steps = [{name: rng.normal(size=shape) for name, shape in SHAPES.items()} for _ in RATES]
    steps[2]["head_kernel"] = np.zeros(SHAPES["head_kernel"])
    return steps


def is_excluded(name: str) -> bool:
    """Whether a layer has neither decay nor a rate of its own."""
    return any(pattern in name for pattern in EXCLUDED)
