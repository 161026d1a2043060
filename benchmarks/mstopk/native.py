"""The benchmark's C++ entry points (native.cc) as Python functions over numpy arrays."""

import ctypes
import pathlib

import numpy as np

LIBRARY = pathlib.Path("bazel-bin/benchmarks/mstopk/mstopk_bench.so")


class Native:
    """Loads the library; build it with `bazel build //benchmarks/mstopk:mstopk_bench.so`."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(LIBRARY.resolve(strict=True)))
        self._library.bench_instruction_set.restype = ctypes.c_char_p
        self._library.bench_one_read.restype = ctypes.c_int64
        self._library.bench_oracle_filter.restype = ctypes.c_int64

    def _call(self, name: str, *arguments: object) -> int:
        converted = [
            ctypes.c_void_p(a.ctypes.data) if isinstance(a, np.ndarray) else ctypes.c_int64(a)
            for a in arguments
        ]
        return getattr(self._library, name)(*converted)

    def instruction_set(self) -> str:
        return self._library.bench_instruction_set().decode()

    def one_read(self, x: np.ndarray, threads: int = 1) -> int:
        return self._call("bench_one_read", x, x.nbytes // 4, threads)

    def oracle_filter(self, x: np.ndarray, kth_key: int, out: tuple[np.ndarray, ...]) -> int:
        return self._call("bench_oracle_filter", x, x.size, kth_key, *out)

    def nth_element(self, x: np.ndarray, k: int, out: tuple[np.ndarray, ...]) -> None:
        self._call("bench_nth_element", x, x.size, k, *out)

    def top_k(self, x: np.ndarray, k: int, out: tuple[np.ndarray, ...], threads: int = 1) -> int:
        return self._call(f"bench_top_k{8 * x.itemsize}", x, x.size, k, threads, *out)

    def error_feedback(
        self,
        grad: np.ndarray,
        residual: np.ndarray,
        k: int,
        new_residual: np.ndarray,
        out: tuple[np.ndarray, ...],
    ) -> int:
        return self._call("bench_error_feedback", grad, residual, grad.size, k, 1, new_residual, *out)

    def add(self, grad: np.ndarray, residual: np.ndarray) -> None:
        self._call("bench_add", grad, residual, grad.size)
