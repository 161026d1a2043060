"""What is said of scores, and of bytes."""

import pytest

from benchmarks.convergence import digits, runs, tables
from benchmarks.report import environment
from examples.digits.config import RECIPES
from examples.digits.train import Result

SCORES = {name: [0.99, 0.98] for name in (*tables.LEAST, *runs.CONTROLLED, runs.DENSE_SGD)}
SCORES |= {without: [0.9, 0.9] for without in runs.WITHOUT.values()}
PERPLEXITIES = dict.fromkeys(runs.words(1), [100.0, 110.0])
PERPLEXITIES |= dict.fromkeys(runs.WORDS_WITHOUT, [105.0, 115.0])
SHARED = {"reached": dict.fromkeys(runs.SHARED, [0.98, 0.98]), "sent": dict.fromkeys(runs.SHARED, [5.0, 7.0])}
SENT = {"sent": dict.fromkeys([*SCORES, *PERPLEXITIES], [1.0, 3.0])}
WORDS = {"epochs": 1, "corpus": {"rows": 1}, "reached": PERPLEXITIES, **SENT}
WORDS["shared"] = SHARED | {"reached": dict.fromkeys(runs.SHARED, [101.0, 111.0])}


def rendered(part_sent=0.03, words=WORDS, shared=SHARED, **reached):
    """Of two seeds."""
    found = {"epochs": 28, "part sent": part_sent, "reached": SCORES | reached, **SENT, "shared": shared}
    return tables.render({"environment": environment(), "nodes": 4, "digits": found, "words": words})


def test_all_goals_reached():
    text = rendered()
    assert "missed" not in text and text.count("reached") == 45
    assert "98.5 ± 0.7" in text
    assert "| HiTopK | 98.5 ± 0.7 | 99.0 | 98.0 | 2 |" in text
    assert "| HiTopK on nodes of two | 98.0 ± 0.0 | 98.0 | 98.0 | 6 |" in text


@pytest.mark.parametrize(
    "name, values, missed",
    [
        (runs.DENSE, [0.97, 0.98], 1),
        (runs.RECIPE, [0.971, 0.973], 1),
        (runs.RECIPE, [0.95, 0.95], 2),
        ("OkTopK in HiTopK's place", [0.95, 0.95], 2),
        ("OkTopK", [0.96, 0.96], 1),
        ("ShardedTopK, SGD", [0.93, 0.93], 2),
        (runs.WITHOUT["OkTopK 0.02%, SGD"], [0.96, 0.96], 1),
        (runs.WITHOUT[runs.FEW], [0.96, 0.96], 1),
        (runs.WITHOUT[runs.AT_ONCE], [0.96, 0.96], 0),
    ],
)
def test_each_goal_can_be_missed(name, values, missed):
    assert rendered(**{name: values}).count("missed") == missed


@pytest.mark.parametrize("without", runs.WORDS_WITHOUT)
def test_each_control_of_text_can_be_missed(without):
    as_good = WORDS | {"reached": PERPLEXITIES | {without: [101.0, 111.0]}}
    assert rendered(words=as_good).count("missed") == 1


def worse(task, name, score):
    return task | {"reached": task["reached"] | {name: [score, score]}}


@pytest.mark.parametrize("name", runs.SHARED)
def test_goals_of_nodes_of_two_can_be_missed(name):
    assert rendered(shared=worse(SHARED, name, 0.96)).count("missed") == 1
    words = WORDS | {"shared": worse(WORDS["shared"], name, 109.0)}
    assert rendered(words=words).count("missed") == 1


def test_too_many_bytes():
    assert rendered(part_sent=0.06).count("missed") == 1


def test_the_recipe_is_the_published_one():
    """Not a copy of it."""
    assert digits.RECORD is RECIPES["record"]


def test_part_sent_leaves_out_first_epochs():
    """Of two sparse and two exact ones."""
    result = Result({"cross_bytes_per_step": [90.0, 3.0, 80.0, 100.0]}, 0.0, 0.0)
    assert digits.part_sent(result, digits.QUICK) == 0.03
