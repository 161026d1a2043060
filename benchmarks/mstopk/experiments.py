"""The named experiments: each returns records of what was timed, on which input, and how long."""

import dataclasses
import functools
import os
from collections.abc import Callable

import ml_dtypes
import numpy as np
import tensorflow as tf

import custom_ops
from benchmarks.mstopk import peers
from benchmarks.mstopk.names import ADDITION, BURST, CHECKED, EAGERLY, INTO_GRAD
from benchmarks.mstopk.native import Native
from benchmarks.mstopk.timing import Contender, interleaved

CACHE_BYTES = 128 << 20  # buffers rotated among when cold: several times the last-level cache
LOG_SIZES = (18, 20, 22, 24, 26, 27)  # log2 of the number of elements
LOG_SIZE_OF_INPUTS = 24
LARGEST_LOG_SIZE_OF_PEERS = 24  # some take seconds beyond
SHARES = (1000, 100)  # elements per selected element
DISTRIBUTIONS = ("normal", "laplace", "lognormal", "mixed_scales", "clipped", "sparse")
DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)

Record = dict[str, object]


def vector(distribution: str, n: int) -> np.ndarray:
    """A float32 vector like a gradient of n elements."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(n, dtype=np.float32)
    if distribution == "laplace":
        x = rng.laplace(size=n).astype(np.float32)
    elif distribution == "lognormal":
        x = np.exp(3 * x)
    elif distribution == "mixed_scales":
        x[: n // 200] *= 1000
    elif distribution == "clipped":
        x = np.clip(x, -0.5, 0.5)
    elif distribution == "sparse":
        x[rng.random(n) > 0.005] = 0
    elif distribution != "normal":
        raise ValueError(f"distribution is {distribution!r}; it must be one of {DISTRIBUTIONS}.")
    return x


def tensor_of(x: np.ndarray) -> tf.Tensor:
    """A copy of x in TensorFlow's own memory."""
    return tf.raw_ops.DeepCopy(x=tf.constant(x))


def memory_of(tensor: tf.Tensor) -> np.ndarray:
    """Where the tensor lies: from the beginning of a cache line, in small pages, unlike numpy's arrays."""
    return np.asarray(memoryview(tensor))


def as_bits(x: np.ndarray) -> np.ndarray:
    return x.view({2: np.uint16, 4: np.uint32}[x.itemsize])


