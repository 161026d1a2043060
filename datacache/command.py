"""`tss cache`: what is kept on this machine, whether it is sound, and how to be rid of it."""

import argparse
import json
import os
import pathlib
import time
from collections.abc import Callable

from datacache import budget, directories
from datacache import local as local_level

_COMMANDS = {
    "ls": "the stores in memory: source, decode version, size, age",
    "stat": "how many samples each store holds",
    "verify": "read all that is kept; exit code 1 if something is damaged",
    "clear": "delete stores (by name, or all and indices of records) and local copies",
    "doctor": "how much memory a cache may take here, and why",
}
_EMPTY = "no store: a run was killed before it had made one"
_EXAMPLES = """examples:
  tss cache ls
  tss cache verify --local-dir /mnt/ssd/cache
  tss cache clear 0123456789abcdef0123456789abcdef
  tss cache doctor

The exit code is 1 when something is damaged (verify), cannot be deleted (clear) or is unfit for a cache
(doctor), 2 for wrong arguments, 0 otherwise.
"""


def main(arguments: list[str]) -> int:
    """Runs one command; returns its exit code."""
    lines = [f"  {name:<8} {what}" for name, what in _COMMANDS.items()]
    parser = argparse.ArgumentParser(
        prog="tss cache",
        description="Commands:\n" + "\n".join(lines),
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=_COMMANDS, metavar="COMMAND", help="one of the above")
    parser.add_argument("names", nargs="*", default=[], help="stores, as `ls` shows them; none: all")
    parser.add_argument("--memory-dir", default="/dev/shm", help="default: %(default)s")
    parser.add_argument("--local-dir", help="local copies too; not for doctor")
    args = parser.parse_intermixed_args(arguments)  # names behind options, too
    from datacache import memory  # TensorFlow: not for --help

    root = memory.root_of(args.memory_dir)
    stores = {path.name: path for path in memory.stores_in(root)}
    unknown = [name for name in args.names if name not in stores]
    if unknown:
        print(f"No store {unknown[0]!r} in {root}; there are: {', '.join(stores) or 'none'}.")
        return 2
    chosen = [stores[name] for name in args.names or stores]
    local = pathlib.Path(args.local_dir).resolve() if args.local_dir else None
    if local and not directories.is_ours(local):
        print(f"{local} is not a cache's directory.")
        return 2
    if args.command == "doctor":
        with memory.unopened(root):
            promised = memory.promised(root)
        return _doctor(args.memory_dir, promised)
    if args.command == "clear":
        indices = [] if args.names else memory.indices_in(root)
        todo = [(memory.clear, path) for path in [*chosen, *indices]]
        todo += [(local_level.clear, local)] if local else []
        return _clear(todo)
    files = {path: memory.stores(path) for path in chosen}
    if args.command == "verify":
        return _verify(files, local)
    if not chosen:
        print(f"No stores in {root}.")
    if args.command == "stat":
        lines = [_stat(path, files[path]) for path in chosen]
    else:
        with memory.unopened(root):  # for looking at a store locks it
            lines = [_line(path, files[path]) for path in chosen]
        lines += [
            f"{path.name}  {_size([path / 'index.npy'])}  where the records of TFRecord files begin"
            for path in ([] if args.names else memory.indices_in(root))
        ]
    print(*lines, sep="\n", end="\n" if lines else "")
    if local:
        print(_copies(local))
    return 0


