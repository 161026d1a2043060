"""Which lists of gradients took turns: of common variables, as where layers are frozen and thawed.

A list is what one optimizer hands over in one call, as its `BucketPlan`.
"""

from tf_sparse_strategy.bucketing import BucketPlan


class Turns:
    """In which steps lists were reduced last, of those that are traced, or eager."""

    def __init__(self):
        self._step = 0
        self._last: dict[BucketPlan, int] = {}

    def begin_step(self) -> None:
        """What is reduced until the next call is trained side by side."""
        self._step += 1

    def take(self, plan: BucketPlan) -> None:
        """The list is reduced now."""
        self._last[plan] = self._step

    def forget(self, plan: BucketPlan) -> None:
        """Its variables are gone."""
        self._last.pop(plan, None)

    def beside(self, plan: BucketPlan) -> list[BucketPlan]:
        """Other lists of some of its variables."""
        return [other for other in self._last if other != plan and plan.has_any(other.keys)]

    def since(self, plan: BucketPlan) -> list[BucketPlan]:
        """Those of them that were reduced since it was, in steps before this one; at its first time all."""
        steps = range(self._last.get(plan, 0) + 1, self._step)
        return [other for other in self.beside(plan) if self._last[other] in steps]
