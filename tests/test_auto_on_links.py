"""Auto on emulated links: sparse where they are slow, exact on loopback."""

import json
import sys

import pytest

from tests.lab_help import ENVIRONMENT, ROOT, require_namespaces
from tf_sparse_strategy.cluster import Netlab

WORKER = ROOT / "tests" / "multiprocess" / "auto_worker.py"
QUIET = {**ENVIRONMENT, "TF_NUM_INTRAOP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}


# On loopback the two workers pose as two nodes: their link is that inside a machine.
@pytest.mark.parametrize(
    "nodes, local, rate, sparse", [(2, 1, "20mbit", True), (1, 2, "1gbit", False)]
)
def test_the_link_decides(nodes, local, rate, sparse):
    require_namespaces()
    with Netlab(nodes=nodes, local=local, rate=rate) as lab:
        result = lab.run([sys.executable, str(WORKER)], env=QUIET, timeout=200)
    assert result.exit_code == 0, "\n".join(rank.stderr for rank in result.ranks)
    first, second = (json.loads(rank.stdout) for rank in result.ranks)
    assert first == second  # both decided alike
    assert (first["scheme"] in ("HiTopK", "ShardedTopK")) == sparse, first
