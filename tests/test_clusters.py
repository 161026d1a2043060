"""The launch files: they start what they should, as far as a single machine can tell."""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
import yaml
from horovod.runner.launch import parse_args

from tf_sparse_strategy.cluster import doctor, join

ROOT = pathlib.Path(__file__).parents[1]
FILES = ROOT / "examples" / "clusters"
DOCUMENT = (ROOT / "docs" / "clusters.md").read_text()
SCRIPTS = ["horovodrun.sh", "mpirun.sh", "slurm.sbatch", "vm_startup.sh"]
JOB = ["python", "train.py"]
SLURM = {"SLURM_JOB_NODELIST": "vm[1-2]", "SLURM_JOB_ID": "4711", "SLURM_CPUS_PER_TASK": "8"}


def parsed(command: list[str], monkeypatch) -> tuple[str, list[str]]:
    """(what is started, for what command), as the started program's own parser understands it."""
    program, *arguments = command
    if program in ("mpirun", "srun"):
        return parsed(command[command.index("tss") :], monkeypatch)
    if program == "horovodrun":
        monkeypatch.setattr(sys, "argv", command)
        args = parse_args()
        places = [int(host.rpartition(":")[2]) for host in (args.hosts or "").split(",") if host]
        assert not places or args.num_proc == sum(places)
        if args.command[0] == "tss":
            return parsed(args.command, monkeypatch)
        return "horovodrun", args.command
    assert program == "tss", command
    if arguments[0] == "join":
        args = join._parser().parse_args(arguments[1:])
        command = args.command[1:]
        return parsed(command, monkeypatch) if command[0] == "tss" else ("join", command)
    assert arguments[0] == "doctor", command
    doctor._parser().parse_args(arguments[1:])
    return "doctor", []


@pytest.fixture
def calls(tmp_path):
    """Commands that only write down how they were called; gives a function that runs and returns them."""
    for name in ("tss", "horovodrun", "mpirun", "srun", "sysctl", "timedatectl"):
        (tmp_path / name).write_text(
            f'#!/bin/bash\nprintf "%s\\n" "$(printf "%q " {name} "$@")" >>calls\n'
        )
    # More names than a pipe holds: one whose reader leaves after the first line kills the writer.
    (tmp_path / "scontrol").write_text("#!/bin/bash\nprintf 'vm%s\\n' {1..20000}\n")
    for path in tmp_path.iterdir():
        path.chmod(0o755)

    def run(*command: str, **variables: str) -> list[list[str]]:
        environment = {"PATH": f"{tmp_path}:/usr/sbin:/usr/bin:/sbin:/bin", **variables}
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=20)
        return [shlex.split(line) for line in (tmp_path / "calls").read_text().splitlines()]

    return run


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_shell_understands(name):
    subprocess.run(["bash", "-n", str(FILES / name)], check=True)
    assert os.access(FILES / name, os.X_OK)


STARTED = [("horovodrun.sh", "horovodrun"), ("mpirun.sh", "join"), ("slurm.sbatch", "join")]


@pytest.mark.parametrize(("name", "launcher"), STARTED)
def test_the_doctor_comes_first_then_the_job(name, launcher, calls, monkeypatch):
    variables = SLURM if name == "slurm.sbatch" else {"HOSTS": "vm1:3,vm2:2", "INTERFACE": "ens5"}
    first, second = calls(str(FILES / name), *JOB, **variables)
    assert parsed(first, monkeypatch) == ("doctor", [])
    assert parsed(second, monkeypatch) == (launcher, JOB)


def test_what_is_said_reaches_the_launcher(calls):
    _, job = calls(str(FILES / "horovodrun.sh"), *JOB, HOSTS="vm1:3,vm2:2", INTERFACE="ens5")
    assert job[:7] == "horovodrun --gloo -np 5 -H vm1:3,vm2:2 --network-interfaces".split()
    assert job[7:] == ["ens5", *JOB]


def test_a_variable_that_is_set_is_handed_on(calls):
    _, job = calls(str(FILES / "mpirun.sh"), *JOB, HOROVOD_GLOO_IFACE="ens5", TF_USE_LEGACY_KERAS="1")
    assert "-x HOROVOD_GLOO_IFACE" in " ".join(job) and "-x TF_USE_LEGACY_KERAS" in " ".join(job)
    assert "NCCL" not in " ".join(job)


def test_workers_of_a_slurm_job_meet_on_its_first_node(calls):
    _, job = calls(str(FILES / "slurm.sbatch"), *JOB, **SLURM)
    assert job[job.index("--rendezvous") + 1] == "vm1:24711"
    options = re.findall(r"^#SBATCH --([\w-]+)=?(\S*)$", (FILES / "slurm.sbatch").read_text(), re.M)
    assert {"nodes": "2", "ntasks-per-node": "4"}.items() <= dict(options).items()


