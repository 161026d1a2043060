"""The thread that reports, listens, judges, and ends the process when nothing else will.

Each worker tells rank 0, a few times per limit, which collectives it waits in and at which line of the
user's program it is; rank 0 answers that it lives. Rank 0 judges all workers, each of the others rank 0 and,
if it fails, itself (verdict.py). The first final verdict goes to everybody, is printed by everybody, and ends
the job:

* where Horovod noticed too, its error rises in the user's program, which ends as its author wants;
* a worker that stands in a collective for `_GRACE` seconds, or at its exit for `silence_limit`, or anywhere
  after `stall_limit` (`_GRACE` where all live and wait, as Horovod raises no error then), is ended here with
  exit code `EXIT_CODE`: its main thread is in C++ and would not come back.

Nothing runs per step: a place in the program counts its calls and their ends anyway (call_site.py), and this
thread reads the counters.
"""

import atexit
import contextlib
import dataclasses
import os
import secrets
import select
import sys
import threading
import time

from tf_sparse_strategy import agreement
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.launcher import host_name
from tf_sparse_strategy.watchdog import source_line
from tf_sparse_strategy.watchdog.channel import Channel
from tf_sparse_strategy.watchdog.horovod_errors import is_horovods
from tf_sparse_strategy.watchdog.verdict import End, Worker, verdict
from tf_sparse_strategy.watchdog.waits import Waits

EXIT_CODE = 75  # "temporary failure" in sysexits.h: start the job again, it will resume
_PATIENCE = 1.0  # seconds for a reader of what is printed
_GRACE = 5.0  # seconds for the program to end by itself after a verdict
_REPORTS_PER_LIMIT = 15
_SHORTEST_WAIT = 0.5  # seconds: what is shorter is not reported
_LAST_WORDS = 10.0  # seconds that a failed worker waits to hear what caused it
_GOODBYE = 10.0  # seconds that a worker waits, on a busy machine, until it has told how it ends


def watch(
    collectives: Collectives, silence_limit: float, stall_limit: float
) -> "Watchdog | None":
    """Starts watching; None for a single worker. Collective.

    Args:
      collectives: whose operations are watched.
      silence_limit, stall_limit: seconds; see `verdict`.

    Raises:
      RuntimeError: a worker cannot reach rank 0 beside Horovod.
    """
    topology = collectives.topology
    if topology.num_workers == 1:
        return None
    row = {"host": host_name()}
    with agreement.together(collectives):
        if topology.rank == 0:
            token = secrets.token_hex(16)
            channel = Channel(token)
            row |= {"address": channel.listen(), "token": token}
    rows = agreement.gather(row, collectives)
    with agreement.together(collectives):
        if topology.rank == 0:
            channel.admit(topology.num_workers)
        else:
            channel = Channel(rows[0]["token"])
            channel.connect(rows[0]["address"], topology.rank)
    hosts = [row["host"] for row in rows]
    return Watchdog(collectives, channel, hosts, silence_limit, stall_limit)


