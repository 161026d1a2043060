"""A storage that does not answer is named, not waited for in silence; waiting.h does it for what is read."""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator

_FIRST = 5.0  # seconds
_log = logging.getLogger("datacache")


@contextlib.contextmanager
def naming(what: str) -> Iterator[None]:
    """While it is open, a warning says what is waited for: after 5 seconds, then after 10, 20, 40 ...

    Example:
      >>> with naming("the list of files of /mnt/nfs"):
      ...     pass
    """
    done, begin = threading.Event(), time.monotonic()

    def watch() -> None:
        after = _FIRST
        while not done.wait(begin + after - time.monotonic()):
            waited = time.monotonic() - begin
            _log.warning(
                "datacache: still waiting for %s, for %.0f s. Does it answer?", what, waited
            )
            after *= 2

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()  # nothing is said once the wait is over
