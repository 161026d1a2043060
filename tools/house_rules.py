"""The rules every source file keeps; each function returns one sentence per violation."""

from __future__ import annotations

import pathlib
import posixpath
import re
from collections.abc import Callable

from tools.python_imports import imported_names

# Lowest first; a module imports from its own layer or from one below. ARCHITECTURE.md says why.
LAYERS = (
    ("custom_ops",),
    ("datacache",),
    ("lars_pto",),
    (
        "tf_sparse_strategy.call_site",
        "tf_sparse_strategy.collectives",
        "tf_sparse_strategy.launcher",
        "tf_sparse_strategy.sent_bytes",
        "tf_sparse_strategy.topology",
        "tf_sparse_strategy.traffic",
        "tf_sparse_strategy.wire",
    ),
    (
        "tf_sparse_strategy.agreement",
        "tf_sparse_strategy.bucketing",
        "tf_sparse_strategy.clocks",
        "tf_sparse_strategy.cluster",
        "tf_sparse_strategy.communication",
        "tf_sparse_strategy.computing",
        "tf_sparse_strategy.cost_model",
        "tf_sparse_strategy.devices",
        "tf_sparse_strategy.embedding",
        "tf_sparse_strategy.gradient_kinds",
        "tf_sparse_strategy.gradients",
        "tf_sparse_strategy.hooking",
        "tf_sparse_strategy.input",
        "tf_sparse_strategy.keras_backups",
        "tf_sparse_strategy.keras_building",
        "tf_sparse_strategy.keras_callers",
        "tf_sparse_strategy.keras_epochs",
        "tf_sparse_strategy.keras_file_callbacks",
        "tf_sparse_strategy.keras_hooks",
        "tf_sparse_strategy.keras_losses",
        "tf_sparse_strategy.keras_optimizers",
        "tf_sparse_strategy.keras_saving",
        "tf_sparse_strategy.link_measurement",
        "tf_sparse_strategy.memory",
        "tf_sparse_strategy.turns",
        "tf_sparse_strategy.metrics",
        "tf_sparse_strategy.overlap",
        "tf_sparse_strategy.pipelines",
        "tf_sparse_strategy.remembered",
        "tf_sparse_strategy.resharding",
        "tf_sparse_strategy.recorder",
        "tf_sparse_strategy.residual",
        "tf_sparse_strategy.saving",
        "tf_sparse_strategy.taking_up",
        "tf_sparse_strategy.scheduling",
        "tf_sparse_strategy.scheme_metrics",
        "tf_sparse_strategy.stall",
        "tf_sparse_strategy.timeline",
        "tf_sparse_strategy.to_chief",
        "tf_sparse_strategy.trace",
        "tf_sparse_strategy.trace_command",
        "tf_sparse_strategy.watchdog",
    ),
    ("tf_sparse_strategy.extended",),
    (
        "tf_sparse_strategy.callbacks",
        "tf_sparse_strategy.layers",
        "tf_sparse_strategy.legacy_keras",
        "tf_sparse_strategy.optimizers",
        "tf_sparse_strategy.strategy",
    ),
    ("tf_sparse_strategy", "tf_sparse_strategy.cli"),
    ("benchmarks", "examples"),
)
_KERAS_ADAPTERS = tuple(
    f"{name.replace('.', '/')}.py"
    for layer in LAYERS
    for name in layer
    if name.startswith("tf_sparse_strategy.keras_")
)
# The only modules, or package, that may import each private or exchangeable interface; the longest name
# counts. Horovod's launcher is not its runtime: it is plain Python, starts no rank and loads no library.
ADAPTERS = {
    # The example is a Horovod script, as a guide's reader has before converting it.
    "horovod": ("tf_sparse_strategy/collectives.py", "examples/convert/horovod_before.py"),
    "horovod.runner": ("tf_sparse_strategy/cluster/launch.py",),
    "keras.src": _KERAS_ADAPTERS,
    "tf_keras.src": _KERAS_ADAPTERS,
    "tensorflow.python": ("tf_sparse_strategy/extended/",),
    "tensorflow.tsl": ("tf_sparse_strategy/computing.py",),  # the profile's messages
}
EXEMPT_FROM_ADAPTERS = ("benchmarks/", "tests/", "tools/")
LONG_FILE, LONGEST_FILE = 350, 400  # lines


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def _package_of(path: str) -> str:
    return ".".join(pathlib.PurePosixPath(path).parts[:-1])


