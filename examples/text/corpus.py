"""Text that needs no download, the docstrings of Python's standard library, and its words as numbers."""

import ast
import collections
import pathlib
import re
import sysconfig
from collections.abc import Iterable, Sequence

import numpy as np

PADDING, UNKNOWN, BEGIN, END = range(4)  # ids
_NOT_OF_THE_LIBRARY = {"site-packages", "dist-packages", "test", "tests"}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings() -> list[str]:
    """Of all modules, classes and functions of the standard library, in the order of its files."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    found = []
    for path in sorted(root.rglob("*.py")):
        if not _NOT_OF_THE_LIBRARY.isdisjoint(path.relative_to(root).parts):
            continue
        try:
            nodes = list(ast.walk(ast.parse(path.read_bytes())))
        except (SyntaxError, ValueError):
            continue  # samples of broken programs
        found += [ast.get_docstring(node) for node in nodes if isinstance(node, _DOCUMENTED)]
    return [text for text in found if text]


def texts(path: str | None) -> list[str]:
    """The lines of a file that are not empty; without one, the docstrings."""
    if path is None:
        return docstrings()
    lines = pathlib.Path(path).read_text(encoding="utf-8").split("\n")  # of lines alone
    return [line for line in lines if line.strip()]


def tokens(text: str) -> list[str]:
    """Words in small letters, digits, signs.

    Example:
      >>> tokens("Return x[10].")
      ['return', 'x', '[', '1', '0', ']', '.']
    """
    return re.findall(r"[^\W\d_]+|\d|[^\w\s]|_", text.lower())


def sentences(text: str) -> list[str]:
    """The sentences and headings of a text.

    Example:
      >>> sentences("One line. And more\\nof it.\\n\\nEnd")
      ['One line.', 'And more\\nof it.', 'End']
    """
    return [s for s in re.split(r"(?<=[.!?])\s+|\n\s*\n", text) if s.strip()]


class Vocabulary:
    """Numbers for the most frequent words, the frequent first; four small ones have other meanings.

    Args:
      documents: lists of words to count.
      size: V, ids in all; rare words share one.

    Example:
      >>> Vocabulary([["a", "b", "a"]], size=5).ids(["a", "b"]) == [4, UNKNOWN]
      True
    """

    def __init__(self, documents: Iterable[Sequence[str]], size: int):
        counts = collections.Counter(word for words in documents for word in words)
        frequent = sorted(counts, key=lambda word: (-counts[word], word))[: size - 1 - END]
        self._ids = {word: id for id, word in enumerate(frequent, start=1 + END)}

    def ids(self, words: Iterable[str]) -> list[int]:
        """One per word."""
        return [self._ids.get(word, UNKNOWN) for word in words]


def padded(rows: Sequence[Sequence[int]], length: int) -> np.ndarray:
    """The rows, each cut or padded to this length: int32 [rows, length]."""
    found = np.full([len(rows), length], PADDING, np.int32)
    for row, ids in zip(found, rows, strict=True):
        row[: len(ids)] = ids[:length]
    return found


def split(rows: Sequence) -> tuple[list, list]:
    """(those to train on, every twentieth to test on)."""
    held_out = list(rows[::20])
    return [row for i, row in enumerate(rows) if i % 20], held_out
