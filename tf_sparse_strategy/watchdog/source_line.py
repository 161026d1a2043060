"""Where threads are: the line of the user's program, and whether in TensorFlow's runtime."""

import gc
import linecache
import pathlib
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterable
from types import CodeType, FrameType

_PACKAGE = str(pathlib.Path(__file__).absolute().parent.parent)  # as in the code's file names
_TENSORFLOWS_CALLS = "tensorflow/python/eager/execute.py"
_LIBRARIES = (_PACKAGE, *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")))

_without_collections = threading.Lock()  # or one thread would switch them on for another


def _is_of_a_library(filename: str) -> bool:
    installed = {"site-packages", "dist-packages"} & set(pathlib.PurePath(filename).parts)
    return bool(
        installed
        or filename.startswith(("<", *(f"{path}/" for path in _LIBRARIES)))
        or "__autograph_generated" in filename
    )


def users_line(calls: Iterable[tuple[FrameType, int]]) -> str:
    """Describes the innermost call that is not in a library; the outermost if all are.

    Args:
      calls: (frame, line number), innermost first: `traceback.walk_stack`.

    Returns:
      e.g. "train.py:12 in main: model.fit(dataset)".
    """
    outermost = None
    for frame, number in calls:
        if frame.f_code.co_filename.startswith("<"):
            continue
        outermost = frame, number
        if not _is_of_a_library(frame.f_code.co_filename):
            break
    if outermost is None:
        return "no line of Python"
    code = outermost[0].f_code
    text = linecache.getline(code.co_filename, outermost[1]).strip()
    function = "" if code.co_name == "<module>" else f" in {code.co_name}"
    return f"{code.co_filename}:{outermost[1]}{function}: {text}"


def frames() -> dict[int, FrameType]:
    """Where each thread is.

    CPython (3.11) holds a lock while it makes these frames. A garbage collection that begins then
    and frees a `threading.local` wants the same lock: the process stands still for ever.
    """
    with _without_collections:
        collects = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            if collects:
                gc.enable()


def main_thread_frame() -> FrameType | None:
    """Where the main thread is."""
    return frames().get(threading.main_thread().ident)


def main_thread_program() -> CodeType | None:
    """The outermost code that the main thread runs: another one once the program has ended.

    That is then a function that waits for threads, or one that was registered for the exit.
    """
    frame = main_thread_frame()
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame and frame.f_code


def main_thread_line() -> str:
    """The line of the user's program that the main thread is at."""
    frame = main_thread_frame()  # of None `walk_stack` would take this thread's
    return users_line([] if frame is None else traceback.walk_stack(frame))


def error_line(error: BaseException) -> str:
    """The line of the user's program that led to `error`."""
    return users_line(reversed(list(traceback.walk_tb(error.__traceback__))))


def runs_graph_function() -> bool:
    """Whether some thread is within a call of a `tf.function`'s graph."""
    return any(
        frame.f_code.co_filename.endswith(_TENSORFLOWS_CALLS) for frame in frames().values()
    )
