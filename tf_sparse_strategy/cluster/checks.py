"""What `tss doctor` concludes from the facts of all machines; pure functions, one per question.

A report is what facts.collect() returned, plus
  rank: of the process.
  address: where Horovod would listen, or None.
  ports: [how many it could open there, how many it should, the error that stopped it or None].
  calls: one calls.Call as a dict for each other process.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

Report = dict[str, Any]
MOST_CLOCK_SKEW = 1.0  # seconds
_OUR_BUILD = "0.28.1+tss."
_REBUILD = "run `make setup`, or `python tools/horovod/build.py`, in the source tree"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that is wrong: "fail" when a job would not run or be wrong, else "warn"."""

    severity: Literal["fail", "warn"]
    text: str
    fix: str


def _fail(text: str, fix: str) -> Finding:
    return Finding("fail", text, fix)


def _warn(text: str, fix: str) -> Finding:
    return Finding("warn", text, fix)


def first_of_each_host(reports: Sequence[Report]) -> list[Report]:
    """The first report of each host, in the order of the reports."""
    found: dict[str, Report] = {}
    for report in reports:
        found.setdefault(report["host"], report)
    return list(found.values())


def several_machines(reports: Sequence[Report]) -> bool:
    """Whether not all processes are on one machine, whatever names a launcher gave it."""
    return len({frozenset(report["interfaces"].items()) for report in reports}) > 1


def _loopback(address: str | None) -> bool:
    return address is not None and ipaddress.ip_address(address).is_loopback


def _outward(report: Report) -> dict[str, str]:
    return {name: a for name, a in report["interfaces"].items() if not _loopback(a)}


def horovod_address(report: Report, several: bool) -> str | None:
    """The address on which this machine's workers would listen; None when there is none.

    `several`: whether workers on other machines must reach it.

    Horovod takes the address of HOROVOD_GLOO_IFACE, else what the host name resolves to. Where that
    leads nowhere the first outward address is returned, so that the other checks have their say.
    """
    named = report["interfaces"].get(report["interface"])
    resolved = report["name_address"] if report["name_is_here"] else None
    for address in (named, resolved):
        if address is not None and not (several and _loopback(address)):
            return address
    return next(iter({**_outward(report), **report["interfaces"]}.values()), None)


def check_runtime(reports: Sequence[Report]) -> Iterable[Finding]:
    """Horovod loads, has Gloo; where there are GPUs, TensorFlow finds one per worker, and NCCL is there."""
    for report in first_of_each_host(reports):
        host, runtime = report["host"], report["runtime"]
        version = report["versions"]["horovod"]
        if version is None:
            yield _fail(f"{host}: Horovod is not installed", _REBUILD)
            continue
        if "error" in runtime:
            yield _fail(f"{host}: Horovod does not load: {runtime['error']}", _REBUILD)
            continue
        if not version.startswith(_OUR_BUILD):
            yield _warn(f"{host}: Horovod {version} lacks the fixes of tools/horovod", _REBUILD)
        if not runtime["gloo"]:
            yield _fail(f"{host}: Horovod was built without Gloo", _REBUILD)
        gpus, workers = runtime["gpus"], report["workers"]
        if runtime["driver"] and not gpus:
            yield _warn(
                f"{host}: NVIDIA's driver, but TensorFlow finds no GPU, and would train on CPUs",
                'install its CUDA packages (`pip install "tensorflow[and-cuda]"`, of the same version); '
                "to train on CPUs, set CUDA_VISIBLE_DEVICES=-1",
            )
        if gpus and not runtime["nccl"]:
            fix = "run `python tools/horovod/build.py --gpu` in the source tree"
            yield _warn(f"{host}: GPUs, but Horovod was built without NCCL: slow", fix)
        if 0 < gpus < workers:
            # A process that is given one does not see those of the others.
            found = _warn if gpus == 1 and report["launched"] and report["gpus_given"] else _fail
            yield found(
                f"{host}: {workers} workers for {gpus} GPUs",
                f"start {gpus} workers there; to train on CPUs, set CUDA_VISIBLE_DEVICES=-1 (horovodrun "
                "hands it to no other machine: let it start `env CUDA_VISIBLE_DEVICES=-1 python ...`)",
            )


