"""Runs a benchmark's workers on an emulated cluster and brings back what rank 0 has written."""

import json
import os
import pathlib
import sys
import tempfile

from benchmarks.report import ROOT
from tf_sparse_strategy.cluster import Netlab

# Workers share the machine's cores: one thread of computation each, no accelerator.
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "PYTHONPATH": str(ROOT),
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTRAOP_THREADS": "1",
}


def run(lab: Netlab, module: str, *arguments: str, environment: dict[str, str] | None = None):
    """Runs `python -m module FILE arguments...` on every worker; returns the JSON that is in FILE.

    Args:
      lab: the nodes.
      module: of the workers' program.
      arguments: of its command line, after FILE.
      environment: variables of all workers, beside this process's.

    Raises:
      RuntimeError: a worker failed; what it printed is printed.
    """
    with tempfile.TemporaryDirectory(prefix="tss_bench_") as scratch:
        output = pathlib.Path(scratch, "records.json")
        command = [sys.executable, "-m", module, str(output), *arguments]
        print(f"{lab}: {module} {' '.join(arguments)} {environment or ''}", flush=True)
        variables = {**os.environ, **ENVIRONMENT, **(environment or {})}
        result = lab.run(command, variables, echo=True)
        if result.exit_code:
            raise RuntimeError(f"{module} failed with exit code {result.exit_code}; see above.")
        return json.loads(output.read_text())
