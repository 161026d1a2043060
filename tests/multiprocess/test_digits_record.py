"""The 28-epoch recipe on two workers of two nodes: it learns from what little it sends."""

import dataclasses

import tf_sparse_strategy as tss
from examples.digits.config import RECIPES
from tests.multiprocess.digits_runs import SHORT, trained
from tests.thorough import thorough
from tf_sparse_strategy.communication import HiTopK

RECORD = RECIPES["record"]


# Of 450 images, by one seed; processors differ in last bits, which LARS magnifies. More: docs/convergence.md.
LEARNT = 0.95


def test_dense_learns(tmp_path):
    """All epochs sum exactly."""
    exact = dataclasses.replace(RECORD, sparse_epochs=0, density=None, output_dir=str(tmp_path))
    assert trained(exact)[1].test_accuracy >= LEARNT


def test_sparse_then_exact_learns_as_well(tmp_path):
    """Few bytes travel while it is sparse. (Killed and resumed: tests/test_recipe_killed.py.)"""
    _, result = trained(dataclasses.replace(RECORD, output_dir=str(tmp_path)))
    sent, switch = result.history["cross_bytes_per_step"], RECORD.sparse_epochs
    assert max(sent[1:switch]) < 0.05 * min(sent[switch + 1 :])
    assert result.test_accuracy >= LEARNT


@thorough  # half of these epochs are in the test above, and must learn as well
def test_sparse_throughout_learns(tmp_path):
    config = dataclasses.replace(RECORD, sparse_epochs=RECORD.epochs, output_dir=str(tmp_path))
    assert trained(config)[1].test_accuracy >= 0.94


def test_error_feedback_is_what_lets_it_learn(tmp_path):
    """With Adam: LARS divides by the gradients' norm, which hides what is missing."""
    config = dataclasses.replace(SHORT, phases=((8, 6),), output_dir=str(tmp_path))
    kept, dropped = (
        trained(config, tss.SparseStrategy(HiTopK(0.001, error_feedback=feedback)))[1].test_accuracy
        for feedback in (True, False)
    )
    assert kept > dropped + 0.03
