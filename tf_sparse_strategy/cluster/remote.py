"""`tss doctor` on other machines: started over ssh as horovodrun starts workers, heard over its pipes."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import ipaddress
import json
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import sys
from typing import Any

from tf_sparse_strategy.cluster.exchange import LINE, PATIENCE, ExchangeError
from tf_sparse_strategy.cluster.facts import is_own

_ROOT = pathlib.Path(__file__).parents[2]
# The first two are horovodrun's: what fails here fails there.
_OPTIONS = ("PasswordAuthentication=no", "StrictHostKeyChecking=no", "ConnectTimeout=10")
_SSH = ("ssh", *(word for option in _OPTIONS for word in ("-o", option)))
# What horovodrun hands on, as far as it matters here; CUDA_VISIBLE_DEVICES it does not.
_HANDED_ON = re.compile(r"(CUDA(?!_VISIBLE_DEVICES)|HOROVOD|KERAS|NCCL|TF)_.*|LD_LIBRARY_PATH|PATH")


@dataclasses.dataclass(frozen=True)
class Host:
    """A machine and how many workers it gets."""

    name: str
    slots: int


def parse_hosts(text: str) -> list[Host]:
    """Returns the hosts of horovodrun's `-H`.

    Example:
      >>> parse_hosts("vm1:4,vm2:4")
      [Host(name='vm1', slots=4), Host(name='vm2', slots=4)]
    """
    hosts = []
    for item in text.split(","):
        match = re.fullmatch(r"([\w.-]+):([1-9]\d*)", item.strip())
        if not match:
            raise ValueError(f"-H: {item!r} is not HOST:WORKERS; write e.g. -H vm1:4,vm2:4.")
        hosts.append(Host(match[1], int(match[2])))
    return hosts


def is_here(name: str) -> bool:
    """Whether horovodrun starts `name`'s workers itself: to another loopback address it goes by ssh."""
    try:
        address = socket.gethostbyname(name)
    except OSError:
        return False
    return address == "127.0.0.1" or (is_own(address) and not ipaddress.ip_address(address).is_loopback)


class Patients:
    """One `tss doctor` per host."""

    def __init__(self, hosts: list[Host]):
        self._hosts = hosts
        self._processes = []
        self.errors: dict[str, str] = {}  # by host: why it did not answer
        try:
            for rank, host in enumerate(hosts):
                self._processes.append(_start(rank, host))
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Patients:
        return self

    def __exit__(self, *_) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def all_gather(self) -> list[Any]:
        """Lets the processes exchange one value each, and returns the values; None for a lost one."""
        with concurrent.futures.ThreadPoolExecutor(len(self._hosts)) as threads:
            values = list(threads.map(self._hear, range(len(self._hosts))))
        for process in self._processes:
            try:
                process.stdin.write(json.dumps(values) + "\n")
                process.stdin.flush()
            except OSError:
                pass  # it has gone, and its value is None
        return values

    def _hear(self, rank: int) -> Any:
        process, name = self._processes[rank], self._hosts[rank].name
        if name in self.errors:
            return None
        # A host that hangs is given up: killing the process ends the wait for its line.
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            line = thread.submit(_next_line, process)
            try:
                value = line.result(PATIENCE)
            except concurrent.futures.TimeoutError:
                process.kill()
                self.errors[name] = f"no answer within {PATIENCE} s"
                return None
        if value is None:
            process.wait()
            last = process.stderr.read().strip().splitlines()[-1:]
            self.errors[name] = " ".join(last) or f"exit code {process.returncode}"
        return value


def _next_line(process: subprocess.Popen) -> Any:
    for line in process.stdout:
        if line.startswith(LINE):
            return json.loads(line.removeprefix(LINE))
    return None


def _start(rank: int, host: Host) -> subprocess.Popen:
    environment = {name: os.environ[name] for name in os.environ if _HANDED_ON.fullmatch(name)}
    environment |= {
        "HOROVOD_HOSTNAME": host.name,
        "HOROVOD_LOCAL_SIZE": str(host.slots),
        "PYTHONPATH": os.pathsep.join([str(_ROOT), *os.environ.get("PYTHONPATH", "").split(":")]),
    }
    if shutil.which("ssh") is None and not is_here(host.name):
        raise ExchangeError(f"no ssh to reach {host.name}: run `apt-get install openssh-client`.")
    words = ["env", *(f"{name}={value}" for name, value in environment.items())]
    words += [sys.executable, "-m", "tf_sparse_strategy.cli", "doctor", "--pipe", str(rank)]
    command = words if is_here(host.name) else [*_SSH, host.name, shlex.join(words)]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
