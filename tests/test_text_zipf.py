"""Token streams: their law, and the gradient rows that the paper's table 3 names."""

import numpy as np
import pytest

from examples.text import zipf
from examples.text.zipf import Zipf, gradient_rows

# Minibatch of one worker; coalesced and prioritized size: EmbRace, table 3.
TABLE_3 = {
    "LM": (zipf.LM, [1, 4437], 3533, 1348),
    "GNMT-8": (zipf.GNMT, [128, 26], 1559, 741),
    "Transformer": (zipf.TRANSFORMER, [1, 4506], 2123, 1141),
    "BERT-base": (zipf.BERT, [32, 384], 1879, 1090),
}


def mean_rows(law, shape, workers, steps=3):
    """Of so many steps."""
    random = np.random.default_rng(0)
    ids = [law.draw(random, [workers, *shape]).reshape(workers, -1) for _ in range(steps + 1)]
    found = [gradient_rows(a, b) for a, b in zip(ids, ids[1:], strict=False)]
    return np.mean([[rows.original, rows.coalesced, rows.prior] for rows in found], axis=0)


@pytest.mark.parametrize("model", TABLE_3)
def test_four_workers_have_the_sizes_of_table_3(model):
    law, shape, coalesced, prior = TABLE_3[model]
    original, *found = mean_rows(law, shape, workers=4)
    assert original == np.prod(shape)
    np.testing.assert_allclose(found, [coalesced, prior], rtol=0.02)


def test_more_workers_have_more_prior_rows():
    law, shape, *_ = TABLE_3["GNMT-8"]
    (_, one_coalesced, one), (_, many_coalesced, many) = (mean_rows(law, shape, p) for p in (1, 8))
    assert many > 1.5 * one
    assert many_coalesced == pytest.approx(one_coalesced, rel=0.05)


def test_frequencies_follow_the_law():
    law = Zipf(20, exponent=1.5, shift=2.0)
    counts = np.bincount(law.draw(np.random.default_rng(1), [200_000]), minlength=20)
    assert counts[0] == 0  # padding
    expected = np.array([(rank + 2.0) ** -1.5 for rank in range(1, 20)])
    np.testing.assert_allclose(counts[1:] / 2e5, expected / expected.sum(), atol=0.005)


@pytest.mark.parametrize("length, words", [(5, 2), (1, 0), (0, 0)])
def test_padding_is_at_the_end_of_rows(length, words):
    ids = Zipf(9, exponent=1.0, padding=0.6).draw(np.random.default_rng(0), [3, length])
    assert ids.shape == (3, length) and ids.dtype == np.int32
    assert (ids[:, :words] > 0).all() and (ids[:, words:] == 0).all()


def test_rows_by_brute_force():
    random = np.random.default_rng(2)
    current, following = random.integers(0, 9, [2, 3, 7])
    rows = gradient_rows(current, following)
    everyone = set(following.ravel().tolist())
    own = [set(ids.tolist()) for ids in current]
    assert rows.original == 7
    assert rows.coalesced == pytest.approx(sum(map(len, own)) / 3)
    assert rows.prior == pytest.approx(sum(len(ids & everyone) for ids in own) / 3)
    assert rows.prior < rows.coalesced  # else it shows nothing
