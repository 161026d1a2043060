"""What Horovod's launcher tells a worker through the environment, and what we tell Horovod so."""

import contextlib
import fcntl
import math
import os
import socket
import struct
import sys
import threading
from collections.abc import Iterator

_MESSAGE_LIMIT = "HOROVOD_GLOO_TIMEOUT_SECONDS"
_STALL_LIMIT = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
_NOTICE_SECONDS = 10
_SIOCGIFADDR = 0x8915  # Linux: an interface's IPv4 address
_LONGEST = 10**6  # seconds; Horovod has no word for no limit, and takes 30 s where it is told none


def host_name() -> str:
    """The host this worker runs on, as the launcher calls it."""
    return os.environ.get("HOROVOD_HOSTNAME") or socket.gethostname()


def interface_address(name: str) -> str:
    """The IPv4 address of a network interface.

    Raises:
      OSError: there is no such interface, or it has none.
    """
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        return socket.inet_ntoa(fcntl.ioctl(any_socket, _SIOCGIFADDR, request)[20:24])


def own_address() -> str:
    """The address at which Horovod's workers reach this one."""
    interface = os.environ.get("HOROVOD_GLOO_IFACE")
    return interface_address(interface) if interface else socket.gethostbyname(socket.gethostname())


def set_limits(message: float, stall: float) -> None:
    """How long Horovod waits for another worker, in seconds, unless the user has said so.

    Args:
      message: until one that sends nothing is lost.
      stall: until one that lives, and does not call what others have called, is waited for no longer.
    """
    for name, seconds in ((_MESSAGE_LIMIT, message), (_STALL_LIMIT, stall)):
        os.environ.setdefault(name, str(math.ceil(min(seconds, _LONGEST))))


@contextlib.contextmanager
def notice_of_missing_workers() -> Iterator[None]:
    """Says, while the block takes long to bring all workers together, what may be missing.

    When one never comes, Horovod aborts the process by itself, and does not say why.
    """
    notice = threading.Timer(_NOTICE_SECONDS, _say_who_is_waited_for)
    notice.daemon = True
    if int(os.environ.get("HOROVOD_SIZE", 1)) > 1:
        notice.start()
    try:
        yield
    finally:
        notice.cancel()


def _say_who_is_waited_for():
    rank, size = os.environ.get("HOROVOD_RANK"), os.environ.get("HOROVOD_SIZE")
    limit, interface = os.environ.get(_MESSAGE_LIMIT, "30"), os.environ.get("HOROVOD_GLOO_IFACE")
    sys.stderr.write(
        f"tf_sparse_strategy, rank {rank} ({host_name()}): has waited {_NOTICE_SECONDS} s for all {size} "
        "workers to start. If one has ended, makes no SparseStrategy, or cannot be reached by the interface "
        f"{interface!r}, Horovod will abort this one {limit} s after it began to wait ({_MESSAGE_LIMIT}).\n"
    )
