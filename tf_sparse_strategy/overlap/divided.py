"""What all divided updates can be told."""

import dataclasses
import re

from tf_sparse_strategy.communication import Communication, Dense


@dataclasses.dataclass(frozen=True)
class Divided:
    """An update divided over the workers: `DeAR` or `ShardedUpdate`; arguments as there."""

    fusion: int = 25 << 20
    exclude: tuple[str, ...] = (r"embeddings$",)

    def __post_init__(self):
        if isinstance(self.fusion, bool) or not isinstance(self.fusion, int) or self.fusion < 1:
            raise ValueError(f"fusion={self.fusion!r} must be a number of bytes >= 1, e.g. 25 << 20.")
        if isinstance(self.exclude, str):
            raise ValueError(f"exclude={self.exclude!r} must be a list of patterns: [{self.exclude!r}].")
        object.__setattr__(self, "exclude", tuple(self.exclude))

    def excludes(self, path: str) -> bool:
        """Whether the variable of this path is left to the ordinary sum."""
        return any(re.search(pattern, path) for pattern in self.exclude)

    def check_communication(self, communication: Communication) -> None:
        """Raises ValueError where the scheme's sum cannot be split in two."""
        if type(communication) is not Dense:
            raise ValueError(
                f"overlap={self!r} splits the all-reduce of communication='dense'; got {communication!r}. "
                "What a sparse scheme sends little of, the all-gather of whole weights would send again. "
                "Leave out overlap, or use communication='dense'."
            )
