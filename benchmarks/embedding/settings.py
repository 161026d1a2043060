"""The tables and batches that are measured."""

import dataclasses
import functools

import numpy as np

from examples.text import corpus

MEMORY = 6 << 30  # bytes that all workers' tables, gradients and one more copy may take together
COPIES = 3


@dataclasses.dataclass(frozen=True)
class Setting:
    """A table [rows, columns] of float32 and the ids of one worker's step.

    Args:
      is_text: whether they are words of real text, one after the other; else they follow Zipf's law.
    """

    rows: int
    columns: int
    ids: int
    is_text: bool = False

    def fitted(self, workers: int) -> "Setting":
        """With as many rows as fit when every worker holds the whole table, as most ways need."""
        most = MEMORY // (workers * COPIES * self.columns * 4)
        return dataclasses.replace(self, rows=min(self.rows, most))


_LM = Setting(rows=800_000, columns=512, ids=128 * 20)  # LM1B, batch 128
SETTINGS = {
    "LM": _LM,
    "LM, real text": dataclasses.replace(_LM, is_text=True),
    "NMT": Setting(rows=32_000, columns=1024, ids=128 * 64),
    "recommender": Setting(rows=10_000_000, columns=64, ids=4096 * 16),
}
_QUICK = {"LM": Setting(rows=20_000, columns=64, ids=512)}


def known(quick: bool) -> dict[str, Setting]:
    """The settings by name, or one to see that it works."""
    return _QUICK if quick else SETTINGS


def facts(name: str, setting: Setting) -> dict:
    """What the records say of it."""
    return {"setting": name, "rows": setting.rows, "columns": setting.columns, "ids": setting.ids}


def batches(setting: Setting, count: int, rank: int) -> np.ndarray:
    """int32 [count, ids], others for each rank."""
    if setting.is_text:
        first, size = rank * count, setting.ids
        ids = _words()[first * size : (first + count) * size].reshape(count, size)
    else:  # Zipf's law of exponent 1, by its inverse
        uniform = np.random.default_rng([7, rank]).random((count, setting.ids))
        ids = np.floor(np.exp(uniform * np.log(setting.rows + 1))) - 1
    return np.minimum(ids, setting.rows - 1).astype("int32")


@functools.cache
def _words() -> np.ndarray:
    """The docstrings of Python's standard library: each word's place among the most frequent."""
    words = [word for text in corpus.docstrings() for word in corpus.tokens(text)]
    return np.array(corpus.Vocabulary([words], size=len(words)).ids(words))