def test_the_kubernetes_job(calls, tmp_path, monkeypatch):
    job = yaml.safe_load((FILES / "mpijob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    replicas = job["spec"]["mpiReplicaSpecs"]
    slots, workers = job["spec"]["slotsPerWorker"], replicas["Worker"]["replicas"]
    (launcher,) = replicas["Launcher"]["template"]["spec"]["containers"]
    (worker,) = replicas["Worker"]["template"]["spec"]["containers"]
    assert launcher["image"] == worker["image"]
    hosts = [f"train-worker-{i}.train.default.svc" for i in range(workers)]
    (tmp_path / "hostfile").write_text("".join(f"{host} slots={slots}\n" for host in hosts))
    (script,) = launcher["args"]
    script = script.replace("/etc/mpi/hostfile", str(tmp_path / "hostfile"))
    script = script.replace("examples/clusters", str(FILES))
    environment = {variable["name"]: variable["value"] for variable in launcher["env"]}
    first, second = calls(*launcher["command"], script, **environment)
    assert parsed(first, monkeypatch) == ("doctor", [])
    assert parsed(second, monkeypatch) == ("horovodrun", JOB)
    assert second[second.index("-np") + 1] == str(slots * workers)
    assert second[second.index("-H") + 1] == ",".join(f"{host}:{slots}" for host in hosts)


@pytest.mark.parametrize(
    "wrong", ["tss join -- true", "tss doctor --hosts", "horovodrun --fast true"]
)
def test_wrong_arguments_are_found(wrong, monkeypatch):
    with pytest.raises(SystemExit):
        parsed(wrong.split(), monkeypatch)


def test_the_document_names_all_files_and_its_commands_are_right(monkeypatch):
    assert {*re.findall(r"\]\(\.\./examples/clusters/([\w.]+)\)", DOCUMENT)} == {
        path.name for path in FILES.iterdir() if path.suffix in (".sh", ".sbatch", ".yaml")
    }
    blocks = re.findall(r"```bash\n(.*?)```", DOCUMENT, re.S)
    commands = [shlex.split(line) for block in blocks for line in block.splitlines()]
    inline = re.findall(r"`((?:horovodrun|tss) [^`]*(?:tss|-)[^`]*)`", DOCUMENT)
    commands += [shlex.split(line) for line in inline if "--network-interfaces" not in line]
    assert len(commands) == 3
    assert [parsed(command, monkeypatch)[0] for command in commands] == ["join", "join", "doctor"]


def test_a_job_on_this_machine(tmp_path):
    """horovodrun.sh for real: the doctor is content, and both workers start."""
    own = pathlib.Path(sys.executable).parent
    (tmp_path / "tss").write_text(
        f'#!/bin/sh\nexec {sys.executable} -m tf_sparse_strategy.cli "$@"\n'
    )
    (tmp_path / "tss").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{own}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        "CUDA_VISIBLE_DEVICES": "-1",
        "HOSTS": "localhost:2",
    }
    command = [str(FILES / "horovodrun.sh"), "sh", "-c", "echo I am $HOROVOD_RANK of $HOROVOD_SIZE"]
    result = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "all is well" in result.stdout or "0 to cure" in result.stdout
    assert sorted(re.findall(r"I am \d of \d", result.stdout)) == ["I am 0 of 2", "I am 1 of 2"]


def test_a_virtual_machine_starts(calls, tmp_path):
    """With files of its own in /etc: the name leads to the interface's address, also when it starts again.

    The project is there already, and its doctor sees the interface.
    """
    etc, machine = tmp_path / "etc", os.uname().nodename
    (etc / "profile.d").mkdir(parents=True)
    (etc / "sysctl.d").mkdir()
    (etc / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {machine}.example {machine}\n")
    tss = tmp_path / "opt" / "project" / ".venv" / "bin" / "tss"
    tss.parent.mkdir(parents=True)
    tss.write_text('#!/bin/bash\necho "tss $* $HOROVOD_GLOO_IFACE $NCCL_SOCKET_IFNAME" >>calls\n')
    tss.chmod(0o755)
    mounts = " && ".join(f'mount --bind "{etc / name}" /etc/{name}' for name in os.listdir(etc))
    mounts += f' && mount --bind "{tmp_path / "opt"}" /opt'
    script = f'{mounts} && for boot in 1 2; do bash "{FILES}/vm_startup.sh" || exit; done'
    own_mounts = ["unshare", "--mount", "--map-root-user", "bash", "-c"]
    done = calls(*own_mounts, script, INTERFACE="lo")
    assert (etc / "hosts").read_text() == f"127.0.0.1 localhost\n127.0.0.1 {machine}\n"
    assert "export HOROVOD_GLOO_IFACE=lo\n" in (etc / "profile.d" / "tss.sh").read_text()
    assert done[0] == ["sysctl", "--quiet", "--load", "/etc/sysctl.d/90-tss.conf"]
    assert done[2] == ["tss", "doctor", "lo", "lo"]
    assert [name for name, *_ in done] == 2 * ["sysctl", "timedatectl", "tss"]
    for name in re.findall(r"^([\w.]+) = ", (etc / "sysctl.d" / "90-tss.conf").read_text(), re.M):
        assert pathlib.Path("/proc/sys", name.replace(".", "/")).exists(), name
    tss.unlink()  # an image of one's own, whose environment is elsewhere
    assert calls(*own_mounts, script, INTERFACE="lo")[-1] == ["tss", "doctor"]
