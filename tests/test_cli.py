"""The tss command: quick help, dispatch, and `tss netlab` as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.lab_help import ENVIRONMENT, require_namespaces
from tf_sparse_strategy import cli


def tss(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "tf_sparse_strategy.cli", *arguments]
    return subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, timeout=100, check=False
    )


def test_help_names_every_command():
    result = tss("--help")
    assert result.returncode == 0
    for name, (_, what) in cli._COMMANDS.items():
        assert name in result.stdout
        assert what in result.stdout


@pytest.mark.parametrize("name", cli._COMMANDS)
def test_each_command_has_examples(name, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith(f"usage: tss {name} ")
    assert f"tss {name}" in said.partition("examples:")[2]


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in cli._COMMANDS)])
def test_help_does_not_wait_for_tensorflow(arguments):
    script = (
        "import sys; from tf_sparse_strategy import cli\n"
        f"try: cli.main({arguments!r})\n"
        "finally: assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_no_command_is_answered_with_all():
    result = tss()
    assert result.returncode == 2
    assert all(name in result.stderr for name in cli._COMMANDS)


def test_an_unknown_command_is_refused():
    result = tss("dance")
    assert result.returncode == 2
    assert "'dance'" in result.stderr and "netlab" in result.stderr


def test_public_names_come_on_first_use():
    import tf_sparse_strategy

    assert set(tf_sparse_strategy.__all__) <= set(dir(tf_sparse_strategy))
    for name in tf_sparse_strategy.__all__:
        assert getattr(tf_sparse_strategy, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Strategy'"):
        tf_sparse_strategy.Strategy  # noqa: B018


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no command: write it after --"),
        (["--rate", "fast", "--", "true"], "write e.g. 200mbit"),
        (["--nodes", "0", "--", "true"], "nodes=0 is not between"),
        (["--buffer", "0", "--", "true"], "buffer=0.0 is not between"),
        (["--kill", "8@1", "--", "true"], "there is no rank 8; ranks are 0 to 7"),
        (["--cut", "soon", "--", "true"], "NODE@SECONDS"),
        (["--json", "/nowhere/report.json", "--", "true"], "No such file or directory"),
    ],
)
def test_wrong_arguments_of_netlab(arguments, said, machine):
    result = tss("netlab", *arguments)
    assert result.returncode == 2
    assert said in result.stderr


@pytest.fixture(scope="module")
def machine():
    require_namespaces()


def test_netlab_reports(machine, tmp_path):
    script = 'echo "I am $HOROVOD_RANK"; echo trouble >&2; exit $HOROVOD_RANK'
    report = tmp_path / "report.json"
    options = ["--nodes", "2", "--local", "1", "--rate", "1gbit", "--json", str(report)]
    result = tss("netlab", *options, "--", "sh", "-c", script)
    assert result.returncode == 1
    assert sorted(result.stdout.splitlines()) == ["[0 node0] I am 0", "[1 node1] I am 1"]
    assert "[1 node1] trouble" in result.stderr
    assert "rank 1 on node1: exit code 1" in result.stderr
    assert "links of 1000 Mbit/s, ports of 50 ms" in result.stderr
    written = json.loads(report.read_text())
    assert (written["nodes"], written["local"], written["exit_code"]) == (2, 1, 1)
    assert written["rate_bits_per_second"] == 10**9
    assert [rank["exit_code"] for rank in written["ranks"]] == [0, 1]
    assert [link["node"] for link in written["links"]] == ["node0", "node1"]


def test_netlab_inflicts_faults(machine):
    command = ["sh", "-c", "sleep 1; echo done"]
    result = tss("netlab", "--nodes", "1", "--local", "2", "--kill", "1@0.2", "--", *command)
    assert result.returncode == 128 + 9
    assert result.stdout == "[0 node0] done\n"
