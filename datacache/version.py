"""What a decode function does, as a version string: for those who do not name one."""

import hashlib
import types
from collections.abc import Callable


def _describe(value, depth: int = 4) -> str:
    """Text that is the same in each run for code and plain values."""
    if isinstance(value, types.CodeType):
        consts = [_describe(const, depth) for const in value.co_consts]
        return f"code({value.co_code.hex()},{value.co_names},{value.co_varnames},{consts})"
    if isinstance(value, types.FunctionType) and depth:
        cells = [_describe(cell.cell_contents, depth - 1) for cell in value.__closure__ or ()]
        defaults = [_describe(default, depth - 1) for default in value.__defaults__ or ()]
        return f"function({_describe(value.__code__)},{cells},{defaults})"
    if isinstance(value, (int, float, str, bytes, bool, type(None))):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return str([_describe(one, depth) for one in value])
    return type(value).__qualname__


def of(decode: Callable) -> str:
    """A version that changes with the function's own code, defaults and captured plain values.

    Not with functions that it calls by name, nor with the library versions: who changes those names a
    `version`.

    Example:
      >>> of(lambda x: x + 1) == of(lambda x: x + 2)
      False
    """
    if not isinstance(decode, types.FunctionType):
        raise ValueError(
            f"decode is a {type(decode).__name__}, of which no version can be told: pass version=, a "
            "string that you change whenever decoding changes."
        )
    return "code-" + hashlib.sha256(_describe(decode).encode()).hexdigest()[:16]
