"""The front door: the Makefile's targets, the set-up's sentences, the count of cases."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator

import pytest

from tools.bazel import report

ROOT = pathlib.Path(__file__).resolve().parents[1]
SETUP = ROOT / "tools" / "setup" / "setup.sh"
TARGETS = {"help", "setup", "demo", "test", "check", "lint", "lock", "report", "wheel", "cuda", "clean"}
NOBODY = 65534


def make(*arguments: str) -> str:
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_make_help_lists_every_target() -> None:
    assert set(re.findall(r"^  make (\w+) +\w", make(), re.M)) == TARGETS


@pytest.mark.parametrize("target", sorted(TARGETS - {"help", "cuda", "clean"}))
def test_make_target_does_its_own_set_up(target: str) -> None:
    assert make("--dry-run", target).startswith("tools/setup/setup.sh\n")


def test_continuous_integration_is_make_test() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert script.splitlines()[-1] == "exec make test"
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def requirement_errors(text: str) -> list[str]:
    """Returns the requirements of a lock file that lack an exact version or a hash."""
    joined = re.sub(r"\\\n", " ", text)
    lines = [line for line in joined.splitlines() if line and not line.lstrip().startswith("#")]
    exact = re.compile(r"[\w.\-\[\]]+==[\w.]+(?: *;[^\\]+?)?(?: +--hash=sha256:[0-9a-f]{64})+ *")
    return [line for line in lines if not exact.fullmatch(line)]


@pytest.mark.parametrize("name, has", [("dev", "tensorflow==2.20."), ("models", "tf-models-official==2.20.")])
def test_requirements_are_pinned_and_hashed(name: str, has: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert has in text
    assert requirement_errors(text) == []


@pytest.mark.parametrize("line", ["a>=1 --hash=sha256:" + "0" * 64, "a==1", "a==1 --hash=md5:0"])
def test_a_loose_requirement_is_found(line: str) -> None:
    assert requirement_errors(line + "\n") == [line]


def add_command(directory: pathlib.Path, name: str, script: str = "exit 0") -> None:
    (directory / name).write_text(f"#!/bin/bash\n{script}\n")
    (directory / name).chmod(0o755)


@pytest.fixture
def bare_machine() -> Iterator[pathlib.Path]:
    """A checkout with the set-up script alone, and bin/, a PATH without Bazel, for any user."""
    root = pathlib.Path(tempfile.mkdtemp(prefix="front_door_"))
    (root / "tools" / "setup").mkdir(parents=True)
    shutil.copy(SETUP, root / "tools" / "setup")
    (root / "bin").mkdir()
    for command in ("bash", "dirname", "readlink"):
        (root / "bin" / command).symlink_to(f"/usr/bin/{command}")
    for command in ("apt-get", "g++", "python3.11"):  # they are there and content
        add_command(root / "bin", command)
    root.chmod(0o755)
    yield root
    shutil.rmtree(root)


def set_up_as_nobody(root: pathlib.Path) -> subprocess.CompletedProcess[str]:
    identity = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    return subprocess.run(
        [root / "tools" / "setup" / "setup.sh"],
        cwd="/",
        env={"PATH": str(root / "bin")},
        capture_output=True,
        text=True,
        **identity,
    )


def test_missing_bazel_without_root_is_one_clear_sentence(bare_machine: pathlib.Path) -> None:
    result = set_up_as_nobody(bare_machine)
    assert result.returncode == 1
    (sentence,) = result.stderr.splitlines()
    assert re.fullmatch(
        r"\[setup\] error: Debian packages are missing and only root can install them: run "
        r"`sudo apt-get install -y bazel-bootstrap` once, "
        r"then repeat the command\.",
        sentence,
    )
    assert not (bare_machine / ".cache").exists(), "it left something behind"


def test_another_python_is_not_answered_with_its_packages(bare_machine: pathlib.Path) -> None:
    """They would not be those of 3.11, and the same sentence would come back."""
    (bare_machine / "bin" / "python3.11").unlink()
    script = bare_machine / "tools" / "setup" / "setup.sh"
    script.write_text(script.read_text().replace("/usr/bin/python3.11", "/nowhere/python3.11"))
    other = '[[ $1 != --version ]] || { echo "Python 3.13.5"; exit 0; }; exit 1'
    add_command(bare_machine / "bin", "python3", other)
    result = set_up_as_nobody(bare_machine)
    assert result.returncode == 1
    assert "Python 3.11 is needed" in result.stderr and "Python 3.13.5" in result.stderr
    assert "apt-get" not in result.stderr


def test_without_apt_the_packages_are_named(bare_machine: pathlib.Path) -> None:
    (bare_machine / "bin" / "apt-get").unlink()
    result = set_up_as_nobody(bare_machine)
    assert result.returncode == 1
    assert "install these first (Debian's names):" in result.stderr
    assert "bazel-bootstrap" in result.stderr


# What these two would make: one library, a copy of Python, Horovod's metadata.
BAZEL = '''
mkdir -p bazel-bin/custom_ops && touch bazel-bin/custom_ops/op_ops.so
[[ $1 != query ]] || echo //custom_ops:op_ops.so
'''
HOROVOD = ".venv/lib/python3.11/site-packages/horovod-0.28.1+tss.c0.dist-info"
PYTHON = f'''
if [[ $2 == venv ]]; then mkdir -p .venv/bin && cp "$0" .venv/bin/python; fi
[[ $1 != tools/horovod/build.py ]] || mkdir -p {HOROVOD}
'''


@pytest.fixture
def machine(bare_machine: pathlib.Path) -> pathlib.Path:
    """The bare machine with a Bazel and a Python that only write down how they were called."""
    requirements = ["requirements/dev.txt", "requirements/models.txt"]
    for file in (*requirements, "tools/horovod/build.py", "tools/bazel/defs.bzl"):
        (bare_machine / file).parent.mkdir(parents=True, exist_ok=True)
        (bare_machine / file).write_text("first\n")
    (bare_machine / "custom_ops").mkdir()
    for file in (".bazelrc", "BUILD", "pyproject.toml"):
        (bare_machine / file).write_text("first\n")
    log = 'echo "$(basename "$0") $*" >>calls'
    add_command(bare_machine / "bin", "bazel", log + BAZEL)
    add_command(bare_machine / "bin", "python3.11", f"[[ $1 == -c ]] || {log}{PYTHON}")
    return bare_machine


def set_up(root: pathlib.Path) -> list[str]:
    """Runs the set-up; returns the words that tell its steps apart."""
    (root / "calls").write_text("")
    script = root / "tools" / "setup" / "setup.sh"
    path = f"{root / 'shims'}:{root / 'bin'}:/usr/bin:/bin"
    subprocess.run([script], cwd="/", env={"PATH": path}, check=True, capture_output=True)
    steps = {
        "-m venv": "venv",
        "--editable": "checkout",
        "horovod": "horovod",
        "bazel build": "native",
    }
    calls = (root / "calls").read_text().splitlines()
    return [step for call in calls for mark, step in steps.items() if mark in call]


def test_set_up_repeats_only_what_changed(machine: pathlib.Path, record_property) -> None:
    assert set_up(machine) == ["venv", "checkout", "horovod", "native"]
    start = time.monotonic()
    assert set_up(machine) == []
    seconds = time.monotonic() - start
    record_property("second_set_up_seconds", round(seconds, 2))
    assert seconds < 10
    (machine / "tools" / "horovod" / "build.py").write_text("second\n")
    assert set_up(machine) == ["horovod"]
    (machine / "pyproject.toml").write_text("second\n")
    assert set_up(machine) == ["checkout"]
    (machine / "custom_ops" / "op.cc").write_text("second\n")
    assert set_up(machine) == ["native"]
    (machine / "requirements" / "dev.txt").write_text("second\n")
    assert set_up(machine) == ["venv", "checkout", "horovod", "native"]
    (machine / "requirements" / "models.txt").write_text("second\n")
    assert set_up(machine)[0] == "venv"


def test_set_up_makes_anew_what_is_gone(machine: pathlib.Path) -> None:
    """`git clean` and pip take what it has made, and leave its notes."""
    set_up(machine)
    (machine / "custom_ops" / "op_ops.so").unlink()
    assert set_up(machine) == ["native"]
    (machine / HOROVOD).rmdir()
    assert set_up(machine) == ["horovod"]
    (machine / ".cache" / "setup" / "native.files").unlink()  # of a set-up that kept no list
    assert set_up(machine) == ["native"]
    assert set_up(machine) == []


def test_a_path_with_a_blank_is_refused(bare_machine: pathlib.Path) -> None:
    """Before anything is downloaded."""
    root = bare_machine / "my checkout"
    shutil.copytree(bare_machine / "tools", root / "tools")
    (root / "bin").symlink_to(bare_machine / "bin")
    result = set_up_as_nobody(root)
    assert result.returncode == 1 and "has a blank in it: move the checkout" in result.stderr


def test_shims_of_pyenv_come_last(machine: pathlib.Path) -> None:
    """Even if they come first on PATH."""
    (machine / "shims").mkdir()
    add_command(machine / "shims", "python3.11", "[[ $1 == -c ]] || echo shim >>calls")
    assert set_up(machine)[0] == "venv"
    assert "shim" not in (machine / "calls").read_text()
    shutil.copy(machine / "shims" / "python3.11", machine / "bin")  # or this would prove nothing
    shutil.rmtree(machine / ".cache")
    set_up(machine)
    assert "shim" in (machine / "calls").read_text()


def test_another_pythons_environment_is_cleared_and_one_that_was_moved(machine: pathlib.Path) -> None:
    set_up(machine)
    assert "--clear" in (machine / "calls").read_text()  # the made-up .venv has a copy, not a link
    add_command(machine / "bin", "python3.11", '[[ $1 == -c ]] || echo "$*" >>calls')
    (machine / ".venv" / "bin" / "python").unlink()
    (machine / ".venv" / "bin" / "python").symlink_to(machine / "bin" / "python3.11")
    for number, place in enumerate((machine, "/where/it/was")):
        (machine / ".venv" / "bin" / "pip").write_text(f"#!{place}/.venv/bin/python3.11\n")
        (machine / "requirements" / "dev.txt").write_text(f"{number}\n")
        (machine / "calls").unlink(missing_ok=True)
        set_up(machine)
        assert ("--clear" in (machine / "calls").read_text()) == (place != machine)


def test_a_failed_step_is_shown_and_repeated(machine: pathlib.Path) -> None:
    add_command(machine / "bin", "bazel", "echo the reason; exit 7")
    with pytest.raises(subprocess.CalledProcessError) as failure:
        set_up(machine)
    message = failure.value.stderr.decode()
    assert "the reason" in message
    assert "this step failed with exit code 7: building the native code" in message
    add_command(machine / "bin", "bazel", 'echo "bazel $*" >>calls')
    assert set_up(machine) == ["native"]


PYTEST_XML = """<testsuites><testsuite tests="4">
<testcase name="a" time="1"/><testcase name="b"><failure message="no"/></testcase>
<testcase name="c"><skipped/></testcase><testcase name="d"><error/></testcase>
</testsuite></testsuites>"""
GOOGLE_XML = """<testsuites tests="3"><testsuite name="T">
<testcase name="A" status="run" result="completed"/>
<testcase name="B" status="notrun" result="suppressed"/>
<testcase name="C" status="run"><failure message="no"/></testcase></testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("xml", "counts"),
    [(PYTEST_XML, (1, 2, 1)), (GOOGLE_XML, (1, 1, 1)), ("<testsuites/>", (0,) * 3)],
)
def test_cases_are_counted(xml: str, counts: tuple[int, int, int]) -> None:
    assert report.count_cases(xml) == counts


