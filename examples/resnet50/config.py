"""What the run can be told, and what it must reach."""

import dataclasses
from typing import Any, NamedTuple

from datacache import budget
from examples.common.settings import Settings, setting

MOMENTUM, WEIGHT_DECAY = 0.9, 1e-4  # of LARS
_IMAGENET = "imagenet"  # where it is looked for


class Phase(NamedTuple):
    """Epochs with images of one size.

    Attributes:
      size: height and width of the images that are trained on, in pixels.
      epochs: how many.
      batch: images per step, all workers together; 0 for `global_batch_size`.
      min_area: the smallest part of an image that is cut out, of its area.
      rectangles: whether validation keeps the images' aspect ratios instead of squares.
    """

    size: int
    epochs: int
    batch: int = 0
    min_area: float = 0.11
    rectangles: bool = False


_WORDS = (int, int, int, float, {"square": False, "rect": True}.__getitem__)


def parse_phases(text: str) -> tuple[Phase, ...]:
    """Phases from SIZE:EPOCHS[:BATCH[:MIN_AREA[:rect]]],...

    Example:
      >>> parse_phases("96:13,288:1:16384:0.5:rect")[1]
      Phase(size=288, epochs=1, batch=16384, min_area=0.5, rectangles=True)
    """

    def phase(words: list[str]) -> Phase:
        kinds = _WORDS[: len(words)]
        return Phase(*(kind(word) for kind, word in zip(kinds, words, strict=True)))

    try:
        return tuple(phase(item.split(":")) for item in text.split(","))
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"phases={text!r} must be SIZE:EPOCHS[:BATCH[:MIN_AREA[:rect]]],..., e.g. "
            "96:13,128:11,224:3,288:1:16384:0.5:rect."
        ) from None


def parse_sides(text: str) -> tuple[int, ...]:
    """Numbers from SIDE,..."""
    sides = tuple(int(side) if side.strip().isdecimal() else 0 for side in text.split(","))
    if min(sides) < 1:
        raise ValueError(f"canvases={text!r} must be SIDE,..., in pixels, e.g. 160,352.")
    return sides


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """One training run.

    Raises:
      ValueError: a setting is out of range, or has no effect beside the others.
    """

    model: str = setting(
        "resnet50; garden, the Model Garden's, for tf_keras; or tiny, with one narrow block per stage.",
        "resnet50",
        choices=("resnet50", "garden", "tiny"),
        lasting=True,
    )
    phases: tuple[Phase, ...] = setting(
        "SIZE:EPOCHS[:BATCH[:MIN_AREA[:rect]]],...: image sizes in pixels, their epochs, images per step if "
        "not global_batch_size, the smallest part of an image that is cut out (0.11), and whether "
        "validation is rectangular.",
        parse=parse_phases,
    )
    warm_up_epochs: float = setting("The rate rises so long.", positive=True)
    last_learning_rate: float = setting("The rate at the end.", least=0)
    label_smoothing: float = setting("Part of a label that is spread over all classes.", 0.1)
    data_dir: str = setting("ImageNet's TFRecords: train-00000-of-01024, ...", _IMAGENET)
    classes: int = setting("How many there are.", 1000, positive=True, lasting=True)
    label_offset: int = setting("Added to the records' labels, which begin with 1.", -1)
    synthetic: bool = setting(
        "Train on small images that are made in output_dir.", False, lasting=True
    )
    canvases: tuple[int, ...] = setting(
        "SIDE,...: images are kept decoded at these sizes; a phase takes the smallest that is 1.2 times "
        "its own, or the largest.",
        (160, 352),
        parse=parse_sides,
    )
    cache_dir: str | None = setting("Local directory for copies of the records.", None)
    cache_memory: str = setting(
        "Limit of each store of decoded images, per machine: auto, 20GB, or 0 for none. There is one for "
        "each canvas in use, of training and of validation.",
        "auto",
    )
    validation_batch_size: int = setting(
        "Images per validation step, all workers together.", 4096, positive=True
    )
    output_dir: str = setting(
        "Where checkpoints, TensorBoard's logs, dawnbench.tsv and mllog.txt go.", "build/resnet50"
    )
    goal: float = setting("Top-5 accuracy, 0 to 1, to be reached.", 0.93)

    def __post_init__(self):
        if not self.phases or any(
            p.size < 16 or p.epochs < 1 or p.batch < 0 or not 0 < p.min_area <= 1
            for p in self.phases
        ):
            raise ValueError(
                f"phases={self.phases} must have sizes of 16 pixels at least, 1 epoch at least, batches "
                "above 0 and areas above 0 and up to 1."
            )
        super().__post_init__()
        if not self.warm_up_epochs < self.epochs:
            raise ValueError(
                f"warm_up_epochs={self.warm_up_epochs} must be less than {self.epochs}, all epochs."
            )
        if self.last_learning_rate > self.learning_rate:
            raise ValueError(
                f"last_learning_rate={self.last_learning_rate} must be at most learning_rate="
                f"{self.learning_rate}, the peak, from which the rate falls."
            )
        if self.synthetic and self.data_dir != _IMAGENET:
            raise ValueError(
                f"data_dir={self.data_dir!r} must be left out where the data are synthetic; give "
                "--nosynthetic and --classes beside it, or another recipe."
            )
        try:
            budget.parse(self.cache_memory)
        except ValueError as error:
            raise ValueError(f"cache_{error}") from None
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing={self.label_smoothing} must be at least 0, below 1.")
        if not 0 <= self.goal <= 1:
            raise ValueError(f"goal={self.goal} must be an accuracy, 0 to 1.")

    @property
    def epochs(self) -> int:
        """Of all phases."""
        return sum(phase.epochs for phase in self.phases)

    def batch(self, phase: Phase) -> int:
        """Images per step, all workers together."""
        return phase.batch or self.global_batch_size

    def lasting(self) -> dict[str, Any]:
        """What a run that goes on must have in common with the one before, of fewer epochs or as many."""
        batches = [self.batch(phase) for phase in self.phases for _ in range(phase.epochs)]
        return super().lasting() | {f"batch_of_epoch_{i}": batch for i, batch in enumerate(batches)}

    def canvas(self, phase: Phase) -> int:
        """Height and width of the decoded images that a phase cuts from."""
        fitting = [side for side in self.canvases if side >= 1.2 * phase.size]
        return min(fitting, default=max(self.canvases))


RECIPES = {
    # The public entry of March 2020 behind the paper's 28 epochs, but for its momentum (README).
    "record": Config(
        phases=(
            Phase(96, 13),
            Phase(128, 11),
            Phase(224, 3),
            Phase(288, 1, batch=16384, min_area=0.5, rectangles=True),
        ),
        global_batch_size=32768,
        learning_rate=25.0,
        warm_up_epochs=14,
        last_learning_rate=0.2,
        comm="torus2d",
        sparse_epochs=13,
        density=0.01,
        pto="auto",
        dtype="mixed_float16",
    ),
    # The same path in seconds, on a laptop.
    "tiny": Config(
        model="tiny",
        synthetic=True,
        classes=8,
        phases=(Phase(32, 2), Phase(48, 2, batch=16, min_area=0.5, rectangles=True)),
        canvases=(40, 56),
        global_batch_size=32,
        validation_batch_size=16,
        learning_rate=5.0,
        warm_up_epochs=1,
        last_learning_rate=0.2,
        comm="torus2d",
        sparse_epochs=2,
        density=0.01,
        pto="auto",
        goal=0.95,  # of 8 classes: guessing reaches 0.625
    ),
}
