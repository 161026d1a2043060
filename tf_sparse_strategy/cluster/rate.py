"""The speed of an emulated link: what a user writes, what the kernel's shaper needs."""

import math
import re

DEFAULT_BUFFER = 0.05  # seconds of traffic
# Linux's own congestion control, and so that of most cloud machines; not that of the machine at hand.
DEFAULT_TCP = "cubic"
PAYLOAD = 1448 / 1514  # the part of a link's rate that is left for data: of a full Ethernet frame, by TCP
_LARGEST_QUEUE = 2**32 - 1  # bytes, in the kernel's shaper
_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


def parse_rate(text: str) -> int:
    """Returns the bits per second that "200mbit" or "1.5gbit" stands for.

    Raises:
      ValueError: the text is not a positive number and one of kbit, mbit, gbit (powers of 1000).

    Example:
      >>> parse_rate("200mbit")
      200000000
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", text.strip().lower())
    if not match or float(match[1]) == 0:
        raise ValueError(
            f"rate {text!r} is not a number with kbit, mbit or gbit: write e.g. 200mbit or 1gbit."
        )
    return round(float(match[1]) * _UNITS[match[2]])


def shaper(rate: int, buffer: float) -> str:
    """Returns tc's words for a queue that sends at most `rate` bits per second, headers included.

    The bucket holds one millisecond: bursts stay short against a message worth timing, and the
    kernel's timer (some 50 microseconds late) costs little. 16 KiB at least, for slow links. The
    queue holds `buffer` seconds of traffic and a bucket; what is beyond is dropped and TCP slows down.

    Raises:
      ValueError: the kernel cannot hold so much.
    """
    burst = max(16 << 10, rate // 8000)  # bytes
    most = 8 * (_LARGEST_QUEUE - burst) / rate
    if not 0 < buffer <= most:
        raise ValueError(f"buffer={buffer} is not between 0 and {most:g} seconds of {rate} bits per second.")
    return f"tbf rate {rate}bit burst {burst} latency {math.ceil(buffer * 1e6)}us"