def event_lines(label: str, status: str, xml: pathlib.Path | None) -> list[str]:
    outputs = [{"name": "test.xml", "uri": xml.as_uri()}] if xml else []
    configured = {"id": {"targetConfigured": {"label": label}}, "configured": {"testSize": "SMALL"}}
    result = {
        "id": {"testResult": {"label": label}},
        "testResult": {
            "status": status,
            "testActionOutput": outputs,
            "testAttemptDurationMillis": "1500",
        },
    }
    return [json.dumps(configured)] + ([json.dumps(result)] if status else [])


def test_summary_counts_cases_and_ends_with_them(tmp_path: pathlib.Path) -> None:
    (tmp_path / "good.xml").write_text('<testsuite><testcase name="a"/></testsuite>')
    (tmp_path / "bad.xml").write_text(PYTEST_XML)
    lines = event_lines("//a:good", "PASSED", tmp_path / "good.xml")
    lines += event_lines("//a:bad", "FAILED", tmp_path / "bad.xml")
    assert report.summary(report.read_events(lines)).splitlines() == [
        "FAIL //a:bad: 1 passed, 2 failed, 1 skipped (1.5 s)",
        "ok   //a:good: 1 passed, 0 failed (1.5 s)",
        "1 skipped; bazel-testlogs/.../test.log say why",
        "2 passed, 2 failed",
    ]


@pytest.mark.parametrize(("status", "xml"), [("TIMEOUT", "<testsu"), ("FAILED", ""), ("", "")])
def test_a_target_that_died_is_a_failed_case(tmp_path: pathlib.Path, status: str, xml: str) -> None:
    (tmp_path / "test.xml").write_text(xml)
    (result,) = report.read_events(event_lines("//a:dead", status, tmp_path / "test.xml"))
    assert (result.passed, result.failed) == (0, 1)
