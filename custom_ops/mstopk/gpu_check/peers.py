"""Adds torch.topk and jax.lax.top_k, where installed, to the times in a result of gpu_check.

python3 peers.py RESULT.json

Both get |x| made beforehand, which is not timed. Times are the host's, of calls in a row.
"""

import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

SIZES = (1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 27)
SHARES = (1000, 100)  # k = n / share
ROUNDS = 20
ROTATED_BYTES = 256 << 20  # several times any second-level cache


def measure(
    what: str, n: int, k: int, call: Callable[[int], None], wait: Callable[[], None]
) -> dict:
    """Times of call(number), microseconds; `number` rotates among buffers."""
    calls = 10 if n <= 1 << 22 else 1
    times = []
    for start in range(-1, ROUNDS):
        begin = time.perf_counter()
        for number in range(calls):
            call(start * calls + number)
        wait()
        times.append(1e6 * (time.perf_counter() - begin) / calls)
    times = sorted(times[1:])  # the first warms up
    median = statistics.median(times)
    print(f"{what:36} n={n} k={k} {median:10.1f} us", flush=True)
    p10, p90 = times[ROUNDS // 10], times[ROUNDS * 9 // 10]
    return {"what": what, "n": n, "k": k, "median_us": median, "p10_us": p10, "p90_us": p90}


def buffers(n: int) -> int:
    return max(1, ROTATED_BYTES // (4 * n))


def torch_times() -> tuple[str, list[dict]]:
    import torch

    timings = []
    for n in SIZES:
        x = torch.randn(buffers(n), n, device="cuda").abs()
        for k in (n // share for share in SHARES):

            def call(number: int, x: torch.Tensor = x, k: int = k) -> None:
                torch.topk(x[number % len(x)], k, sorted=False)

            timings.append(measure("torch.topk", n, k, call, torch.cuda.synchronize))
    return torch.__version__, timings


def jax_times() -> tuple[str, list[dict]]:
    import jax

    top_k = jax.jit(jax.lax.top_k, static_argnums=1)
    timings = []
    for n in SIZES:
        keys = jax.random.split(jax.random.key(0), buffers(n))
        x = [abs(jax.random.normal(key, (n,))) for key in keys]
        for k in (n // share for share in SHARES):
            results = [top_k(x[0], k)]

            def call(number: int, x: list = x, k: int = k, results: list = results) -> None:
                results[0] = top_k(x[number % len(x)], k)

            def wait(results: list = results) -> None:
                jax.block_until_ready(results)

            timings.append(measure("jax.lax.top_k", n, k, call, wait))
    return jax.__version__, timings


def main(path: str) -> None:
    with open(path) as file:
        result = json.load(file)
    for name, times in (("torch", torch_times), ("jax", jax_times)):
        if importlib.util.find_spec(name) is None:
            print(f"{name} is not installed: not measured")
            continue
        result[name], timings = times()
        result["timings"] += timings
    with open(path, "w") as file:
        json.dump(result, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
