"""WaitFree: buckets by the name under which DeAR is compared with them."""

import pytest

import tf_sparse_strategy as tss


def test_its_buckets_are_the_strategys():
    def buckets(**options):
        return tss.SparseStrategy(**options).extended.gradients._bucket_bytes

    assert buckets(overlap=tss.overlap.WaitFree(fusion=100)) == buckets(bucket_bytes=100) == 100
    assert buckets(overlap=tss.overlap.WaitFree(), communication="hitopk") == 25 << 20
    assert tss.SparseStrategy(overlap=tss.overlap.WaitFree()).extended.chunked is None


@pytest.mark.parametrize("fusion", [0, 1.5, True, "auto"])
def test_fusion_is_a_number_of_bytes(fusion):
    with pytest.raises(ValueError, match="fusion="):
        tss.overlap.WaitFree(fusion=fusion)


def test_one_size_is_enough():
    with pytest.raises(ValueError, match=r"bucket_bytes=5, overlap=WaitFree\(.*give one of them"):
        tss.SparseStrategy(bucket_bytes=5, overlap=tss.overlap.WaitFree())
