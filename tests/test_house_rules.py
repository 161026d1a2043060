"""The checkout keeps its house rules, and each rule notices when it is broken."""

import pathlib
import warnings

import pytest

from tools import house_rules
from tools.bazel import add_targets, missing_targets, targets
from tools.python_imports import imported_names

ROOT = pathlib.Path(__file__).resolve().parents[1]
SOURCES = {path: (ROOT / path).read_text() for path in targets.source_files(ROOT)}
PYTHON = {path: source for path, source in SOURCES.items() if path.endswith(".py")}
CPP = {path: source for path, source in SOURCES.items() if path.endswith((".cc", ".h", ".cu"))}


def check(rule, sources: dict[str, str]) -> None:
    violations = [line for path, source in sources.items() for line in rule(path, source)]
    assert not violations, "\n".join(violations)


def test_there_is_something_to_check() -> None:
    assert "tests/test_house_rules.py" in PYTHON
    assert any(path.startswith("tf_sparse_strategy/") for path in PYTHON)


def test_layers() -> None:
    check(house_rules.layer_violations, PYTHON)


def test_adapters() -> None:
    check(house_rules.adapter_violations, PYTHON)


def test_text() -> None:
    check(house_rules.text_violations, SOURCES)


def test_cpp_algorithms_are_free_of_tensorflow() -> None:
    check(house_rules.cpp_violations, CPP)


def test_links_of_documents() -> None:
    places = [ROOT.glob("*.md"), *((ROOT / top).rglob("*.md") for top in ("docs", *targets.ROOTS))]
    documents = {p.relative_to(ROOT).as_posix(): p.read_text() for place in places for p in place}
    assert len(documents) > 40
    broken = [
        line
        for path in documents
        for line in house_rules.broken_links(path, documents, lambda to: (ROOT / to).exists())
    ]
    assert not broken, "\n".join(broken)


def test_long_files_are_reported() -> None:
    for line in house_rules.long_files(SOURCES):
        warnings.warn(f"more than {house_rules.LONG_FILE} lines: {line}", stacklevel=1)


def test_every_source_file_has_a_bazel_target() -> None:
    missing = targets.uncovered_files(ROOT, targets.read_tree(ROOT))
    assert not missing, f"`python -m tools.bazel.add_targets` helps: {missing}"


def test_every_test_file_is_run_by_bazel() -> None:
    tree = targets.read_tree(ROOT)
    run = {test for target in tree for test in target.tests}  # by a suite
    tests = {
        file
        for target in tree
        if target.rule == "tss_py_test" or target.label in run
        for file in target.files
    }
    files = [path for path in PYTHON if pathlib.PurePosixPath(path).name.startswith("test_")]
    missing = [path for path in files if targets.owner_of(path, {t: t for t in tests}) is None]
    assert not missing, f"no test target runs {missing}"


def test_bazel_deps_are_complete() -> None:
    missing = missing_targets.missing_deps(ROOT, targets.read_tree(ROOT))
    assert not missing, "\n".join(map(str, missing))


# Negative controls: each rule finds the breach in a made-up file, and only there.


@pytest.mark.parametrize(
    ("path", "source", "breaches"),
    [
        ("tf_sparse_strategy/collectives.py", "from tf_sparse_strategy import metrics", 1),
        ("tf_sparse_strategy/metrics.py", "from tf_sparse_strategy import collectives", 0),
        ("tf_sparse_strategy/metrics.py", "from tf_sparse_strategy import SparseStrategy", 1),
        ("tf_sparse_strategy/metrics.py", "def f():\n  import tf_sparse_strategy.extended", 1),
        ("tf_sparse_strategy/communication/dense.py", "from . import base", 0),
        ("tf_sparse_strategy/communication/dense.py", "from ..strategy import x", 1),
        ("tf_sparse_strategy/communication/hitopk.py", "import custom_ops.mstopk", 0),
        ("tf_sparse_strategy/extended/replicas.py", "from tf_sparse_strategy.strategy import x", 1),
        ("tf_sparse_strategy/__init__.py", "from .strategy import SparseStrategy", 0),
        ("tf_sparse_strategy/surprise.py", "", 1),
        ("custom_ops/mstopk/mstopk.py", "import tf_sparse_strategy as tss", 1),
        ("datacache/cache.py", "import lars_pto", 1),
        ("lars_pto/lars.py", "import tensorflow as tf\nfrom lars_pto import lamb", 0),
        ("lars_pto/norms.py", "import custom_ops", 0),
        ("lars_pto/norms.py", "from tf_sparse_strategy import collectives", 1),
        ("examples/digits/main.py", "import tf_sparse_strategy as tss", 0),
        ("tf_sparse_strategy/strategy.py", "from examples.digits import model", 1),
    ],
)
def test_layer_rule(path: str, source: str, breaches: int) -> None:
    assert len(house_rules.layer_violations(path, source)) == breaches


