"""Keras callbacks: what training costs on the wire, while it runs."""

import os
import time
import weakref

import keras
import tensorflow as tf
from absl import logging

from tf_sparse_strategy import keras_callers, metrics, scheme_metrics
from tf_sparse_strategy.communication import Dense, Float16, Guarded, OkTopK, Torus2D
from tf_sparse_strategy.communication.switching import Switching, within
from tf_sparse_strategy.hooking import extended_of
from tf_sparse_strategy.recorder import Recorder

_IN_TENSORBOARD_ALONE = "worker_bytes_per_step"
_begun: list["CommunicationMonitor"] = []  # and not ended


def _callback_classes() -> tuple[type, ...]:
    """The `Callback` of every Keras that is installed: ours is one of each."""
    try:
        import tf_keras
    except ImportError:
        return (keras.callbacks.Callback,)
    return (keras.callbacks.Callback, tf_keras.callbacks.Callback)


class CommunicationMonitor(*_callback_classes()):
    """Reports throughput and traffic of `fit` under a `SparseStrategy`. Pass it on all workers.

    Each epoch's Keras logs (progress bar, `History`, later callbacks such as `CSVLogger`) get

    - `samples_per_second`: rows of all workers, counted from the data, by wall time;
    - `seconds_per_step`;
    - `collectives_per_step`: collective operations one worker issued;
    - `bytes_per_step`: sent by all workers together; for their accuracy see traffic.py;
    - `cross_bytes_per_step`: the part of it that crossed between nodes;
    - `imbalance`: what the worker that sends most sends, by the mean of all.

    Under sparse communication also, and a warning at the epoch's end, or after `update_freq` steps, if a
    bucket's scheme has changed,

    - `scheme_changes`, of `Piecewise`, `Auto` and `Guarded(action="density")`: how often another scheme took
      over, each bucket counted;
    - `sparse_part`: of the gradients' elements, those whose last sum was sparse;
    - `threshold_hits`, `OkTopK` only: entries of the last step that passed the local threshold of the one
      before, divided by K; outside 2/3 to 5/4 the step found a new one;
    - `eps`, `Guarded` only: its last measured loss, the largest of all buckets;
    - `beyond_limit`, `Guarded` only: checks of buckets whose eps was above the limit.

    and with `scheme_freq=n`, from every n-th step,

    - `applied_density`: of the sums' elements, those that are not zero;
    - `residual_ratio`: the norm of what residuals hold by that of the gradients, over all workers.

    and with `trace`, once its steps are over,

    - `computation_stall`: seconds per step in which a worker did not compute, of the one that waits longest;
    - `overlap_ratio`: of the time in which workers communicated, the part in which they computed as well.

    `fit`'s own validation counts for nothing here; what other callbacks evaluate, predict or fit counts
    unless they come behind this one. The first epoch includes tracing the model.
    Cost: one all-gather of 40 bytes per worker and epoch, or per `update_freq` steps; under sparse
    communication one of 72 bytes more, and one at each epoch's beginning.

    Args:
      log_dir: where rank 0 writes the same numbers, and `worker_bytes_per_step` of the worker that
        sends most, for TensorBoard: `epoch_<name>` by epoch and `batch_<name>` by step. None (default):
        nowhere.
      update_freq: "epoch" (default), or an int n to write `batch_<name>` every n steps too.
      trace: local path of a Chrome trace (https://ui.perfetto.dev), written by rank 0, that shows when
        each rank communicated and computed. With "{rank}" in it, each rank writes its own, which are sent
        nowhere; `tss trace` joins them. A `tf.function` of yours must not have been called before. None
        (default): no trace.
      trace_steps: (first, end): the trace covers steps first <= step < end of this `fit`; default (10, 20).
        The first few include tracing the model; more than a few hundred make a large file.
      scheme_freq: None (default), or an int n to look at gradients, sums and residuals in every n-th step:
        one read of each, on the device. Of several monitors the first one's is taken.

    Raises:
      ValueError: an argument is out of range; or, when training begins, the model was not built under a
        `SparseStrategy`.

    Example:
      >>> import numpy, tf_sparse_strategy as tss
      >>> with tss.SparseStrategy().scope():
      ...     model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(1)])
      ...     model.compile(optimizer="sgd", loss="mse")
      >>> monitor = CommunicationMonitor()     # log_dir="logs", trace="trace.json"
      >>> history = model.fit(numpy.ones([8, 3]), numpy.ones([8]), verbose=0, callbacks=[monitor])
      >>> history.history["bytes_per_step"]    # one worker sends nothing
      [0.0]
    """

    _supports_tf_logs = True  # tf_keras: no need to fetch the batch's logs for us

    def __init__(
        self,
        log_dir: str | os.PathLike | None = None,
        update_freq: str | int = "epoch",
        trace: str | os.PathLike | None = None,
        trace_steps: tuple[int, int] = (10, 20),
        scheme_freq: int | None = None,
    ):
        super().__init__()
        for name, value, other in (
            ("update_freq", update_freq, "epoch"),
            ("scheme_freq", scheme_freq, None),
        ):
            if value != other and not (isinstance(value, int) and value > 0):
                raise ValueError(f"{name}={value!r} must be {other!r} or a positive int.")
        if "://" in str(trace):
            raise ValueError(f"trace={trace!r} must be a path on this machine's disks, e.g. 'trace.json'.")
        is_pair = isinstance(trace_steps, (tuple, list)) and len(trace_steps) == 2
        if not is_pair or not 0 <= trace_steps[0] < trace_steps[1]:
            raise ValueError(
                f"trace_steps={trace_steps} must be (first, end) with 0 <= first < end, e.g. (10, 20)."
            )
        self._log_dir = log_dir
        self._update_freq = update_freq
        self._trace_path = trace
        self._trace_steps = range(*trace_steps)
        self._scheme_freq = scheme_freq
        self._works_per_batch = update_freq != "epoch" or trace is not None
        self._strategy = self._writer = self._recorder = self._schemes = None
        self._in_use: tuple[dict[str, int] | None, float] | None = None  # schemes, changes until now
        self._told_of = None  # a weak reference to the strategy that this is of

    def on_train_begin(self, logs=None):
        strategy = self.model.distribute_strategy
        if extended_of(strategy) is None:
            raise ValueError(
                f"CommunicationMonitor needs a model of a SparseStrategy; this one's is "
                f"{type(strategy).__name__}. Build and compile it inside `with strategy.scope():`."
            )
        self._history = getattr(self.model, "history", None)  # each fit has its own
        for monitor in list(_begun):  # Keras tells nobody of the end of a fit that raised
            is_outer = monitor.model is not self.model and keras_callers.is_in_fit(monitor.model)
            if monitor is self or not (is_outer or monitor._history is self._history):
                monitor._end()
        _begun.append(self)
        self._strategy = strategy
        if self._told_of is None or self._told_of() is not strategy:  # whose changes are counted anew
            self._told_of, self._in_use = weakref.ref(strategy), None
        self._step = 0
        self._hidden = {}
        if self._log_dir is not None and strategy.topology.rank == 0:
            self._writer = tf.summary.create_file_writer(os.fspath(self._log_dir))
        if self._trace_path is not None:
            self._recorder = Recorder(strategy.extended.collectives, self._trace_steps)
        exact = isinstance(strategy.communication, (Dense, Float16, Torus2D))
        if strategy.topology.num_workers > 1 and not exact:
            self._schemes = _Schemes(self.model, self._scheme_freq)
        if self._trace_path is not None or (self._schemes and self._scheme_freq):
            keras_callers.trace_anew(self.model)  # with clock and probe

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._interval = _Stretch(self._strategy), _Stretch(self._strategy)
        self._epoch_step, self._before_epoch = None, self._step
        if self._schemes is not None:
            self._epoch.schemes = self._interval.schemes = self._schemes.gather()
            if self._in_use is None:  # it stays over all calls of fit
                self._in_use = None, self._epoch.schemes[0].changes

    def on_test_begin(self, logs=None):
        if self._strategy is not None:
            self._validation = _Stretch(self._strategy)

    def on_test_end(self, logs=None):
        if self._strategy is not None:
            self._epoch.leave_out(self._validation)

    def on_train_batch_begin(self, batch, logs=None):
        if self._epoch_step is None:
            self._epoch_step = int(batch)  # not 0 where tf_keras goes on within an epoch
        if self._recorder is not None:
            self._recorder.begin(self._step, keras_callers.steps_per_call(self.model))

    def on_train_batch_end(self, batch, logs=None):
        if not self._works_per_batch:
            return
        ran = int(batch) + 1 - self._epoch_step  # more than 1 with steps_per_execution
        self._epoch_step += ran
        if self._recorder is not None:
            self._recorder.end(self._step)
            if self._step < self._trace_steps.stop <= self._step + ran:
                self._finish_trace()
        self._step += ran
        if self._update_freq != "epoch" and self._step % self._update_freq < ran:
            rates, schemes = self._report("batch", self._interval, self._step)
            self._write("batch", rates, self._step)
            self._interval = _Stretch(self._strategy, schemes)

    def on_epoch_end(self, epoch, logs=None):
        # Keras tells the last call's steps as if it had been full.
        self._step = min(self._step, self._before_epoch + self._epoch.so_far()[0].steps)
        rates, _ = self._report("epoch", self._epoch, epoch)
        rates |= self._hidden
        if logs is not None:
            logs.update({name: rate for name, rate in rates.items() if name != _IN_TENSORBOARD_ALONE})
        self._write("epoch", rates, epoch)

    def on_train_end(self, logs=None):
        if self._recorder is not None:  # training ended before the traced steps did
            self._finish_trace()
        self._end()

    def _report(self, prefix, stretch, step):
        """(rates of a stretch that ends now, what schemes have done until now). Collective."""
        rates, now = stretch.rates(), None
        if self._schemes is not None:
            now = self._schemes.gather()
            rates |= self._schemes.rates(stretch.schemes, now)
            self._tell_changes(prefix, step, now[0].changes)
        return rates, now

    def _finish_trace(self):
        if self._recorder.has_recorded:
            self._hidden = self._recorder.write(os.fspath(self._trace_path))
        else:
            self._recorder.stop()
            if self._strategy.topology.rank == 0:
                steps = self._trace_steps
                logging.warning(
                    "No trace %s is written: none of the steps %d to %d was run; give trace_steps=(first, "
                    "end).",
                    self._trace_path,
                    steps.start,
                    steps.stop - 1,
                )
        self._recorder = None
        keras_callers.trace_anew(self.model)  # without the clock

    def _end(self):
        """Leaves the strategy as it was. Not collective."""
        if self in _begun:
            _begun.remove(self)
        if self._writer is not None:
            self._writer.close()
        if self._recorder is not None:
            self._recorder.stop()
        probed = self._schemes is not None and self._scheme_freq
        if probed:
            self._strategy.extended.gradients.probe = None
        if probed or self._recorder is not None:
            keras_callers.trace_anew(self.model)  # without clock and probe
        self._strategy = self._writer = self._recorder = self._schemes = None

    def _tell_changes(self, prefix: str, step: int, changes: float) -> None:
        """Rank 0 says which schemes have changed since the last report, also that of an earlier `fit`.

        Args:
          prefix: "epoch" or "batch".
          step: the epoch or the step.
          changes: how often another scheme took over until now.
        """
        if self._strategy.topology.rank:
            return
        before, self._in_use = self._in_use, (scheme_metrics.schemes_in_use(self.model), changes)
        if self._in_use == before:
            return
        (schemes, _), (earlier, count) = self._in_use, (before[0], int(changes - before[1]))
        if count:  # and not only layers thawed
            when = f"Epoch {step + 1}" if prefix == "epoch" else f"Step {step}"  # as Keras counts
            told = "%s: gradients are now summed by %s, before by %s (%d changes, each bucket counted)"
            logging.warning(told, when, schemes, earlier or "another scheme", count)
        if self._writer is not None:
            with self._writer.as_default():
                tf.summary.text(f"{prefix}_communication", str(schemes), step=step)

    def _write(self, prefix, rates, step):
        if self._writer is None:
            return
        with self._writer.as_default():
            for name, value in rates.items():
                tf.summary.scalar(f"{prefix}_{name}", value, step=step)
        self._writer.flush()


