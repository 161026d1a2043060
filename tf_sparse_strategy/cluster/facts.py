"""What `tss doctor` finds out on one machine: facts as plain data, no judgement (checks.py)."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import socket
import subprocess
import sys
from typing import Any

from tf_sparse_strategy.launcher import host_name, interface_address

_ROOT = pathlib.Path(__file__).parents[2]  # of our packages
_PACKAGES = ("custom_ops", "datacache", "lars_pto", "tf_sparse_strategy")
_DISTRIBUTIONS = ("tensorflow", "keras", "tf_keras", "horovod", "numpy")
# Settings that every worker must share; those of one worker or of its logs are left out.
_SHARED = re.compile(
    r"KERAS_BACKEND|TF_USE_LEGACY_KERAS|HOROVOD_(?!(RANK|SIZE|LOCAL_|CROSS_|HOSTNAME|GLOO_IFACE|"
    r"GLOO_RENDEZVOUS_|LOG_|TIMELINE|STALL_)).*"
)
_PROBE_SECONDS = 90  # importing both may take long from a network's disk
PORTS_PER_WORKER = 16  # Gloo listens on three; the rest are for what the program itself opens


def collect() -> dict[str, Any]:
    """Returns what is known of this machine and this process; takes some seconds.

    Keys:
      host: the launcher's name for this machine; name: its own.
      name_address: what its own name resolves to, or None; name_is_here: whether it is its own.
      interfaces: {name: IPv4 address}.
      interface: HOROVOD_GLOO_IFACE, or None.
      launched: whether a launcher chose the interface already.
      gpus_given: whether CUDA_VISIBLE_DEVICES says which GPUs are seen.
      workers: on this machine.
      versions: {package: version or None}.
      settings: {environment variable: value}, of those all workers must share.
      runtime: {"gloo", "nccl": built in; "gpus": number; "driver": whether some should be there} or
        {"error": why Horovod does not load}.
    """
    name = socket.gethostname()
    address = _resolve(name)
    return {
        "host": host_name(),
        "name": name,
        "name_address": address,
        "name_is_here": address is not None and is_own(address),
        "interfaces": interfaces(),
        "interface": os.environ.get("HOROVOD_GLOO_IFACE"),
        "launched": "HOROVOD_RANK" in os.environ,
        "gpus_given": "CUDA_VISIBLE_DEVICES" in os.environ,
        "workers": int(os.environ.get("HOROVOD_LOCAL_SIZE", 1)),
        "versions": versions(),
        "settings": {n: v for n, v in sorted(os.environ.items()) if _SHARED.fullmatch(n)},
        "runtime": runtime(),
    }


def _resolve(name: str) -> str | None:
    try:
        return socket.gethostbyname(name)
    except OSError:
        return None


def is_own(address: str) -> bool:
    """Whether an IPv4 address is one of this machine's: only those can be bound."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
        try:
            trial.bind((address, 0))
        except OSError:
            return False
    return True


def interfaces() -> dict[str, str]:
    """IPv4 addresses of the network interfaces that have one."""
    found = {}
    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError):
            found[name] = interface_address(name)
    return found


def versions() -> dict[str, str | None]:
    """Of everything that must be equal on all machines; ours is a digest of its sources."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    digest = hashlib.blake2b(digest_size=4)
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*.py")):
            digest.update(str(path.relative_to(_ROOT)).encode() + path.read_bytes())
    return found | {"tf_sparse_strategy": f"sources {digest.hexdigest()}"}


def runtime() -> dict[str, Any]:
    """What Horovod's library says of itself, asked in a process that may crash."""
    paths = os.pathsep.join([str(_ROOT), *filter(None, sys.path)])
    program = [sys.executable, "-m", "tf_sparse_strategy.cluster.runtime_probe"]
    try:
        result = subprocess.run(
            program,
            env={**os.environ, "PYTHONPATH": paths, "TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            text=True,
            check=False,
            timeout=_PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"importing TensorFlow and Horovod takes longer than {_PROBE_SECONDS} s"}
    answers = [line for line in result.stdout.splitlines() if line.startswith("{")]
    if result.returncode == 0 and answers:
        return json.loads(answers[-1])
    last = result.stderr.strip().splitlines()[-1:]
    return {"error": " ".join(last) or f"exit code {result.returncode}"}


def free_ports(address: str, wanted: int) -> tuple[int, str | None]:
    """Opens ports on `address`, all at once: (how many it got, the error that stopped it)."""
    with contextlib.ExitStack() as opened:
        for number in range(wanted):
            try:
                opened.enter_context(socket.create_server((address, 0)))
            except OSError as error:
                if error.errno == errno.EMFILE:  # a limit of one process, where workers are several
                    break
                return number, os.strerror(error.errno)
    return wanted, None