def _module_of(path: str) -> str:
    stem = pathlib.PurePosixPath(path).with_suffix("")
    return ".".join(part for part in stem.parts if part != "__init__")


def layer_of(module: str) -> int | None:
    """Returns the layer of a dotted name, None for a module that is not ours or has no layer."""
    for number, packages in enumerate(LAYERS):
        # The package's own entry is for itself alone: its modules have entries of their own.
        if module in packages or any(_within(module, p) for p in packages if p != "tf_sparse_strategy"):
            return number
    return None


def layer_violations(path: str, source: str) -> list[str]:
    """An import goes sideways or down."""
    if path.startswith(("tests/", "tools/")):
        return []
    own = layer_of(_module_of(path))
    if own is None:
        return [f"{path} is in no layer: add it to LAYERS in tools/house_rules.py"]
    found = []
    for name in sorted(imported_names(source, _package_of(path))):
        layer = layer_of(name)
        # A name that the package itself exports, as `tf_sparse_strategy.SparseStrategy`, is of its layer.
        if layer is None and _within(name, "tf_sparse_strategy"):
            layer = layer_of("tf_sparse_strategy")
        if layer is not None and layer > own:
            found.append(f"{path} (layer {own}) imports {name} (layer {layer}): an arrow up")
    return found


def adapter_violations(path: str, source: str) -> list[str]:
    """Private TensorFlow, private Keras and Horovod are each imported by their adapters alone."""
    if path.startswith(EXEMPT_FROM_ADAPTERS):
        return []
    found = []
    for name in sorted(imported_names(source, _package_of(path))):
        interface = max((i for i in ADAPTERS if _within(name, i)), key=len, default=None)
        if interface and not {path, path.rpartition("/")[0] + "/"} & set(ADAPTERS[interface]):
            found.append(f"{path} imports {name}: only {' and '.join(ADAPTERS[interface])} may")
    return found


def text_violations(path: str, source: str) -> list[str]:
    """No file is too long, no work is left as a note, no error is raised by mistake."""
    found = []
    lines = source.count("\n")
    if lines > LONGEST_FILE:
        found.append(f"{path} has {lines} lines; {LONGEST_FILE} is the limit: one concept per file")
    patterns = {
        r"\b(TO[D]O|FIX[M]E)\b": "a note of unfinished work: finish it or drop it",
        r"\braise NotImplemented\b": "raises a constant, a TypeError: name the real exception",
    }
    for pattern, reason in patterns.items():
        for match in re.finditer(pattern, source):
            line = source.count("\n", 0, match.start()) + 1
            found.append(f"{path}:{line}: {reason}")
    return found


def cpp_violations(path: str, source: str) -> list[str]:
    """C++ algorithms include no TensorFlow header; kernels/ and ops/ are the glue that does."""
    directories = pathlib.PurePosixPath(path).parts[:-1]
    if directories[0] != "custom_ops" or {"kernels", "ops"} & set(directories):
        return []
    headers = re.findall(r'^\s*#\s*include\s*[<"]((?:tensorflow|tsl|xla)/[^>"]*)', source, re.M)
    return [f"{path} includes {header}: algorithms stay free of TensorFlow" for header in headers]


def broken_links(path: str, documents: dict[str, str], exists: Callable[[str], bool]) -> list[str]:
    """A link of a document leads to a file, a folder or a heading that is there.

    Args:
      path: of the document.
      documents: all of them, by path.
      exists: whether there is a file or a folder of this path.
    """
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", _without_code(documents[path])):
        target, _, heading = link.partition("#")
        if "://" in target:
            continue
        to = posixpath.normpath(posixpath.join(posixpath.dirname(path), target)) if target else path
        headings = re.findall(r"^#+ (.*)$", _without_code(documents.get(to, "")), re.M)
        if not exists(to) or (heading and heading not in map(_anchor, headings)):
            found.append(f"{path}: nothing is at {link}")
    return found


def _without_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.S)


def _anchor(heading: str) -> str:
    """GitHub's name for a heading."""
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")


def long_files(sources: dict[str, str]) -> list[str]:
    """Returns the files above the length that a reader should question, as `path: lines`."""
    lengths = {path: source.count("\n") for path, source in sources.items()}
    return [f"{path}: {lines} lines" for path, lines in lengths.items() if lines > LONG_FILE]
