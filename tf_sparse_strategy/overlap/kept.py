"""Sizes of buckets that earlier runs have tried: one small file for each model and placement.

In $TSS_CACHE_DIR/fusion, by default ~/.cache/tf_sparse_strategy/fusion. To search again, delete it.
"""

import hashlib
import json
import os
import pathlib
from collections.abc import Mapping

from absl import logging

from tf_sparse_strategy.overlap.trials import Trials


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


def read(facts: Mapping) -> dict | None:
    """What `write` was last given for such a training, {"done": ..., "trials": ...}; None for nothing."""
    try:
        content = json.loads(path(facts).read_text())
        Trials(1.0, content["trials"])
        return {"done": content["done"] is True, "trials": content["trials"]}
    except FileNotFoundError:
        return None
    except (AttributeError, KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        logging.warning("The sizes of buckets that an earlier run tried cannot be read: %r", error)
        return None


def write(facts: Mapping, trials: Trials, done: bool) -> None:
    """Keeps what has been tried; training goes on where that cannot be done.

    Args:
      facts: as for `read`.
      trials: at least one.
      done: whether there are to be no more.
    """
    content = {"fusion": trials.best, "done": done, "trials": trials.record, "of": facts}
    try:
        file = path(facts)
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(f".{os.getpid()}.tmp")
        unfinished.write_text(json.dumps(content, indent=1) + "\n")
        unfinished.replace(file)
    except (OSError, RuntimeError) as error:
        logging.warning("fusion=%d cannot be kept for the next run: %s", trials.best, error)
