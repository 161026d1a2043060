"""The guide converts scripts: its diffs lead from file to file, and the result trains as one process does."""

import concurrent.futures
import inspect
import operator
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import sys

import numpy as np
import pytest
from horovod.runner.common.util.hosts import parse_hosts
from horovod.runner.launch import parse_args

from tests.thorough import thorough

ROOT = pathlib.Path(__file__).parents[1]
SCRIPTS = ROOT / "examples" / "convert"
GUIDE = (ROOT / "docs" / "convert_your_script.md").read_text()
HOROVODRUN = pathlib.Path(sys.executable).with_name("horovodrun")
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    "TF_NUM_INTRAOP_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "-1",
}
STARTS = {
    "hvd.DistributedOptimizer": "horovod_before",
    "MultiWorkerMirroredStrategy": "mirrored_before",
}


def section(heading: str) -> str:
    """The guide's text under a heading of the second level."""
    return re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", GUIDE, re.S | re.M)[1]


def applied(diff: str, text: str) -> str:
    """The text after a diff without line numbers, whose old side must stand in it once."""
    lines = diff.splitlines()
    old = "".join(line[1:] + "\n" for line in lines if line[:1] != "+")
    new = "".join(line[1:] + "\n" for line in lines if line[:1] != "-")
    assert text.count(old) == 1, f"stands {text.count(old)} times in the script:\n{old}"
    return text.replace(old, new)


def without_docstring(name: str) -> str:
    return (SCRIPTS / f"{name}.py").read_text().split('"""\n', 1)[1]


@pytest.mark.parametrize("origin", STARTS)
def test_the_diffs_lead_from_before_to_after(origin):
    guide, script = section(f"From `{origin}`"), without_docstring(STARTS[origin])
    assert f"{STARTS[origin]}.py" in guide
    compile(script, origin, "exec")
    for diff in re.findall(r"```diff\n(.*?)```", guide, re.S):
        script = applied(diff, script)
    assert script == without_docstring("after")


@pytest.mark.parametrize("diff", ["-import torch\n+import keras\n", " keras\n"])
def test_a_diff_that_does_not_fit_is_found(diff):
    with pytest.raises(AssertionError, match="stands [02] times"):
        applied(diff, "import\nkeras\nkeras\n")


def leads(home, path: str) -> bool:
    """Whether a path of attributes leads somewhere from `home`."""
    try:
        operator.attrgetter(path)(home)
    except AttributeError:
        return False
    return True


def test_the_old_words_exist():
    """In Horovod for TensorFlow or for Keras, and in `tf.distribute`."""
    import horovod.tensorflow as hvd
    import horovod.tensorflow.keras as hvd_keras
    import tensorflow as tf

    cells = re.findall(r"^\| (`.*?`) \| ", section("Word for word"), re.M)
    words = re.findall(r"`(.*?)`", " ".join(cells))
    horovods = [word for word in words if word.startswith("hvd.")]
    assert len(horovods) == 11
    for word in horovods:
        path = word.removeprefix("hvd.").partition("(")[0]
        assert leads(hvd, path) or leads(hvd_keras, path), word
    assert [word for word in words if word not in horovods] == [
        "backward_passes_per_step=4",
        "strategy.cluster_resolver.task_id",
        "tf.distribute.experimental.PreemptionCheckpointHandler",
        "CommunicationOptions(...)",
    ]
    settings = inspect.signature(hvd_keras.DistributedOptimizer).parameters
    assert "backward_passes_per_step" in settings
    assert leads(tf.distribute, "MultiWorkerMirroredStrategy.cluster_resolver")
    assert leads(tf.distribute, "cluster_resolver.TFConfigClusterResolver.task_id")
    assert leads(tf.distribute, "experimental.CommunicationOptions")
    assert leads(tf.distribute, "experimental.PreemptionCheckpointHandler")
    assert not leads(hvd, "allreduced") and not leads(hvd_keras, "callbacks.Nothing")


def test_what_stands_for_them_exists():
    """Each replacement is evaluated."""
    import keras
    import tensorflow as tf

    import tf_sparse_strategy as tss

    names = {"keras": keras, "tf": tf, "tss": tss, "strategy": tss.SparseStrategy()}
    rows = re.findall(r"^\| `(.*?)` \| `(.*?)`", section("Word for word"), re.M)
    names |= {"x": tf.constant([3.0]), "steps": 1000}
    values = {was: eval(now, names) for was, now in rows}
    assert len(values) == 12
    assert (values["hvd.rank()"], values["hvd.size()"], values["hvd.local_rank()"]) == (0, 1, 0)
    assert values["hvd.allreduce(x)"] == values["hvd.allgather(x)"] == 3.0


