"""DeAR's arguments."""

import numpy as np
import pytest

import tf_sparse_strategy as tss


@pytest.mark.parametrize("fusion", [0, -1, 1.5, True, "25MB"])
def test_fusion_is_a_number_of_bytes(fusion):
    with pytest.raises(ValueError, match="fusion="):
        tss.overlap.DeAR(fusion=fusion)


def test_sizes_of_numpy():
    assert tss.overlap.DeAR(fusion=np.int64(1 << 20)) == tss.overlap.DeAR(fusion=1 << 20)


@pytest.mark.parametrize("tuning", [0, -0.1, 1.5, "1%"])
def test_tuning_is_a_part_of_the_time(tuning):
    assert tss.overlap.DeAR(fusion="auto").is_tuned and not tss.overlap.DeAR().is_tuned
    with pytest.raises(ValueError, match="tuning="):
        tss.overlap.DeAR(fusion="auto", tuning=tuning)


def test_exclude():
    overlap = tss.overlap.DeAR(exclude=["^head/"])
    assert overlap.excludes("head/kernel") and not overlap.excludes("body/head/kernel")
    assert tss.overlap.DeAR().excludes("tokens/embeddings")
    with pytest.raises(ValueError, match=r"\['head'\]"):
        tss.overlap.DeAR(exclude="head")
    with pytest.raises(ValueError, match=r"exclude=\['a', '\('\]: '\(' is no regular expression"):
        tss.overlap.DeAR(exclude=["a", "("])
    assert tss.overlap.DeAR(exclude=None).exclude == ()


@pytest.mark.parametrize("communication", ["torus2d", "hitopk", "auto"])
def test_sums_that_cannot_be_split(communication):
    with pytest.raises(ValueError, match="overlap=DeAR.* communication='dense'"):
        tss.SparseStrategy(communication, overlap=tss.overlap.DeAR())


def test_no_other_kind():
    with pytest.raises(TypeError, match="overlap='dear'"):
        tss.SparseStrategy(overlap="dear")


def test_one_worker_has_nothing_to_divide():
    strategy = tss.SparseStrategy(overlap=tss.overlap.DeAR())
    strategy.synchronize()
    assert strategy.extended.chunked is None
