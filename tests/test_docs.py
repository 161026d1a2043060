"""Documentation that is run: the examples in docstrings, and Python in README and two guides."""

import doctest
import importlib
import pathlib
import pkgutil
import re

import pytest

import tf_sparse_strategy

ROOT = pathlib.Path(__file__).parents[1]
MODULES = ["tf_sparse_strategy"] + [
    module.name
    for module in pkgutil.walk_packages(tf_sparse_strategy.__path__, "tf_sparse_strategy.")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    failures, _ = doctest.testmod(importlib.import_module(name), verbose=False)
    assert failures == 0


def test_the_main_docstrings_have_examples():
    finder = doctest.DocTestFinder()
    found = finder.find(importlib.import_module("tf_sparse_strategy.strategy"))
    assert any(test.examples for test in found)


@pytest.mark.parametrize("name", ["README.md", "docs/communication.md", "docs/what_to_know.md"])
def test_python_in_documents_runs(name, tmp_path, monkeypatch):
    import tf_sparse_strategy as tss

    monkeypatch.chdir(tmp_path)

    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.S)
    assert blocks
    for block in blocks:
        compile(block, name, "exec")
        if "model.fit" not in block:
            exec(block, {"tss": tss})


def test_a_wrong_example_is_found():
    def documented():
        """
        >>> 1 + 1
        3
        """

    [test] = doctest.DocTestFinder().find(documented, globs={})
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(test, out=lambda _: None)
    assert runner.summarize(verbose=False).failed == 1
