"""What the run can be told, and what it must reach."""

import dataclasses

from examples.common.settings import Settings, parse_phases, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """One training run.

    Raises:
      ValueError: a setting is out of range, or has no effect beside the others.
    """

    phases: tuple[tuple[int, int], ...] = setting(
        "Image sizes in pixels and their epochs, e.g. 8:13,12:11,16:4.", parse=parse_phases
    )
    optimizer: str = setting(
        "LARS is for large batches; SGD has a momentum of 0.9.",
        choices=("adam", "lars", "sgd"),
        lasting=True,
    )
    label_smoothing: float = setting("Part of a label that is spread over all classes.", 0.0)
    synthetic: bool = setting(
        "Train on noise instead of images, to measure speed.", False, lasting=True
    )
    output_dir: str = setting(
        "Where the picture, checkpoints and TensorBoard's logs go.", "build/digits"
    )
    check: bool = setting("Exit with code 1 below the goal; noise has none.", True)
    goal: float = setting("Test accuracy, 0 to 1, to be reached.", 0.97)

    def __post_init__(self):
        if not self.phases or any(size < 4 or epochs < 1 for size, epochs in self.phases):
            raise ValueError(
                f"phases={self.phases} must be pairs of a size of 4 pixels at least and 1 epoch at least."
            )
        super().__post_init__()
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing={self.label_smoothing} must be at least 0, below 1.")
        if self.pto is not None and self.optimizer != "lars":
            raise ValueError(f"pto={self.pto!r} must be none (--pto=none): {self.optimizer} takes no norms.")
        if not 0 <= self.goal <= 1:
            raise ValueError(f"goal={self.goal} must be an accuracy, 0 to 1.")

    @property
    def epochs(self) -> int:
        """Of all phases."""
        return sum(epochs for _, epochs in self.phases)


RECIPES = {
    "short": Config(phases=((8, 10),), global_batch_size=64, optimizer="adam", learning_rate=4e-3),
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
