"""From what is known of all workers to the cause of a failure; pure.

| what is known                                           | verdict                                |
|---------------------------------------------------------|----------------------------------------|
| a worker raised an error of its own                     | ends the job                           |
| a worker's connection closed, and it had not said why   | ends the job: killed or crashed        |
| a worker has been silent for `silence_limit`            | ends the job: cut off, or stopped      |
| Horovod failed on a worker, or one has waited for       | ends the job: names who left before    |
| `silence_limit` while another's program had ended       |                                        |
| some wait in an operation that others have not called   | reported after `silence_limit`,        |
|                                                         | ends the job after `stall_limit`       |
| all wait, each for `silence_limit`, in none together    | ends the job: nobody can move          |

An operation that all workers wait in is on its way, however long it takes. Operations of one function do not
count as waits in none together: one worker may still compute what another waits for.
"""

import dataclasses
from collections.abc import Mapping, Sequence

_REMEDY = (
    "Every worker must make the same collective calls. fit, evaluate, predict, metric.result() and "
    "reset_state(), loading, and creating variables under the scope belong on all workers, not under "
    "`if rank == 0:`, and loops need as many steps on each; saving by Keras (model.save, save_weights, "
    "export) may stand there, but not of a model with sharded tables or ShardedUpdate, nor a checkpoint of "
    "strategy.residual."
)
_SHOWN = 4  # workers whose source line is printed


@dataclasses.dataclass(frozen=True)
class End:
    """How a worker's program ended.

    Args:
      said: False when its connection closed without a word.
      error: what it raised and where; None for nothing.
      consequence: whether the error is Horovod's, so that somebody else caused it.
      code: what it told `sys.exit`, after which error, where that is no success; "" for nothing.
      watched: False when it goes on, and nobody watches it any more.
    """

    said: bool = True
    error: str | None = None
    consequence: bool = False
    code: str = ""
    watched: bool = True


