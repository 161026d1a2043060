"""What is told of sparse sums: rates by hand, and what a probe notes in which steps."""

import tensorflow as tf

from tf_sparse_strategy import scheme_metrics
from tf_sparse_strategy.residual import State
from tf_sparse_strategy.scheme_metrics import SchemeCounts


def test_scheme_rates_by_hand():
    """Two workers, sums of 100 elements; squares of gradients 9 + 7, of residuals 36 + 28."""
    before = [SchemeCounts((100, 50, 1, 1), beyond=5.0), SchemeCounts((100, 50, 2, 2), beyond=5.0)]
    after = [
        SchemeCounts((200, 53, 10, 37), passed=1.5, eps=0.25, beyond=7.0, sparse=0.75, changes=3.0),
        SchemeCounts((200, 53, 9, 30), passed=0.5, eps=0.25, beyond=7.0, sparse=0.75, changes=3.0),
    ]
    assert scheme_metrics.rates(before, after) == {
        "sparse_part": 0.75,
        "applied_density": 0.03,
        "residual_ratio": 2.0,
        "threshold_hits": 1.0,
        "eps": 0.25,
        "beyond_limit": 2.0,
        "scheme_changes": 3.0,
    }
    assert set(scheme_metrics.rates(before, before).values()) == {0.0}


def test_the_probe_notes_every_second_step_that_is_finite():
    probe = scheme_metrics.GradientProbe(every=2)
    state = State({})
    state.stage(tf.constant(True), residual=tf.constant([0.0, 3.0, 0.0]))

    @tf.function
    def step(gradient):
        probe.begin_step()
        probe.note(probe.due(), gradient, tf.constant([0.0, 5.0, 0.0]), state)

    for first in (1.0, 2.0, 3.0, float("inf")):
        step(tf.constant([first, 1.0, 0.0]))
    assert probe.read() == [3.0, 1.0, 5.0, 9.0]


def test_the_probe_counts_a_step_of_two_optimizers_once():
    probe = scheme_metrics.GradientProbe(every=2)

    @tf.function
    def step():
        probe.begin_step()
        for elements in (1, 10):
            probe.note(probe.due(), tf.ones([elements]), tf.ones([elements]), State({}))

    noted = []
    for _ in range(4):
        step()
        noted.append(probe.read()[0])
    assert noted == [0.0, 11.0, 11.0, 22.0]
