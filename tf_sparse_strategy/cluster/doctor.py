"""`tss doctor`: examines the machines of a job before the job, and says how to cure what is wrong."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from tf_sparse_strategy.cluster import calls, checks, facts
from tf_sparse_strategy.cluster.exchange import (
    PATIENCE,
    Alone,
    Exchange,
    ThroughPipe,
    ThroughRendezvous,
)
from tf_sparse_strategy.cluster.remote import Patients, is_here, parse_hosts

_DESCRIPTION = """\
Examines the machines of a job before the job: Horovod as built, equal versions and settings, host
names and the network interface that Horovod would use, free ports, real connections between all
machines, clocks. Needs no working Horovod."""

_EPILOG = """\
examples:
  tss doctor                                      this machine
  tss doctor -H vm1:4,vm2:4                       these machines, over ssh as horovodrun does
  horovodrun -np 2 -H vm1:1,vm2:1 tss doctor      as a job, under any launcher that uses Gloo
  horovodrun -np 8 -H vm1:4,vm2:4 tss doctor --measure --model links.json
  sudo -E $(command -v tss) netlab --nodes 2 --local 1 -- $(command -v tss) doctor

The exit code is 1 when a job would fail, 2 for wrong arguments, 0 otherwise; warnings do not count."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tss doctor",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-H",
        "--hosts",
        metavar="HOST:WORKERS,...",
        help="examine these machines, as horovodrun's -H",
    )
    parser.add_argument(
        "--measure",
        action="store_true",
        help="then measure latency and speed of the links, some 15 seconds; as a job only",
    )
    parser.add_argument(
        "--model", type=pathlib.Path, metavar="FILE", help="keep what --measure finds, as JSON"
    )
    parser.add_argument("--pipe", type=int, help=argparse.SUPPRESS)  # started by another doctor
    return parser


def main(argv: list[str]) -> int:
    """Returns 0 when a job would run, 1 when not, 2 for wrong arguments."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.measure and args.hosts:
        parser.error(
            "--measure needs all workers of a job, -H starts none: run it under the launcher, e.g. "
            f"`horovodrun -np P -H {args.hosts} tss doctor --measure`."
        )
    if args.model and not args.measure:
        parser.error("--model FILE keeps what --measure finds: give both.")
    if args.model and os.environ.get("HOROVOD_RANK", "0") == "0":
        was_there = args.model.exists()
        try:
            args.model.touch()  # now, not after the measurement
        except OSError as error:
            parser.error(f"--model: {error}")
        if not was_there:
            args.model.unlink()
    try:
        if args.pipe is not None:
            examine_self(ThroughPipe(args.pipe))
            return 0
        if os.environ.get("HOROVOD_RANK", "0") == "0":
            print("tss doctor: examining; TensorFlow is imported meanwhile", file=sys.stderr)
        if args.hosts:
            return examine_hosts(args.hosts)
        exchange = Alone()
        if "HOROVOD_GLOO_RENDEZVOUS_ADDR" in os.environ:
            exchange = ThroughRendezvous(os.environ)
        code = examine_together(exchange)
        if args.measure and code == 0:
            # Imported only here: examining needs neither TensorFlow nor a Horovod that loads.
            from tf_sparse_strategy.cluster import links

            links.measure(args.model)
        return code
    except RuntimeError as error:
        print(f"tss doctor: {error}", file=sys.stderr)
        return 1
    except ValueError as error:
        parser.error(str(error))


def examine_self(exchange: Exchange) -> list[checks.Report | None]:
    """Examines this machine, calls the others, and returns everybody's report, None for the lost."""
    own = {"rank": exchange.rank, **facts.collect()}
    with contextlib.ExitStack() as opened:
        with contextlib.suppress(OSError):  # the check of the ports says it
            own["port"] = opened.enter_context(calls.Listener()).port
        everyone = [other for other in exchange.all_gather(own) if other]
        several = checks.several_machines(everyone)
        addresses = {o["rank"]: checks.horovod_address(o, several) for o in everyone}
        called = {
            other["rank"]: (addresses[other["rank"]], other["port"])
            for other in everyone
            if other["rank"] != exchange.rank and addresses[other["rank"]] and "port" in other
        }
        own["address"] = addresses[exchange.rank]
        wanted = facts.PORTS_PER_WORKER * own["workers"]
        opened_ports, error = facts.free_ports(own["address"] or "", wanted)
        own["ports"] = [opened_ports, wanted, error]
        own["calls"] = [dataclasses.asdict(call) for call in calls.call_all(called)]
        return exchange.all_gather(own)  # nobody stops answering before all have called


def examine_together(exchange: Exchange) -> int:
    """As one process of a job; the first that reports speaks for all."""
    reports = examine_self(exchange)
    lost = [
        checks.Finding(
            "fail",
            f"rank {rank} has not reported within {PATIENCE} s",
            "see what it printed; does `tss doctor` run by itself on its machine?",
        )
        for rank, report in enumerate(reports)
        if report is None
    ]
    present = [report for report in reports if report]
    sound = _conclude(present, lost, speak=present[0]["rank"] == exchange.rank)
    exchange.all_gather(True)  # a launcher ends all when one fails: not before it has been said
    return 0 if sound else 1


def examine_hosts(text: str) -> int:
    """As the one that starts a process on each host and belongs to none."""
    hosts = parse_hosts(text)
    with Patients(hosts) as patients:
        patients.all_gather()
        present = [report for report in patients.all_gather() if report]
        lost = [
            checks.Finding(
                "fail",
                f"{host} does not answer: {error}",
                f"`ssh {host} {sys.executable} --version` must work from here without a password; "
                "install everything at the same path on all hosts",
            )
            for host, error in patients.errors.items()
        ]
    if not any(is_here(host.name) for host in hosts):
        text = "this machine is none of -H: horovodrun needs its interface to be named as theirs"
        remedy = f"where it fails, log in to {hosts[0].name}, and start it there"
        lost.append(checks.Finding("warn", text, remedy))
    return 0 if _conclude(present, lost, speak=True) else 1


def _conclude(reports: Sequence[checks.Report], lost: list[checks.Finding], speak: bool) -> bool:
    """Says what was found; returns whether a job would run."""
    found = {"answers": lost} | (checks.examine(reports) if reports else {})
    findings = [finding for several in found.values() for finding in several]
    failures = sum(finding.severity == "fail" for finding in findings)
    if speak:
        print(_text(reports, found), flush=True)
        warnings = len(findings) - failures
        print(f"{failures} to cure, {warnings} to know" if findings else "all is well", flush=True)
    return not failures


def _text(reports: Sequence[checks.Report], found: dict[str, list[checks.Finding]]) -> str:
    lines = []
    for report in checks.first_of_each_host(reports):
        where: Any = report["address"] or "no address"
        gpus = report["runtime"].get("gpus", "unknown")
        lines.append(f"{report['host']}: {where}, workers: {report['workers']}, GPUs: {gpus}")
    if reports:
        versions = reports[0]["versions"].items()
        lines.append(", ".join(f"{name} {version}" for name, version in versions if version))
    for check, findings in found.items():
        if not findings:
            lines.append(f"  ok    {check}")
        for finding in findings:
            lines.append(f"  {finding.severity:<5} {check}: {finding.text}")
            lines.append(f"        cure: {finding.fix}")
    return "\n".join(lines)
