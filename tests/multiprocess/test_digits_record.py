"""The 28-epoch recipe, in small, on two workers of two nodes: it learns, and resumes at the switch."""

import dataclasses

import keras
import numpy as np

import tf_sparse_strategy as tss
from tests.multiprocess.digits_runs import DENSE, RECORD, SHORT, SWITCH, trained
from tests.multiprocess.kept_files import Keep
from tf_sparse_strategy.communication import HiTopK


def test_sparse_then_exact_learns_nearly_as_well_and_resumes_at_the_switch(
    comm, shared_tmp, tmp_path, topology
):
    """Fewer bytes while sparse; a run that goes on from the switch ends with its weights."""
    whole, again = shared_tmp / "whole", shared_tmp / "again"
    config = dataclasses.replace(RECORD, output_dir=str(whole))
    keep = Keep(SWITCH, whole / "checkpoints", again / "checkpoints", topology)
    _, result = trained(config, callbacks=[keep])
    sent = result.history["cross_bytes_per_step"]
    assert max(sent[1:SWITCH]) < 0.05 * min(sent[SWITCH + 1 :])
    assert result.test_accuracy > 0.93
    _, dense = trained(dataclasses.replace(DENSE, output_dir=str(tmp_path)))
    assert result.test_accuracy > dense.test_accuracy - 0.05
    comm.barrier()  # the copy is whole

    resumed = keras.callbacks.Callback()
    _, rest = trained(dataclasses.replace(config, output_dir=str(again)), callbacks=[resumed])
    assert len(rest.history["loss"]) == config.epochs - SWITCH
    pairs = zip(keep.model.get_weights(), resumed.model.get_weights(), strict=True)
    # Large rates amplify the last bits; without the residuals it is most of the norm.
    assert max(np.linalg.norm(b - a) / np.linalg.norm(a) for a, b in pairs) < 0.05


def test_error_feedback_is_what_lets_it_learn(comm, tmp_path):
    """With Adam: LARS divides by the gradients' norm, which hides what is missing."""
    config = dataclasses.replace(SHORT, phases=((8, 6),), output_dir=str(tmp_path))
    kept, dropped = (
        trained(config, tss.SparseStrategy(HiTopK(0.001, error_feedback=feedback)))[1].test_accuracy
        for feedback in (True, False)
    )
    assert kept > dropped + 0.05
