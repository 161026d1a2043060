"""What the run can be told, and what it must reach."""

import dataclasses

from absl import flags

Phases = tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class Config:
    """One training run.

    Args:
      phases: (image size in pixels, epochs) pairs, one after the other.
      global_batch_size: images per step, all workers together.
      optimizer: "adam" or "lars".
      learning_rate: the optimizer's peak rate, reached after 2/7 of the steps.
      label_smoothing: part of each label that is spread over all classes, 0 to 1.
      comm: how gradients are summed, e.g. "dense" or "torus2d"; after the sparse epochs if there are any.
      sparse_epochs: so many first epochs send `density` of the gradients' entries between nodes, the largest.
      density: part of the entries that the sparse epochs send.
      pto: whether LARS divides its norms over the workers: "auto" measures, "on", "off". None: as "auto".
      dtype: what layers compute in: "float32", "mixed_bfloat16" or "mixed_float16".
      resume: whether to save each epoch in `output_dir`, and to go on from what is there.
      seed: of the split, the initial weights and the order of the images.
      output_dir: where the picture, the logs and the checkpoints go.
      goal: test accuracy below which the run has failed.

    Raises:
      ValueError: a setting is out of range, or has no effect beside the others.
    """

    phases: Phases = ((8, 10),)
    global_batch_size: int = 64
    optimizer: str = "adam"
    learning_rate: float = 4e-3
    label_smoothing: float = 0.0
    comm: str = "dense"
    sparse_epochs: int = 0
    density: float | None = None
    pto: str | None = None
    dtype: str = "float32"
    resume: bool = False
    seed: int = 0
    output_dir: str = "build/digits"
    goal: float = 0.97

    def __post_init__(self):
        if not self.phases or any(size < 4 or epochs < 1 for size, epochs in self.phases):
            raise ValueError(
                f"phases={self.phases} must be pairs of a size of 4 pixels at least and 1 epoch at least."
            )
        for name in ("global_batch_size", "learning_rate"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)} must be positive.")
        for name, choices in CHOICES.items():
            if getattr(self, name) not in (choices if name != "pto" else [None, *choices]):
                raise ValueError(f"{name}={getattr(self, name)!r} must be one of {choices}.")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing={self.label_smoothing} must be at least 0, below 1.")
        if not 0 <= self.sparse_epochs <= self.epochs:
            raise ValueError(
                f"sparse_epochs={self.sparse_epochs} must be 0 to {self.epochs}, the sum of the phases."
            )
        if (self.density is None) != (self.sparse_epochs == 0):
            raise ValueError(
                f"density={self.density} must be given with sparse_epochs={self.sparse_epochs}, or neither."
            )
        if self.pto is not None and self.optimizer != "lars":
            raise ValueError(f"pto={self.pto!r} must be left out: {self.optimizer} takes no norms.")
        if not 0 <= self.goal <= 1:
            raise ValueError(f"goal={self.goal} must be an accuracy, 0 to 1.")

    @property
    def epochs(self) -> int:
        """Of all phases."""
        return sum(epochs for _, epochs in self.phases)


CHOICES = {
    "optimizer": ["adam", "lars"],
    "pto": ["auto", "on", "off"],
    "dtype": ["float32", "mixed_bfloat16", "mixed_float16"],
}
RECIPES = {
    "short": Config(),
    # The 28-epoch recipe of ImageNet records in small: sizes grow, communication turns exact half-way.
    "record": Config(
        phases=((8, 13), (12, 11), (16, 4)),
        global_batch_size=128,
        optimizer="lars",
        learning_rate=8.0,
        label_smoothing=0.1,
        comm="torus2d",
        sparse_epochs=13,
        density=0.01,
        pto="auto",
    ),
}


def parse_phases(text: str) -> Phases:
    """(size, epochs) pairs from SIZE:EPOCHS,...

    Example:
      >>> parse_phases("8:13,12:11")
      ((8, 13), (12, 11))
    """
    try:
        return tuple((int(s), int(e)) for s, e in (item.split(":") for item in text.split(",")))
    except ValueError:
        raise ValueError(
            f"phases={text!r} must be SIZE:EPOCHS,..., e.g. 8:13,12:11,16:4."
        ) from None


# Settings without a default here are the recipe's.
_RECIPE = flags.DEFINE_enum(
    "recipe", "short", list(RECIPES), "Where the other settings start from."
)
_SETTINGS = [
    flags.DEFINE_string("phases", None, "Image sizes and their epochs, e.g. 8:13,12:11,16:4."),
    flags.DEFINE_integer("global_batch_size", None, "Images per step, all workers together."),
    flags.DEFINE_enum("optimizer", None, CHOICES["optimizer"], "LARS is for large batches."),
    flags.DEFINE_float("learning_rate", None, "The optimizer's peak rate."),
    flags.DEFINE_float("label_smoothing", None, "Part of a label that is spread over all classes."),
    flags.DEFINE_string("comm", None, "How gradients are summed: dense, torus2d, auto, ..."),
    flags.DEFINE_integer("sparse_epochs", None, "First epochs that send the largest entries only."),
    flags.DEFINE_float("density", None, "Part of the entries that the sparse epochs send."),
    flags.DEFINE_enum(
        "pto", None, CHOICES["pto"], "Whether workers share the work on LARS's norms."
    ),
    flags.DEFINE_enum("dtype", None, CHOICES["dtype"], "What layers compute in."),
    flags.DEFINE_bool("resume", None, "Save each epoch in output_dir; go on from what is there."),
    flags.DEFINE_integer(
        "seed", None, "Of the split, the initial weights, the order of the images."
    ),
    flags.DEFINE_string("output_dir", None, "Where picture, TensorBoard's logs, checkpoints go."),
    flags.DEFINE_float("goal", None, "Test accuracy, 0 to 1, below which the exit code is 1."),
]


def from_flags() -> Config:
    """The run that the command line asks for."""
    given = {flag.name: flag.value for flag in _SETTINGS if flag.value is not None}
    if "phases" in given:
        given["phases"] = parse_phases(given["phases"])
    return dataclasses.replace(RECIPES[_RECIPE.value], **given)
