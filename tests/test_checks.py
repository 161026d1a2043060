"""The doctor's conclusions, from made-up reports: each ill is found, and no other."""

import pytest

from tf_sparse_strategy.cluster.checks import CHECKS, examine, horovod_address


def report(rank: int = 0, /, **changes) -> dict:
    """A sound machine's."""
    address = f"10.0.0.{rank + 1}"
    sound = {
        "rank": rank,
        "host": f"vm{rank}",
        "name": f"vm{rank}",
        "name_address": address,
        "name_is_here": True,
        "interfaces": {"lo": "127.0.0.1", "eth0": address},
        "interface": "eth0",
        "launched": True,
        "gpus_given": False,
        "workers": 2,
        "versions": {"keras": "3.15.1", "horovod": "0.28.1+tss.c0", "tf_keras": None},
        "settings": {"HOROVOD_CYCLE_TIME": "1"},
        "runtime": {"gloo": True, "nccl": False, "gpus": 0, "driver": False},
        "address": address,
        "ports": [32, 32, None],
        "calls": [{"rank": 1 - rank, "error": None, "clock": 0.2, "uncertainty": 0.001}],
    }
    return sound | changes


def test_an_address_that_nobody_has_chosen_may_not_be_the_one():
    """Virtual machines behind a NAT, with one more interface by which they reach each other."""
    reports = [
        report(
            rank,
            interface=None,
            launched=False,
            name_address="127.0.1.1",
            address="10.0.2.15",
            interfaces={"lo": "127.0.0.1", "eth0": "10.0.2.15", "eth1": f"192.168.56.{rank + 1}"},
            calls=[{"rank": 1 - rank, "error": "refused"}],
        )
        for rank in range(2)
    ]
    found = examine(reports)["connections"]
    assert [finding.severity for finding in found] == ["warn"] * 2
    assert "HOROVOD_GLOO_IFACE" in found[0].fix
    for each in reports:
        each["interfaces"]["eth1"] = "172.17.0.1"  # Docker's bridge, which leads nowhere
    assert [finding.severity for finding in examine(reports)["connections"]] == ["fail"] * 2


def test_nothing_is_found_on_sound_machines():
    assert not any(examine([report(0), report(1)]).values())
    assert not any(examine([report(0, calls=[])]).values())


GPUS = {"gloo": True, "nccl": True, "gpus": 2, "driver": True}
BARE = {"keras": "3.15.1", "horovod": None, "tf_keras": None}
# (check, severity, what is said of vm1, the cure, what is wrong with vm1's report)
ILLS = [
    ("Horovod", "fail", "not installed", "tools/horovod/build.py", {"versions": BARE}),
    ("Horovod", "fail", "not load: no xla", "make setup", {"runtime": {"error": "no xla"}}),
    (
        "Horovod",
        "warn",
        "lacks the fixes",
        "make setup",
        {"versions": BARE | {"horovod": "0.28.1"}},
    ),
    ("Horovod", "fail", "without Gloo", "make setup", {"runtime": GPUS | {"gloo": False}}),
    ("Horovod", "warn", "without NCCL", "--gpu", {"runtime": GPUS | {"nccl": False}}),
    ("Horovod", "warn", "finds no GPU", "and-cuda", {"runtime": GPUS | {"gpus": 0}}),
    ("Horovod", "fail", "2 workers for 1 GPUs", "start 1", {"runtime": GPUS | {"gpus": 1}}),
    ("Horovod", "warn", "2 workers for 1", "start 1", {"runtime": GPUS | {"gpus": 1}, "gpus_given": True}),
    (
        "versions",
        "fail",
        "keras is 3.14.0 on vm1, 3.15.1 on vm0",
        "on vm1: pip install keras==3.15.1",
        {"versions": report()["versions"] | {"keras": "3.14.0"}},
    ),
    (
        "versions",
        "fail",
        "tf_keras is 2.20.1 on vm1, missing on vm0",
        "install the same",
        {"versions": report()["versions"] | {"tf_keras": "2.20.1"}},
    ),
    ("settings", "fail", "CYCLE_TIME is not set on vm1", "before the launcher", {"settings": {}}),
    (
        "names",
        "fail",
        "HOROVOD_GLOO_IFACE=ens5 has no IPv4 address; vm1 has lo (127.0.0.1), eth0 (10.0.0.2)",
        "export HOROVOD_GLOO_IFACE=eth0",
        {"interface": "ens5"},
    ),
    ("names", "fail", "HOROVOD_GLOO_IFACE=lo is 127.0.0.1", "=eth0", {"interface": "lo"}),
    (
        "names",
        "warn",
        "resolves to 127.0.1.1, which other machines cannot reach; harmless while",
        "write `10.0.0.2 vm1` instead of `127.0.1.1 vm1`",
        {"name_address": "127.0.1.1"},
    ),
    (
        "names",
        "fail",
        "resolves to 127.0.1.1, which other",
        "or export HOROVOD_GLOO_IFACE=eth0",
        {"name_address": "127.0.1.1", "interface": None},
    ),
    (
        "names",
        "fail",
        "resolves to nothing",
        "write `10.0.0.2 vm1`",
        {"name_address": None, "name_is_here": False, "interface": None},
    ),
    (
        "names",
        "fail",
        "resolves to 10.9.9.9, which is not its own",
        "write `10.0.0.2 vm1`",
        {"name_address": "10.9.9.9", "name_is_here": False, "interface": None},
    ),
    (
        "ports",
        "fail",
        "only 3 of 32 TCP ports could be opened on 10.0.0.2 (Address already in use)",
        "ip_local_port_range",
        {"ports": [3, 32, "Address already in use"]},
    ),
    (
        "connections",
        "fail",
        "vm1 cannot connect to vm0 at 10.0.0.1 (timed out)",
        "security group",
        {"calls": [{"rank": 0, "error": "timed out", "clock": 0.0, "uncertainty": 0.0}]},
    ),
]


