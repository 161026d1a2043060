"""What workers must agree on by asking each other: program and outcome."""

import contextlib
import functools
import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.embedding.slices import tensorflows, whole_shape

# Bytes that are sent at once: what one operation sends must arrive within Gloo's time limit.
PIECE = 64 << 20
_NOTICE_SECONDS = 5
_SHOWN = 5  # differences
_SAME_MODEL = "Build the same model, in the same order, on all workers."


def gather(value: Any, collectives: Collectives) -> list:
    """Every rank's value, which JSON can express. Collective."""
    with tf.device("CPU:0"):  # also where workers' devices are what they do not agree on
        return _values(collectives.all_gather(_line(value), purpose="agreement"))


def to_first(value: Any, collectives: Collectives) -> list:
    """On rank 0 every rank's value, which JSON can express; on the others nothing. Collective."""
    with tf.device("CPU:0"):
        mine = _line(value)
        splits = tf.constant([len(mine)] + [0] * (collectives.topology.num_workers - 1))
        return _values(collectives.all_to_all(mine, splits, purpose="agreement")[0])


def _line(value: Any) -> tf.Tensor:
    """uint8 [n]: JSON, and the end of a line."""
    return tf.constant(np.frombuffer(json.dumps(value).encode() + b"\n", np.uint8))


def _values(lines: tf.Tensor) -> list:
    return [json.loads(line) for line in lines.numpy().tobytes().splitlines()]


def told(error: BaseException) -> str:
    """An error's class and text; an error whose text cannot be had must not hide behind another."""
    try:
        text = str(error)
    except Exception:
        text = "<exception str() failed>"  # as Python prints it
    return f"{type(error).__name__}: {_without_trace(text)}"


def _without_trace(text: str) -> str:
    """What TensorFlow says of an operation, without the pages about where it was made that stand before."""
    kept, of_trace = [], False
    for line in text.splitlines():
        goes_on = of_trace and (not line or line.startswith('  File "'))
        of_trace = goes_on or line.startswith("Detected at node")
        if not of_trace:
            kept.append(line)
    return "\n".join(kept)


@contextlib.contextmanager
def together(collectives: Collectives) -> Iterator[None]:
    """Raises on all workers when the block raises on any. Collective.

    Raises:
      RuntimeError: the block raised on other workers; on those, what it raised.
    """
    error, errors = None, []
    try:
        yield
    except Exception as caught:  # whatever it is, the others must hear of it before it goes on
        error = caught
    if collectives.topology.num_workers > 1:
        mine = None if error is None else told(error)
        # They may wait in a collective within the block, and end this process before it is raised.
        alone = threading.Timer(_NOTICE_SECONDS, _say_alone, [error])
        alone.daemon = True
        if error is not None:
            with contextlib.suppress(RuntimeError):  # no more threads
                alone.start()
        try:
            errors = gather(mine, collectives)
        except Exception as lost:  # of the others; what was wrong here counts
            error = error or lost
        finally:
            alone.cancel()
    if error is not None:  # not within `except`, where it would seem to come of the others' loss
        raise error
    failed = [f"rank {rank}: {text}" for rank, text in enumerate(errors) if text is not None]
    if failed:
        raise RuntimeError("this worker succeeded, others failed. " + "; ".join(failed))


def _say_alone(error):
    logging.error("This failed, and the other workers do not come to hear of it:", exc_info=error)


def require_same(facts: Mapping[str, Any], collectives: Collectives, remedy: str) -> None:
    """Raises on all workers unless all have the same facts. Collective.

    Args:
      facts: what JSON can express, by name.
      collectives: of this worker.
      remedy: what to do about a difference.

    Raises:
      ValueError: names what differs, and on which ranks.
    """
    if text := difference(facts, collectives, remedy):
        raise ValueError(text)


def difference(facts: Mapping[str, Any], collectives: Collectives, remedy: str) -> str | None:
    """What `require_same` would raise; None where all have the same. Collective."""
    differences = _differences(gather(dict(facts), collectives))
    more = len(differences) - _SHOWN
    shown = differences[:_SHOWN] + ([f"  and {more} more"] if more > 0 else [])
    return "\n".join(["the workers differ:", *shown, remedy]) if differences else None


def _differences(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One sentence for each fact that is not the same in all rows."""
    found = []
    for name in dict.fromkeys(name for row in rows for name in row):
        ranks = {}
        for rank, row in enumerate(rows):
            ranks.setdefault(json.dumps(row.get(name)), []).append(str(rank))
        if len(ranks) > 1:
            values = (f"{text} on rank {', '.join(who)}" for text, who in ranks.items())
            found.append(f"  {name}: {'; '.join(values)}")
    return found


def pieces(flat: tf.Tensor, senders: int = 1) -> list[tf.Tensor]:
    """Cuts `flat` [N] into what so many workers can send to one at once; at least one piece."""
    most = max(1, PIECE // (senders * flat.dtype.size))
    return [flat[first : first + most] for first in range(0, max(1, flat.shape[0]), most)]


def broadcast_same(name: str, value: tf.Tensor, collectives: Collectives) -> tf.Tensor:
    """Rank 0's initial value of the variable `name`. Collective.

    Raises:
      ValueError: the workers create different variables.
    """
    try:
        parts = pieces(tf.reshape(value, [-1]))
        if len(parts) == 1:  # with its shape, which may differ
            return collectives.broadcast(value, purpose="initial_value")
        sent = [collectives.broadcast(part, purpose="initial_value") for part in parts]
        return tf.reshape(tf.concat(sent, axis=0), value.shape)
    except tf.errors.FailedPreconditionError:
        fact = f"{name!r} {value.shape.as_list()} {value.dtype.name}"
        require_same({"variable being created": fact}, collectives, _SAME_MODEL)
        raise


@functools.lru_cache(maxsize=1 << 16)
def _described(name: str, shape: tuple, dtype: str, kind: str, number: int | None) -> str:
    # Keras numbers layers by what the process made before: dense_3/kernel.
    name = re.sub(r"_[0-9]+(?=/|$)", "", name.partition(":")[0])
    which = "" if number is None else f", the scope's variable {number}"
    return f"{name} {list(shape)} {dtype} {kind}{which}"


class SameVariables:
    """Checks, before the first step with a list of variables, that all workers have the same list.

    Otherwise the gradients of different variables would be summed, where their shapes agree.
    """

    def __init__(self, collectives: Collectives):
        self._collectives = collectives
        self._checked = set()

    def check(self, pairs) -> None:
        """Compares the variables of [(gradient, variable), ...]. Collective, once for each list.

        Raises:
          ValueError: names the first difference, and the ranks.
        """
        mine = tuple(
            _described(
                variable.name,
                whole_shape(variable),
                tf.as_dtype(variable.dtype).name,
                "sparse" if isinstance(gradient, tf.IndexedSlices) else "dense",
                getattr(tensorflows(variable), "_number", None),
            )
            for gradient, variable in pairs
        )
        if mine in self._checked:
            return
        with tf.init_scope():
            digest = hashlib.blake2b("\n".join(mine).encode(), digest_size=8).hexdigest()
            if len(set(gather(digest, self._collectives))) > 1:
                facts = {f"gradient {position}": text for position, text in enumerate(mine)}
                require_same(facts, self._collectives, _SAME_MODEL)
        self._checked.add(mine)
