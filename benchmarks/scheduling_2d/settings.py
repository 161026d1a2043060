"""Models, as far as communication sees them, in the proportions of EmbRace's four; pure."""

import dataclasses

from examples.text import zipf

WITHOUT, WITH, ALONE = "rows at once", "rows delayed", "no communication"
BOTH = "2D: rows delayed, dense parts by DeAR"
# The same models with whole tables on all workers, trained by Horovod alone.
GATHERED, REDUCED = "Horovod, rows all-gathered", "Horovod, tables all-reduced"
CHECKED_STEPS = 4  # after which the ways' weights are compared


@dataclasses.dataclass(frozen=True)
class Model:
    """A table of words, and layers behind it that wait instead of computing.

    Args:
      text: the law of its words.
      samples: of a worker's batch.
      length: words of a sample.
      columns: D of the table.
      layers: how many.
      weights: of each layer.
      forward: milliseconds of each layer's forward pass; backward takes twice as long.
      goal: part of the stall that 2D scheduling is to hide.
    """

    text: zipf.Zipf
    samples: int
    length: int
    columns: int
    layers: int
    weights: int
    forward: float
    goal: float = 0.25


# Batches are the paper's; tables have a quarter of its columns. A step computes for about as long as its
# messages take at 125 Mbit/s: with more of one, there is less to hide, or less to hide it behind.
MODELS = {
    "lm": Model(zipf.LM, 51, 87, columns=128, layers=2, weights=250_000, forward=80.0, goal=0.6),
    "gnmt": Model(zipf.GNMT, 128, 26, columns=256, layers=16, weights=130_000, forward=25.0),
    "transformer": Model(zipf.TRANSFORMER, 6, 751, columns=256, layers=12, weights=200_000, forward=40.0),
    "bert": Model(zipf.BERT, 32, 384, columns=192, layers=12, weights=450_000, forward=80.0),
    "small": Model(zipf.Zipf(5_000, exponent=1.1), 8, 50, columns=64, layers=2, weights=10_000, forward=10.0),
}