@pytest.mark.parametrize(
    ("path", "source", "breaches"),
    [
        ("tf_sparse_strategy/metrics.py", "import horovod.tensorflow as hvd", 1),
        ("tf_sparse_strategy/collectives.py", "import horovod.tensorflow as hvd", 0),
        ("tests/test_x.py", "import horovod.tensorflow as hvd", 0),
        ("tf_sparse_strategy/cluster/launch.py", "from horovod.runner import gloo_run", 0),
        ("tf_sparse_strategy/cluster/launch.py", "import horovod.tensorflow as hvd", 1),
        ("tf_sparse_strategy/collectives.py", "from horovod.runner import gloo_run", 1),
        ("tf_sparse_strategy/strategy.py", "from tensorflow.python.distribute import values", 1),
        ("tf_sparse_strategy/strategy.py", "from tensorflow import python", 1),
        ("tf_sparse_strategy/extended/replicas.py", "from tensorflow.python.distribute import values", 0),
        ("tf_sparse_strategy/strategy.py", "import tensorflow as tf", 0),
        ("tf_sparse_strategy/extended/replicas.py", "from keras.src import backend", 1),
        ("lars_pto/lars.py", "import tf_keras.src.optimizers", 1),
        ("tf_sparse_strategy/keras_hooks.py", "from keras.src import backend", 0),
    ],
)
def test_adapter_rule(path: str, source: str, breaches: int) -> None:
    assert len(house_rules.adapter_violations(path, source)) == breaches


@pytest.mark.parametrize(
    ("link", "breaches"),
    [
        ("b.md", 0),
        ("b.md#two-words-of-code", 0),
        ("#own", 0),
        ("https://example.org/x.md#y", 0),
        ("b.md#own", 1),
        ("../b.md", 1),
        ("c.py", 1),
    ],
)
def test_link_rule(link: str, breaches: int) -> None:
    documents = {"docs/a.md": f"# Own\n[x]({link})\n", "docs/b.md": "## Two [words](a.md) of `code`\n"}
    assert len(house_rules.broken_links("docs/a.md", documents, documents.__contains__)) == breaches


@pytest.mark.parametrize(
    ("source", "breaches"),
    [
        ("x = 1\n" * house_rules.LONGEST_FILE, 0),
        ("x = 1\n" * (house_rules.LONGEST_FILE + 1), 1),
        ("# TO" + "DO: later\n", 1),
        ("// FIX" + "ME\n", 1),
        ("raise " + "NotImplemented('x')\n", 1),
        ("raise NotImplementedError('x')\n", 0),
    ],
)
def test_text_rule(source: str, breaches: int) -> None:
    assert len(house_rules.text_violations("a.py", source)) == breaches


@pytest.mark.parametrize(
    ("path", "source", "breaches"),
    [
        ("custom_ops/x/x.cc", '#include "tensorflow/core/framework/op.h"', 1),
        ("custom_ops/x/x.h", '#include <vector>\n# include "tsl/platform/env.h"', 1),
        ("custom_ops/x/x.cc", '#include "custom_ops/x/x.h"  // not tensorflow/', 0),
        ("custom_ops/x/kernels/x.cc", '#include "tensorflow/core/framework/op.h"', 0),
        ("custom_ops/x/ops/x.cc", '#include "tensorflow/core/framework/op.h"', 0),
    ],
)
def test_cpp_rule(path: str, source: str, breaches: int) -> None:
    assert len(house_rules.cpp_violations(path, source)) == breaches


def test_long_file_rule() -> None:
    assert house_rules.long_files({"a.py": "\n" * 350, "b.py": "\n" * 351}) == ["b.py: 351 lines"]


def test_relative_imports_are_resolved() -> None:
    assert imported_names("from .. import c\nfrom .d import e", "a.b") == {"a.c", "a.b.d.e"}


@pytest.fixture
def made_up_tree(tmp_path: pathlib.Path) -> pathlib.Path:
    """A checkout whose BUILD files miss one file and one dependency."""
    (tmp_path / ".bazelignore").write_text(".venv\n")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "listed.py").write_text("from tools import also_listed, unlisted")
    (tools / "also_listed.py").write_text("")
    (tools / "unlisted.py").write_text("import tools.listed")
    (tools / "BUILD").write_text(
        'load("//tools/bazel:defs.bzl", "tss_py_library")\n'
        'package(default_visibility = ["//:__subpackages__"])\n'
        'tss_py_library(name = "listed")\n'
        '[tss_py_library(name = name) for name in ["also_listed"]]\n'
    )
    return tmp_path


def test_target_rules(made_up_tree: pathlib.Path) -> None:
    tree = targets.read_tree(made_up_tree)
    assert targets.uncovered_files(made_up_tree, tree) == ["tools/unlisted.py"]
    assert list(map(str, missing_targets.missing_deps(made_up_tree, tree))) == [
        "//tools:listed: tools/listed.py imports //tools:also_listed, which its deps do not list",
        "//tools:listed: tools/listed.py imports //tools:unlisted, which its deps do not list",
    ]


def test_missing_targets_and_deps_are_added(made_up_tree: pathlib.Path, monkeypatch) -> None:
    monkeypatch.chdir(made_up_tree)
    (made_up_tree / "tools" / "test_it.py").write_text("import tools.listed\nimport tools.unlisted")
    add_targets.main()
    tree = targets.read_tree(made_up_tree)
    assert targets.uncovered_files(made_up_tree, tree) == []
    assert missing_targets.missing_deps(made_up_tree, tree) == []
    assert (
        (made_up_tree / "tools" / "BUILD").read_text()
        == """\
load("//tools/bazel:defs.bzl", "tss_py_library", "tss_py_test")
package(default_visibility = ["//:__subpackages__"])
tss_py_library(
    name = "listed",
    deps = [
        ":also_listed",
        ":unlisted",
    ],
)
[tss_py_library(name = name) for name in ["also_listed"]]

tss_py_test(
    name = "test_it",
    deps = [
        ":listed",
        ":unlisted",
    ],
)

tss_py_library(
    name = "unlisted",
    deps = [":listed"],
)
"""
    )
