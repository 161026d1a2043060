"""A decode function's version: the same in each run, another one with each change that its module shows."""

import collections
import doctest
import functools
import subprocess
import sys
import typing

import numpy as np
import pytest
import tensorflow as tf

import datacache.version
from datacache.version import of

# `decode` with every kind of thing that a version follows; each change below is one of them.
MODULE = """
import collections, functools, pathlib
import numpy as np
import tensorflow as tf
SCALE = 2
MEANS = np.array([1.0, 2.0], np.float32)
NAMES = {"a": [1, (2, None)], "b": {3.0, b"4"}}
WORDS = np.array(["one", "two"], object)
def helper(x): return again(x) * SCALE
def again(x): return helper(x) if x is None else x
MADE = collections.defaultdict(lambda: 6)
def with_attribute(x): return x + with_attribute.more
with_attribute.more = 1
def maker(table, tensor, path=pathlib.Path("labels")):
    def decode(x, y=1, *, side=224):
        x = with_attribute(x) + MADE["z"]
        known = x in {1, 2, "three"}
        rows = [helper(x) + table["k"] for _ in range(y)]
        return rows, MEANS, NAMES, WORDS, len(path.name), tensor, known, side
    return decode
decode = maker({"k": 5}, tf.constant([1, 2]))
unrelated = object()
"""
CHANGES = [
    ("SCALE = 2", "SCALE = 3"),
    ("lambda: 6", "lambda: 7"),
    (".more = 1", ".more = 2"),
    ("y=1, *, side", "y=1, *z, side"),
    ("1.0, 2.0]", "1.0, 2.5]"),
    ("np.float32", "np.float64"),
    ("(2, None)", "(2, 0)"),
    ('b"4"', '"4"'),
    ('"two"], object', '"too"], object'),
    ("x) * SCALE", "x) / SCALE"),
    ("is None else x", "is None else -x"),
    ('"labels"', '"other"'),
    ("y=1", "y=2"),
    ("side=224", "side=192"),
    ('"three"}', '"four"}'),
    ('{"k": 5}', '{"k": 6}'),
    ("constant([1, 2])", "constant([1, 3])"),
    ("constant([1, 2])", "constant([1., 2.])"),
]


def version_of(module: str) -> str:
    names = {"__name__": "users"}
    exec(module, names)
    return of(names["decode"])


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_versions_follow_what_the_function_does(before, after):
    assert MODULE.count(before) == 1
    assert version_of(MODULE.replace(before, after)) != version_of(MODULE)


def test_versions_follow_nothing_else():
    for before, after in (("object()", "open"), ("SCALE = 2", "\n\nSCALE = 2")):
        assert version_of(MODULE.replace(before, after)) == version_of(MODULE)


def test_versions_are_the_same_in_each_run():
    script = "import tests.test_datacache_version as t; print(t.version_of(t.MODULE))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == version_of(MODULE), run.stderr  # the order of sets is another there


def test_functions_inside_and_around():
    def versions(scale):
        def plain(x):
            return x * scale

        def nested(x):
            return (lambda y: y * 2)(x) + plain(x)

        return of(plain), of(nested)

    assert versions(1) == versions(1)
    assert versions(1)[0] != versions(2)[0] and versions(1)[1] != versions(2)[1]


def test_functions_of_other_modules_count_by_name_unless_they_have_none():
    def calling(function):
        return of(lambda x: function(x))

    assert calling(tf.cast) == calling(tf.cast) != calling(tf.reshape)
    assert calling(len) != calling(sum)
    assert calling({"a": 1}.get) != calling({"a": 2}.get)
    assert calling(collections.OrderedDict) != calling(collections.Counter)
    # A closure that another module made: its name says nothing.
    assert calling(version_closure(1)) != calling(version_closure(2))


def version_closure(value):
    names = {"__name__": "elsewhere"}
    exec("def make(value):\n  def made(x): return x + value\n  return made", names)
    return names["make"](value)


class Mine:
    pass


class Settings(typing.NamedTuple):
    size: int = 8


class WithMethod(typing.NamedTuple):
    size: int = 8

    def scale(self, x):
        return x * self.size


class OfNames(dict):
    @property
    def first(self):
        return self["first"]


def test_tuples_with_names_count_by_what_they_hold():
    def using(settings):
        return of(lambda x: x * settings.size)

    assert using(Settings()) == using(Settings(8)) != using(Settings(9))


@pytest.mark.parametrize(
    "value",
    [
        Mine(),
        Mine,
        tf.function(lambda x: x),
        functools.partial(tf.cast, dtype=tf.int32),
        tf.Variable(1),
        np.array([Mine()]),
        np.ma.array([1, 2], mask=[True, False]),
        WithMethod(),
        OfNames(first=1),
        {"in": [Mine()]},
        tf.data.Dataset.range(3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_version_needs_one(value):
    with pytest.raises(ValueError, match="depends on value, a .*: pass version="):
        of(lambda x: (x, value))
    with pytest.raises(ValueError, match="depends on a default, a .*: pass version="):
        of(lambda x, y=value: x)


def test_what_is_no_function_needs_a_version():
    with pytest.raises(ValueError, match="pass version="):
        of(tf.function(lambda x: x))


def test_the_examples_of_the_module():
    assert doctest.testmod(datacache.version).failed == 0
