"""What a run prints at its end."""

import operator
import resource
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence

import tf_sparse_strategy as tss


def speed_and_bytes(
    strategy: tss.SparseStrategy, history: Mapping[str, Sequence[float]]
) -> dict[str, str]:
    """Rows for `show`, from what `CommunicationMonitor` has added to Keras's history."""
    speeds = history["samples_per_second"]
    # The first epoch includes tracing the model.
    speed = statistics.median(speeds[1:] or speeds)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # Linux tells KiB
    return {
        "workers": str(strategy.topology.num_workers),
        "samples/s": f"{speed:,.1f}",
        "bytes on the wire": f"{history['bytes_per_step'][-1]:,.0f} per step, all workers together",
        "memory": f"{memory:.1f} GiB at most, this worker",
    }


def show(rows: Mapping[str, str]) -> None:
    """Prints names and values in two columns; rank 0's task."""
    width = max(map(len, rows)) + 2
    print(*(f"{name:{width}}{value}" for name, value in rows.items()), sep="\n", flush=True)


def verdict(
    strategy: tss.SparseStrategy,
    name: str,
    value: float,
    goal: float,
    reaches: Callable[[float, float], bool] = operator.ge,
    form: str = ".2%",
) -> int:
    """The exit code of a run that was to reach `goal`; the first worker says where it did not. Collective.

    Args:
      strategy: of the run.
      name: of what is measured.
      value: its value.
      goal: for it.
      reaches: whether a value is good enough for a goal; False of NaN.
      form: how both are printed.
    """
    failed = not reaches(value, goal)
    if failed and strategy.topology.rank == 0:
        print(
            f"FAILED: {name} {value:{form}} misses the goal of {goal:{form}} (--goal); more epochs may help.",
            file=sys.stderr,
        )
    # A launcher ends all workers once one has failed: not before the first has told its part.
    strategy.extended.collectives.barrier()
    return int(failed)
