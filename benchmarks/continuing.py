"""Benchmarks of many jobs: one that was interrupted goes on with those that are missing."""

import hashlib
import json
import pathlib
from collections.abc import Iterable

from benchmarks import report

_SOURCES = ["benchmarks", "custom_ops", "datacache", "examples"]
_SOURCES += ["lars_pto", "tf_sparse_strategy", "tools/horovod"]


def begin(file: pathlib.Path | None, planned: Iterable[str]) -> dict:
    """The jobs that there are already, by name, where code and machine are the same; and what is planned.

    Args:
      file: of an earlier run, if there is one.
      planned: names of all jobs.
    """
    here = report.environment()
    found = {"environment": here, "code": _code(), "planned": list(planned), "jobs": {}}
    if file and file.exists():
        before = json.loads(file.read_text())
        same = all(before.get(name) == found[name] for name in ("code", "planned"))
        if same and _place(before["environment"]) == _place(here):
            found |= {"jobs": before["jobs"], "environment": before["environment"]}
    return found


def keep(found: dict, file: pathlib.Path | None) -> None:
    """Writes what there is so far."""
    if file:
        report.write(file, found)


def left_out(results: dict) -> list[str]:
    """A line for the document, where jobs are missing."""
    missing = [name for name in results["planned"] if name not in results["jobs"]]
    return [f"**Left out, as the run was interrupted:** {'; '.join(missing)}."] if missing else []


def _place(environment):
    """What must be the same for measurements to stand side by side."""
    varies = ("date", "commit")  # code that matters is compared by itself
    return {name: v for name, v in environment.items() if name not in varies and "load" not in name}


def _code():
    """What tells measurements by one state of the code from those by another."""
    digest = hashlib.blake2b(digest_size=8)
    for folder in _SOURCES:
        for path in sorted((report.ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".cc", ".h"):
                digest.update(path.read_bytes())
    return digest.hexdigest()
