"""The Bazel targets and dependencies that are missing; tools/bazel/add_targets.py writes them."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable
from typing import NamedTuple

from tools.bazel.targets import Target, owner_of, owners, source_files
from tools.python_imports import imported_files

# What every test macro depends on by itself.
IMPLIED = ("//tests:conftest", "//tests/multiprocess:run")


class MissingDep(NamedTuple):
    """The target `label` lists the file `path`, which imports the target `dep`."""

    label: str
    path: str
    dep: str

    def __str__(self) -> str:
        return f"{self.label}: {self.path} imports {self.dep}, which its deps do not list"


def default_label(path: str) -> str:
    """Returns the label which a target of this file should have."""
    directory, _, name = path.rpartition("/")
    if name == "__init__.py":
        return f"//{directory}:{directory.rpartition('/')[2]}"
    return f"//{directory}:{name.rpartition('.')[0]}"


def short_label(label: str, package: str) -> str:
    """Returns `label` as a BUILD file of `package` writes it."""
    directory, name = label.removeprefix("//").split(":")
    if directory == package:
        return f":{name}"
    return f"//{directory}" if directory.rpartition("/")[2] == name else label


def label_list(labels: Iterable[str], package: str) -> str:
    """Returns the labels as the value of `deps` in a BUILD file of `package`, in its style."""
    short = [short_label(label, package) for label in labels]
    quoted = [f'"{label}"' for label in sorted(short, key=lambda s: (not s.startswith(":"), s))]
    if len(quoted) == 1:
        return f"[{quoted[0]}]"
    return "\n".join(["[", *(f"        {label}," for label in quoted), "    ]"])


def needed_deps(path: str, root: pathlib.Path, owner: dict[str, str]) -> set[str]:
    """Returns the labels of the targets which the Python file `path` imports."""
    files = imported_files(path, root)
    labels = {owner_of(file, owner) or default_label(file) for file in files}
    return labels - {owner_of(path, owner) or default_label(path), *IMPLIED}


def missing_deps(root: pathlib.Path, targets: list[Target]) -> list[MissingDep]:
    """Returns each import that no dependency of the target provides."""
    owner = owners(targets)
    found = []
    for path in source_files(root):
        label = owner_of(path, owner)
        if label is None or not path.endswith(".py"):
            continue
        deps = set().union(*(target.deps for target in targets if target.label == label))
        found += [
            MissingDep(label, path, dep) for dep in sorted(needed_deps(path, root, owner) - deps)
        ]
    return found


def suggestion(path: str, root: pathlib.Path, owner: dict[str, str]) -> str:
    """Returns a target for the Python file `path`, for the BUILD file of its directory."""
    directory, _, file = path.rpartition("/")
    package, name = default_label(path).removeprefix("//").split(":")
    attributes = [f'    name = "{name}",']
    if file == "__init__.py":
        attributes.append('    srcs = ["__init__.py"],')
    by_itself = file.startswith("test_") and directory != "tests/multiprocess"
    rule = "tss_py_test" if by_itself else "tss_py_library"
    if deps := needed_deps(path, root, owner):
        attributes.append(f"    deps = {label_list(deps, package)},")
    return "\n".join([f"{rule}(", *attributes, ")"])
