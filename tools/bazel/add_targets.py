"""Adds to the BUILD files the Python targets and dependencies that they lack.

    python -m tools.bazel.add_targets

The targets are a first draft: numbers of workers, sizes and data files are for you to set.
"""

from __future__ import annotations

import pathlib
import re

from tools.bazel.missing_targets import label_list, missing_deps, suggestion
from tools.bazel.targets import absolute_label, owners, read_tree, uncovered_files

EMPTY = """load("//tools/bazel:defs.bzl")

package(default_visibility = ["//:__subpackages__"])
"""


def with_target(build: str, target: str) -> str:
    """Returns the text of a BUILD file with `target` at its end and its macro loaded."""
    macro = target.partition("(")[0]
    load = re.search(r'load\("//tools/bazel:defs.bzl"(.*?)\)', build, re.S)
    names = sorted({*re.findall(r'"(\w+)"', load[1]), macro})
    loaded = ", ".join(f'"{name}"' for name in names)
    build = build.replace(load[0], f'load("//tools/bazel:defs.bzl", {loaded})')
    return f"{build}\n{target}\n"


def with_dep(build: str, label: str, dep: str) -> str:
    """Returns the text of a BUILD file with `dep` among the dependencies of `label`."""
    package, name = label.removeprefix("//").split(":")
    # One line, `macro(name = "x")`, or several that end with a parenthesis of their own.
    pattern = rf'^\w+\((name = "{name}")\)$|^\w+\(\n    name = "{name}",\n.*?^\)$'
    old = re.search(pattern, build, re.S | re.M)
    new = old[0]
    if old[1]:
        new = new.replace(f"({old[1]})", f"(\n    {old[1]},\n)")
    deps = re.search(r"    deps = \[(.*?)\],\n", new, re.S)
    labels = (
        {absolute_label(d, package) for d in re.findall(r'"([^"]+)"', deps[1])} if deps else set()
    )
    line = f"    deps = {label_list(labels | {dep}, package)},\n"
    new = new.replace(deps[0], line) if deps else f"{new[:-1]}{line})"
    return build.replace(old[0], new)


def main() -> None:
    """Edits the BUILD files; prints what it added and the files that need a hand."""
    root = pathlib.Path.cwd()
    targets = read_tree(root)
    for path in uncovered_files(root, targets):
        if not path.endswith(".py"):
            print(f"{path} is in no target: add it by hand")
            continue
        build = root / path.rpartition("/")[0] / "BUILD"
        text = build.read_text() if build.exists() else EMPTY
        build.write_text(with_target(text, suggestion(path, root, owners(targets))))
        print(f"{path}: added to {build.relative_to(root)}")
    for missing in missing_deps(root, read_tree(root)):
        build = root / missing.label.removeprefix("//").partition(":")[0] / "BUILD"
        build.write_text(with_dep(build.read_text(), missing.label, missing.dep))
        print(f"{missing.label}: depends on {missing.dep}")


if __name__ == "__main__":
    main()
