"""The 28-epoch recipe in small: a worker is killed as its sums turn exact; the job goes on from there."""

import io
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests import failing_job, job
from tests.lab_help import wait_until

pytestmark = pytest.mark.timeout(600)  # some start several jobs

HOSTS, SWITCH = "localhost:1,127.0.0.1:1", 4  # two nodes, as far as Horovod can tell; an epoch
RECIPE = ["--recipe=record", f"--sparse_epochs={SWITCH}", "--pto=on", "--resume", "--nocheck"]
# Images of one size: Keras gives up static shapes at a second, a new job traces it with them, and the large
# rate would make a few percent of the last bits' difference.
ALIKE = f"8:{SWITCH},8:4"
LARGER = f"8:{SWITCH},12:4"
OTHER = 0.1  # what the residual's loss changes at least, in norms
SIGKILL = -9
RESIDUAL = "residual/.ATTRIBUTES/py_state"


def command(directory, phases=ALIKE):
    program = [sys.executable, "-m", "examples.digits.main", f"--output_dir={directory}"]
    return [*program, *RECIPE, f"--phases={phases}"]


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


def tensors(directory):
    """All that the last checkpoint holds, by name."""
    reader = tf.train.load_checkpoint(saved(directory)[0])
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def weights(directory):
    """Those that are trained, then the running statistics, by name."""
    ours = ("optimizer/_trainable_variables/", "model/")
    found = {name: value for name, value in tensors(directory).items() if name.startswith(ours)}
    return {name: value for name, value in found.items() if value.dtype == np.float32}


def apart(one, two):
    """The largest distance of a variable from that of the same name, in norms."""
    assert one.keys() == two.keys() and len(one) == 32 + 20
    return max(np.linalg.norm(one[name] - two[name]) / np.linalg.norm(two[name]) for name in one)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A job whose worker 1 was killed when the last sparse epoch was saved; its directory."""
    directory = tmp_path_factory.mktemp("killed")
    with open(directory / "output", "w") as output:
        pipes = {"stdout": output, "stderr": output}
        with job.started(
            HOSTS, command(directory, LARGER), failing_job.ENVIRONMENT, **pipes
        ) as workers:
            # Larger images, of which it learns nothing any more, are traced first: that takes seconds.
            assert wait_until(lambda: saved(directory)[1] >= SWITCH, failing_job.STARTING)
            workers[1].kill()
            assert workers[0].wait(failing_job.WITHIN) == failing_job.PYTHON_ERROR
            assert workers[1].wait() == SIGKILL
    return directory


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The weights of a run that nothing has happened to."""
    directory = tmp_path_factory.mktemp("whole")
    by_horovodrun(directory)
    return weights(directory)


def forget(directory):
    """Takes what was not sent yet out of the last checkpoint."""
    found = tensors(directory)
    with np.load(io.BytesIO(found[RESIDUAL])) as archive:
        kept = {name: archive[name] * (not name.endswith("/residual")) for name in archive.files}
        lost = sum(np.abs(archive[name] - kept[name]).sum() for name in archive.files)
    assert lost > 0
    emptied = io.BytesIO()
    np.savez(emptied, **kept)
    found[RESIDUAL] = emptied.getvalue()
    names = sorted(found)
    tf.raw_ops.SaveV2(
        prefix=saved(directory)[0],
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[found[name] for name in names],
    )


def test_a_worker_is_killed_at_the_switch(killed):
    assert "rank 1 (127.0.0.1) ended without a word" in (killed / "output").read_text()
    assert saved(killed)[1] == SWITCH


def goes_on(directory):
    """The weights in the end."""
    rest = by_horovodrun(directory)
    assert re.findall(r"Epoch (\d)/8", rest)[0] == str(SWITCH + 1)
    return weights(directory)


def test_horovodrun_goes_on_as_if_nothing_had_happened(killed, whole, tmp_path):
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    assert apart(weights(tmp_path), whole) > 0.3
    assert apart(goes_on(tmp_path), whole) == 0


def test_weights_are_others_without_what_was_not_sent(killed, whole, tmp_path):
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    forget(tmp_path)
    assert apart(goes_on(tmp_path), whole) > OTHER
