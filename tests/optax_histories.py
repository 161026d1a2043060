"""What optax's LARS and LAMB make of the steps in lars_steps.py, in float64, as JSON.

Not among the packages of our tests, since JAX comes with it:

    pip install optax==0.2.8 && python -m tests.optax_histories > tests/optax_histories.json
"""

import json

import jax
import optax

from tests import lars_steps as steps

jax.config.update("jax_enable_x64", True)


def history(make) -> list[dict[str, list]]:
    """The weights after each step of `make(rate of a step, which layers adapt)`."""
    weights = steps.weights()
    mask = {name: not steps.is_excluded(name) for name in weights}
    optimizer = make(lambda count: jax.numpy.array(steps.RATES)[count], mask)
    state, found = optimizer.init(weights), []
    for gradients in steps.gradients():
        updates, state = optimizer.update(gradients, state, weights)
        weights = optax.apply_updates(weights, updates)
        found.append({name: w.tolist() for name, w in weights.items()})
    return found


def lars(nesterov):
    return lambda rate, mask: optax.lars(
        rate, weight_decay_mask=mask, trust_ratio_mask=mask, nesterov=nesterov, **steps.LARS
    )


def lamb(rate, mask):
    """`optax.lamb` has no mask for the ratio; this is its chain, with one."""
    return optax.chain(
        optax.scale_by_adam(b1=steps.LAMB["beta_1"], b2=steps.LAMB["beta_2"], eps=steps.LAMB["epsilon"]),
        optax.add_decayed_weights(steps.LAMB["weight_decay"], mask),
        optax.masked(optax.scale_by_trust_ratio(), mask),
        optax.scale_by_learning_rate(rate),
    )


if __name__ == "__main__":
    makers = {"lars": lars(False), "lars, nesterov": lars(True), "lamb": lamb}
    found = {name: history(make) for name, make in makers.items()}
    print(json.dumps({"optax": optax.__version__, "jax": jax.__version__, **found}))
