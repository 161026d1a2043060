"""`tss join`: makes processes that mpirun or srun has started the workers of one Horovod job.

Horovod as we build it knows Gloo, not MPI: it needs a rendezvous, and each worker its place in the
environment. horovodrun gives both; here the first process keeps the rendezvous and all find their places.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from tf_sparse_strategy.cluster import command as command_line
from tf_sparse_strategy.cluster import facts
from tf_sparse_strategy.cluster.exchange import ExchangeError, ThroughRendezvous

_DESCRIPTION = """\
Runs COMMAND as a worker of a Horovod job, in a process that mpirun or srun has started: no ssh, no
MPI in Horovod. The first process keeps Horovod's rendezvous at HOST:PORT; HOST is its machine, and
PORT is free there. All use the network interface by which they reach HOST, or HOROVOD_GLOO_IFACE."""

_EPILOG = """\
examples:
  mpirun -np 8 -H vm1:4,vm2:4 tss join --rendezvous 10.0.0.1:29400 -- python train.py
  srun --kill-on-bad-exit=1 tss join --rendezvous $HOST:29400 -- tss doctor

The exit code is that of COMMAND (128 + n after signal n); 1 when the workers do not find together, 2 for
wrong arguments."""

# Innermost first: mpirun may itself have been started by srun, and srun speaks PMI.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI
    ("SLURM_PROCID", "SLURM_NTASKS"),  # srun
)
# What ends a command, and what tells it that its time runs out (sbatch --signal=USR1@300).
_HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_PATIENCE = 300  # seconds for the slowest machine to start its processes


def place(environment: Mapping[str, str]) -> tuple[int, int]:
    """(rank, number of processes) as the launcher states them.

    Raises:
      ValueError: no known launcher started this process.

    Example:
      >>> place({"SLURM_PROCID": "3", "SLURM_NTASKS": "8"})
      (3, 8)
    """
    for rank, size in _LAUNCHERS:
        if rank in environment and size in environment:
            return int(environment[rank]), int(environment[size])
    known = ", ".join(rank for rank, _ in _LAUNCHERS)
    raise ValueError(
        f"none of {known} is set: `tss join` must be started by mpirun or srun. Without them use horovodrun."
    )


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT; write e.g. 10.0.0.1:29400")
    return host, int(port)


def _parser() -> argparse.ArgumentParser:
    parser = command_line.parser_of("join", "--rendezvous HOST:PORT", _DESCRIPTION, _EPILOG)
    parser.add_argument(
        "--rendezvous", type=_address, required=True, metavar="HOST:PORT",
        help="of the machine of rank 0, and a port that is free there",
    )  # fmt: skip
    return parser


def main(argv: list[str]) -> int:
    """Returns the command's exit code, 1 when the workers do not find together, 2 for wrong arguments."""
    parser = _parser()
    args, command = command_line.parse(parser, argv, "tss join ... -- python train.py")
    try:
        rank, size = place(os.environ)
    except ValueError as error:
        parser.error(str(error))
    try:
        # Here: it needs Horovod, which `--help` does not.
        from tf_sparse_strategy.cluster import launch

        with launch.rendezvous_at(args.rendezvous[1]) if rank == 0 else contextlib.nullcontext():
            return _work(command, rank, size, args.rendezvous, launch.slot_environment)
    except (ExchangeError, ImportError, OSError) as error:
        print(f"tss join, rank {rank} on {socket.gethostname()}: {error}", file=sys.stderr)
        return 1


def _work(command: Sequence[str], rank: int, size: int, rendezvous: tuple[str, int], place_of) -> int:
    """Runs `command` once all have come; `place_of` gives a rank's settings by the hosts of all."""
    own, server = _reach(rendezvous)
    loopback = "lo" if own.startswith("127.") else None
    interface = next((name for name, a in facts.interfaces().items() if a == own), loopback)
    if interface is None and "HOROVOD_GLOO_IFACE" not in os.environ:
        raise ExchangeError(
            f"{own}, by which this machine reaches {server}, is the first address of none of its network "
            f"interfaces, {facts.interfaces()}. Give another --rendezvous, or set HOROVOD_GLOO_IFACE."
        )
    environment = {
        # What the user has set counts, as in horovodrun's --network-interfaces.
        "HOROVOD_GLOO_IFACE": interface,
        "NCCL_SOCKET_IFNAME": os.environ.get("HOROVOD_GLOO_IFACE", interface),
        **os.environ,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": server,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(rendezvous[1]),
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(size),
    }
    workers = ThroughRendezvous(environment, _PATIENCE, "tss_join")
    hosts = workers.all_gather(socket.gethostname())
    if missing := [other for other, host in enumerate(hosts) if host is None]:
        raise ExchangeError(
            f"ranks {missing} have not come to {server}:{rendezvous[1]} within {_PATIENCE} s; start the same "
            "command on all."
        )
    if len(set(hosts)) > 1 and own.startswith("127.") and "HOROVOD_GLOO_IFACE" not in os.environ:
        raise ExchangeError(
            f"--rendezvous {rendezvous[0]} is {server} here, an address of this machine alone, and there are "
            f"{len(set(hosts))} machines. Give the address by which the others reach the machine of rank 0, "
            "e.g. that of `hostname -I`, or set HOROVOD_GLOO_IFACE."
        )
    code = _run(command, {**environment, **place_of(hosts, rank)})
    try:
        workers.tell("ended")
    except ExchangeError as error:
        if code == 0:  # the first waits for this word; else it has failed, and its launcher ends us
            raise ExchangeError(f"the command has succeeded, which rank 0 was not told: {error}") from error
    if rank == 0 and code == 0:  # the others still need the rendezvous
        workers.hear(patience=float("inf"))
    return code


def _reach(rendezvous: tuple[str, int]) -> tuple[str, str]:
    """(own address, the rendezvous's) of a connection to it, once it is there."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            with socket.create_connection(rendezvous, timeout=10) as line:
                return line.getsockname()[0], line.getpeername()[0]
        except OSError as error:
            if time.monotonic() > deadline:
                raise ExchangeError(
                    f"no connection to {':'.join(map(str, rendezvous))} within {_PATIENCE} s ({error}): "
                    "--rendezvous must name the machine of rank 0, and TCP be allowed between the machines."
                ) from error
            time.sleep(0.2)


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    process, before = subprocess.Popen(command, env=environment), {}
    for number in _HANDED_ON:
        before[number] = signal.signal(number, lambda received, _: process.send_signal(received))
    code = process.wait()
    for number, handler in before.items():  # what comes now is for us, who may wait for the others
        signal.signal(number, handler)
    return code if code >= 0 else 128 - code
