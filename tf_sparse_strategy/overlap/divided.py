"""What all divided updates can be told."""

import dataclasses
import numbers
import re

from lars_pto.layerwise import checked
from tf_sparse_strategy.communication import Communication, Dense, Float16, Torus2D
from tf_sparse_strategy.overlap import search


def is_size(fusion: int | str) -> bool:
    """Whether it is a number of bytes."""
    return isinstance(fusion, numbers.Integral) and not isinstance(fusion, bool) and fusion >= 1


@dataclasses.dataclass(frozen=True)
class Divided:
    """An update divided over the workers: `DeAR` or `ShardedUpdate`; arguments as there."""

    fusion: int | str = search.START
    exclude: tuple[str, ...] = (r"embeddings$",)
    tuning: float = 0.01

    def __post_init__(self):
        if not (is_size(self.fusion) or self.is_tuned):
            raise ValueError(
                f"fusion={self.fusion!r} must be 'auto' or a number of bytes >= 1, e.g. 25 << 20."
            )
        if not (isinstance(self.tuning, numbers.Real) and 0 < self.tuning <= 1):
            raise ValueError(f"tuning={self.tuning!r} must be a part of the training time, e.g. 0.01.")
        if self.is_tuned:
            search.require_library()
        patterns = self.exclude if isinstance(self.exclude, str) else self.exclude or ()
        object.__setattr__(self, "exclude", checked("exclude", patterns))

    @property
    def is_tuned(self) -> bool:
        """Whether the size of buckets is searched for while `fit` trains."""
        return self.fusion == "auto"

    def excludes(self, path: str) -> bool:
        """Whether the variable of this path is left to the ordinary sum."""
        return any(re.search(pattern, path) for pattern in self.exclude)

    def check_communication(self, communication: Communication) -> None:
        """Raises ValueError where the scheme's sum cannot be split in two."""
        if type(communication) is Torus2D:
            raise ValueError(
                f"overlap={self!r} splits the all-reduce of communication='dense', which goes node by node "
                "by itself where nodes have as many workers; got Torus2D(). Use communication='dense'."
            )
        if type(communication) is not Dense:
            again = "What a sparse scheme sends little of, the all-gather of whole weights would send again. "
            raise ValueError(
                f"overlap={self!r} splits the all-reduce of communication='dense'; got {communication!r}. "
                f"{'' if isinstance(communication, Float16) else again}"
                "Leave out overlap, or use communication='dense'."
            )
