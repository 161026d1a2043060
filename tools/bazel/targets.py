"""Which files the BUILD files cover.

BUILD files are written in a subset of Python, so Python itself evaluates them here, with every
rule and macro replaced by a recorder. Bazel cannot be asked: inside `bazel test` its own lock on
the output directory is taken.
"""

from __future__ import annotations

import builtins
import dataclasses
import pathlib

ROOTS = (
    "benchmarks",
    "custom_ops",
    "datacache",
    "examples",
    "lars_pto",
    "tests",
    "tf_sparse_strategy",
    "tools",
)
SUFFIXES = (".py", ".h", ".cc", ".cu", ".sh")
# Macros whose `srcs` default to the file named like the target.
MACRO_SUFFIX = {
    "tss_cc_test": ".cc",
    "tss_py_library": ".py",
    "tss_py_test": ".py",
}


@dataclasses.dataclass(frozen=True)
class Target:
    """One rule of a BUILD file: its label, and the labels which its attributes name."""

    label: str
    rule: str
    files: frozenset[str]
    deps: frozenset[str]
    tests: frozenset[str] = frozenset()


def source_files(root: pathlib.Path) -> list[str]:
    """Returns every source file that a target has to list, as a path from `root`."""
    paths = (path for top in ROOTS for path in (root / top).rglob("*"))
    return sorted(path.relative_to(root).as_posix() for path in paths if path.suffix in SUFFIXES)


def absolute_label(label: str, package: str) -> str:
    """Returns `label`, as written in a BUILD file of `package`, in the form //package:name."""
    if label.startswith("@"):
        return label
    if not label.startswith("//"):
        return f"//{package}:{label.removeprefix(':')}"
    if ":" in label:
        return label
    return f"{label}:{label.rpartition('/')[2]}"


def read_package(build_file: pathlib.Path, root: pathlib.Path) -> list[Target]:
    """Returns the targets of one BUILD file."""
    directory = build_file.parent
    package = directory.relative_to(root).as_posix().removeprefix(".")
    targets: list[Target] = []

    def glob(include: list[str], **_: object) -> list[str]:
        paths = (path for pattern in include for path in directory.glob(pattern))
        return [path.relative_to(directory).as_posix() for path in paths]

    def recorder(rule: str):
        def record(*labels: object, **attributes: object) -> None:
            name = attributes.get("name")
            files: list[str] = [*labels[0]] if rule == "exports_files" else []
            for attribute in ("srcs", "hdrs", "data"):
                files += attributes.get(attribute, [])
            if "srcs" not in attributes and rule in MACRO_SUFFIX:
                files.append(name + MACRO_SUFFIX[rule])
            targets.append(
                Target(
                    label=absolute_label(name or rule, package),
                    rule=rule,
                    files=frozenset(absolute_label(label, package) for label in files),
                    deps=frozenset(absolute_label(d, package) for d in attributes.get("deps", [])),
                    tests=frozenset(absolute_label(t, package) for t in attributes.get("tests", [])),
                )
            )

        return record

    class Names(dict):
        def __missing__(self, name: str):
            return getattr(builtins, name, None) or recorder(name)

    ignored = dict.fromkeys(("load", "package", "licenses"), lambda *_, **__: None)
    code = compile(build_file.read_text(), str(build_file), "exec")
    exec(code, Names(glob=glob, **ignored))
    return targets


def read_tree(root: pathlib.Path) -> list[Target]:
    """Returns the targets of every BUILD file of the checkout."""
    build_files = [root / "BUILD", *(path for top in ROOTS for path in (root / top).rglob("BUILD"))]
    # The stand-ins for Bazel's own repositories are no packages of ours.
    stubs = [root / line for line in (root / ".bazelignore").read_text().split()]
    return [
        target
        for build_file in build_files
        if build_file.exists() and not any(stub in build_file.parents for stub in stubs)
        for target in read_package(build_file, root)
    ]


def owners(targets: list[Target]) -> dict[str, str]:
    """Returns the label of the target that lists each file, by the file's own label."""
    return {file: target.label for target in targets for file in target.files}


def owner_of(path: str, owner: dict[str, str]) -> str | None:
    """Returns the target that lists `path`; any directory above it may be the package."""
    parts = path.split("/")
    labels = (f"//{'/'.join(parts[:i])}:{'/'.join(parts[i:])}" for i in range(len(parts)))
    return next((owner[label] for label in labels if label in owner), None)


def uncovered_files(root: pathlib.Path, targets: list[Target]) -> list[str]:
    """Returns the source files that no target lists."""
    owner = owners(targets)
    return [path for path in source_files(root) if owner_of(path, owner) is None]
