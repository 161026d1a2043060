"""Builds Horovod with our edits against this interpreter's TensorFlow and installs it."""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterable

import sdist
from edit import Edit, EditError
from edits import EDITS

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
DEFAULT_CACHE = pathlib.Path(os.environ.get("TSS_CACHE_DIR", REPOSITORY / ".cache")) / "horovod"

FEATURES = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITHOUT_NVTX": "1",  # else depends on whether the machine has NVIDIA's profiler
}

# What the user may say about a GPU machine; Horovod's CMake files read it.
GPU_SETTINGS = ("HOROVOD_CUDA_HOME", "HOROVOD_NCCL_HOME", "HOROVOD_BUILD_CUDA_CC_LIST")


class BuildError(RuntimeError):
    """The machine lacks something, or the compilation failed."""


def fingerprint(edits: Iterable[Edit], gpu: bool) -> str:
    """Returns 12 hexadecimal digits that change with anything the wheel depends on."""
    inputs = (
        sdist.SHA256,
        [(edit.file, edit.expected, edit.replacement) for edit in edits],
        sorted(FEATURES.items()),
        importlib.metadata.version("tensorflow"),
        sysconfig.get_config_var("EXT_SUFFIX"),
        [os.environ.get(name) for name in GPU_SETTINGS] if gpu else None,
    )
    return hashlib.sha256(repr(inputs).encode()).hexdigest()[:12]


def wanted_version(gpu: bool) -> str:
    """Returns Horovod's version with our fingerprint as its local part (PEP 440)."""
    return f"{sdist.VERSION}+tss.{'g' if gpu else 'c'}{fingerprint(EDITS, gpu)}"


def installed_version() -> str | None:
    """Returns the version of the installed Horovod, or None."""
    try:
        return importlib.metadata.version("horovod")
    except importlib.metadata.PackageNotFoundError:
        return None


def check_machine(gpu: bool, cache: pathlib.Path) -> None:
    """Raises BuildError, naming the remedy, when a tool or package is missing, or a path cannot be."""
    if any(letter.isspace() for letter in f"{sys.prefix}{cache}"):  # its CMake files cut flags at blanks
        raise BuildError(f"Horovod's build needs paths without blanks: {sys.prefix}, {cache} (--cache)")
    path = build_path()
    commands = {"g++": "apt-get install g++", "make": "apt-get install make"}
    commands["cmake"] = "pip install 'cmake<4'"
    if gpu and "HOROVOD_CUDA_HOME" not in os.environ:
        commands["nvcc"] = "put the CUDA toolkit's bin directory on PATH or set HOROVOD_CUDA_HOME"
    for command, remedy in commands.items():
        if shutil.which(command, path=path) is None:
            raise BuildError(f"Horovod's build needs '{command}', not found on PATH: {remedy}")
    for package in ("pip", "tensorflow", "setuptools", "wheel", "packaging", "cloudpickle", "psutil"):
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise BuildError(
                f"Horovod's build needs the package '{package}', not found in {sys.prefix}: activate the "
                f"environment that has it, or `pip install {package}`"
            ) from None


def build_path() -> str:
    """Returns PATH with this environment's scripts (its cmake) in front."""
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])


def build_environment(version: str, gpu: bool, source: pathlib.Path) -> dict[str, str]:
    """Returns the environment of the build: ours, without foreign HOROVOD_ and make settings."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if (gpu and name in GPU_SETTINGS) or not name.startswith(("HOROVOD_", "MAKE", "MFLAGS"))
    }
    environment |= FEATURES
    environment["CMAKE_GENERATOR"] = "Unix Makefiles"  # Horovod's setup.py speaks to make
    environment["PATH"] = build_path()
    environment["HOROVOD_LOCAL_VERSION"] = version.partition("+")[2]
    # Horovod's log lines name the source file: not by a path in a deleted directory.
    environment["CXXFLAGS"] = f"-ffile-prefix-map={source}={source.name}"
    environment["MAKEFLAGS"] = f"-j{len(os.sched_getaffinity(0))}"
    if gpu:
        environment["HOROVOD_GPU_OPERATIONS"] = "NCCL"
        environment["HOROVOD_NCCL_LINK"] = "SHARED"
    return environment


def build_wheel(cache: pathlib.Path, version: str, gpu: bool) -> pathlib.Path:
    """Compiles the edited sdist, checks that the result loads, and returns the wheel in `cache`.

    Raises:
      BuildError: compilation or the check failed; names the log file.
    """
    tarball = sdist.fetch(cache)
    log = cache / "build.log"
    with tempfile.TemporaryDirectory(dir=cache) as directory:
        work = pathlib.Path(directory)
        source = sdist.unpack(tarball, work, EDITS)
        command = [sys.executable, "-m", "pip", "wheel", "--verbose", "--no-deps", "--no-cache-dir"]
        command += ["--no-build-isolation", "--disable-pip-version-check", "--wheel-dir", directory]
        with log.open("wb") as output:
            compiled = subprocess.run(
                [*command, str(source)],
                env=build_environment(version, gpu, source),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        if compiled.returncode != 0:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-40:])
            raise BuildError(f"{tail}\n\nHorovod did not compile; the whole log is {log}")
        (wheel,) = work.glob("horovod-*.whl")
        check_loads(wheel, work / "check")
        return wheel.replace(cache / wheel.name)


def check_loads(wheel: pathlib.Path, directory: pathlib.Path) -> None:
    """Raises BuildError when the wheel's library does not load into TensorFlow."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)
    environment = os.environ | {"PYTHONPATH": str(directory), "TF_CPP_MIN_LOG_LEVEL": "2"}
    program = "import horovod.tensorflow as hvd; assert hvd.gloo_built()"
    loaded = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    if loaded.returncode != 0:
        raise BuildError(f"{loaded.stderr}\nHorovod compiled but does not load (error above)")


def install(cache: pathlib.Path, gpu: bool) -> str:
    """Installs our Horovod unless it is there already, building it only when not in `cache`.

    Returns:
      The installed version.
    """
    check_machine(gpu, cache)
    version = wanted_version(gpu)
    if installed_version() == version:
        return version
    wheels = list(cache.glob(f"horovod-{version}-*.whl"))
    if not wheels:
        print(f"building Horovod {version} (minutes) ...", flush=True)
        wheels = [build_wheel(cache, version, gpu)]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps"]
    command += ["--no-index", "--disable-pip-version-check", str(wheels[0])]
    if subprocess.run(command).returncode != 0:
        raise BuildError(f"pip could not install {wheels[0]} (its message is above)")
    return version


def edits_table() -> str:
    """Returns the edits as a Markdown table."""
    rows = [f"| `{edit.name}` | `{edit.file}` | {edit.reason} |" for edit in EDITS]
    return "\n".join(["| edit | file | without it |", "| --- | --- | --- |", *rows])


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--gpu",
        action="store_true",
        help="collectives on GPU tensors through NCCL; needs the CUDA toolkit and NCCL",
    )
    parser.add_argument(
        "--cache",
        type=pathlib.Path,
        default=DEFAULT_CACHE,
        help="where the sdist, the wheels and the build log are kept (default: %(default)s)",
    )
    parser.add_argument("--list", action="store_true", help="print the edits and stop")
    arguments = parser.parse_args()
    if arguments.list:
        print(edits_table())
        return 0
    try:
        print("Horovod", install(arguments.cache.resolve(), arguments.gpu))
    except (BuildError, EditError, sdist.SdistError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
