"""Sizes of buckets that earlier runs found to be fastest: one small file for each model and placement.

In $TSS_CACHE_DIR/fusion, by default ~/.cache/tf_sparse_strategy/fusion. To search again, delete it.
"""

import hashlib
import json
import os
import pathlib
from collections.abc import Mapping

from absl import logging


def path(facts: Mapping) -> pathlib.Path:
    """Where the result for such a training is.

    Args:
      facts: all that tells it from others, as JSON expresses it.

    Raises:
      RuntimeError: there is no home directory.
    """
    root = os.environ.get("TSS_CACHE_DIR") or pathlib.Path.home() / ".cache" / "tf_sparse_strategy"
    text = json.dumps(facts, sort_keys=True).encode()
    return pathlib.Path(root, "fusion", f"{hashlib.blake2b(text, digest_size=8).hexdigest()}.json")


def read(facts: Mapping) -> int | None:
    """The size in bytes that was found for such a training, or None."""
    try:
        size = json.loads(path(facts).read_text())["fusion"]
    except FileNotFoundError:
        return None
    except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
        logging.warning("The size of buckets that an earlier run found cannot be read: %s", error)
        return None
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        logging.warning("%s says fusion=%r, which is no size; it is searched again.", path(facts), size)
        return None
    return size


def write(facts: Mapping, seconds: Mapping[int, float]) -> None:
    """Keeps the fastest size; training goes on where that cannot be done.

    Args:
      facts: as for `read`.
      seconds: of a step, by the sizes in bytes that were tried.
    """
    size = min(seconds, key=seconds.get)
    content = {"fusion": size, "seconds_per_step": {str(k): v for k, v in seconds.items()}, "of": facts}
    try:
        file = path(facts)
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(f".{os.getpid()}.tmp")
        unfinished.write_text(json.dumps(content, indent=1) + "\n")
        unfinished.replace(file)
    except (OSError, RuntimeError) as error:
        logging.warning("The size of buckets, fusion=%d, cannot be kept for the next run: %s", size, error)
