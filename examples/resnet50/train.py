"""Training: plain Keras but for the lines that mention `tss`, `strategy`, `LARS` or DataCache."""

import dataclasses

import tensorflow as tf

import tf_sparse_strategy as tss
from datacache.callbacks import CacheMonitor
from examples.common import phases
from examples.common.keras_classes import LARS
from examples.common.precision import computing_in
from examples.common.saving import resumed
from examples.common.schedule import RiseAndFall
from examples.resnet50 import model as model_lib
from examples.resnet50.config import MOMENTUM, WEIGHT_DECAY, Config
from examples.resnet50.input import Data
from examples.resnet50.results import Results


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run gave: its history, and accuracy on the validation images."""

    history: dict[str, list[float]]
    top1: float
    top5: float


def make_optimizer(config: Config, schedule: RiseAndFall) -> tf.keras.optimizers.Optimizer:
    """LARS as in the public entry; biases and normalizations have neither decay nor a rate of their own."""
    return LARS(
        schedule,
        momentum=MOMENTUM,
        weight_decay=WEIGHT_DECAY,
        trust_coefficient=8e-4,
        nesterov=True,
        ratio_bounds=(1e-5, 1.0),
        parallel=config.pto or "auto",
    )


def make_model(
    config: Config, strategy: tss.SparseStrategy, schedule: RiseAndFall
) -> tf.keras.Model:
    """The network, compiled."""
    with strategy.scope(), computing_in(config.dtype):
        if config.model == "garden":
            model = model_lib.garden(config.classes)
        elif config.model == "tiny":
            model = model_lib.resnet(depth=14, width=8, classes=config.classes)
        else:
            model = model_lib.resnet(classes=config.classes)
        model.compile(
            optimizer=make_optimizer(config, schedule),
            loss=tf.keras.losses.CategoricalCrossentropy(
                from_logits=True, label_smoothing=config.label_smoothing
            ),
            # Weighted, since rows that only fill up a step of validation do not count.
            weighted_metrics=[
                tf.keras.metrics.CategoricalAccuracy("top1"),
                tf.keras.metrics.TopKCategoricalAccuracy(5, "top5"),
            ],
        )
    return model


def train(config: Config, strategy: tss.SparseStrategy, callbacks=()) -> Result:
    """Trains and validates one model; every worker calls this alike and gets the same result.

    Args:
      config: the run.
      strategy: as `examples.common.strategy.start` makes it.
      callbacks: more of Keras's.

    Raises:
      ValueError: a batch takes more images than there are.
    """
    tf.keras.utils.set_random_seed(config.seed)
    data = Data(config, strategy)
    steps = [data.steps(phase) for phase in config.phases]
    if not all(steps):
        batch = max(map(config.batch, config.phases))
        raise ValueError(
            f"global_batch_size={batch}, of a phase at least, is more than the {data.size('train')} images "
            "to train on; take a smaller one, or --recipe=tiny."
        )
    spans = [
        (count * phase.epochs, phase.epochs)
        for count, phase in zip(steps, config.phases, strict=True)
    ]
    rising = config.warm_up_epochs / config.epochs
    schedule = RiseAndFall(spans, config.learning_rate, rising, config.last_learning_rate)
    model = make_model(config, strategy, schedule)

    start, saving = resumed(config, model, strategy)
    topology = strategy.topology
    results = Results(config, schedule, steps, topology.rank == 0, topology.num_workers, start)
    results.begin(data.size("train"), data.size("validation"))
    monitor = tss.callbacks.CommunicationMonitor(log_dir=config.output_dir)

    def arguments(number: int, epochs: range) -> dict:
        phase = config.phases[number]
        validation, validation_steps = data.validation(phase)
        cache = CacheMonitor(data.cache("train", config.canvas(phase)))
        return {
            "x": data.training(phase, epochs.start),
            "steps_per_epoch": steps[number],
            "validation_data": validation,
            "validation_steps": validation_steps,
            "callbacks": [monitor, cache, results, *callbacks, *saving],
            "verbose": 0,
        }

    history = phases.fit(model, [phase.epochs for phase in config.phases], start, arguments)
    if history:
        top1, top5 = (history[name][-1] for name in ("val_top1", "val_top5"))
    else:
        validation, validation_steps = data.validation(config.phases[-1])
        found = model.evaluate(validation, steps=validation_steps, return_dict=True, verbose=0)
        top1, top5 = found["top1"], found["top5"]
    results.end(reached=top5 >= config.goal)
    return Result(history, top1, top5)
