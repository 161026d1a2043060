"""The 28-epoch recipe in small: a worker is killed as its sums turn exact; the job goes on from there."""

import pathlib
import re
import subprocess
import sys

import numpy as np
import tensorflow as tf

from tests import failing_job, job
from tests.lab_help import wait_until

HOSTS, SWITCH = "localhost:1,127.0.0.1:1", 4  # two nodes, as far as Horovod can tell; an epoch
RECIPE = ["--recipe=record", f"--phases=8:{SWITCH},12:4", f"--sparse_epochs={SWITCH}", "--pto=on"]
SIGKILL = -9


def command(directory):
    program = [sys.executable, "-m", "examples.digits.main", f"--output_dir={directory}"]
    return [*program, *RECIPE, "--resume", "--nocheck"]


def by_horovodrun(directory):
    """What the job prints, started as the recipe's README says."""
    horovodrun = str(pathlib.Path(sys.executable).with_name("horovodrun"))
    result = subprocess.run(
        [horovodrun, "--gloo", "-np", "2", "-H", HOSTS, *command(directory)],
        env=failing_job.ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def saved(directory):
    """The last checkpoint; how many there have been."""
    latest = tf.train.latest_checkpoint(str(directory / "checkpoints"))
    return latest, int(latest.rpartition("-")[2]) if latest else 0


def weights(directory):
    """Of the model, by name."""
    reader = tf.train.load_checkpoint(saved(directory)[0])
    names = [name for name in reader.get_variable_to_shape_map() if name.startswith("model/")]
    return {name: reader.get_tensor(name) for name in names if reader.get_tensor(name).dtype == np.float32}


def apart(one, two):
    """The largest distance of a variable from that of the same name, in norms."""
    assert one.keys() == two.keys() and len(one) > 50
    return max(np.linalg.norm(one[name] - two[name]) / np.linalg.norm(two[name]) for name in one)


def killed(directory):
    """Runs the job until it has saved the last sparse epoch, then kills a worker; what the other one says."""
    directory.mkdir()
    with open(directory / "output", "w+") as output:
        pipes = {"stdout": output, "stderr": output}
        with job.started(HOSTS, command(directory), failing_job.ENVIRONMENT, **pipes) as workers:
            assert wait_until(lambda: saved(directory)[1] >= SWITCH, failing_job.STARTING)
            workers[1].kill()
            assert workers[0].wait(failing_job.WITHIN) == failing_job.PYTHON_ERROR
            assert workers[1].wait() == SIGKILL
        output.seek(0)
        return output.read()


def test_a_worker_is_killed_at_the_switch_and_horovodrun_goes_on(tmp_path):
    """The weights are those of a run that nothing has happened to."""
    by_horovodrun(tmp_path / "whole")
    whole = weights(tmp_path / "whole")

    assert "rank 1 (127.0.0.1) ended without a word" in killed(tmp_path / "killed")
    done = saved(tmp_path / "killed")[1]
    assert SWITCH <= done < SWITCH + 4
    assert apart(weights(tmp_path / "killed"), whole) > 0.3

    rest = by_horovodrun(tmp_path / "killed")
    assert re.findall(r"Epoch (\d)/8", rest)[0] == str(done + 1)
    # Large rates amplify the last bits; without what was not sent yet it is most of the norm.
    assert apart(weights(tmp_path / "killed"), whole) < 0.05
