"""What four workers save, divided or not sent yet, is loaded by any other number of them."""

import subprocess
import sys

import numpy as np
import pytest

from tests import job

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_NUM_INTRAOP_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"}


def run(workers, action, folder):
    """Codes, and what failing workers wrote to stderr."""
    command = [sys.executable, "-m", "tests.multiprocess.saving_worker", action, str(folder)]
    hosts = "localhost:2,127.0.0.1:2" if workers == 4 else f"localhost:{workers}"
    with job.started(hosts, command, QUIET, stderr=subprocess.PIPE, text=True) as processes:
        said = [process.communicate(timeout=200)[1] for process in processes.values()]
        codes = [process.returncode for process in processes.values()]
        return codes, [text[-3000:] for text, code in zip(said, codes, strict=True) if code]


@pytest.mark.timeout(600)  # five jobs, one after the other
def test_saved_on_four_loaded_on_others(tmp_path):
    codes, said = run(4, "write", tmp_path)
    assert codes == [0] * 4, said
    for workers in (1, 2, 3):
        codes, said = run(workers, "read", tmp_path)
        assert codes == [0] * workers, said
    # Negative control: a state that is not the file's is noticed, of each kind, by each file.
    for kind in ("tables", "updates", "overlap"):
        path = tmp_path / kind / "saved.npz"
        state = list(np.load(path).values())
        state[0][-1, -1] += 1
        np.savez(path, *state)
    codes, said = run(1, "read", tmp_path)
    assert codes == [1]
    assert said[0].count("is another") == 9, said
