"""Training in phases, each with data of its own."""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def fit(
    model: tf.keras.Model,
    lengths: Sequence[int],
    start: int,
    arguments: Callable[[int, range], dict[str, Any]],
) -> dict[str, list]:
    """Calls `model.fit` for each phase; numbers of epochs go on from phase to phase.

    Args:
      model: compiled.
      lengths: epochs of each phase.
      start: the first epoch that is not done; phases before it are left out.
      arguments: from a phase's number, and its epochs that are not done, to the arguments of `fit`.

    Returns:
      The history of all, with the number of each epoch, from 1, under "epoch"; empty if all were done.
    """
    history, end = collections.defaultdict(list), 0
    for number, length in enumerate(lengths):
        first, end = max(start, end), end + length
        if first >= end:
            continue
        found = model.fit(
            **arguments(number, range(first, end)),
            initial_epoch=first,
            epochs=end,
            shuffle=False,  # the data are shuffled: their order follows from the epoch
        )
        for name, values in found.history.items():
            history[name] += values
        history["epoch"] += [epoch + 1 for epoch in found.epoch]
        if model.stop_training:  # a callback, e.g. EarlyStopping, ends the run, not the phase
            break
    return dict(history)
