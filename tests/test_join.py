"""`tss join`: workers that others than horovodrun have started find together, and end as they should."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys

import pytest
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.gloo_run import create_slot_env_vars

from tests.lab_help import ENVIRONMENT, require_namespaces
from tf_sparse_strategy.cluster import Netlab, join, launch

# Here the environments stand for the launchers, which the test machine lacks.
LAUNCHERS = [
    {"OMPI_COMM_WORLD_RANK": "{}", "OMPI_COMM_WORLD_SIZE": "2"},
    {"PMI_RANK": "{}", "PMI_SIZE": "2"},
    {"SLURM_PROCID": "{}", "SLURM_NTASKS": "2"},
]


def start(launcher: dict, rank: int, port: int, *command: str) -> subprocess.Popen:
    clean = {
        n: v for n, v in os.environ.items() if not n.startswith(("HOROVOD_", "SLURM_", "PMI_"))
    }
    environment = {
        **clean,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
        **{name: value.format(rank) for name, value in launcher.items()},
    }
    own = [
        sys.executable,
        "-m",
        "tf_sparse_strategy.cli",
        "join",
        "--rendezvous",
        f"127.0.0.1:{port}",
    ]
    return subprocess.Popen(
        [*own, "--", *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda names: next(iter(names)))
def test_workers_find_together(launcher, port):
    script = (
        'echo "$HOROVOD_RANK of $HOROVOD_SIZE, $HOROVOD_LOCAL_RANK here, by $HOROVOD_GLOO_IFACE"'
    )
    workers = [start(launcher, rank, port, "sh", "-c", script) for rank in (1, 0)]
    said = [worker.communicate(timeout=60)[0].strip() for worker in workers]
    assert said == ["1 of 2, 1 here, by lo", "0 of 2, 0 here, by lo"]
    assert [worker.returncode for worker in workers] == [0, 0]


def test_a_strategy_trains(port):
    script = (
        "import tensorflow as tf, tf_sparse_strategy as tss; s = tss.SparseStrategy(); "
        "print(s.topology.nodes, s.reduce('SUM', tf.constant(1.5), axis=None).numpy())"
    )
    workers = [start(LAUNCHERS[2], rank, port, sys.executable, "-c", script) for rank in (0, 1)]
    ended = [worker.communicate(timeout=120) for worker in workers]
    assert [out.strip() for out, _ in ended] == ["(0, 0) 3.0"] * 2, ended


def test_the_doctor_examines_a_job_of_two_nodes():
    """Of what netlab tells its processes only the rank and the address of the first node are kept."""
    require_namespaces()
    tss = f"{shlex.quote(sys.executable)} -m tf_sparse_strategy.cli"
    script = (
        "address=$HOROVOD_GLOO_RENDEZVOUS_ADDR SLURM_PROCID=$HOROVOD_RANK\n"
        'for name in $(env | grep -o "^HOROVOD_[A-Z_]*"); do unset $name; done\n'
        f"export SLURM_PROCID SLURM_NTASKS=2\nexec {tss} join --rendezvous $address:29400 -- {tss} doctor"
    )
    with Netlab(nodes=2, local=1, rate="1gbit") as lab:
        result = lab.run(["sh", "-c", script], env=ENVIRONMENT)
    said = result.ranks[0].stdout
    assert result.exit_code == 0, result.ranks
    assert "node0: 10." in said and "node1: 10." in said and "all is well" in said


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failed_command_ends_its_process_at_once(failing, port, tmp_path):
    """The other one is the launcher's to end; the rendezvous stays until the last has ended."""
    script = (
        f"touch {tmp_path}/$HOROVOD_RANK\n"
        f"[ $HOROVOD_RANK = {failing} ] || exec sleep 30\n"
        f"until [ -e {tmp_path}/{1 - failing} ]; do sleep 0.1; done\n"
        "exit 7"
    )
    workers = [start(LAUNCHERS[0], rank, port, "sh", "-c", script) for rank in (0, 1)]
    assert workers[failing].wait(timeout=20) == 7
    other = workers[1 - failing]
    assert other.poll() is None
    other.terminate()
    assert other.wait(timeout=10) == 128 + 15
    for worker in workers:
        worker.communicate()


@pytest.mark.parametrize("hosts", ["a:4,b:4", "a:1", "a:2,b:1,c:3"])
def test_places_are_horovodruns(hosts):
    count = sum(int(part.split(":")[1]) for part in hosts.split(","))
    slots = get_host_assignments(parse_hosts(hosts), count)
    names = [slot.hostname for slot in slots]
    for slot in slots:
        assert launch.slot_environment(names, slot.rank) == create_slot_env_vars(slot)


def test_ranks_that_alternate_between_hosts():
    places = [launch.slot_environment(["a", "b", "a", "b"], rank) for rank in range(4)]
    assert [place["HOROVOD_LOCAL_RANK"] for place in places] == ["0", "0", "1", "1"]
    assert [place["HOROVOD_CROSS_RANK"] for place in places] == ["0", "1", "0", "1"]


def test_mpirun_under_srun_is_mpiruns():
    assert join.place(
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "PMI_RANK": "3", "PMI_SIZE": "4"}
    ) == (3, 4)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rendezvous", "10.0.0.1", "--", "true"], "is not HOST:PORT"),
        (["--rendezvous", "10.0.0.1:0", "--", "true"], "is not HOST:PORT"),
        (["--rendezvous", "10.0.0.1:29400"], "no command"),
        (["--rendezvous", "10.0.0.1:29400", "--", "true"], "must be started by mpirun or srun"),
    ],
)
def test_wrong_arguments_are_refused(arguments, said, capsys, monkeypatch):
    for names in LAUNCHERS:
        for name in names:
            monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit) as ended:
        join.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
