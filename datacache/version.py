"""What a function does, as a version string: for those who do not name one."""

import collections
import dis
import functools
import hashlib
import pathlib
import re
import types
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

# Whose repr() says all there is to say.
_OF_PYTHON = (type(None), type(...), bool, int, float, complex, str, bytes, range, pathlib.PurePath)
_PLAIN = (*_OF_PYTHON, np.dtype, tf.DType, tf.TensorShape, tf.TensorSpec)
_METHODS = (
    types.FunctionType, property, staticmethod, classmethod, functools.cached_property,
    functools.partialmethod, functools.singledispatchmethod,
)  # fmt: skip
_MARK = re.compile(r"_tf_|_keras_|\w*__$")  # attributes that TensorFlow, Keras and AutoGraph give functions


class _Opaque(Exception):
    """A value of which no text can be made that changes when it does."""


class _Describer:
    """Text that is the same in each run for code of the module `home` and for plain values."""

    def __init__(self, home: str):
        self._home = home
        self._seen: list[types.FunctionType] = []  # functions may call themselves, and each other

    def of(self, value, name: str) -> str:
        """The text; `name` is what errors call the value."""
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.ModuleType):
            return f"module({value.__name__})"
        if isinstance(value, type) and self._is_elsewhere(value):
            return f"class({value.__module__}.{value.__qualname__})"
        if isinstance(value, types.BuiltinFunctionType):  # len, or a method such as {}.get
            return f"builtin({value.__name__},{self.of(value.__self__, name)})"
        if isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
            return f"tensor({self.of(value.numpy(), name)})"
        if isinstance(value, np.ma.MaskedArray) or self._has_code(type(value)):
            raise _Opaque(f"{name}, a {type(value).__name__}")
        if isinstance(value, (np.ndarray, np.generic)):
            return self._array(np.asarray(value), name)
        if isinstance(value, _PLAIN):
            return f"{type(value).__name__}({value!r})"
        if isinstance(value, (tuple, list)):
            return f"{type(value).__name__}{[self.of(one, name) for one in value]}"
        if isinstance(value, (set, frozenset)):
            return f"set{sorted(self.of(one, name) for one in value)}"
        if isinstance(value, dict):
            made = self.of(value.default_factory, name) if isinstance(value, collections.defaultdict) else ""
            return f"dict{made}{[(self.of(key, name), self.of(one, name)) for key, one in value.items()]}"
        raise _Opaque(f"{name}, a {type(value).__name__}")

    def _is_elsewhere(self, value) -> bool:
        """Whether it is another module's, under a name of its own there."""
        return value.__module__ != self._home and "<" not in value.__qualname__

    def _has_code(self, kind: type) -> bool:
        """Whether a class, or one that it is made of, has methods of this module's."""
        return any(
            getattr(function, "__module__", None) == self._home
            for base in kind.__mro__
            if base.__module__ == self._home
            for found in vars(base).values()
            if isinstance(found, _METHODS)
            for function in [getattr(found, n, None) for n in ("fget", "func", "__func__")] + [found]
        )

    def _function(self, function: types.FunctionType) -> str:
        if self._is_elsewhere(function):
            return f"function({function.__module__}.{function.__qualname__})"
        if function in self._seen:
            return f"function({self._seen.index(function)})"
        self._seen.append(function)
        code, names = function.__code__, function.__globals__
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        values = list(zip(code.co_freevars, cells, strict=True))
        values += [(name, names[name]) for name in sorted(set(_globals(code))) if name in names]
        refers = [(name, self.of(value, name)) for name, value in values]
        defaults = self.of([function.__defaults__, function.__kwdefaults__], "a default")
        theirs = {key: own for key, own in vars(function).items() if not _MARK.match(key)}
        own = self.of(theirs, "an attribute") if theirs else ""
        return f"function({self._code(code)},{refers},{defaults}{own})"

    def _code(self, code: types.CodeType) -> str:
        consts = [
            self._code(const) if isinstance(const, types.CodeType) else self.of(const, "a constant")
            for const in code.co_consts
        ]
        takes = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        return f"code({code.co_code.hex()},{takes},{code.co_names},{code.co_varnames},{consts})"

    def _array(self, array: np.ndarray, name: str) -> str:
        if array.dtype.hasobject:  # its bytes are addresses
            return f"array({array.shape},{self.of(array.tolist(), name)})"
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return f"array({array.shape},{array.dtype},{hashlib.sha256(data).hexdigest()})"


def _globals(code: types.CodeType) -> Iterator[str]:
    """Global names that code and the functions inside it load."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _globals(const)


def of(function: Callable, argument: str = "version") -> str:
    """A version that changes with what a function does, as far as its module says that.

    It follows from the function's code, defaults and attributes, from the variables and globals that it
    refers to, and from those functions among them that are of the same module. Of other modules only the
    names count: who changes what is there, or the version of a library, changes the version by hand.

    Args:
      function: e.g. decode.
      argument: what errors ask for instead.

    Raises:
      ValueError: the function refers to something, such as an object, whose changes cannot be noticed.

    Example:
      >>> of(lambda x: x + 1) == of(lambda x: x + 2)
      False
    """
    try:
        if not isinstance(function, types.FunctionType):
            raise _Opaque(f"{function!r}, a {type(function).__name__}")
        text = _Describer(function.__module__).of(function, "")
    except _Opaque as found:
        raise ValueError(
            f"{getattr(function, '__qualname__', 'The function')} depends on {found}, whose changes "
            f"cannot be noticed: pass {argument}=, a string that you change whenever the results do."
        ) from None
    return "code-" + hashlib.sha256(text.encode()).hexdigest()[:16]
