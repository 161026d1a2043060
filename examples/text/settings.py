"""What every recipe for text can be told."""

import dataclasses

from examples.common.schedule import BY_STEPS
from examples.common.settings import Settings, parse_phases, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextSettings(Settings):
    """One training run on text.

    Raises:
      ValueError: a setting is out of range, or has no effect beside the others.
    """

    epochs: int = setting("How often the text is read.", positive=True)
    phases: tuple[tuple[int, int], ...] | None = setting(
        "Lengths of samples in words and their epochs, e.g. 10:2,20:8; by default, the size's own in all.",
        None,
        parse=parse_phases,
    )
    size: str = setting("The model's: see model.py.", choices=("tiny", "laptop", "paper"), lasting=True)
    sharded_embedding: bool = setting(
        "Divide the tables by columns over the workers; without it, each has them whole.", True
    )
    delay_rows: bool = setting(
        "Rows of the tables that the next batch does not read are exchanged during the next step.", False
    )
    optimizer: str = setting(
        "adam leaves rows alone that a step does not read; lamb, for large batches, takes whole tables.",
        "adam",
        choices=("adam", "lamb"),
        lasting=True,
    )
    clip: float | None = setting(
        "The norm of all gradients together is clipped to it; rows cannot be delayed then.",
        None,
        positive=True,
    )
    schedule: str = setting(
        "How the rate falls, once it has risen: linear to a hundredth, inverse_root of the steps, or halving "
        "four times in the last third.",
        "linear",
        choices=("linear", *BY_STEPS),
    )
    warm_up_steps: int | None = setting(
        "So many first steps until the rate peaks; by default a tenth of the run, by epochs.",
        None,
        positive=True,
    )
    text: str | None = setting(
        "A file with a text per line; by default, the docstrings of Python's standard library.",
        None,
    )
    synthetic: bool = setting(
        "Train on Zipf's law instead of text, to measure speed.", False, lasting=True
    )
    synthetic_steps: int = setting("Steps of an epoch, where synthetic.", 50, positive=True)
    goal: float | None = setting("What --check asks of the held-out text.", None, positive=True)

    @property
    def legacy(self) -> bool:
        """Whether the model is one of tf_keras."""
        return False

    def __post_init__(self):
        super().__post_init__()
        if self.pto is not None and self.optimizer != "lamb":
            raise ValueError(f"pto={self.pto!r} must be none (--pto=none): {self.optimizer} takes no norms.")
        if self.optimizer == "lamb" and self.sharded_embedding:
            raise ValueError(
                "optimizer='lamb' must be given with nosharded_embedding: it takes norms of whole tables."
            )
        if self.phases is not None and (
            sum(epochs for _, epochs in self.phases) != self.epochs or min(map(min, self.phases)) < 1
        ):
            raise ValueError(
                f"phases={self.phases} must be pairs of 1 and more, with epochs={self.epochs} in all."
            )
        if self.delay_rows and not self.sharded_embedding:
            raise ValueError(
                "delay_rows must be left out without sharded_embedding: whole tables' rows cannot be delayed."
            )
        if self.synthetic and self.text is not None:
            raise ValueError(f"text={self.text!r} must be left out where the data are synthetic.")
        if self.synthetic and self.check:
            raise ValueError("check must be left out: there is nothing to learn in synthetic data.")
        if self.check and self.goal is None:
            raise ValueError("goal must be given beside check: this recipe has none.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoModelSettings(TextSettings):
    """One training run on text of a recipe that the Model Garden has a model for."""

    model: str = setting(
        "keras, this recipe's own, in Keras 3; or garden, the TensorFlow Model Garden's, for tf_keras.",
        "keras",
        choices=("keras", "garden"),
        lasting=True,
    )

    @property
    def legacy(self) -> bool:
        """Whether the model is one of tf_keras."""
        return self.model == "garden"
