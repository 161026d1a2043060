"""Auto on an emulated link that is slow: sparse. What fast ones lead to: test_auto.py, with given costs."""

import json
import os
import sys

from tests.lab_help import ENVIRONMENT, ROOT, require_namespaces
from tf_sparse_strategy.cluster import Netlab

WORKER = ROOT / "tests" / "multiprocess" / "auto_worker.py"
QUIET = {**ENVIRONMENT, "TF_NUM_INTRAOP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
QUIET["PATH"] = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])  # of tc
SPARSE = ("HiTopK", "ShardedTopK")


def told(rate: str, *later: str) -> list[dict]:
    """What both workers find on a link of `rate`, and when it has become as slow as the later ones."""
    require_namespaces()
    with Netlab(nodes=2, local=1, rate=rate) as lab:
        result = lab.run([sys.executable, str(WORKER), *later], env=QUIET, timeout=200)
    assert result.exit_code == 0, "\n".join(rank.stderr for rank in result.ranks)
    first, second = (rank.stdout.splitlines() for rank in result.ranks)
    assert first == second  # both decided alike
    return list(map(json.loads, first))


def test_the_link_decides():
    [found] = told("20mbit")
    assert found["scheme"] in SPARSE, found


def test_a_link_that_becomes_slow_is_noticed():
    before, after = told("2gbit", "20mbit")
    assert after["links"]["cross_beta"] > 10 * before["links"]["cross_beta"], (before, after)
    assert after["scheme"] in SPARSE, after
