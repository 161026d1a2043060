"""Which variables travel together: every one once, and little in what nothing hides."""

import itertools

import pytest

from tf_sparse_strategy.bucketing import BucketPlan, TensorSpec
from tf_sparse_strategy.overlap.plan import plan


def specs(*counts, dtypes=("float32",)):
    dtypes = itertools.cycle(dtypes)
    return [TensorSpec(i, (n,), next(dtypes), 4) for i, n in enumerate(counts)]


@pytest.mark.parametrize("fusion", [1, 4, 31, 32, 33, 64, 200, 10**6])
@pytest.mark.parametrize("counts", [(), (3,), (0, 0, 5), (1, 2, 3, 4, 5, 6), (50, 1, 1), (1, 1, 50)])
def test_each_variable_once_and_buckets_within_their_limit(counts, fusion):
    variables = specs(*counts)
    buckets = plan(variables, fusion)
    assert [p for bucket in buckets for p in bucket] == list(reversed(range(len(counts))))
    for bucket in buckets:
        assert len(bucket) == 1 or sum(4 * counts[p] for p in bucket) <= fusion
    assert len(buckets) - len(BucketPlan.build(variables, fusion).buckets) in (0, 1)


def test_the_front_is_an_eighth():
    assert plan(specs(1, 1, 8, 8), 72) == ((3, 2), (1, 0))
    assert plan(specs(2, 1, 8, 7), 72) == ((3, 2, 1), (0,))  # 12 bytes would be more than 9


def test_a_first_variable_that_is_larger_goes_alone():
    assert plan(specs(9, 1, 8), 72) == ((2, 1), (0,))


def test_a_small_model_has_one_bucket():
    assert plan(specs(1, 1, 1), 96) == ((2, 1, 0),)


def test_the_front_is_of_the_first_variables_dtype():
    """Buckets hold one dtype each: that of the first variable need not be the last."""
    assert plan(specs(9, 1, 9, 1, dtypes=("float32", "float64")), 80) == ((3, 1), (2,), (0,))
