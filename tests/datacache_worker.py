"""A process that uses a cache, for tests that kill it, run two, or take its room away.

    python -m tests.datacache_worker PATTERN MEMORY_DIR LOCAL_DIR EPOCHS

Prints "filling" before the first batch and the cache's numbers at the end; checks every batch.
"""

import json
import sys

import numpy as np

from tests import datacache_help as help_


def main() -> None:
    pattern, shm, local, epochs = sys.argv[1:]
    cache = help_.cache(pattern, shm, None if local == "-" else local)
    print("filling", flush=True)
    for epoch in range(int(epochs)):
        steps = cache.steps_per_epoch(16)
        dataset = cache.dataset(16, start=epoch * steps, epochs=epoch + 1)
        seen = np.concatenate(help_.numbers_of(dataset))
        assert sorted(seen.tolist()) == list(range(len(cache))), "a sample is missing or comes twice"
    print(json.dumps(cache.stats()))


if __name__ == "__main__":
    main()
