"""Every gradient travels exactly once, last first, within the limit."""

import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_sparse_strategy.bucketing import MAX_ELEMENTS, BucketPlan, TensorSpec

ITEMSIZE = {"float32": 4, "float16": 2}


def specs(sizes, dtypes=None):
    dtypes = dtypes or ["float32"] * len(sizes)
    return [
        TensorSpec(f"v{i}", (n,), dtype, ITEMSIZE[dtype])
        for i, (n, dtype) in enumerate(zip(sizes, dtypes, strict=True))
    ]


def positions(tensors, max_bytes):
    return [bucket.positions for bucket in BucketPlan.build(tensors, max_bytes).buckets]


def nbytes(bucket):
    return sum(tensor.size * tensor.itemsize for tensor in bucket.tensors)


def test_last_variable_first():
    assert positions(specs([1, 1, 1, 1]), max_bytes=8) == [(3, 2), (1, 0)]


def test_nothing_makes_no_bucket():
    assert positions([], max_bytes=8) == []


def test_the_limit_itself_still_fits():
    assert positions(specs([1, 2, 2]), max_bytes=16) == [(2, 1), (0,)]
    assert positions(specs([1, 2, 2]), max_bytes=20) == [(2, 1, 0)]
    assert positions(specs([1, 2, 2]), max_bytes=15) == [(2,), (1, 0)]


def test_a_huge_tensor_has_a_bucket_of_its_own():
    assert positions(specs([1, 100, 1]), max_bytes=8) == [(2,), (1,), (0,)]


def test_dtypes_do_not_mix_and_do_not_close_each_other():
    tensors = specs([1, 1, 1, 1], ["float32", "float16", "float32", "float16"])
    assert positions(tensors, max_bytes=8) == [(3, 1), (2, 0)]


def test_empty_tensors_and_scalars():
    tensors = specs([1, 0, 1])
    tensors.append(TensorSpec("scalar", (), "float32", 4))
    assert positions(tensors, max_bytes=4) == [(3,), (2, 1), (0,)]
    assert BucketPlan.build(tensors, 4).buckets[0].num_elements == 1


def test_small_vectors_come_last_in_exact_buckets():
    tensors = [
        TensorSpec("kernel", (2, 2), "float32", 4),
        TensorSpec("bias", (2,), "float32", 4),
        TensorSpec("half", (2,), "float16", 2),
        TensorSpec("large", ((1 << 14) + 1,), "float32", 4),
        TensorSpec("scalar", (), "float32", 4),
        TensorSpec("row", (1, 2), "float32", 4),
    ]
    plan = BucketPlan.build(tensors, 1 << 20, exact_vectors=True)
    assert [b.positions for b in plan.buckets] == [(5, 3, 0), (4, 1), (2,)]
    assert [b.is_exact for b in plan.buckets] == [False, True, True]
    assert plan.tensors == tuple(tensors)
    assert not any(b.is_exact for b in BucketPlan.build(tensors, 1 << 20).buckets)


def test_a_bucket_describes_itself():
    (bucket,) = BucketPlan.build(
        [TensorSpec("w", (2, 3), "float16", 2), TensorSpec("b", (3,), "float16", 2)], 100
    ).buckets
    assert (bucket.dtype, bucket.sizes, bucket.num_elements) == ("float16", (3, 6), 9)


def test_plans_of_other_content_differ():
    """State kept for a bucket must not be used for another of the same length."""
    plans = {
        BucketPlan.build(tensors, 100)
        for tensors in (
            specs([2, 3]),
            specs([3, 2]),
            specs([5]),
            [TensorSpec("other", (2,), "float32", 4), TensorSpec("v1", (3,), "float32", 4)],
            [TensorSpec("v0", (2,), "float16", 2), TensorSpec("v1", (3,), "float16", 2)],
        )
    }
    assert len(plans) == 5
    assert BucketPlan.build(specs([2, 3]), 100) == BucketPlan.build(specs([2, 3]), 1000)


def test_a_bucket_has_no_more_elements_than_int32_counts():
    """However large the limit; and a tensor that has is refused before anything is computed."""
    half = MAX_ELEMENTS // 2
    assert positions(specs([half, half, 1]), max_bytes=1 << 40) == [(2, 1), (0,)]
    assert positions(specs([MAX_ELEMENTS]), max_bytes=8) == [(0,)]
    for n in (MAX_ELEMENTS + 1, 2**31, 2**40):
        with pytest.raises(ValueError, match=f"'v1' has {n} elements.*Split the variable"):
            BucketPlan.build(specs([1, n, 1]), max_bytes=8)


@pytest.mark.parametrize("max_bytes", [0, -1])
def test_a_limit_below_one_byte_is_refused(max_bytes):
    with pytest.raises(ValueError, match=f"bucket_bytes={max_bytes} .*at least 1 byte"):
        BucketPlan.build([], max_bytes)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.sampled_from(sorted(ITEMSIZE))), max_size=30),
    st.integers(1, 300),
)
def test_any_list_of_gradients(shapes, max_bytes):
    tensors = specs([n for n, _ in shapes], [dtype for _, dtype in shapes])
    buckets = BucketPlan.build(tensors, max_bytes).buckets
    packed = [position for bucket in buckets for position in bucket.positions]
    assert collections.Counter(packed) == collections.Counter(range(len(tensors)))
    for bucket in buckets:
        assert bucket.tensors == tuple(tensors[p] for p in bucket.positions)
        assert {tensor.dtype for tensor in bucket.tensors} == {bucket.dtype}
        assert nbytes(bucket) <= max_bytes or sum(size > 0 for size in bucket.sizes) == 1
    # Within a dtype the order of readiness is that of backpropagation, and nothing that would
    # have fitted into the bucket before was put off.
    for dtype in ITEMSIZE:
        own = [bucket for bucket in buckets if bucket.dtype == dtype]
        order = [position for bucket in own for position in bucket.positions]
        assert order == sorted(order, reverse=True)
        for before, after in zip(own, own[1:], strict=False):
            first = after.tensors[0]
            assert nbytes(before) + first.size * first.itemsize > max_bytes
    # The buckets themselves start in the order in which backpropagation reaches them.
    starts = [bucket.positions[0] for bucket in buckets]
    assert starts == sorted(starts, reverse=True)
