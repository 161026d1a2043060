"""What is said of measurements."""

import pytest

from benchmarks.gradient_communication import tables
from benchmarks.report import environment

REFERENCE = tables.REFERENCE
LINKS = {"phase": 1e-3, "exchange": 1e-3, "cross_alpha": 1e-5, "cross_beta": 4e-8}
DENSE = {"Horovod ring": 9.0, "Horovod ring, fp16": 5.0, "Torus2D": 8.5}
SECONDS = DENSE | {"TopKAllGather": 1.2, "HiTopK": 1.0} | dict.fromkeys(tables.BYTES, 1.0)


def records(n, **seconds):
    """One for each method; what those that send a part send is the bound's."""
    found = []
    for method, taken in (SECONDS | seconds).items():
        density = None if method in DENSE else 0.01
        record = {"method": method, "n": n, "density": density, "seconds": [taken]}
        record |= {"predicted": 1.1 * taken} if method != "Horovod ring, fp16" else {}
        record["link_bytes"] = [tables.bound(record, 4)] if density else [1000.0]
        found.append(record | {"parts": {"all_gather": 3.0, "top-k": 1.0} if density else {}})
    return found


def rendered(found, wrong=()):
    cluster = {"nodes": 4, "local": 2, "links": LINKS, "wrong": list(wrong), "records": found}
    return tables.render({"environment": environment(), "clusters": {"one": cluster}})


def test_all_goals_are_reached():
    text = rendered(records(REFERENCE))
    assert "missed" not in text and text.count("reached") == 2 + len(tables.BYTES) + 1
    assert "HiTopK takes 9.0 times less than the ring and 8.5 times less than Torus2D" in text
    assert "5.0 times less than the ring with values of 16 bits" in text
    assert "within 20% for 7 of 7" in text and "all_gather 75%, top-k 25%" in text
    assert "make the whole for all methods" in text


def test_goals_are_judged_from_the_reference_on():
    """Smaller vectors are not, unless all are."""
    small, large = records(1000, HiTopK=5.0), records(2 * REFERENCE)
    assert rendered(small + records(REFERENCE) + large).count("elements at 1 %") == 2
    assert "missed" not in rendered(small + large)
    assert rendered(small).count("missed") == 2


@pytest.mark.parametrize("wrong", [{"HiTopK": 1.1}, {"Torus2D": 7.9}, {"TopKAllGather": 0.9}])
def test_each_goal_can_be_missed(wrong):
    assert rendered(records(REFERENCE, **wrong)).count("missed") == 1


def test_predictions_and_bytes_can_be_missed():
    found = records(REFERENCE)
    found[0]["predicted"] *= 2
    assert "within 20% for 6 of 7" in rendered(found)
    shard = next(record for record in found if record["method"] == "ShardedTopK")
    shard["link_bytes"] = [2.3 * shard["link_bytes"][0]]
    assert rendered(found).count("missed") == 2


def test_wrong_sums_are_told():
    assert "DIFFER for ['GTopK']" in rendered(records(REFERENCE), wrong=["GTopK"])
