"""Tries sizes of buckets while `fit` trains: when to measure, when to turn to which, and that all do so."""

import functools
import statistics
import time
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from tf_sparse_strategy import agreement, keras_callers
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.overlap import kept, search
from tf_sparse_strategy.overlap.trials import Trials
from tf_sparse_strategy.overlap.update import ChunkedUpdate

_DISCARDED, _MEASURED = 2, 10  # calls of the train function in a trial: first ones are slower


class Tuner:
    """Finds the fastest size of buckets for one divided update.

    A trial is some calls of the model's train function, traced anew for the size. Its time is the median of
    the calls, of the slowest worker. Then rank 0 says which size is next, and after how many calls, so that
    trials cost no more than their part of the training time. Until then the best size so far is used, whose
    traced function is kept. Calls are counted, so that all workers turn to a size before the same call.

    Args:
      update: whose buckets are to be tuned.
      limit: of the training time, the part, at most, that trials may cost.
      facts: what tells this training from others, for the file in which rank 0 keeps what has been tried.
      collectives: of this worker. Collective: rank 0 looks for what earlier runs have tried.
    """

    def __init__(self, update: ChunkedUpdate, limit: float, facts: Mapping, collectives: Collectives):
        self._update, self._facts, self._collectives = update, facts, collectives
        found = agreement.gather(kept.read(facts) if self._leads else None, collectives)[0]
        self.trials = Trials(limit, found and found["trials"])
        self.is_done = bool(found) and found["done"]
        self._next, self._wait = update.fusion, 0  # the size of the next trial, calls until then
        self._restart()
        if found:
            update.rebucket(self.trials.best)
        if found and not self.is_done:
            self._decide()
            self.is_done = self._next == 0

    @property
    def _leads(self):
        return self._collectives.topology.rank == 0

    def _restart(self):
        self._discard, self._times, self._spent, self._calls, self._waited = _DISCARDED, [], 0.0, 0, 0

    def _drop_trial(self):
        self.trials.note_dropped(self._spent, self._calls)
        self._restart()

    def begin_call(self, model: Any, is_first: bool) -> None:
        """Before the train function of `model` is called; turns to another size if it is time.

        Args:
          model: of Keras 3.
          is_first: whether it is an epoch's first call, which gathers no weights and may wait for its data.
        """
        if _functions_of(model).get(self._update.fusion) is not model.train_function:  # made anew by others
            self._keep_only_this(model)
            self._drop_trial()
        if self._wait == 0:
            self._turn_to(self._next, model)
        if is_first:
            self._discard = max(self._discard, 1)
        self._is_first = is_first
        self._began = time.perf_counter()

    def end_call(self, model: Any) -> None:
        """After it. Collective at the end of a trial."""
        if self._wait > 0:
            self._wait -= 1
            self.trials.note_training(time.perf_counter() - self._began)
            return
        tf.test.experimental.sync_devices()
        seconds = time.perf_counter() - self._began
        if self._is_first and self._calls > 0:  # it may have waited for its data: no price of the trial
            self._waited += 1
        else:
            self._spent += seconds
            self._calls += 1
        if self._discard > 0:
            self._discard -= 1
            return
        self._times.append(seconds)
        if len(self._times) == _MEASURED:
            self._conclude(model)

    def end_training(self, model: Any) -> None:
        """When `fit` ends, maybe within a trial; what trains next begins with the best size so far."""
        self._drop_trial()
        if self.trials.seconds:
            self._decide()  # or calls too few for a trial would begin it again and again
            self._turn_to(self.trials.best, model)
            if self._leads:
                kept.write(self._facts, self.trials, done=False)
        _functions_of(model).clear()  # what trains next brings its own

    def _conclude(self, model):
        median = statistics.median(self._times)
        mine = tf.constant([median, self._spent + self._waited * median], tf.float64)
        slowest = self._collectives.all_reduce(mine, op="max", purpose="tuning")
        self.trials.note(self._update.fusion, *slowest.numpy().tolist(), self._calls + self._waited)
        self._decide()
        self._restart()
        self._turn_to(self.trials.best, model)
        self._keep_only_this(model)
        if self._leads:
            kept.write(self._facts, self.trials, done=self._next == 0)
        if self._next == 0:
            self._finish(model)

    def _decide(self):
        """Rank 0 says which size is tried next, 0 for none, and after how many calls. Collective."""
        size, wait = 0, 0
        if self._leads:
            size = search.suggest(self._sizes, self.trials.seconds) or 0
            wait = self.trials.calls_until_next()
        decided = self._collectives.broadcast(tf.constant([size, wait], tf.int64), purpose="tuning")
        self._next, self._wait = decided.numpy().tolist()

    @functools.cached_property
    def _sizes(self):
        return search.candidates(self._update.plan_of)

    def _finish(self, model):
        self.is_done = True
        _functions_of(model).clear()
        if self._leads:
            seconds = self.trials.seconds
            logging.info(
                "overlap: fusion=%d is the fastest of %s", self._update.fusion,
                {size: f"{value * 1e3:.3g} ms" for size, value in sorted(seconds.items())},
            )  # fmt: skip

    def _turn_to(self, size, model):
        if size == self._update.fusion:
            return
        self._update.rebucket(size)
        functions = _functions_of(model)
        if size in functions:
            model.train_function = functions[size]
        else:
            keras_callers.trace_anew(model)
            functions[size] = model.train_function

    def _keep_only_this(self, model):
        functions = _functions_of(model)
        functions.clear()
        functions[self._update.fusion] = model.train_function


def _functions_of(model: Any) -> dict[int, Any]:
    """Train functions by the size they were traced for: with the model that they hold, so that all can go."""
    return vars(model).setdefault("_functions_by_fusion", {})
