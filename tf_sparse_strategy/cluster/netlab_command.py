"""`tss netlab`: runs a command under Horovod on an emulated cluster, and reports on it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import signal
import sys

from tf_sparse_strategy.cluster import command as command_line
from tf_sparse_strategy.cluster.faults import TARGETS, Fault
from tf_sparse_strategy.cluster.namespaces import NetlabError
from tf_sparse_strategy.cluster.netlab import Netlab, Result
from tf_sparse_strategy.cluster.rate import DEFAULT_BUFFER, DEFAULT_TCP

_DESCRIPTION = """\
Runs COMMAND once per worker on a cluster that this machine emulates: each node has its own
network, host name and processes, and a link of the given speed to a switch. Workers of one node
talk over its loopback, at full speed. Needs root and Linux. Workers share this machine's cores:
set TF_NUM_INTRAOP_THREADS=1 when there are more workers than cores."""

_EPILOG = """\
examples:
  sudo -E $(command -v tss) netlab -- $(command -v python) train.py      sudo has another PATH

as root:
  tss netlab --nodes 2 --local 1 --rate 1gbit -- python train.py
  tss netlab --nodes 2 --local 1 --kill 1@20 -- python train.py      what if a worker dies?

The exit code is that of the first worker that failed (128 + n after signal n); 1 when there can be no
cluster, 2 for wrong arguments, 128 + n when signal n ends netlab itself: 130 after Ctrl-C."""


_FAULTS = {
    "kill": "SIGKILL a worker so many seconds after the start",
    "stop": "SIGSTOP a worker: it lives and does not answer",
    "cut": "take a node off the network: its frames are lost",
}


def _parser() -> argparse.ArgumentParser:
    parser = command_line.parser_of("netlab", "[options]", _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    add("--nodes", type=int, default=4, metavar="M", help="number of nodes (default 4)")
    add("--local", type=int, default=2, metavar="G", help="workers per node (default 2)")
    add("--rate", default="200mbit", help="of each link, with kbit, mbit or gbit (default 200mbit)")
    add(
        "--buffer",
        type=float,
        default=DEFAULT_BUFFER,
        metavar="SECONDS",
        help=f"of traffic that a port holds; packets beyond are lost (default {DEFAULT_BUFFER})",
    )
    add("--tcp", default=DEFAULT_TCP, metavar="NAME", help=f"congestion control (default {DEFAULT_TCP})")
    for kind, what in _FAULTS.items():
        add(f"--{kind}", action="append", default=[], metavar=f"{TARGETS[kind]}@SECONDS", help=what)
    add(
        "--grace",
        type=float,
        default=60,
        metavar="SECONDS",
        help="how long the other workers may go on after the first failure (default 60)",
    )
    add("--json", type=pathlib.Path, metavar="FILE", help="write the report to this file")
    return parser


def main(argv: list[str]) -> int:
    """Returns the exit code of the job, 2 for wrong arguments, 1 when there can be no cluster."""
    parser = _parser()
    args, command = command_line.parse(parser, argv, "tss netlab -- python train.py")
    try:
        if args.json:
            args.json.touch()  # now, not after hours
    except OSError as error:
        parser.error(f"--json: {error}")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        faults = [Fault.parse(kind, text) for kind in _FAULTS for text in getattr(args, kind)]
        with Netlab(args.nodes, args.local, args.rate, args.buffer, args.tcp) as lab:
            result = lab.run(command, echo=True, faults=faults, grace=args.grace)
    except (NetlabError, ImportError) as error:
        print(f"tss netlab: {error}", file=sys.stderr)
        return 1
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    _summarize(lab, args.grace, result)
    if args.json:
        args.json.write_text(json.dumps(_report(lab, command, result), indent=1) + "\n")
    return result.exit_code


def _leave(number, _):
    raise SystemExit(128 + number)  # on the way out everything is removed


def _report(lab: Netlab, command: list[str], result: Result) -> dict:
    report = {
        "nodes": len(lab.nodes),
        "local": lab.local,
        "rate_bits_per_second": lab.rate,
        "buffer_seconds": lab.buffer,
        "tcp": lab.tcp,
        "command": command,
        **dataclasses.asdict(result),
    }
    for rank in report["ranks"]:
        del rank["stdout"], rank["stderr"]  # they were printed
    return report


def _summarize(lab: Netlab, grace: float, result: Result) -> None:
    def say(text: str) -> None:
        print(f"[netlab] {text}", file=sys.stderr)

    for rank in result.ranks:
        if not rank.ended_by_itself:
            say(
                f"rank {rank.rank} on {rank.node} still ran {grace:g} s after the first "
                "failure and was killed"
            )
        elif rank.exit_code:
            say(
                f"rank {rank.rank} on {rank.node}: exit code {rank.exit_code} after {rank.seconds:.1f} s"
            )
    for fault in result.missed:
        say(f"--{fault.kind} {fault.target}@{fault.seconds:g} did not happen: the job had ended before")
    say(f"{lab}: exit code {result.exit_code} after {result.seconds:.1f} s")
    for link in result.links:
        say(f"{link.node}: sent {link.sent / 1e6:.2f} MB, received {link.received / 1e6:.2f} MB")
