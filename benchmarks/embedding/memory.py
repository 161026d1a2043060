"""This process's resident memory, bytes; Linux."""

import ctypes
import gc
import pathlib
import re

_STATUS, _FORGET = pathlib.Path("/proc/self/status"), pathlib.Path("/proc/self/clear_refs")


def resident() -> int:
    """Now, without what has been freed."""
    _give_back()
    return _of("VmRSS")


def peak() -> int:
    """The most since `forget_peak`."""
    return _of("VmHWM")


def forget_peak() -> None:
    """Sets the peak to what is resident now."""
    _give_back()
    _FORGET.write_text("5")


def _give_back():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # glibc keeps much of what is freed


def _of(field: str) -> int:
    return int(re.search(rf"{field}:\s+(\d+) kB", _STATUS.read_text())[1]) << 10
