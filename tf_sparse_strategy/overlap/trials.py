"""What has been tried of the sizes of buckets, what that has cost, and what is worth a trial next."""

import math
from collections.abc import Mapping
from typing import Any


class Trials:
    """A search that takes no more than a part of the training time.

    Args:
      limit: of the training time, the part, at most, that trials may cost; 0 < limit <= 1.
      record: of an earlier run's trials, which this run's continue; None for none.

    Raises:
      KeyError, TypeError, ValueError: it is not what `record` gives.

    Example:
      >>> trials = Trials(limit=0.01)
      >>> trials.note(25 << 20, seconds=0.1, spent=6.2, calls=12)   # tracing took 5 s
      >>> trials.note(4 << 20, seconds=0.08, spent=6.0, calls=12)
      >>> trials.best, round(trials.cost, 2)
      (4194304, 5.04)
      >>> trials.calls_until_next()       # a third trial: 10.08 s is 1 % of 1008 s
      12448
    """

    def __init__(self, limit: float, record: Mapping | None = None):
        self._limit = limit
        self.seconds: dict[int, float] = {}  # of a step, by size
        self.cost = 0.0  # seconds, beyond what as many steps with the best size would have taken
        self._dearest = 0.0  # seconds a trial has cost
        self._trained = 0.0  # seconds
        if record is not None:
            self.seconds = {int(size): float(value) for size, value in record["seconds_per_step"].items()}
            times = [float(record[name]) for name in ("cost", "dearest", "trained")]
            self.cost, self._dearest, self._trained = times
            if not self.seconds or min(self.seconds) < 1 or not min(self.seconds.values()) > 0:
                raise ValueError(f"no seconds by sizes: {self.seconds}")
            if not all(0 <= x < math.inf for x in (*times, *self.seconds.values())):
                raise ValueError(f"no times: {times}, {self.seconds}")

    @property
    def record(self) -> dict[str, Any]:
        """All that later trials follow from, as JSON expresses it."""
        of_time = {"cost": self.cost, "dearest": self._dearest, "trained": self._trained}
        return {"seconds_per_step": {str(size): value for size, value in self.seconds.items()}, **of_time}

    @property
    def best(self) -> int:
        """The fastest size."""
        return min(self.seconds, key=self.seconds.get)

    def note(self, size: int, seconds: float, spent: float, calls: int) -> None:
        """Adds what was found; the first size had to be built anyway, and costs nothing.

        Args:
          size: tried, bytes.
          seconds: of a step.
          spent: seconds the trial took, building included.
          calls: steps it took.
        """
        is_first = not self.seconds
        self.seconds[size] = seconds
        extra = self._beyond_best(spent, calls)
        # What the first one built may be more than later ones do: until the second it is all that is known.
        self._dearest = extra if len(self.seconds) <= 2 else max(self._dearest, extra)
        self.cost += 0.0 if is_first else extra
        self.note_training(spent)

    def note_dropped(self, spent: float, calls: int) -> None:
        """Adds what a trial has taken that did not come to its end; arguments as of `note`."""
        if self.seconds:
            self.cost += self._beyond_best(spent, calls)
        self.note_training(spent)

    def _beyond_best(self, spent, calls):
        return max(0.0, spent - calls * self.seconds[self.best])

    def note_training(self, seconds: float) -> None:
        """Adds time that passed between trials."""
        self._trained += seconds

    def calls_until_next(self) -> int:
        """Steps, of the best size, after which a trial as dear as the dearest so far is within the limit."""
        missing = (self.cost + self._dearest) / self._limit - self._trained
        return max(0, math.ceil(missing / self.seconds[self.best]))
