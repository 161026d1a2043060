"""Prints the Bazel targets and dependencies that are missing, ready to paste.

python -m tools.bazel.missing_targets
"""

from __future__ import annotations

import pathlib

from tools.bazel.targets import Target, owner_of, owners, read_tree, source_files, uncovered_files
from tools.python_imports import imported_files

# What every test macro depends on by itself.
IMPLIED = ("//tests:conftest", "//tests/multiprocess:run")


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


def needed_deps(path: str, root: pathlib.Path, owner: dict[str, str]) -> set[str]:
    """Returns the labels of the targets which the Python file `path` imports."""
    files = imported_files(path, root)
    labels = {owner_of(file, owner) or default_label(file) for file in files}
    return labels - {owner_of(path, owner) or default_label(path), *IMPLIED}


def missing_deps(root: pathlib.Path, targets: list[Target]) -> list[str]:
    """Returns one sentence for each import that no dependency of the target provides."""
    owner = owners(targets)
    found = []
    for path in source_files(root):
        label = owner_of(path, owner)
        if label is None or not path.endswith(".py"):
            continue
        deps = set().union(*(target.deps for target in targets if target.label == label))
        found += [
            f"{label}: {path} imports {dep}, which its deps do not list"
            for dep in sorted(needed_deps(path, root, owner) - deps)
        ]
    return found


def suggestion(path: str, root: pathlib.Path, owner: dict[str, str]) -> str:
    """Returns the text of a target for the file `path`, for the BUILD file of its directory."""
    directory, _, file = path.rpartition("/")
    package, name = default_label(path).removeprefix("//").split(":")
    if not path.endswith(".py"):
        return f"# {path} is in no target"
    lines = [f'    name = "{name}",']
    if file == "__init__.py":
        lines.append('    srcs = ["__init__.py"],')
    rule = "tss_py_test" if file.startswith("test_") else "tss_py_library"
    if rule == "tss_py_test" and directory == "tests/multiprocess":
        rule = "tss_multiprocess_test"
        lines.append("    workers = [1, 2, 3, 4],")
    deps = [short_label(label, package) for label in needed_deps(path, root, owner)]
    if deps:
        deps.sort(key=lambda dep: (not dep.startswith(":"), dep))
        lines += ["    deps = [", *(f'        "{dep}",' for dep in deps), "    ],"]
    return "\n".join([f"# {directory}/BUILD", f"{rule}(", *lines, ")"])


def main() -> None:
    """Prints a target for each file that has none, and each missing dependency."""
    root = pathlib.Path.cwd()
    targets = read_tree(root)
    owner = owners(targets)
    for path in uncovered_files(root, targets):
        print(suggestion(path, root, owner), end="\n\n")
    print(*missing_deps(root, targets), sep="\n")


if __name__ == "__main__":
    main()
