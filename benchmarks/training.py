"""Training in a loop of one's own, the same by every method that a benchmark compares."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import keras
import tensorflow as tf

if TYPE_CHECKING:  # which imports Horovod: TensorFlow's own strategy is measured without it
    from tf_sparse_strategy.collectives import Collectives

Step = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def with_optimizer(build: Callable[[], keras.Model]) -> keras.Model:
    """The model and its optimizer, from the same weights each time."""
    keras.utils.set_random_seed(1)
    model = build()
    model.optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    model.optimizer.build(model.trainable_variables)
    return model


def local_gradient(tape: tf.GradientTape, loss: tf.Tensor, variables: list) -> list:
    """Gradients of this worker's rows."""
    return tape.gradient(loss, variables)


def horovods_gradient(compression: str = "none"):
    """What a user of Horovod writes; its tape knows TensorFlow's variables, not Keras 3's.

    Args:
      compression: "none" or "fp16".
    """
    import horovod.tensorflow as hvd  # here: TensorFlow's own strategy is measured without it

    def gradient(tape, loss, variables):
        tape = hvd.DistributedGradientTape(
            tape, op=hvd.Sum, compression=getattr(hvd.Compression, compression)
        )
        return tape.gradient(loss, [v.value for v in variables])

    return gradient


def plain_step(model: keras.Model, rows: int, gradient=local_gradient) -> Step:
    """One step whose loss is this worker's share of the mean over `rows` rows of all workers."""

    def step(x, y):
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True)
            loss = tf.reduce_sum(losses) / rows
        variables = model.trainable_variables
        model.optimizer.apply(gradient(tape, loss, variables), variables)
        return loss

    return step


def under(strategy: tf.distribute.Strategy, step: Step) -> Step:
    """`step` as the strategy runs it."""
    return tf.function(lambda x, y: strategy.run(step, args=(x, y)))


def time_rounds(
    steps: dict[str, Step],
    batch: tuple[tf.Tensor, tf.Tensor],
    rounds: int,
    count: int,
    tell: Callable[[str], None],
    wait: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Lets the methods take turns, in alternating order.

    Args:
      steps: by method.
      batch: this worker's rows.
      rounds: turns of each method.
      count: steps of a turn that are timed; one that is not starts it.
      tell: is told of each round.
      wait: for the other workers, before a turn is timed.

    Returns:
      By method, seconds per step in each round, by this worker's clock.
    """
    times = {name: [] for name in steps}
    for number in range(rounds):
        for name in list(steps) if number % 2 else list(steps)[::-1]:
            step = steps[name]
            step(*batch)
            wait()
            begin = time.perf_counter()
            for _ in range(count):
                step(*batch)
            times[name].append((time.perf_counter() - begin) / count)
        latest = ", ".join(f"{name} {values[-1] * 1e3:.4g}" for name, values in times.items())
        tell(f"round {number + 1} of {rounds}, ms per step: {latest}")
    return times


def time_collectives(comm: Collectives, run: Callable[[], None]) -> tuple[float, float, dict[str, float]]:
    """Seconds of `run()`, those in which any collective is under way, and in collectives by "purpose.kind".

    `run` is traced with `comm.sites.timers`, and each of its collectives runs once.
    """
    from tf_sparse_strategy import stall  # here, as above

    before = {name: site.copy() for name, site in comm.sites.sites()}
    begin = time.perf_counter()
    run()
    whole, parts, bars = time.perf_counter() - begin, {}, []
    for name, site in comm.sites.sites():
        change = site - before.get(name, 0)
        if change[0]:
            kind = ".".join(name.split(".")[:2])
            parts[kind] = parts.get(kind, 0.0) + float(change[4] - change[3]) * 1e-6
            bars.append((int(change[3]), int(change[4])))
    return whole, sum(end - begin for begin, end in stall.union(bars)) * 1e-6, parts


def tell_of(rank: int) -> Callable[[str], None]:
    """Prints on rank 0 only."""
    return lambda text: print(text, flush=True) if rank == 0 else None
