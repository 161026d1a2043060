"""Auto on an emulated link that is slow: sparse. What fast ones lead to: test_auto.py, with given costs."""

import json
import sys

from tests.lab_help import ENVIRONMENT, ROOT, require_namespaces
from tf_sparse_strategy.cluster import Netlab

WORKER = ROOT / "tests" / "multiprocess" / "auto_worker.py"
QUIET = {**ENVIRONMENT, "TF_NUM_INTRAOP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}


def test_the_link_decides():
    require_namespaces()
    with Netlab(nodes=2, local=1, rate="20mbit") as lab:
        result = lab.run([sys.executable, str(WORKER)], env=QUIET, timeout=200)
    assert result.exit_code == 0, "\n".join(rank.stderr for rank in result.ranks)
    first, second = (json.loads(rank.stdout) for rank in result.ranks)
    assert first == second  # both decided alike
    assert first["scheme"] in ("HiTopK", "ShardedTopK"), first
