"""One worker of a multi-process test: pytest, its output and verdict kept in files."""

import ctypes
import os
import pathlib
import signal
import sys

import pytest

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Runs pytest; leaves <rank>.log, <rank>.xml and, after success, <rank>.ok in the directory given."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # ends with its launcher
    scratch, file, *pytest_args = sys.argv[1:]
    rank = os.environ["HOROVOD_RANK"]
    directory = pathlib.Path(scratch)
    with open(directory / f"{rank}.log", "w", buffering=1) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        code = pytest.main(
            [
                file,
                "-q",
                "-x",
                "--capture=sys",  # what C++ and the watchdog say last belongs into the log
                "-p",
                "no:cacheprovider",
                "--timeout=150",
                "--timeout-method=thread",
                f"--junitxml={directory / rank}.xml",
                *pytest_args,
            ]
        )
        if code == 0:
            (directory / f"{rank}.ok").touch()
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
