"""What a run leaves: a line per epoch, dawnbench.tsv, and mllog.txt in the form of MLPerf. Rank 0's files."""

import json
import os
import pathlib
import sys
import time

import tensorflow as tf

from examples.common.schedule import RiseAndFall
from examples.resnet50.config import MOMENTUM, WEIGHT_DECAY, Config, Phase

_HEADER = "epoch\thours\ttop1Accuracy\ttop5Accuracy\n"


class MLLog:
    """Appends `:::MLLOG` lines to a file; with no file, does nothing.

    Args:
      path: None on all workers but the first.

    Source: https://github.com/mlcommons/logging
    """

    def __init__(self, path: str | os.PathLike | None):
        self._path = path

    def point(self, key: str, value=None, **metadata) -> None:
        """Something that holds, or happens now."""
        self._write("POINT_IN_TIME", key, value, metadata)

    def start(self, name: str, **metadata) -> None:
        """The beginning of an interval."""
        self._write("INTERVAL_START", f"{name}_start", None, metadata)

    def stop(self, name: str, **metadata) -> None:
        """Its end."""
        self._write("INTERVAL_END", f"{name}_stop", None, metadata)

    def _write(self, kind, key, value, metadata):
        if self._path is None:
            return
        caller = sys._getframe(2)
        place = {"file": caller.f_code.co_filename, "lineno": caller.f_lineno}
        line = {
            "namespace": "",
            "time_ms": int(time.time() * 1000),
            "event_type": kind,
            "key": key,
            "value": value,
            "metadata": place | metadata,
        }
        with open(self._path, "a") as file:
            file.write(f":::MLLOG {json.dumps(line)}\n")


class Results(tf.keras.callbacks.Callback):
    """Writes and prints what each epoch gave; after `CommunicationMonitor`, whose numbers it shows.

    Hours are those of training and validation since the first epoch began, tracing included; of a run that
    was resumed, those of the epochs that were done count.

    Args:
      config: the run.
      schedule: its learning rate.
      steps: per epoch, for each phase.
      first: whether this is the first worker, who writes.
      workers: P.
      done: epochs that an earlier run has left done.
    """

    def __init__(
        self,
        config: Config,
        schedule: RiseAndFall,
        steps: list[int],
        first: bool,
        workers: int,
        done: int,
    ):
        super().__init__()
        self._config, self._schedule = config, schedule
        self._first, self._workers = first, workers
        self._phases = [
            (phase, count)
            for phase, count in zip(config.phases, steps, strict=True)
            for _ in range(phase.epochs)
        ]
        folder = pathlib.Path(config.output_dir)
        self._table, log = folder / "dawnbench.tsv", folder / "mllog.txt"
        self._earlier, self._continues, self._is_over = 0.0, False, False
        self._began = self._number = None
        if first:
            folder.mkdir(parents=True, exist_ok=True)
            self._begin_table(done)
            self._begin_log(log, done)
        self.mllog = MLLog(log if first else None)
        if not self._continues:
            self.mllog.start("init")

    def _begin_table(self, done: int) -> None:
        rows = self._table.read_text().splitlines()[1:] if done and self._table.exists() else []
        rows = [row for row in rows if int(row.split("\t")[0]) <= done]
        if rows:
            self._earlier = float(rows[-1].split("\t")[1])
        self._table.write_text(_HEADER + "".join(f"{row}\n" for row in rows))

    def _begin_log(self, log: pathlib.Path, done: int) -> None:
        """Keeps what an earlier run has written up to its last epoch that counts."""
        lines = log.read_text().splitlines(keepends=True) if done and log.exists() else []
        ends = [number for number, line in enumerate(lines, 1) if '"key": "eval_accuracy"' in line]
        self._is_over = done >= len(self._phases) and bool(lines) and '"key": "run_stop"' in lines[-1]
        if not self._is_over:  # else it stopped then, not now
            lines = lines[: ends[:done][-1]] if ends else []
            log.write_text("".join(lines))
        self._continues = bool(lines)

    def begin(self, train_samples: int, eval_samples: int) -> None:
        """Starts the clock."""
        self._began = time.perf_counter()
        if not self._continues:
            self._begin_run(train_samples, eval_samples)

    def _begin_run(self, train_samples, eval_samples):
        config, log = self._config, self.mllog
        facts = {
            "submission_benchmark": "resnet",
            "seed": config.seed,
            "global_batch_size": config.global_batch_size,
            "train_samples": train_samples,
            "eval_samples": eval_samples,
            "opt_name": "lars",
            "lars_opt_base_learning_rate": config.learning_rate,
            "lars_opt_end_learning_rate": config.last_learning_rate,
            "lars_opt_learning_rate_warmup_epochs": config.warm_up_epochs,
            "lars_opt_learning_rate_decay_poly_power": 1,
            "lars_opt_learning_rate_decay_steps": sum(steps for _, steps in self._phases),
            "lars_opt_momentum": MOMENTUM,
            "lars_opt_weight_decay": WEIGHT_DECAY,
            "lars_epsilon": 0.0,
        }
        for key, value in facts.items():
            log.point(key, value)
        log.stop("init")
        log.start("run")

    # A block is what is trained between two validations: here an epoch.

    def on_epoch_begin(self, epoch, logs=None):
        self._number = epoch + 1
        self.mllog.start("block", first_epoch_num=self._number, epoch_count=1)
        self.mllog.start("epoch", epoch_num=self._number)

    def on_test_begin(self, logs=None):
        self.mllog.stop("epoch", epoch_num=self._number)
        self.mllog.stop("block", first_epoch_num=self._number)
        self.mllog.start("eval", epoch_num=self._number)

    def on_test_end(self, logs=None):
        self.mllog.stop("eval", epoch_num=self._number)

    def on_epoch_end(self, epoch, logs=None):
        self.mllog.point("eval_accuracy", float(logs["val_top1"]), epoch_num=self._number)
        if not self._first:
            return
        hours = self._earlier + (time.perf_counter() - self._began) / 3600
        top1, top5 = 100 * logs["val_top1"], 100 * logs["val_top5"]
        with open(self._table, "a") as file:
            file.write(f"{epoch + 1}\t{hours:.6f}\t{top1:.3f}\t{top5:.3f}\n")
        print(self._line(epoch, self._phases[epoch][0], logs), flush=True)

    def _line(self, epoch: int, phase: Phase, logs) -> str:
        steps = sum(count for _, count in self._phases[: epoch + 1])
        speed = logs["samples_per_second"]
        return (
            f"epoch {epoch + 1}/{self._config.epochs}  size {phase.size}  "
            f"rate {float(self._schedule(steps - 1)):.3g}  loss {logs['loss']:.3f}  "
            f"top-1 {logs['val_top1']:.2%}  top-5 {logs['val_top5']:.2%}  "
            f"images/s {speed:,.0f} ({speed / self._workers:,.0f} per worker)  "
            f"step {1e3 * logs['seconds_per_step']:,.1f} ms  "
            f"wire {logs['bytes_per_step'] / 1e6:,.2f} MB/step"
        )

    def end(self, reached: bool) -> None:
        """Stops the clock, unless an earlier run has stopped it."""
        if not self._is_over:
            self.mllog.stop("run", status="success" if reached else "aborted")