class Watchdog:
    """One worker's watch over a job; made by `watch`.

    Args:
      collectives: of this worker.
      channel: joined.
      hosts: of each rank.
      silence_limit, stall_limit: seconds.
    """

    def __init__(self, collectives, channel: Channel, hosts, silence_limit, stall_limit):
        self._waits = Waits(collectives.sites)
        self._channel = channel
        self._limits = silence_limit, stall_limit
        self._interval = min(silence_limit / _REPORTS_PER_LIMIT, 10.0)
        self._rank = collectives.topology.rank
        known = range(len(hosts)) if self._rank == 0 else (0, self._rank)
        self._workers = {rank: Worker(rank, hosts[rank]) for rank in known}
        self._heard = dict.fromkeys(known, time.monotonic())
        self._since: dict[tuple[str, int], float] = {}
        self._end: End | None = None  # how this program ends, once it does
        self._raised: BaseException | None = None
        self._left: End | None = None  # by `sys.exit` with a code that is no success
        self._stop = False
        self._told = threading.Event()  # the others know how this program ended
        self._decided = threading.Event()
        self._cause: str | None = None
        self._next_report = self._next_judgement = 0.0
        self._next_warning = silence_limit
        self._process = os.getpid()
        self._program = source_line.main_thread_program()
        self._excepthook, sys.excepthook = sys.excepthook, self._at_error
        self._sys_exit, sys.exit = sys.exit, self._at_sys_exit
        atexit.register(self._at_exit)
        self._thread = threading.Thread(target=self._run, name="tss_watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops watching."""
        atexit.unregister(self._at_exit)
        if sys.excepthook == self._at_error:
            sys.excepthook = self._excepthook
        if sys.exit == self._at_sys_exit:
            sys.exit = self._sys_exit
        self._stop = True
        with contextlib.suppress(OSError):
            self._channel.wake()

    # ---- the thread -----------------------------------------------------------------------------

    def _run(self):
        try:
            self._watch()
        except Exception as error:  # a fault of ours must not end the job under a false cause
            self._told.set()  # nobody will
            self._print(f"the watchdog failed, and the job goes on unwatched: {error!r}")
            with contextlib.suppress(Exception):
                self._channel.send(_of_end(End(watched=False)))

    def _watch(self):
        last = time.monotonic()
        while self._cause is None:
            arrived = self._channel.poll(self._interval)
            now = time.monotonic()
            if now - last > 3 * self._interval + 1:
                self._heard = {rank: now for rank in self._heard}  # it was us who slept
            last = now
            for rank, message in arrived:
                self._hear(rank, message, now)
            if self._stop:
                self._channel.send(_of_end(End()))
                self._channel.close()
                return
            self._report(now)
            ended = any(message is None or "end" in message for _, message in arrived)
            if ended or now >= self._next_judgement:
                self._next_judgement = now + self._interval
                self._judge(now)
        self._see_it_end()

    def _hear(self, rank, message, now):
        self._heard[rank] = now
        worker = self._workers[rank]
        if message is None:
            self._note_end(rank, worker.end or End(said=False))
        elif "end" in message:
            self._note_end(rank, End(**message["end"]))
        elif "verdict" in message:
            if self._rank == 0:  # about itself, or the sender: of others, rank 0 is the judge
                self._channel.send(message)
            self._decide(**message["verdict"])
        elif "waits" in message:
            self._workers[rank] = dataclasses.replace(worker, **message)

    def _note_end(self, rank, end):
        """And forgets waits, which may be over since they were told: what still waits is told again."""
        known = {r: dataclasses.replace(worker, waits={}) for r, worker in self._workers.items()}
        self._workers = known | {rank: dataclasses.replace(known[rank], end=end)}

    def _report(self, now):
        """Tells the others, when it is time, and notes for itself, how this worker is."""
        if self._end is None and self._raised is not None:
            if source_line.main_thread_program() is not self._program:
                self._end = _end_by(self._raised)
        if self._end is not None and not self._told.is_set():
            self._note_end(self._rank, self._end)
            self._channel.send(_of_end(self._end))
            if self._end.error or self._end.consequence:  # it prints the cause, too, and may be gone soon
                self._judge(now)
            self._told.set()
        if now < self._next_report:
            return
        self._next_report = now + self._interval
        self._since = {call: self._since.get(call, now) for call in self._waits.now()}
        waits = {name: now - since for (name, _), since in self._since.items()}
        mine = {
            "waits": {name: s for name, s in waits.items() if s >= _SHORTEST_WAIT},
            "line": source_line.main_thread_line(),
        }
        if self._rank == 0:
            self._workers[0] = dataclasses.replace(self._workers[0], **mine)
            self._channel.send({})  # rank 0 alone compares waits
        else:
            self._channel.send(mine)

    def _judge(self, now):
        if self._cause is not None:
            return
        others = [
            dataclasses.replace(
                worker, silent=now - self._heard[rank], reachable=self._channel.reaches(rank)
            )
            for rank, worker in self._workers.items()
            if rank != self._rank
        ]
        found = verdict([self._workers[self._rank], *others], *self._limits)
        if found is None:
            self._next_warning = self._limits[0]
        elif found.final:
            self._channel.send({"verdict": {"text": found.text, "stall": found.stall}})
            self._decide(found.text, found.stall)
        elif found.seconds >= self._next_warning:
            self._next_warning = 2 * found.seconds
            left = self._limits[1] - found.seconds
            self._print(f"{found.text}\nThe job will be ended in {left:.0f} s.")

    def _decide(self, text: str, stall: bool):
        if self._cause is None:
            self._cause, self._is_stall = text, stall
            self._print(f"the job ends: {text}")
            self._decided.set()

    def _see_it_end(self):
        """Ends the process where the program does not."""
        begin = changed = time.monotonic()
        before = None
        while True:
            now = time.monotonic()
            frame = source_line.main_thread_frame()
            where = id(frame), frame and frame.f_lasti, self._end, self._waits.now()
            if where != before:
                before, changed = where, now
            stands, lasts = now - changed, now - begin
            in_collective = bool(where[-1]) and stands >= _GRACE
            leaving = self._end is not None and stands >= self._limits[0]
            if in_collective or leaving or lasts >= (_GRACE if self._is_stall else self._limits[1]):
                self._print(f"ended, for the cause above, at {source_line.main_thread_line()}")
                # A reader that has paused is not waited for.
                last = threading.Thread(target=_flush_output, daemon=True)
                with contextlib.suppress(Exception):
                    last.start()
                    last.join(_PATIENCE)
                os._exit(EXIT_CODE)
            self._report(now)  # not judged any more, but rank 0 must not seem dead
            time.sleep(min(self._interval, 0.5))

    def _print(self, text: str):
        prefix = f"tf_sparse_strategy, rank {self._rank} ({self._workers[self._rank].host}): "
        lines = "".join(f"{prefix}{line}\n" for line in text.splitlines())
        left = lines.encode(errors="backslashreplace")  # names of files need not be Unicode
        with contextlib.suppress(OSError):  # nobody reads
            # Nor is a reader that has paused waited for: a thread that stands would seem to be dead.
            while left and select.select([], [2], [], _PATIENCE)[1]:
                left = left[os.write(2, left[: select.PIPE_BUF]) :]

    # ---- the end of the program -----------------------------------------------------------------

    def _at_error(self, kind, error, trace):
        """Notes what may end the main thread: before `_at_exit` Python waits for others, perhaps for ever."""
        self._excepthook(kind, error, trace)
        self._raised = error

    def _at_sys_exit(self, code=None, /):
        """Notes how a program that handles its errors itself ends: Python tells nobody later."""
        succeeds = code is None or (isinstance(code, int) and code == 0)
        if not succeeds and threading.current_thread() is threading.main_thread():
            error = sys.exc_info()[1]
            after = "" if error is None else f" after {_described(error)}"
            self._left = End(consequence=is_horovods(error), code=f"exit code {code!r}{after}")
        self._sys_exit(code)

    def _at_exit(self):
        """Runs before Horovod's own, which ends it on all workers."""
        if os.getpid() != self._process:
            return  # a fork
        said_before = self._decided.is_set()
        raised = getattr(sys, "last_value", None)
        self._end = self._end or (_end_by(raised) if raised else self._left or End())
        with contextlib.suppress(OSError):
            self._channel.wake()
        self._told.wait(_GOODBYE)
        if self._end.consequence and self._decided.wait(_LAST_WORDS) and said_before:
            self._print(f"the cause of the error above: {self._cause}")


def _flush_output() -> None:
    with contextlib.suppress(Exception):
        sys.stdout.flush()


def _of_end(end: End) -> dict:
    return {"end": dataclasses.asdict(end)}


def _end_by(error: BaseException) -> End:
    if isinstance(error, SystemExit):
        return End()
    return End(error=_described(error), consequence=is_horovods(error))


def _described(error: BaseException) -> str:
    return agreement.told(error)[:2000] + f"\n  at {source_line.error_line(error)}"
