"""Cases that `make check` runs and `make test` leaves out: others of theirs show the same, or nearly."""

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest

thorough = pytest.mark.thorough
P = int(os.environ.get("HOROVOD_SIZE", "1"))  # workers, of which others show a case with fewer or with more


def thorough_if(is_left: Callable[[Any], bool], values: Iterable) -> list:
    """`values` for `pytest.mark.parametrize`, of which those that `is_left` are for `make check` alone."""
    return [pytest.param(value, marks=thorough) if is_left(value) else value for value in values]


def thorough_with(workers: int) -> Callable:
    """Marks a test as thorough where there are as many workers: fewer have shown the same."""
    return thorough if P == workers else lambda test: test


# For tests of what lies below Keras, where `keras` would be both.
MOSTLY_KERAS3 = pytest.mark.parametrize(
    "keras", thorough_if(lambda name: name == "tf_keras", ["keras", "tf_keras"]), indirect=True
)