def check_versions(reports: Sequence[Report]) -> Iterable[Finding]:
    """Packages and this library are the same everywhere."""
    hosts = first_of_each_host(reports)
    for package, wanted in hosts[0]["versions"].items():
        for other in hosts[1:]:
            if (found := other["versions"][package]) != wanted:
                text = (
                    f"{package} is {found or 'missing'} on {other['host']}, {wanted or 'missing'}"
                )
                fix = f"install the same on {other['host']}"
                if package not in ("python", "horovod", "tf_sparse_strategy") and wanted:
                    fix = f"on {other['host']}: pip install {package}=={wanted}"
                yield _fail(f"{text} on {hosts[0]['host']}", fix)


def check_settings(reports: Sequence[Report]) -> Iterable[Finding]:
    """Variables that all workers must share are the same; Keras runs on TensorFlow."""
    first = reports[0]
    for report in reports:
        for name in sorted(first["settings"].keys() | report["settings"].keys()):
            wanted, found = first["settings"].get(name), report["settings"].get(name)
            if found != wanted:
                yield _fail(
                    f"{name} is {found or 'not set'} on {report['host']}, "
                    f"{wanted or 'not set'} on {first['host']}",
                    "set it before the launcher, which hands it to all workers",
                )
        if (backend := report["settings"].get("KERAS_BACKEND", "tensorflow")) != "tensorflow":
            yield _fail(
                f"KERAS_BACKEND is {backend} on {report['host']}: a tf.distribute strategy cannot "
                "train that",
                "unset KERAS_BACKEND",
            )


def check_names(reports: Sequence[Report]) -> Iterable[Finding]:
    """Each machine leads Horovod to an address that the others can reach."""
    hosts, several = first_of_each_host(reports), several_machines(reports)
    for report in reports:
        first = next(other for other in hosts if other["host"] == report["host"])
        if report["interfaces"] != first["interfaces"]:
            yield _fail(
                f"{report['host']}: two machines have this name, one with the addresses "
                f"{', '.join(_outward(first).values())}, one with {', '.join(_outward(report).values())}, "
                "and count as one",
                "give each machine a name of its own: `hostnamectl set-hostname NAME`",
            )
    for report in hosts:
        host, interface, known = report["host"], report["interface"], report["interfaces"]
        listed = ", ".join(f"{name} ({address})" for name, address in known.items())
        export = f"export HOROVOD_GLOO_IFACE={next(iter(_outward(report)), 'NAME')}"
        if interface is not None and interface not in known:
            yield _fail(
                f"{host}: HOROVOD_GLOO_IFACE={interface} has no IPv4 address; {host} has {listed}",
                f"{export} (horovodrun: --network-interfaces)",
            )
        elif several and _loopback(known.get(interface)):
            yield _fail(
                f"{host}: HOROVOD_GLOO_IFACE={interface} is {known[interface]}, which other "
                "machines cannot reach",
                f"{export} (horovodrun: --network-interfaces)",
            )
        yield from _check_own_name(report, several, export)
    if several and not any(report["launched"] or report["interface"] for report in hosts):
        common = set.intersection(*(set(_outward(report)) for report in hosts))
        if not common:
            listed = "; ".join(f"{r['host']}: {', '.join(_outward(r)) or 'none'}" for r in hosts)
            yield _fail(
                f"no network interface has the same name on all hosts ({listed}): horovodrun "
                "finds none to use",
                "rename one (`ip link set OLD name NEW`), or export HOROVOD_GLOO_IFACE on each host "
                "and start the workers by other means",
            )


