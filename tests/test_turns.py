"""Lists of gradients that take turns, by hand."""

from tf_sparse_strategy.bucketing import BucketPlan, TensorSpec
from tf_sparse_strategy.turns import Turns


def plan(*keys):
    specs = [TensorSpec(key=key, shape=(2,), dtype="float32", itemsize=4) for key in keys]
    return BucketPlan.build(specs, 1 << 20)


ALL, FROZEN, OTHER = plan("a", "b"), plan("b"), plan("c")


def run(*steps):
    """After these steps, each of some lists."""
    turns = Turns()
    for lists in steps:
        turns.begin_step()
        for each in lists:
            turns.take(each)
    turns.begin_step()
    return turns


def test_who_took_over():
    assert run([ALL]).since(FROZEN) == [ALL]
    assert run([ALL], [ALL], [FROZEN]).since(ALL) == [FROZEN]
    assert run([ALL], [FROZEN], [ALL]).since(ALL) == []
    assert run([ALL], [FROZEN], [ALL]).since(FROZEN) == [ALL]


def test_strangers_and_partners_do_not():
    assert run([ALL], [OTHER]).since(ALL) == []
    assert run([ALL, FROZEN], [ALL, FROZEN]).since(ALL) == []
    turns = run([ALL])
    turns.take(ALL)
    assert turns.since(FROZEN) == []  # they are reduced in one step


def test_what_is_gone_is_forgotten():
    turns = run([ALL], [FROZEN])
    turns.forget(FROZEN)
    assert turns.beside(ALL) == turns.since(ALL) == []
