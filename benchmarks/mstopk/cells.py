"""What the tables of both devices say alike: sizes, k, and goals."""

import math
from collections.abc import Iterable

from benchmarks.report import said


def size(n: int) -> str:
    return f"2^{round(math.log2(n))}"


def share(record: dict) -> str:
    """Of a record with n and k, in percent."""
    return f"{100 * record['k'] / record['n']:.1f} %"


def column(n: int, k: int) -> str:
    """The head of a column."""
    return f"{size(n)}, {share({'n': n, 'k': k})}"


def verdicts(goals: Iterable[tuple[str, float, float]]) -> list[list[str]]:
    """Rows of what was to be reached and was: each text ends with "at most" or "at least"."""

    def reached(text: str, goal: float, got: float) -> bool:
        return got <= goal if text.endswith("at most") else got >= goal

    return [
        [text, f"{goal:g}", f"{got:.3g}", said(reached(text, goal, got))]
        for text, goal, got in goals
    ]
