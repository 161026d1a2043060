"""How much memory the cache may take: the least of what four parties allow."""

import os
import pathlib
from typing import NamedTuple

RESERVE_SHARE, RESERVE_BYTES = 0.1, 8 << 30  # kept free of a limit: this share, but no more than that


class Limit(NamedTuple):
    """A number of bytes, and who says so."""

    bytes: int
    reason: str


def least(limits: list[Limit]) -> Limit:
    """The limit that binds, never below 0."""
    limit = min(limits, key=lambda one: one.bytes)
    return Limit(max(limit.bytes, 0), limit.reason)


def parse(memory: int | str) -> int | None:
    """Bytes of a user's limit; None for "auto".

    Example:
      >>> parse("1.5GB"), parse("200 MB"), parse(4096), parse("0"), parse("auto")
      (1610612736, 209715200, 4096, 0, None)
    """
    if isinstance(memory, int) and not isinstance(memory, bool) and memory >= 0:
        return memory
    if memory == "auto":
        return None
    units = {"TB": 1 << 40, "GB": 1 << 30, "MB": 1 << 20, "KB": 1 << 10}
    text = str(memory).strip().upper()
    if text.isdecimal():
        return int(text)
    for unit, size in units.items():
        if text.endswith(unit):
            try:
                number = float(text.removesuffix(unit))
            except ValueError:
                break
            if number >= 0:
                return int(number * size)
    raise ValueError(f'memory={memory!r}: "auto", a number of bytes, or e.g. "20GB".')


def _read(path: pathlib.Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _cgroup_directories(root: pathlib.Path) -> list[tuple[pathlib.Path, int]]:
    """The memory groups of this process from its own up to the top, with their hierarchy's version."""
    found = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        version = 2 if not controllers else 1
        if version == 1 and "memory" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("memory" if version == 1 else "")
        group = mount / path.strip("/")
        while True:
            found.append((group, version))
            if group == mount:
                break
            group = group.parent
    return found


def cgroup_limits(root: pathlib.Path = pathlib.Path("/")) -> list[Limit]:
    """What the container or batch system leaves of its memory limit. Files of the cache count already."""
    limits = []
    for group, version in _cgroup_directories(root):
        if version == 2:  # above "high" it is throttled, above "max" killed
            names, usage = ("memory.max", "memory.high"), "memory.current"
        else:
            names, usage = ("memory.limit_in_bytes",), "memory.usage_in_bytes"
        values, used = [_read(group / name) for name in names], _read(group / usage)
        most = min((int(value) for value in values if value.isdigit()), default=None)
        if most is None or not used.isdigit() or most > 1 << 60:
            continue
        statistics = dict(line.split() for line in _read(group / "memory.stat").splitlines())
        # The kernel drops inactive pages of files before it kills anyone.
        reclaimable = int(statistics.get("total_inactive_file", statistics.get("inactive_file", 0)))
        left = most - max(int(used) - reclaimable, 0)
        limits.append(Limit(left - _reserve(most), f"the memory limit of its control group, {group}"))
    return limits


def available(root: pathlib.Path = pathlib.Path("/")) -> list[Limit]:
    """What the machine has free."""
    values = {}
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        values[name] = int(rest.split()[0]) * 1024
    if "MemAvailable" not in values:
        return []
    free = values["MemAvailable"]
    return [Limit(free - _reserve(values["MemTotal"]), "the machine's free memory")]


def _reserve(total: int) -> int:
    return min(int(total * RESERVE_SHARE), RESERVE_BYTES)


def limits(memory: int | str, directory: str, held: int = 0, promised: int = 0) -> list[Limit]:
    """All limits on a store.

    Args:
      memory: the user's.
      directory: where the store is: a tmpfs such as /dev/shm.
      held: bytes that the store holds already, which are not to be found again.
      promised: bytes that other stores in use have been given and do not hold yet.
    """
    status = os.statvfs(directory)
    machine = [*cgroup_limits(), *available()]
    if status.f_blocks:  # or its size has no limit
        machine.append(Limit(status.f_bavail * status.f_frsize, f"the free space of {directory}"))
    but = f" less {readable(promised)} that other stores in use may take" if promised else ""
    found = [Limit(one.bytes + held - promised, one.reason + but) for one in machine]
    user = parse(memory)
    return found if user is None else [*found, Limit(user, f"memory={memory!r}")]


def readable(size: float) -> str:
    """Bytes for people.

    Example:
      >>> readable(1000), readable(1536), readable(27 << 30)
      ('1000 B', '1.5 KB', '27 GB')
    """
    units = ["B", "KB", "MB", "GB", "TB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{size:.3g} {units[0]}" if size < 999.5 else f"{size:.0f} {units[0]}"


class Rooms(NamedTuple):
    """How many samples are kept decoded, and how many others encoded."""

    decoded: int
    encoded: int


def rooms(
    limit: int, samples: int, share: int, decoded_bytes: int, encoded_bytes: int | None
) -> Rooms:
    """What to keep in `limit` bytes: no sample to be read again first, then none to be decoded again.

    Args:
      samples: N.
      share: how many of them this machine is asked for.
      decoded_bytes, encoded_bytes: of a sample on average; None: it cannot be kept encoded.

    Example:
      >>> [rooms(limit, 10, 10, 100, 20) for limit in (1000, 600, 100)]
      [Rooms(decoded=10, encoded=0), Rooms(decoded=5, encoded=5), Rooms(decoded=0, encoded=5)]
    """
    most = min(samples, limit // decoded_bytes)
    if most >= share or encoded_bytes is None or encoded_bytes >= decoded_bytes:
        return Rooms(most, 0)
    left = limit - share * encoded_bytes
    if left < 0:
        return Rooms(0, limit // encoded_bytes)
    decoded = left // (decoded_bytes - encoded_bytes)
    return Rooms(decoded, share - decoded)


def forecast(samples: int, sample_bytes: int, limit: Limit, kept: Rooms, directory: str) -> str:
    """One or two sentences on what will fit, for the user to read before memory is filled."""
    text = f"{samples} decoded samples of {readable(sample_bytes)} are {readable(samples * sample_bytes)}; "
    if kept.decoded >= samples:
        return text + f"all fit into {directory}."
    share = 100 * kept.decoded / samples
    text += f"{kept.decoded} of them ({share:.0f}%) fit: {readable(limit.bytes)} is the limit, "
    text += f"by {limit.reason}. "
    if kept.encoded:
        text += f"{kept.encoded} are kept encoded, and decoded in each epoch. "
    if sum(kept) < samples:
        text += "The others are read and decoded in each epoch."
    if "free space" in limit.reason:
        text += " `tss cache ls` shows what earlier runs' stores take of it, `tss cache clear` frees that."
        if limit.bytes <= 64 << 20:
            text += f" Docker gives {directory} 64 MB unless started with --shm-size."
    return text.rstrip()
