"""The picture of a trace: what each worker computed and communicated when."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Mapping, Sequence

from tf_sparse_strategy.trace import COMPUTE, STEPS, Span, in_order

_FIRST = {STEPS: "steps", COMPUTE: "computation"}
_COLORS = {"steps": "0.75", "computation": "tab:green"}


def lanes(spans: Sequence[Span]) -> dict[str, list[tuple[int, int]]]:
    """One worker's bars as [(begin, end), ...], microseconds, by what they are.

    Steps, computation, then each kind of communication, which its buckets share, by when it is first used.

    Example:
      >>> lanes([Span("a.0", "rows_1_0.all_to_all x2", 5, 9, {}), Span(STEPS, "step 0", 0, 10, {})])
      {'steps': [(0, 10)], 'rows.all_to_all': [(5, 9)]}
    """
    found: dict[str, list[tuple[int, int]]] = {}
    for span in in_order(spans):
        name = _FIRST.get(span.line) or re.sub(r"(_\d+)+(?=\.)| .*", "", span.name)
        found.setdefault(name, []).append((span.begin, span.end))
    return found


def draw(path: str | os.PathLike, panels: Mapping[str, Sequence[Span]]) -> None:
    """Writes a picture with a panel for each worker or run, below each other, on one axis of time.

    Args:
      path: .svg, .png or .pdf; its directory is made.
      panels: bars by what is to be written above them.

    Raises:
      ImportError: matplotlib is not installed.
      ValueError: no such kind of picture.
    """
    import matplotlib  # here: the library does without
    from matplotlib.figure import Figure

    rows = {title: lanes(spans) for title, spans in panels.items()}
    heights = [0.3 + 0.25 * len(found) for found in rows.values()]
    figure = Figure(figsize=(10, 0.8 + sum(heights)), layout="constrained")
    all_axes = figure.subplots(len(rows), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    start = min((span.begin for spans in panels.values() for span in spans), default=0)
    for axes, (title, found) in zip(all_axes, rows.items(), strict=True):
        for lane, (name, bars) in enumerate(found.items()):
            milliseconds = [((begin - start) / 1e3, (end - begin) / 1e3) for begin, end in bars]
            color = _COLORS.get(name, "tab:blue")
            axes.broken_barh(milliseconds, (lane - 0.4, 0.8), color=color, alpha=0.7, edgecolor="white")
        axes.set_yticks(range(len(found)), list(found))
        axes.set_title(title, loc="left", fontsize="medium")
        axes.invert_yaxis()
        axes.tick_params(left=False)
        axes.spines[["top", "right", "left"]].set_visible(False)
    all_axes[-1].set_xlabel("ms")
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # letters, not their outlines
        figure.savefig(path, dpi=120)
