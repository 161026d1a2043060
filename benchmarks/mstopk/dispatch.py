"""A process whose numpy does without AVX-512: writes what one experiment took there."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from benchmarks.mstopk.experiments import Run, numpy_dispatch
from benchmarks.mstopk.native import Native

# numpy's AVX-512 selection is slow on some processors, e.g. Zen 4: both code paths are timed.
WITHOUT_AVX512 = "X86_V4 AVX512_ICL AVX512_SPR"


def elsewhere(quick: bool) -> list[dict]:
    """The experiment's records, from such a process."""
    with tempfile.TemporaryDirectory() as scratch:
        part = pathlib.Path(scratch, "part.json")
        command = [sys.executable, "-m", "benchmarks.mstopk.dispatch", str(part), str(int(quick))]
        environment = os.environ | {"NPY_DISABLE_CPU_FEATURES": WITHOUT_AVX512}
        subprocess.run(command, check=True, env=environment)
        return json.loads(part.read_text())


if __name__ == "__main__":
    pathlib.Path(sys.argv[1]).write_text(json.dumps(numpy_dispatch(Run(Native(), sys.argv[2] == "1"))))
