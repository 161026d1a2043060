"""The 28-epoch recipe, in small, on two workers of two nodes: it learns from what little it sends."""

import dataclasses

import tf_sparse_strategy as tss
from tests.multiprocess.digits_runs import DENSE, RECORD, SHORT, SWITCH, trained
from tf_sparse_strategy.communication import HiTopK


def test_sparse_then_exact_learns_nearly_as_well(tmp_path):
    """Fewer bytes while sparse. (Killed and resumed: tests/test_recipe_killed.py.)"""
    _, result = trained(dataclasses.replace(RECORD, output_dir=str(tmp_path / "record")))
    sent = result.history["cross_bytes_per_step"]
    assert max(sent[1:SWITCH]) < 0.05 * min(sent[SWITCH + 1 :])
    assert result.test_accuracy > 0.93
    _, dense = trained(dataclasses.replace(DENSE, output_dir=str(tmp_path / "dense")))
    assert result.test_accuracy > dense.test_accuracy - 0.05


def test_error_feedback_is_what_lets_it_learn(tmp_path):
    """With Adam: LARS divides by the gradients' norm, which hides what is missing."""
    config = dataclasses.replace(SHORT, phases=((8, 6),), output_dir=str(tmp_path))
    kept, dropped = (
        trained(config, tss.SparseStrategy(HiTopK(0.001, error_feedback=feedback)))[1].test_accuracy
        for feedback in (True, False)
    )
    assert kept > dropped + 0.05
