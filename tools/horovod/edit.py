"""A change of one place in the sdist, which fits exactly or is refused."""

from __future__ import annotations

import dataclasses
import pathlib


class EditError(RuntimeError):
    """An edit does not fit the source it was written for."""


@dataclasses.dataclass(frozen=True)
class Edit:
    """One replacement in one file of the sdist.

    Args:
      name: short identifier, unique in EDITS.
      file: path inside the sdist.
      expected: text that must occur exactly once in `file`; None stands for the whole file.
      replacement: what takes its place.
      reason: what goes wrong without the edit.
    """

    name: str
    file: str
    expected: str | None
    replacement: str
    reason: str

    def edited(self, text: str) -> str:
        """Returns `text`, the content of `file`, with the edit made.

        Raises:
          EditError: `expected` does not occur exactly once.
        """
        if self.expected is None:
            return self.replacement
        occurrences = text.count(self.expected)
        if occurrences != 1:
            raise EditError(
                f"edit '{self.name}': the expected text occurs {occurrences} times in {self.file}, "
                "must be exactly once; the source is not the pinned sdist, or another edit "
                "overlaps: correct the edit in tools/horovod/edits.py"
            )
        return text.replace(self.expected, self.replacement)

    def apply(self, root: pathlib.Path) -> None:
        """Makes the edit below `root`, the unpacked sdist.

        Raises:
          EditError: the file is missing or its text is not what the edit expects.
        """
        path = root / self.file
        if not path.is_file():
            raise EditError(f"edit '{self.name}': the sdist has no file {self.file}")
        path.write_text(self.edited(path.read_text(encoding="utf-8")), encoding="utf-8")