@pytest.mark.parametrize(("check", "severity", "text", "fix", "changes"), ILLS)
def test_each_ill_is_found_and_no_other(check, severity, text, fix, changes):
    found = examine([report(0), report(1, **changes)])
    if check == "Horovod":
        found.pop("versions")  # a Horovod that is not ours is also another one
    [finding] = found.pop(check)
    assert finding.severity == severity
    assert text in finding.text and "vm1" in finding.text
    assert fix in finding.fix
    assert not any(found.values())


def test_keras_runs_on_tensorflow():
    jax = [report(rank, settings={"KERAS_BACKEND": "jax"}) for rank in range(2)]
    findings = examine(jax)["settings"]
    assert [finding.fix for finding in findings] == ["unset KERAS_BACKEND"] * 2
    assert not examine([report(0, settings={"KERAS_BACKEND": "tensorflow"})])["settings"]


def test_every_check_has_an_ill():
    assert {ill[0] for ill in ILLS} == set(CHECKS) - {"clocks"}


def test_a_machine_of_its_own_may_use_loopback():
    alone = report(0, interface="lo", name_address="127.0.1.1", calls=[])
    twin = report(0, host="127.0.0.1", rank=1, interface="lo", name_address="127.0.1.1", calls=[])
    assert not any(examine([alone]).values())
    assert not any(examine([alone, twin]).values())


def test_two_machines_of_one_name_are_told():
    [finding] = examine([report(0), report(1, host="vm0", name="vm0")])["names"]
    assert "vm0: two machines" in finding.text and "10.0.0.1, one with 10.0.0.2" in finding.text


def test_horovodrun_needs_an_interface_of_one_name():
    there = {"interface": None, "launched": False}
    other = report(1, interfaces={"lo": "127.0.0.1", "ens5": "10.0.0.2"}, **there)
    [finding] = examine([report(0, **there), other])["names"]
    assert "same name on all hosts (vm0: eth0; vm1: ens5)" in finding.text
    assert not examine([report(0, **there), report(1, **there)])["names"]


@pytest.mark.parametrize(
    ("clock", "uncertainty", "found"),
    [(0.9, 0, 0), (1.1, 0, 1), (-1.1, 0, 1), (1.1, 0.2, 0), (-3600, 0.2, 1)],
)
def test_clocks_may_differ_by_a_second(clock, uncertainty, found):
    called = [{"rank": 1, "error": None, "clock": clock, "uncertainty": uncertainty}]
    findings = examine([report(0, calls=called), report(1)])["clocks"]
    assert len(findings) == found
    for finding in findings:
        assert finding.severity == "warn"
        assert f"{abs(clock):.1f} s {'ahead of' if clock > 0 else 'behind'}" in finding.text
        assert "set-ntp true" in finding.fix


@pytest.mark.parametrize(
    ("changes", "several", "address"),
    [
        ({}, True, "10.0.0.1"),
        ({"interface": "lo"}, False, "127.0.0.1"),
        ({"interface": "lo", "name_address": "127.0.0.1"}, True, "10.0.0.1"),
        ({"interface": None, "name_address": "10.0.0.1"}, True, "10.0.0.1"),
        ({"interface": None, "name_address": "127.0.1.1"}, True, "10.0.0.1"),
        ({"interface": None, "name_address": "127.0.1.1"}, False, "127.0.1.1"),
        ({"interface": None, "name_address": "10.9.9.9", "name_is_here": False}, True, "10.0.0.1"),
        (
            {"interface": None, "name_address": None, "name_is_here": False, "interfaces": {}},
            True,
            None,
        ),
    ],
)
def test_horovods_address(changes, several, address):
    assert horovod_address(report(0, **changes), several) == address
