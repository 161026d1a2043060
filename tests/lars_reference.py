"""LARS and LAMB in float64 NumPy, written from the formulas, one function per convention.

Independent of `lars_pto` on purpose: no shared code, no rule object, norms by numpy.linalg.
"""

import numpy as np


def _ratio(numerator, denominator):
    return numerator / denominator if numerator != 0 and denominator != 0 else 1.0


def lars(
    variant, w, gradients, rates, eta, momentum, decay, epsilon=0.0, nesterov=False, adapts=True
):
    """The weights after each step, [T] + w.shape.

    Args:
      variant: as `LarsRule.variant`.
      w: initial weights.
      gradients: one per step.
      rates: learning rate of each step.
      eta: trust coefficient.
      momentum: μ.
      decay: λ.
      epsilon: ε.
      nesterov: whether to look ahead.
      adapts: False for an excluded layer.
    """
    w, v = np.array(w, np.float64), np.zeros(np.shape(w))
    history = []
    for g, rate in zip(gradients, rates, strict=True):
        g = np.array(g, np.float64)
        d = g + decay * w
        w_norm, g_norm, d_norm = (np.linalg.norm(x) for x in (w, g, d))
        zero = w_norm == 0 or g_norm == 0
        if variant == "after_momentum":
            v = momentum * v + d
            u = d + momentum * v if nesterov else v
            u_norm = np.linalg.norm(u)
            r = eta * w_norm / (u_norm + epsilon) if adapts and w_norm and u_norm else 1.0
            w = w - rate * r * u
        else:
            if variant == "joint_norm":
                r = eta * w_norm / (d_norm + epsilon) if adapts and w_norm and d_norm else 1.0
            else:
                r = 1.0 if zero or not adapts else eta * w_norm / (g_norm + decay * w_norm + epsilon)
            if variant.startswith("larc"):
                if variant == "larc_clip" and adapts and not zero:
                    r = min(r / rate, 1.0)
                d = r * (g if adapts and g_norm == 0 else d)
                v = momentum * v + d
                w = w - rate * (d + momentum * v if nesterov else v)
            else:
                d = rate * r * d
                v = momentum * v + d
                w = w - (d + momentum * v if nesterov else v)
        history.append(w)
    return np.array(history)


def lamb(
    w, gradients, rates, beta_1, beta_2, epsilon, decay, bias_correction=True, adapts=True
):
    """The weights after each step, [T] + w.shape; arguments as in `lars` and `LambRule`."""
    w = np.array(w, np.float64)
    m, v = np.zeros_like(w), np.zeros_like(w)
    history = []
    for step, (g, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        g = np.array(g, np.float64)
        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g**2
        m_hat, v_hat = m, v
        if bias_correction:
            m_hat, v_hat = m / (1 - beta_1**step), v / (1 - beta_2**step)
        u = m_hat / (np.sqrt(v_hat) + epsilon) + decay * w
        r = _ratio(np.linalg.norm(w), np.linalg.norm(u)) if adapts else 1.0
        w = w - rate * r * u
        history.append(w)
    return np.array(history)


# Three steps of w = [3, 4] worked by hand and, once, run through MLPerf's LARS and apex's LARC; they agree
# with these digits to 1e-7. tf-models-official and optax: test_lars_peers.py.
WEIGHTS = [3.0, 4.0]
GRADIENTS = [[0.6, 0.8], [-0.5, 1.2], [0.3, -0.4]]
_LARS = dict(eta=0.001, momentum=0.9, decay=0.1)
_LARC = dict(eta=0.02, momentum=0.9, decay=0.1, epsilon=1e-8)
_WARM_UP = [0.5, 1.0, 2.0]
# (variant, options, learning rates, weights after steps 1, 2, 3)
LARS_TABLE = [
    ("classic", _LARS, [1.0] * 3,
     [[2.997, 3.996], [2.994855987, 3.987959877], [2.989932764, 3.980729778]]),
    ("classic", _LARS | dict(nesterov=True), [1.0] * 3,
     [[2.9943, 3.9924], [2.992927111, 3.980731155], [2.985508705, 3.974240075]]),
    ("classic", _LARS | dict(epsilon=1e-7), [1.0] * 3,
     [[2.997, 3.996], [2.994855987, 3.987959877], [2.989932765, 3.980729779]]),
    ("joint_norm", _LARS, [1.0] * 3,
     [[2.997, 3.996], [2.994920621, 3.987443706], [2.988062283, 3.979753486]]),
    ("joint_norm", _LARS | dict(nesterov=True), [1.0] * 3,
     [[2.9943, 3.9924], [2.993049943, 3.979751753], [2.981904717, 3.972856835]]),
    ("joint_norm", _LARS, _WARM_UP,
     [[2.9985, 3.998], [2.997770398, 3.991241158], [2.987130453, 3.98517278]]),
    ("after_momentum", _LARS, [1.0] * 3,
     [[2.997, 3.996], [2.995891793, 3.991129487], [2.993745715, 3.986624064]]),
    ("after_momentum", _LARS | dict(nesterov=True), [1.0] * 3,
     [[2.997, 3.996], [2.996567745, 3.991023738], [2.993565498, 3.987036985]]),
    ("classic", _LARS | dict(decay=0.0, adapts=False), [1.0] * 3,
     [[2.4, 3.2], [2.36, 1.28], [2.024, -0.048]]),
    ("classic", _LARS, _WARM_UP,
     [[2.9985, 3.998], [2.997705771, 3.991757716], [2.990998044, 3.986147896]]),
    ("classic", _LARS | dict(nesterov=True), _WARM_UP,
     [[2.99715, 3.9962], [2.996991334, 3.986143355], [2.984968585, 3.981114974]]),
    ("larc", _LARS, _WARM_UP,
     [[2.9985, 3.998], [2.996355771, 3.989957716], [2.986505938, 3.975491637]]),
    ("larc", _LARC, [0.01] * 3,
     [[2.9994, 3.9992], [2.998971128, 3.997591284], [2.9979854, 3.99614368]]),
    ("larc_clip", _LARC, [0.01] * 3,
     [[2.991, 3.988], [2.984909, 3.961212], [2.973442191, 3.937141588]]),
]  # fmt: skip
_LAMB = dict(beta_1=0.9, beta_2=0.999, epsilon=1e-6, decay=0.1)
LAMB_TABLE = [
    (_LAMB, [[2.659774521, 3.633603188], [2.561108666, 3.194240268], [2.356111157, 2.839838651]]),
    (_LAMB | dict(decay=0.0),
     [[2.646446683, 3.646446536], [2.629123966, 3.19622165], [2.458462492, 2.819185952]]),
    (_LAMB | dict(decay=0.0, adapts=False),
     [[2.900000167, 3.900000125], [2.89618797, 3.800919496], [2.870515686, 3.744202725]]),
    (_LAMB | dict(bias_correction=False),
     [[2.651517364, 3.641447559], [2.609638892, 3.192946678], [2.428226882, 2.822621255]]),
]  # fmt: skip
LAMB_RATES = [0.1] * 3
# With the global norm of the gradients clipped to 1 first, as NVIDIA's LAMB does.
LAMB_CLIPPED = [[2.659774521, 3.633603188], [2.524926639, 3.203962903], [2.28678478, 2.872760875]]
