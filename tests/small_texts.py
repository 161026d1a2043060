"""Some of Python's language reference, for short runs of the recipes for text."""

import pathlib
import pydoc_data.topics

from examples.text import corpus


def write(directory: pathlib.Path, lines: int = 4_000) -> dict[str, str]:
    """Files in `directory`: "pairs" has short lines beside themselves, a tab between; "lines" has any."""
    text = [line for topic in pydoc_data.topics.topics.values() for line in topic.splitlines()]
    short = [line for line in text if 3 < len(corpus.tokens(line)) < 12][: 3 * lines // 8]
    texts = {"pairs": [f"{line}\t{line}" for line in short], "lines": text[:lines]}
    for name, content in texts.items():
        (directory / name).write_text("\n".join(content), "utf-8")
    return {name: str(directory / name) for name in texts}
