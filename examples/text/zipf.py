"""Tokens with the repetitions of real text, and what is left of a table's gradient by them; pure NumPy."""

import dataclasses
import functools

import numpy as np

PADDING = 0  # id


@dataclasses.dataclass(frozen=True)
class Zipf:
    """Tokens drawn independently, p(rank) ~ 1 / (rank + shift)^exponent; the id is the rank, from 1.

    Frequent words have small ids, as log-uniform sampling expects.

    Args:
      vocabulary: V, with id 0, the padding.
      exponent: how fast frequencies fall.
      shift: how many words are about as frequent as the first.
      padding: part of each row that is padding, at its end.

    Example:
      >>> Zipf(100, exponent=1.0, padding=0.5).draw(np.random.default_rng(0), [2, 4])[:, 2:]
      array([[0, 0],
             [0, 0]], dtype=int32)
    """

    vocabulary: int
    exponent: float
    shift: float = 0.0
    padding: float = 0.0

    @functools.cached_property
    def probabilities(self) -> np.ndarray:
        """Of the ids 1 to V-1; they add up to 1."""
        weights = (np.arange(1, self.vocabulary) + self.shift) ** -self.exponent
        return weights / weights.sum()

    @functools.cached_property
    def _below(self) -> np.ndarray:
        return np.cumsum(self.probabilities)

    def draw(self, random: np.random.Generator, shape) -> np.ndarray:
        """Ids of this shape, int32."""
        found = np.searchsorted(self._below, random.random(shape), side="right")
        ids = (1 + np.minimum(found, self.vocabulary - 2)).astype(np.int32)
        length = ids.shape[-1]
        ids[..., length - round(self.padding * length) :] = PADDING
        return ids


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of a table's gradient in one step, the mean over the workers.

    Args:
      original: one for each token.
      coalesced: one for each distinct id.
      prior: of those, the ones whose ids are in some worker's next minibatch.
    """

    original: float
    coalesced: float
    prior: float


def gradient_rows(current: np.ndarray, following: np.ndarray) -> Rows:
    """What coalescing and vertical scheduling leave of the gradient.

        coalesced_p = |D_p|      prior_p = |D_p & D_next|, D_next gathered from all workers

    Args:
      current: ids of a step, [P, n].
      following: ids of the next step, [P, n].

    Example:
      >>> gradient_rows(np.array([[7, 7, 8]]), np.array([[8, 9, 9]]))
      Rows(original=3.0, coalesced=2.0, prior=1.0)

    Source: EmbRace (Li et al., ICPP 2022), algorithm 1.
    """
    following = np.unique(following)
    own = [np.unique(ids) for ids in current]
    prior = [len(np.intersect1d(ids, following, assume_unique=True)) for ids in own]
    return Rows(
        float(current.shape[1]),
        float(np.mean([len(ids) for ids in own])),
        float(np.mean(prior)),
    )


# Exponents and shifts such that 4 workers have the coalesced and prior sizes of the paper's table 3. With
# more workers the prior part grows, because D_next has more words.
LM = Zipf(793_471, exponent=1.1337, shift=185.2)
GNMT = Zipf(32_317, exponent=1.0)
TRANSFORMER = Zipf(33_712, exponent=1.06, shift=5.17)
BERT = Zipf(30_528, exponent=1.186, shift=9.5, padding=0.6)
