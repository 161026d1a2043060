"""What a Python source imports, read without running it."""

from __future__ import annotations

import ast
import pathlib


def imported_names(source: str, package: str = "") -> set[str]:
    """Returns the dotted names that `source` imports, anywhere in it.

    `from a.b import c` gives "a.b.c": only the file system knows whether c is a module.

    Args:
      source: Python source text.
      package: the package of this source, "a.b" for a/b/c.py; relative imports start there.
    """
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                parents = parents[: len(parents) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            names |= {f"{base}.{alias.name}" for alias in node.names}
    return names


def module_file(name: str, root: pathlib.Path) -> str | None:
    """Returns the file of this checkout that `import name` would run last, or None.

    "a.b.c" is a/b/c.py, a/b/c/__init__.py or, when c is a name inside a module, that module.
    """
    while name:
        stem = name.replace(".", "/")
        for candidate in (f"{stem}.py", f"{stem}/__init__.py"):
            if (root / candidate).is_file():
                return candidate
        name = name.rpartition(".")[0]
    return None


def imported_files(path: str, root: pathlib.Path) -> set[str]:
    """Returns the files of this checkout that the Python file `path` imports."""
    package = ".".join(pathlib.PurePosixPath(path).parts[:-1])
    names = imported_names((root / path).read_text(), package)
    return {file for name in names if (file := module_file(name, root))} - {path}
