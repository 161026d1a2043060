"""DeAR against the same training without overlap: same weights, slots and logs."""

import keras
import numpy as np
import pytest

import lars_pto
from tests.multiprocess import oracle
from tests.multiprocess.overlap_runs import (
    adam,
    adamw,
    compare,
    lars,
    nesterov,
    pair,
    shared_layers,
    trained,
)
from tests.thorough import thorough_if
from tf_sparse_strategy.overlap.update import ChunkedUpdate


@pytest.fixture(scope="module")
def strategies(comm):
    """(without overlap, with)."""
    return pair()


OPTIMIZERS = thorough_if(lambda f: f is adam, [nesterov, adam, adamw])


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda f: f.__name__)
def test_same_as_without(comm, strategies, optimizer):
    compare(comm, strategies, optimizer)


def test_several_steps_per_call(comm, strategies, tolerance):
    compare(comm, strategies, nesterov, steps=4, build=shared_layers, tolerance=tolerance)


def test_gradient_accumulation(comm, strategies):
    compare(comm, strategies, lambda: adam(gradient_accumulation_steps=2))


OF_KERAS = ["RMSprop", "Adagrad", "Adadelta", "Adamax", "Ftrl", "Lion", "Nadam"]


@pytest.mark.parametrize("name", thorough_if(lambda name: name not in ("Ftrl", "Nadam"), OF_KERAS))
def test_other_optimizers_of_keras(strategies, name):
    """Nadam counts with a number for all variables, once a step. Ftrl's powers round by where they are."""
    optimizer = getattr(keras.optimizers, name)
    results = [trained(s, lambda: optimizer(0.02), epochs=1, run_eagerly=True) for s in strategies]
    oracle.assert_same(*results[::-1])


def test_clipped_values_eagerly(comm, strategies):
    compare(comm, strategies, lambda: adam(clipvalue=0.01), run_eagerly=True)


WITH_NORMS = {
    "clipnorm": lambda: adam(clipnorm=0.05),
    "global_clipnorm": lambda: adam(global_clipnorm=0.05),
    "lars": lars,
    "lamb": lambda: lars_pto.LAMB(0.02, weight_decay=0.01),
}


@pytest.mark.parametrize("name", thorough_if(lambda name: name in ("clipnorm", "lars"), WITH_NORMS))
def test_norms_of_wholes(strategies, name):
    """Their squares are added up in another order than without overlap."""
    without, with_overlap = (trained(s, WITH_NORMS[name], run_eagerly=True) for s in strategies)
    oracle.assert_same(with_overlap, without)


def test_loss_scaling_skips_a_step_on_all_workers(comm, strategies):
    def optimizer():
        return keras.optimizers.LossScaleOptimizer(nesterov(), initial_scale=2.0**127)

    results = compare(comm, strategies, optimizer, loss_weights=[8.0])
    slots = [v for name, v in results.items() if name.startswith("slot")]
    assert 2.0**119 < max(v for v in slots if v.ndim == 0) < 2.0**127  # halved by each skipped step
    assert any(np.any(v) for v in slots if v.ndim > 0)


class Controlled:
    """Replaces a method of ChunkedUpdate, and counts its calls."""

    def __init__(self, monkeypatch, name, replacement):
        self.calls = 0

        def counted(update, *args):
            self.calls += 1
            return replacement(update, *args)

        monkeypatch.setattr(ChunkedUpdate, name, counted)


def test_what_is_behind_differs(partners, strategies, monkeypatch):
    """Without the gathering at the ends of epochs the comparison fails."""
    without = trained(strategies[0], adam)
    control = Controlled(monkeypatch, "synchronize", lambda update: update._state.assign(0))
    behind = trained(strategies[1], adam)
    assert control.calls > 0
    with pytest.raises(AssertionError):
        oracle.assert_same(behind, without, rtol=1e-3, atol=1e-3)