@dataclasses.dataclass(frozen=True)
class Worker:
    """What is known of one worker.

    Args:
      rank, host: who it is.
      silent: seconds since it was last heard.
      reachable: whether its machine takes what is sent to it.
      end: how its program ended, None while it runs.
      waits: the operations it waits in, and for how many seconds.
      line: the line of the user's program that its main thread is at.
    """

    rank: int
    host: str
    silent: float = 0.0
    reachable: bool = True
    end: End | None = None
    waits: Mapping[str, float] = dataclasses.field(default_factory=dict)
    line: str = ""

    @property
    def waiting(self) -> float:
        """Seconds of its longest wait."""
        return max(self.waits.values(), default=0.0)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A cause.

    Args:
      text: who did what, where, and the remedy.
      final: whether the job must end.
      stall: whether all workers live, so that none will get an error from Horovod.
      seconds: how long it has been so.
    """

    text: str
    final: bool = True
    stall: bool = False
    seconds: float = 0.0


def verdict(workers: Sequence[Worker], silence_limit: float, stall_limit: float) -> Verdict | None:
    """Returns the cause of what is wrong, None while nothing is.

    Args:
      workers: what is known of them.
      silence_limit, stall_limit: seconds, see the table above.

    Example:
      >>> live, dead = Worker(0, "vm1"), Worker(1, "vm2", end=End(said=False))
      >>> verdict([live, dead], 45, 1800).text
      'rank 1 (vm2) ended without a word: killed (out of memory? see dmesg there) or crashed.'
    """
    return (
        _raised(workers)
        or _died(workers)
        or _silent(workers, silence_limit)
        or _left(workers, silence_limit)
        or _stalled(workers, silence_limit, stall_limit)
    )


def _names(workers: Sequence[Worker]) -> str:
    word = "rank" if len(workers) == 1 else "ranks"
    return f"{word} " + ", ".join(f"{w.rank} ({w.host})" for w in workers)


def _raised(workers):
    guilty = [w for w in workers if w.end and w.end.error and not w.end.consequence]
    if not guilty:
        return None
    return Verdict("; ".join(f"{_names([w])} raised {w.end.error}" for w in guilty))


def _died(workers):
    dead = [w for w in workers if w.end and not w.end.said]
    if not dead:
        return None
    return Verdict(
        f"{_names(dead)} ended without a word: killed (out of memory? see dmesg there) or crashed."
    )


def _silent(workers, limit):
    silent = [w for w in workers if w.end is None and w.silent >= limit]
    if not silent:
        return None
    cut = [w for w in silent if not w.reachable]
    stopped = [w for w in silent if w.reachable]
    causes = []
    if cut:
        causes.append(
            f"{_names(cut)} did not answer for {_longest(cut):.0f} s, nor does the machine: it is down, or "
            "the network to it is cut."
        )
    if stopped:
        causes.append(
            f"{_names(stopped)} did not answer for {_longest(stopped):.0f} s, though the machine does: the "
            "process is stopped (SIGSTOP, a debugger), swapped out, or in an extension that keeps Python's "
            "lock. If it is only slow, raise SparseStrategy(silence_limit=...)."
        )
    return Verdict(" ".join(causes))


def _longest(workers) -> float:
    return max(w.silent for w in workers)


def _left(workers, limit):
    failed = any(w.end and w.end.consequence for w in workers)
    if not failed and all(w.end or w.waiting < limit for w in workers):
        return None
    ended = [w for w in workers if w.end and w.end.said and w.end.watched]
    gone = [w for w in ended if not (w.end.error or w.end.consequence)]
    if by_code := [w for w in gone if w.end.code]:
        return Verdict("; ".join(f"{_names([w])} ended the program with {w.end.code}" for w in by_code))
    if gone:
        return Verdict(
            f"{_names(gone)} ended the program, without an uncaught error (`raise SystemExit` is none), "
            f"while others still called. {_REMEDY}"
        )
    if not failed:
        return None
    quiet = [w for w in workers if w.end is None and w.silent >= limit / 4]
    if quiet:
        return Verdict(
            f"{_names(quiet)} did not answer for {_longest(quiet):.0f} s, and Horovod did not wait longer "
            "(HOROVOD_GLOO_TIMEOUT_SECONDS)."
        )
    return None


def _stalled(workers, silence_limit, stall_limit):
    alive = [w for w in workers if w.end is None]
    operations = {name for w in alive for name in w.waits}
    lacking = {name: [w for w in alive if name not in w.waits] for name in operations}
    waits = {
        name: max(w.waits.get(name, 0.0) for w in alive) for name in operations if lacking[name]
    }
    if not waits:
        return None
    operation = max(sorted(waits), key=waits.get)
    seconds = waits[operation]
    if seconds < silence_limit:
        return None
    nobody_can_move = (
        len(waits) == len(operations)
        and len({_function(name) for name in operations}) > 1
        and all(w.waiting >= silence_limit for w in alive)
    )
    return Verdict(
        _stall_text(alive, operation, lacking[operation], seconds),
        final=nobody_can_move or seconds >= stall_limit,
        stall=True,
        seconds=seconds,
    )


def _function(operation: str) -> str:
    """The function that the operation stands in (call_site.py); an eager one, which blocks, is by itself."""
    function = operation.split(".")[2]
    return operation if function == "eager" else function


def _stall_text(alive, operation, lacking, seconds) -> str:
    waiting = [w for w in alive if w not in lacking]
    lines = [
        f"{_names(lacking)} did not call '{operation}', for which {_names(waiting)} waited {seconds:.0f} s."
    ]
    for worker in [*lacking[:_SHOWN], *waiting[:_SHOWN]]:
        other = max(sorted(worker.waits), key=worker.waits.get, default=None)
        doing = f"waits in '{other}'," if other else "is"
        lines.append(f"  rank {worker.rank} {doing} at {worker.line}")
    return "\n".join([*lines, _REMEDY])
