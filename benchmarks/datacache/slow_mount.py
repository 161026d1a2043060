"""A directory as central storage would serve it: a FUSE mount with latency and a limited rate. Root, Linux.

    python -m benchmarks.datacache.slow_mount SOURCE MOUNTPOINT LATENCY_MS MBIT

Serves until its standard input ends; then unmounts. Speaks the kernel's protocol (include/uapi/linux/fuse.h)
itself: read-only, every read goes through the server (no page cache), many at a time. Each look-up, opening
and read waits for the latency; reads also wait until the rate, shared by all, lets them through.
"""

import ctypes
import errno
import os
import stat
import struct
import sys
import threading
import time

_HEADER = struct.Struct("<IIQQIIII")  # of a request: length, opcode, unique, node, uid, gid, pid, padding
_REPLY = struct.Struct("<IiQ")
_ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH = 1, 2, 3, 14, 15, 17, 18, 25
INIT, OPENDIR, READDIR, RELEASEDIR, ACCESS, DESTROY, BATCH_FORGET = 26, 27, 28, 29, 34, 38, 42
_DIRECT_IO = 1
_THREADS, _LARGEST = 32, 1 << 17
_CACHED_SECONDS = 3600  # how long the kernel may trust names and attributes


class Link:
    """Latency, and a rate that all requests share."""

    def __init__(self, latency: float, bytes_per_second: float):
        self._latency, self._rate = latency, bytes_per_second
        self._lock, self._free = threading.Lock(), 0.0

    def wait(self, size: int = 0) -> None:
        """Returns when an answer of so many bytes would have arrived."""
        with self._lock:
            self._free = max(self._free, time.monotonic()) + size / self._rate
            arrival = self._free + self._latency
        time.sleep(max(arrival - time.monotonic(), 0))


class Server:
    """Answers the kernel's requests for the files of a directory."""

    def __init__(self, source: str, fuse: int, link: Link):
        self._fuse, self._link = fuse, link
        self._paths = {1: source}
        self._numbers: dict[str, int] = {}
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Until the mount is gone; several threads may."""
        while True:
            try:
                request = os.read(self._fuse, _LARGEST + 4096)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT):
                    continue
                return
            _, opcode, unique, node, *_ = _HEADER.unpack_from(request)
            if opcode in (FORGET, BATCH_FORGET):
                continue
            try:
                answer, code = self._answer(opcode, node, request[_HEADER.size :]), 0
            except OSError as error:
                answer, code = b"", -(error.errno or errno.EIO)
            reply = _REPLY.pack(_REPLY.size + len(answer), code, unique) + answer
            try:
                os.write(self._fuse, reply)
            except OSError:
                pass  # the caller was interrupted, or the mount is gone
            if opcode == DESTROY:
                return

    def _answer(self, opcode: int, node: int, body: bytes) -> bytes:
        if opcode == INIT:
            major, minor, readahead, _ = struct.unpack_from("<IIII", body)
            fields = (major, min(minor, 31), readahead, 0, _THREADS, _THREADS, 4096, 1, _LARGEST // 4096, 0)
            return struct.pack("<IIIIHHIIHH32x", *fields)
        path = self._paths[node]
        if opcode == LOOKUP:
            self._link.wait()
            path = os.path.join(path, os.fsdecode(body.rstrip(b"\0")))
            attributes = self._attributes(path)
            number = self._number(path)
            return struct.pack("<QQQQII", number, 0, _CACHED_SECONDS, _CACHED_SECONDS, 0, 0) + attributes
        if opcode == GETATTR:
            return struct.pack("<QII", _CACHED_SECONDS, 0, 0) + self._attributes(path)
        if opcode in (OPEN, OPENDIR):
            self._link.wait()
            handle = 0 if opcode == OPENDIR else os.open(path, os.O_RDONLY)
            return struct.pack("<QII", handle, _DIRECT_IO if handle else 0, 0)
        if opcode == READ:
            handle, offset, size = struct.unpack_from("<QQI", body)
            data = os.pread(handle, size, offset)
            self._link.wait(len(data))
            return data
        if opcode == READDIR:
            _, offset, size = struct.unpack_from("<QQI", body)
            return self._entries(path, offset, size)
        if opcode == RELEASE:
            os.close(struct.unpack_from("<Q", body)[0])
            return b""
        if opcode == STATFS:
            return struct.pack("<QQQQQIIII24x", 0, 0, 0, 0, 0, 4096, 255, 4096, 0)
        if opcode in (RELEASEDIR, ACCESS, FLUSH, DESTROY):
            return b""
        raise OSError(errno.ENOSYS, "not served")

    def _number(self, path: str) -> int:
        with self._lock:
            number = self._numbers.setdefault(path, len(self._numbers) + 2)
            self._paths[number] = path
            return number

    def _attributes(self, path: str) -> bytes:
        s = os.stat(path)
        seconds, rest = divmod(s.st_mtime_ns, 10**9)
        number = self._number(path) if path != self._paths[1] else 1
        return _ATTRIBUTES.pack(
            number, s.st_size, s.st_blocks, seconds, seconds, seconds, rest, rest, rest,
            s.st_mode, s.st_nlink, s.st_uid, s.st_gid, 0, 4096, 0,
        )

    def _entries(self, path: str, offset: int, size: int) -> bytes:
        answer = b""
        for i, name in enumerate(sorted(os.listdir(path))[offset:], offset + 1):
            child = os.path.join(path, name)
            kind = stat.S_IFMT(os.stat(child).st_mode) >> 12
            raw = os.fsencode(name)
            entry = struct.pack("<QQII", self._number(child), i, len(raw), kind) + raw
            entry += b"\0" * (-len(entry) % 8)
            if len(answer) + len(entry) > size:
                break
            answer += entry
        return answer


def main() -> None:
    source, mountpoint, latency, mbit = sys.argv[1:]
    fuse = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={fuse},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    read_only_nodev_nosuid = 1 | 2 | 4
    if libc.mount(b"slow", os.fsencode(mountpoint), b"fuse", read_only_nodev_nosuid, options.encode()):
        raise OSError(ctypes.get_errno(), "cannot mount; root and /dev/fuse are needed", mountpoint)
    server = Server(source, fuse, Link(float(latency) / 1e3, float(mbit) * 1e6 / 8))
    for _ in range(_THREADS):
        threading.Thread(target=server.serve, daemon=True).start()
    print("mounted", flush=True)
    sys.stdin.read()
    libc.umount2(os.fsencode(mountpoint), 2)  # lazily: nobody may be left waiting for us


if __name__ == "__main__":
    main()
