"""What the run can be told, and what it must reach."""

import dataclasses

from absl import flags


@dataclasses.dataclass(frozen=True)
class Config:
    """One training run.

    Args:
      epochs: passes over the 1,347 training images.
      global_batch_size: images per step, all workers together.
      learning_rate: Adam's peak rate; it falls to zero along a cosine.
      communication: how gradients are summed, e.g. "dense" or "torus2d".
      seed: of the split, the initial weights and the order of the images.
      output_dir: where the picture and the logs go.
      goal: test accuracy below which the run has failed.

    Raises:
      ValueError: a number is out of range.
    """

    epochs: int = 10
    global_batch_size: int = 64
    learning_rate: float = 4e-3
    communication: str = "dense"
    seed: int = 0
    output_dir: str = "build/digits"
    goal: float = 0.97

    def __post_init__(self):
        for name in ("epochs", "global_batch_size", "learning_rate"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)} must be positive.")
        if not 0 <= self.goal <= 1:
            raise ValueError(f"goal={self.goal} must be an accuracy, 0 to 1.")


_DEFAULT = Config()
_EPOCHS = flags.DEFINE_integer("epochs", _DEFAULT.epochs, "Passes over the training images.")
_BATCH = flags.DEFINE_integer(
    "global_batch_size", _DEFAULT.global_batch_size, "Images per step, all workers together."
)
_RATE = flags.DEFINE_float("learning_rate", _DEFAULT.learning_rate, "Adam's peak learning rate.")
_COMMUNICATION = flags.DEFINE_string(
    "communication", _DEFAULT.communication, "How gradients are summed: dense, torus2d, ..."
)
_SEED = flags.DEFINE_integer(
    "seed", _DEFAULT.seed, "Of the split, the initial weights and the order of the images."
)
_OUTPUT = flags.DEFINE_string(
    "output_dir", _DEFAULT.output_dir, "Where the picture and TensorBoard's logs go."
)
_GOAL = flags.DEFINE_float(
    "goal", _DEFAULT.goal, "Test accuracy, 0 to 1, below which the exit code is 1."
)


def from_flags() -> Config:
    """The run that the command line asks for."""
    return Config(
        epochs=_EPOCHS.value,
        global_batch_size=_BATCH.value,
        learning_rate=_RATE.value,
        communication=_COMMUNICATION.value,
        seed=_SEED.value,
        output_dir=_OUTPUT.value,
        goal=_GOAL.value,
    )
