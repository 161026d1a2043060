"""Where a program is: the user's line, not a library's, and looking at it never stands still."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import traceback

import tensorflow as tf

from tf_sparse_strategy.watchdog import source_line


def test_the_line_is_the_users_not_a_librarys():
    """From within a function that the standard library calls."""
    told = []
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: told.append(source_line.main_thread_line()))
    assert f"{__file__}:" in told[0]
    assert told[0].endswith("told.append(source_line.main_thread_line()))")


def test_a_thread_that_stands_in_a_library():
    begun, end = threading.Event(), threading.Event()

    def wait():
        begun.set()
        end.wait()  # this line

    thread = threading.Thread(target=wait)
    thread.start()
    begun.wait()
    line = source_line.users_line(traceback.walk_stack(sys._current_frames()[thread.ident]))
    end.set()
    thread.join()
    assert line.startswith(f"{__file__}:") and " in wait: " in line


COLLECTIONS = """
import faulthandler, gc, threading
from tf_sparse_strategy.watchdog import source_line

faulthandler.dump_traceback_later(60, exit=True)
end = threading.Event()
for _ in range(20):
    threading.Thread(target=end.wait, daemon=True).start()
gc.freeze()  # TensorFlow's objects need not be looked at each time
gc.disable()
for step in range(200):
    local = threading.local()
    cycle = [local]
    cycle.append(cycle)
    del local, cycle
    gc.set_threshold(gc.get_count()[0] + step % 20)
    gc.enable()
    source_line.frames()
    gc.collect()
    gc.disable()
"""


def test_collections_while_frames_are_looked_at():
    """With sys._current_frames itself CPython 3.11 stands still."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", COLLECTIONS]
    assert subprocess.run(command, env=environment, check=False, timeout=200).returncode == 0


def test_the_line_of_an_error():
    try:
        json.loads("{")  # this line
    except ValueError as error:
        assert source_line.error_line(error).endswith(': json.loads("{")  # this line')


def test_whether_a_graph_runs():
    seen = []
    look = tf.function(lambda: tf.numpy_function(seen_by_another_thread, [], tf.bool))

    def seen_by_another_thread():
        thread = threading.Thread(target=lambda: seen.append(source_line.runs_graph_function()))
        thread.start()
        thread.join()
        return True

    seen_by_another_thread()
    look()
    seen_by_another_thread()
    assert seen == [False, True, False]


def test_without_a_line_of_the_users():
    assert source_line.users_line([]) == "no line of Python"