def _check_own_name(report: Report, several: bool, export: str) -> Iterable[Finding]:
    name, address = report["name"], report["name_address"]
    outward = next(iter(_outward(report).values()), "ADDRESS")
    fix = f"in /etc/hosts of {report['host']} write `{outward} {name}`"
    if address is None:
        wrong = "resolves to nothing"
    elif not report["name_is_here"]:
        wrong = f"resolves to {address}, which is not its own"
    elif several and _loopback(address):
        wrong = f"resolves to {address}, which other machines cannot reach"
        fix += f" instead of `{address} {name}`"
    else:
        return
    text = f"{report['host']}: its own name {name} {wrong}"
    if report["interface"]:
        harmless = f"; harmless while HOROVOD_GLOO_IFACE={report['interface']} is set"
        yield _warn(text + harmless, fix)
    elif not report["launched"]:
        yield _warn(text + "; horovodrun finds an interface itself, others do not", fix)
    else:
        yield _fail(text, f"{fix}, or {export}")


def check_ports(reports: Sequence[Report]) -> Iterable[Finding]:
    """Enough TCP ports are free for Gloo's connections."""
    for report in first_of_each_host(reports):
        opened, wanted, error = report["ports"]
        if opened < wanted:
            yield _fail(
                f"{report['host']}: only {opened} of {wanted} TCP ports could be opened on "
                f"{report['address']} ({error})",
                "see who holds them with `ss -tanp`, or widen the range with "
                "`sysctl -w net.ipv4.ip_local_port_range='32768 60999'`",
            )


def check_calls(reports: Sequence[Report]) -> Iterable[Finding]:
    """Each process reaches each other one on the address that Horovod would use."""
    by_rank = {report["rank"]: report for report in reports}
    for report in reports:
        for call in report["calls"]:
            if call["error"] and (other := by_rank.get(call["rank"])):
                text = (
                    f"{report['host']} cannot connect to {other['host']} at {other['address']} "
                    f"({call['error']})"
                )
                fix = (
                    "allow TCP on all ports between the nodes: Horovod's are not fixed "
                    "(cloud: a rule in the security group for its own members; ufw, firewalld)"
                )
                chosen = other["interface"] or other["launched"] or other["address"] == other["name_address"]
                own, others = (set(_outward(r).values()) for r in (report, other))
                if chosen or not others - own - {other["address"]}:  # e.g. but for Docker's, alike on all
                    yield _fail(text, fix)
                else:  # it may be a NAT's, which several virtual machines have alike
                    first = "name the interface that joins them by --network-interfaces (HOROVOD_GLOO_IFACE)"
                    yield _warn(f"{text}; horovodrun tries its other addresses, too", f"{first}; else {fix}")


def check_clocks(reports: Sequence[Report]) -> Iterable[Finding]:
    """Clocks agree well enough to read logs and traces of several machines together."""
    first, hosts = reports[0], {report["rank"]: report["host"] for report in reports}
    for call in first["calls"]:
        other = hosts.get(call["rank"])
        if (
            other
            and not call["error"]
            and abs(call["clock"]) - call["uncertainty"] > MOST_CLOCK_SKEW
        ):
            way = "ahead of" if call["clock"] > 0 else "behind"
            yield _warn(
                f"the clock of {other} is {abs(call['clock']):.1f} s {way} that of {first['host']}: "
                "logs and traces will not line up",
                "on both: `timedatectl set-ntp true`, or install chrony (`chronyc makestep`)",
            )


# What the user reads, in this order. Each looks at the reports of the processes that answered.
CHECKS: dict[str, Callable[[Sequence[Report]], Iterable[Finding]]] = {
    "Horovod": check_runtime,
    "versions": check_versions,
    "settings": check_settings,
    "names": check_names,
    "ports": check_ports,
    "connections": check_calls,
    "clocks": check_clocks,
}


def examine(reports: Sequence[Report]) -> dict[str, list[Finding]]:
    """Returns the findings of each check, without repetitions."""
    return {name: list(dict.fromkeys(check(reports))) for name, check in CHECKS.items()}
