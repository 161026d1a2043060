"""Some of Python's language reference, for short runs of the recipes for text."""

import pathlib
import pydoc_data.topics

from examples.text import corpus


def write(directory: pathlib.Path) -> dict[str, str]:
    """Files in `directory`: "pairs" has short lines beside themselves, a tab between; "lines" has any."""
    lines = [line for text in pydoc_data.topics.topics.values() for line in text.splitlines()]
    short = [line for line in lines if 3 < len(corpus.tokens(line)) < 12][:1_500]
    texts = {"pairs": [f"{line}\t{line}" for line in short], "lines": lines[:4_000]}
    for name, content in texts.items():
        (directory / name).write_text("\n".join(content), "utf-8")
    return {name: str(directory / name) for name in texts}