def run(script: pathlib.Path, *launcher: str) -> subprocess.CompletedProcess:
    """A script as a user would run it."""
    return subprocess.run(
        [*launcher, sys.executable, str(script)],
        cwd=script.parent,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def trained(directory: pathlib.Path, *launcher: str) -> tuple[float, list[np.ndarray]]:
    """Accuracy and weights of the converted script."""
    import keras

    directory.mkdir()
    result = run(pathlib.Path(shutil.copy(SCRIPTS / "after.py", directory)), *launcher)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    said = re.findall(r"test accuracy (\S+)", result.stdout)
    assert len(said) == 1
    return float(said[0]), keras.models.load_model(directory / "digits.keras").get_weights()


def test_two_workers_train_as_one_process(tmp_path):
    accuracy, weights = trained(tmp_path / "one")
    again, others = trained(tmp_path / "two", str(HOROVODRUN), "--gloo", "-np", "2")
    assert accuracy > 0.85
    assert again == pytest.approx(accuracy, abs=0.01)  # of 297 images
    for mine, theirs in zip(weights, others, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)


# What others' programs do, as the guide says, changes with their versions: `make check`.
# What each raises with Keras 3.
CALLBACKS = {
    "hvd.callbacks.BroadcastGlobalVariablesCallback(0)": "AttributeError: ",
    "hvd.callbacks.MetricAverageCallback()": "AttributeError: ",
    'keras.callbacks.ModelCheckpoint("digits.keras")': "TypeError: ",
}


def horovods(tmp_path, callbacks: str) -> pathlib.Path:
    """Its script, with these callbacks, which also prints a norm of its weights."""
    text = without_docstring("horovod_before")
    assert text.count("callbacks=callbacks") == 1 and callbacks.lstrip("*") in text
    script = tmp_path / "before.py"
    text = text.replace("callbacks=callbacks", f"callbacks=[{callbacks}]")
    script.write_text(text + 'print("weights", float(tf.norm(model.get_weights()[0])))\n')
    return script


@thorough
@pytest.mark.parametrize("callback", CALLBACKS)
def test_callbacks_of_horovods_script_fail_with_keras_3(callback, tmp_path):
    """Its own, and Keras's that saves the wrapped optimizer."""
    ended = run(horovods(tmp_path, callback))
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(CALLBACKS[callback])


@thorough
def test_horovods_workers_train_alone_with_keras_3(tmp_path):
    """Without callbacks they end with weights of their own: the wrapper sums no gradients."""
    result = run(horovods(tmp_path, ""), str(HOROVODRUN), "--gloo", "-np", "2")
    assert result.returncode == 0, result.stderr
    assert len(set(re.findall(r"weights (\S+)", result.stdout))) == 2


@thorough
def test_horovods_workers_train_as_one_with_tf_keras(tmp_path):
    """As the guide says: with another import, without a callback, with a line in the environment."""
    script = horovods(tmp_path, "*callbacks")
    text = script.read_text()
    for was, now in {
        "import keras\n": "import tf_keras as keras\n",
        "    hvd.callbacks.MetricAverageCallback(),\n": "",
    }.items():
        assert text.count(was) == 1
        text = text.replace(was, now)
    script.write_text(text)
    launcher = ("env", "TF_USE_LEGACY_KERAS=1", str(HOROVODRUN), "--gloo", "-np", "2")
    result = run(script, *launcher)
    assert result.returncode == 0, result.stderr
    weights = re.findall(r"weights (\S+)", result.stdout)
    assert len(weights) == 2 and len(set(weights)) == 1
    assert float(re.search(r"test accuracy (\S+)", result.stdout)[1]) > 0.85


def test_the_launchers_lines_are_right(monkeypatch):
    """As Horovod's own parser reads them."""
    lines = re.findall(r"^horovodrun .*", GUIDE, re.M)
    assert len(lines) == 2
    for line in lines:
        monkeypatch.setattr(sys, "argv", shlex.split(line))
        args = parse_args()
        assert args.command == ["python", "after.py"]
        assert args.num_proc == sum(host.slots for host in parse_hosts(args.hosts))


@pytest.fixture
def mirrored(tmp_path):
    """A function that runs MultiWorkerMirroredStrategy's script, changed, on two workers."""

    def both(was: str, now: str) -> list[subprocess.CompletedProcess]:
        text = without_docstring("mirrored_before").replace(was, now)
        for host in ("vm1:2222", "vm2:2222"):
            assert text.count(host) == 1
            with socket.create_server(("127.0.0.1", 0)) as server:
                text = text.replace(host, f"127.0.0.1:{server.getsockname()[1]}")
        script = tmp_path / "before.py"
        script.write_text(text)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            jobs = [pool.submit(run, script, "env", f"WORKER_INDEX={index}") for index in range(2)]
            return [job.result() for job in jobs]

    return both


@thorough
def test_mirroreds_script_fails_with_keras_3(mirrored):
    """Its `fit` takes the first batch of a strategy with several workers for a tensor."""
    for ended in mirrored("", ""):
        assert ended.returncode == 1
        assert "ValueError: Attempt to convert a value (PerReplica:" in ended.stderr


@thorough
def test_mirroreds_script_trains_with_tf_keras(mirrored):
    first, second = mirrored("import keras\n", "import tf_keras as keras\n")
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert float(re.search(r"test accuracy (\S+)", first.stdout)[1]) > 0.85