def _about(path: pathlib.Path) -> dict:
    """What is written beside a store; anything may be wrong with it."""
    try:
        about = json.loads((path / "about.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}


def _size(files: list[pathlib.Path]) -> str:
    try:
        return budget.readable(sum(file.stat().st_blocks * 512 for file in files))
    except OSError:
        return ""


def _line(path: pathlib.Path, files: list[pathlib.Path]) -> str:
    about = _about(path)
    size = _size(files) if files else "no store"
    created = about.get("created")
    age = f"{(time.time() - created) / 3600:.1f} h old" if isinstance(created, float) else ""
    use = "in use" if directories.is_in_use(path) else ""
    # Printed as Python literals: what a file says must not steer a terminal.
    what = f"{str(about.get('source', '?'))!r} {str(about.get('version', '?'))!r}"
    return "  ".join(part for part in (path.name, size, what, age, use) if part)


def _copies(local: pathlib.Path) -> str:
    copies = local_level.copies_in(local)
    size = budget.readable(sum(copy.lstat().st_size for copy in copies))
    use = "in use" if directories.is_in_use(local) else ""
    return "  ".join(part for part in (str(local), f"{len(copies)} copies", size, use) if part)


def _stat(path: pathlib.Path, files: list[pathlib.Path]) -> str:
    import tensorflow as tf

    from custom_ops.datacache_store import datacache_store as native

    said = []
    for file in files:
        try:
            stats = native.store_stats(str(file))
        except tf.errors.FailedPreconditionError as error:
            said.append(f"{path.name}  {error.message}")
            continue
        kind, size = ("", "each") if file.name == "store" else (" encoded", "each at most")
        said.append(
            f"{path.name}  {stats.stored} of {stats.samples} samples{kind}, room for {stats.capacity}, "
            f"{budget.readable(stats.payload_bytes)} {size}"
        )
    return "\n".join(said) or f"{path.name}  {_EMPTY}"


def _verify(stores: dict[pathlib.Path, list[pathlib.Path]], local: pathlib.Path | None) -> int:
    import tensorflow as tf

    from custom_ops.datacache_store import datacache_store as native

    bad = 0
    for path, files in stores.items():
        if not files:
            print(f"{path.name}  {_EMPTY}")
        for file in files:
            try:
                damaged = native.verify(str(file))
                kind = "" if file.name == "store" else "encoded "
                print(f"{path.name}  {damaged} damaged {kind}samples{_cure(damaged, 'read')}")
            except tf.errors.FailedPreconditionError as error:
                damaged = 1
                print(f"{path.name}  {error.message}")
            bad += damaged
    if local:
        copies = local_level.copies_in(local)
        damaged = [path for path in copies if not native.check_copy(str(path))]
        cure = _cure(len(damaged), "copied")
        print(f"{local}  {len(copies)} copies, {len(damaged)} damaged{cure}")
        bad += len(damaged)
    return 1 if bad else 0


def _cure(damaged: int, done: str) -> str:
    return f"; they will be {done} again" if damaged else ""


def _clear(todo: list[tuple[Callable[[pathlib.Path], int], pathlib.Path]]) -> int:
    """Calls each function with its directory; both `clear` of memory.py and of local.py return bytes."""
    code = 0
    for clear, path in todo:
        try:
            print(f"{path}: {budget.readable(clear(path))} freed")
        except (directories.InUse, OSError) as error:
            print(error)
            code = 1
    return code


def _doctor(memory_dir: str, promised: int) -> int:
    """Every limit, and the one that binds; `promised` are bytes that stores in use may still come to take."""
    try:
        status = os.statvfs(memory_dir)
        limits = budget.limits("auto", memory_dir, promised=promised)
    except OSError as error:
        print(f"{memory_dir} cannot be used: {error}. Name a tmpfs with memory_dir=.")
        return 1
    for limit in limits:
        print(f"  {budget.readable(max(limit.bytes, 0)):>8}  {limit.reason}")
    least = budget.least(limits)
    print(f"A cache may take {budget.readable(least.bytes)} here, by {least.reason}.")
    with open("/proc/mounts") as mounts:
        blank = "\\040"  # as the kernel writes it
        kinds = {fields[1].replace(blank, " "): fields[2] for fields in map(str.split, mounts)}
    at = pathlib.Path(memory_dir).resolve()
    kind = next(kinds[str(path)] for path in (at, *at.parents) if str(path) in kinds)
    code = 0
    if kind not in ("tmpfs", "ramfs"):
        print(f"{memory_dir} is on {kind}, not on tmpfs: samples would be written to a disk.")
        code = 1
    if os.getuid() >= 1000 and at.is_relative_to("/dev/shm") and os.path.isdir("/run/systemd/users"):
        print("When you log out, systemd may delete your stores: run `loginctl enable-linger` once.")
    if 0 < status.f_blocks * status.f_frsize <= 64 << 20:
        print(f"{memory_dir} is as small as Docker makes it: start the container with --shm-size=20g or so.")
        code = 1
    return code
