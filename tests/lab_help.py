"""What the tests of emulated clusters share."""

from __future__ import annotations

import os
import pathlib
import sys
import time
import uuid

import pytest

from tf_sparse_strategy.cluster import NetlabError, check_machine

ROOT = pathlib.Path(__file__).resolve().parents[1]
PYTHONPATH = os.pathsep.join([str(ROOT), *sys.path])
ENVIRONMENT = {**os.environ, "PYTHONPATH": PYTHONPATH, "CUDA_VISIBLE_DEVICES": "-1"}
PATIENCE = 20  # seconds for what takes a fraction of one on an idle machine


def require_namespaces() -> None:
    """Skips the test where the machine cannot hold a lab."""
    try:
        check_machine()
    except NetlabError as error:
        pytest.skip(str(error))


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def first_rank(then: str, otherwise: str) -> list[str]:
    return shell(f'if [ "$HOROVOD_RANK" = 0 ]; then {then}; else {otherwise}; fi')


def wait_until(condition, seconds: float = PATIENCE) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class Marker:
    """A word in the environment of whatever a lab starts, by which it is found from outside."""

    def __init__(self, monkeypatch):
        self._word = uuid.uuid4().hex
        monkeypatch.setenv("NETLAB_TEST", self._word)

    def processes(self) -> set[int]:
        return {pid for pid in self._pids() if self._carries(pid)}

    def namespaces(self) -> set[str]:
        """The networks in which marked processes are, besides our own."""
        return {network_of(pid) for pid in self.processes()} - {network_of("self"), None}

    def _pids(self):
        return [int(path.name) for path in pathlib.Path("/proc").glob("[0-9]*")]

    def _carries(self, pid: int) -> bool:
        try:
            return self._word.encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False  # ended meanwhile, or a zombie


def network_of(pid) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None