class _Stretch:
    """A stretch of training that begins now; `schemes`, what they have done until then."""

    def __init__(self, strategy, schemes=None):
        self._strategy, self.schemes = strategy, schemes
        self._counts = metrics.read(strategy)
        self._time = time.perf_counter()

    def so_far(self) -> tuple[metrics.Counts, float]:
        """(what this worker did since, seconds)."""
        counts = metrics.read(self._strategy) - self._counts
        return counts, time.perf_counter() - self._time

    def leave_out(self, other: "_Stretch") -> None:
        """Leaves out what happened since `other` began."""
        counts, seconds = other.so_far()
        self._counts += counts
        self._time += seconds

    def rates(self) -> dict[str, float]:
        """All workers' rates since. Collective."""
        counts, seconds = self.so_far()
        workers = metrics.gather(counts, self._strategy.extended.collectives)
        return metrics.rates(workers, seconds)


class _Schemes:
    """What sparse communication of a model's gradients does in a stretch of training, for the logs."""

    def __init__(self, model, freq: int | None):
        self._model, self._strategy = model, model.distribute_strategy
        self._freq = freq
        gradients = self._strategy.extended.gradients
        if freq and gradients.probe is None:  # another monitor of this `fit` may have one
            gradients.probe = scheme_metrics.GradientProbe(freq)
        self._probe = gradients.probe if freq else None

    def gather(self) -> list[scheme_metrics.SchemeCounts]:
        """What all workers know now. Collective."""
        mine = scheme_metrics.read(self._model, self._probe)
        return scheme_metrics.gather(mine, self._strategy.extended.collectives)

    def rates(
        self, before: list[scheme_metrics.SchemeCounts], now: list[scheme_metrics.SchemeCounts]
    ) -> dict[str, float]:
        """What applies of `scheme_metrics.rates`."""
        rates = scheme_metrics.rates(before, now)
        schemes = list(within(self._strategy.communication, self._strategy.topology))
        names = ["sparse_part"]
        names += ["scheme_changes"] if sum(not isinstance(s, Switching) for s in schemes) > 1 else []
        names += ["threshold_hits"] if any(isinstance(s, OkTopK) for s in schemes) else []
        names += ["eps", "beyond_limit"] if any(isinstance(s, Guarded) for s in schemes) else []
        names += ["applied_density", "residual_ratio"] if self._freq else []
        return {name: rates[name] for name in names}