def outputs(k: int, itemsize: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Touched buffers for k values and indices, with the room that a scan may overrun."""
    value_type = {2: np.uint16, 4: np.uint32}[itemsize]
    return np.ones(k + 64, value_type), np.ones(k + 64, np.int32)


def zeros(n: int) -> np.ndarray:
    """float32 zeros that begin with a cache line, as TensorFlow's memory does."""
    room = np.zeros(n + 16, np.float32)
    return room[-room.ctypes.data % 64 // 4 :][:n]


@dataclasses.dataclass(frozen=True)
class Run:
    """What every experiment needs: the functions in C++, and how often to call."""

    native: Native
    quick: bool

    def time(
        self, contenders: dict[str, Contender], n: int, warm: bool = False, rounds: int | None = None
    ) -> dict[str, Record]:
        """`interleaved` in as many rounds as suit n elements."""
        rounds = rounds or int(np.clip((1 << 28) // n, 5, 100))
        return interleaved(contenders, 1 if self.quick else rounds, warm)


def named(timed: dict[str, Record], **facts: object) -> list[Record]:
    return [{"what": what, **facts, **times} for what, times in timed.items()]


def _selectors(native: Native, x: np.ndarray, k: int, cold: bool) -> dict[str, Contender]:
    """Everything that selects, and the floors, of the same memory; cold ones rotate among copies of x."""
    tensors = [tensor_of(x) for _ in range(1 + (CACHE_BYTES // x.nbytes if cold else 0))]
    copies = [memory_of(tensor) for tensor in tensors]
    kth_key = int(np.partition(as_bits(x) & np.uint32(0x7FFFFFFF), x.size - k)[x.size - k])
    out = outputs(k)

    def at(number: int) -> np.ndarray:
        return copies[number % len(copies)]

    def tensor(number: int) -> tf.Tensor:
        return tensors[number % len(copies)]

    contenders: dict[str, Contender] = {
        "one read": lambda i: native.one_read(at(i)),
        "oracle filter": lambda i: native.oracle_filter(at(i), kth_key, out),
        "mstopk": lambda i: native.top_k(at(i), k, out),
        EAGERLY: lambda i: custom_ops.mstopk(tensor(i), k),
    }
    if x.size > 1 << LARGEST_LOG_SIZE_OF_PEERS:
        return contenders
    return contenders | {
        "mstopk, num_samplings=30": lambda i: custom_ops.mstopk(tensor(i), k, num_samplings=30),
        "np.partition": lambda i: peers.numpy_partition(at(i), k),
        "std::nth_element": lambda i: native.nth_element(at(i), k, out),
        "tf.math.top_k": lambda i: peers.tf_top_k(tensor(i), k),
        "paper in TF ops, N=30": lambda i: peers.paper_in_tf_ops(tensor(i), k),
    }


def selection(run: Run) -> list[Record]:
    """All contenders and floors on normal float32 data, one thread, cold and warm."""
    native = run.native
    records = []
    for log_n in LOG_SIZES:
        n = 1 << log_n
        x = vector("normal", n)
        for k in (n // share for share in SHARES):
            for cold in (True, False) if x.nbytes < CACHE_BYTES // 4 else (True,):
                contenders = _selectors(native, x, k, cold)
                timed = run.time(contenders, n, warm=not cold)
                records += named(timed, n=n, k=k, cold=cold)
    return records


def numpy_dispatch(run: Run) -> list[Record]:
    """np.partition in this process, whose environment chooses numpy's code path."""
    native = run.native

    def contenders(x: np.ndarray, k: int) -> dict[str, Contender]:
        return {
            "one read": lambda i: native.one_read(x),
            "np.partition": lambda i: peers.numpy_partition(x, k),
        }

    disabled = os.environ.get("NPY_DISABLE_CPU_FEATURES", "")
    records = []
    for log_n in (20, 24):
        n = 1 << log_n
        x = vector("normal", n)
        for k in (n // share for share in SHARES):
            timed = run.time(contenders(x, k), n)
            records += named(timed, n=n, k=k, numpy_disabled=disabled)
    return records


def inputs(run: Run) -> list[Record]:
    """Distributions and dtypes, one thread, with the number of reads that each took."""
    native = run.native

    def contenders(bits: np.ndarray, k: int) -> dict[str, Contender]:
        out = outputs(k, bits.itemsize)
        return {
            "one read": lambda i: native.one_read(bits),
            "mstopk": lambda i: native.top_k(bits, k, out),
        }

    n = 1 << LOG_SIZE_OF_INPUTS
    records = []
    for distribution in DISTRIBUTIONS:
        x = vector(distribution, n)
        for dtype in DTYPES:
            bits = memory_of(tensor_of(as_bits(x.astype(dtype))))
            for k in (n // share for share in SHARES):
                reads = native.top_k(bits, k, outputs(k, bits.itemsize))
                timed = run.time(contenders(bits, k), n, rounds=9)
                facts = {"dtype": np.dtype(dtype).name, "distribution": distribution}
                records += named(timed, n=n, k=k, reads=reads, **facts)
    return records


def threads(run: Run) -> list[Record]:
    """One thread and two, interleaved."""
    native = run.native

    def contenders(x: np.ndarray, k: int, count: int) -> dict[str, Contender]:
        out = outputs(k)
        return {
            f"one read, {count} threads": lambda i: native.one_read(x, count),
            f"mstopk, {count} threads": lambda i: native.top_k(x, k, out, count),
        }

    records = []
    for log_n in (22, 24, 26):
        n = 1 << log_n
        x = memory_of(tensor_of(vector("normal", n)))
        for k in (n // share for share in SHARES):
            timed = run.time(contenders(x, k, 1) | contenders(x, k, 2), n)
            records += named(timed, n=n, k=k)
    return records


def fused(run: Run) -> list[Record]:
    """Error feedback against `residual += grad`, one thread, by where the new residual goes."""
    native = run.native

    def contenders(grad: np.ndarray, k: int) -> dict[str, Contender]:
        added, residual, apart, *taking_turns = (zeros(grad.size) for _ in range(5))
        taking_turns[0][:] = grad
        out = outputs(k)

        def checked(_):
            native.one_read(grad)
            native.add(grad, added)

        def into_grad(_):
            gradient, memory = taking_turns
            native.error_feedback(gradient, memory, k, gradient, out)
            taking_turns.reverse()  # what is now the residual is where the gradient was

        return {
            ADDITION: lambda i: native.add(grad, added),
            CHECKED: checked,
            INTO_GRAD: into_grad,
            "apart": lambda i: native.error_feedback(grad, residual, k, apart, out),
            "into residual": lambda i: native.error_feedback(grad, residual, k, residual, out),
        }

    records = []
    for log_n in (20, 22, 24, 26):
        n = 1 << log_n
        grad = memory_of(tensor_of(vector("normal", n)))
        for k in (n // share for share in SHARES):
            records += named(run.time(contenders(grad, k), n), n=n, k=k)
    return records


def short(run: Run) -> list[Record]:
    """What TensorFlow adds to short vectors, in bursts of calls: the cache holds what they need."""
    native = run.native

    def burst(call: Callable[[], object]) -> Contender:
        return lambda i: [call() for _ in range(BURST)]

    records = []
    for log_n in (16, 18, 20):
        n = 1 << log_n
        tensor = tensor_of(vector("normal", n))
        x = memory_of(tensor)
        for k in (n // share for share in SHARES):
            out = outputs(k)
            contenders = {
                "mstopk": burst(functools.partial(native.top_k, x, k, out)),
                EAGERLY: burst(functools.partial(custom_ops.mstopk, tensor, k)),
                "tf.reduce_max": burst(functools.partial(tf.reduce_max, tensor)),
                "tf.abs of nothing": burst(functools.partial(tf.abs, tf.zeros([0]))),
            }
            records += named(run.time(contenders, n, rounds=50), n=n, k=k)
    return records


EXPERIMENTS = {
    "selection": selection,
    "numpy_dispatch": numpy_dispatch,
    "inputs": inputs,
    "threads": threads,
    "fused": fused,
    "short": short,
}
