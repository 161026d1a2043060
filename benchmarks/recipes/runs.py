"""The recipes as a user starts them, and what they print at their end."""

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A program of `examples`.

    Args:
      module: in `examples`.
      figure: what it prints of its result.
      flags: of the run.
    """

    module: str
    figure: str
    flags: tuple[str, ...] = ()

    def command(self, seed: int, folder: str) -> list[str]:
        """What follows Python's name; the run writes into `folder`."""
        where = f"--output_dir={folder}"
        return ["-m", f"examples.{self.module}.main", *self.flags, "--nocheck", f"--seed={seed}", where]

    @property
    def name(self) -> str:
        """As one would type it."""
        return " ".join((self.module, *self.flags))


RECIPES = (
    Recipe("digits", "test accuracy"),
    Recipe("digits", "test accuracy", ("--recipe=record",)),
    Recipe("resnet50", "top-5 accuracy", ("--recipe=tiny",)),
    Recipe("language_model", "held-out perplexity"),
    Recipe("gnmt", "held-out perplexity"),
    Recipe("transformer", "held-out perplexity"),
    Recipe("bert", "held-out accuracy"),
)


def figures(text: str, figure: str) -> dict[str, float]:
    """What a run has reached: "figure", "samples/s", "bytes" of all workers per step, "GiB".

    Args:
      text: what it printed.
      figure: the name of what it reached.

    Raises:
      ValueError: a line is missing.
    """
    names = {"figure": figure, "samples/s": "samples/s", "bytes": "bytes on the wire", "GiB": "memory"}
    found = {}
    for key, name in names.items():
        match = re.search(rf"^{re.escape(name)}  +([\d,.]+)(%?)", text, re.MULTILINE)
        if not match:
            raise ValueError(f"the run printed no line {name!r}:\n{text[-2000:]}")
        found[key] = float(match[1].replace(",", "")) / (100 if match[2] else 1)
    return found
