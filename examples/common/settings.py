"""What every recipe can be told. Flags follow from the fields (command_line.py): each is described once."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from tf_sparse_strategy import communication

DTYPES = ("float32", "mixed_bfloat16", "mixed_float16")


def setting(
    help: str,
    default: Any = dataclasses.MISSING,
    choices: Sequence[Any] | None = None,
    positive: bool = False,
    least: float | None = None,
    parse: Callable[[str], Any] | None = None,
    lasting: bool = False,
) -> Any:
    """A field of `Settings`.

    Args:
      help: what it is, as `--help` says it.
      default: none for what each recipe must give.
      choices: the values that are allowed; all if None.
      positive: whether it must be above 0.
      least: the lowest that is allowed; any if None.
      parse: from the flag's text to the value; None where the type says how.
      lasting: whether a run that is gone on with must have the same.
    """
    metadata = {
        "help": help, "choices": choices, "positive": positive, "least": least, "parse": parse,
        "lasting": lasting,
    }  # fmt: skip
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """One training run; recipes add fields of their own, among them `epochs`, or a property of that name.

    Raises:
      ValueError: a setting is out of range, is missing, or has no effect beside the others.
    """

    global_batch_size: int = setting(
        "Samples per step, all workers together.", positive=True, lasting=True
    )
    learning_rate: float = setting("The optimizer's peak rate.", positive=True)
    comm: str = setting(
        "How gradients are summed: dense, torus2d, auto, or another name of tss.communication but dgc; after "
        "the sparse epochs if there are any, where it cannot be auto.",
        "dense",
    )
    sparse_epochs: int = setting(
        "So many first epochs send only the largest entries of the gradients between nodes.", 0
    )
    density: float | None = setting(
        "Part of the entries that sparse epochs send, and comm where it is sparse; none: comm's own.", None
    )
    overlap: str = setting(
        "dear: half of each sum travels behind the next step's forward pass; with comm=dense only.",
        "none",
        choices=("none", "dear"),
    )
    pto: str | None = setting(
        "Whether workers share the work on the norms of LARS and LAMB; auto measures.",
        None,
        choices=(None, "auto", "on", "off"),
    )
    dtype: str = setting("What layers compute in.", "float32", choices=DTYPES)
    resume: bool = setting(
        "Save each epoch in output_dir, and go on from what is there; of a run like this one alone.", False
    )
    check: bool = setting("Exit with code 1 if the run does not reach its goal.", False)
    seed: int = setting("Of the weights, and of the order of the data.", 0, least=0, lasting=True)
    output_dir: str = setting("Where checkpoints, TensorBoard's logs and results go.")

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value, choices = getattr(self, field.name), field.metadata["choices"]
            if choices is not None and value not in choices:
                raise ValueError(f"{field.name}={value!r} must be one of {choices}.")
            if field.metadata["positive"] and value is not None and not value > 0:
                raise ValueError(f"{field.name}={value} must be positive.")
            least = field.metadata["least"]
            if least is not None and value is not None and not value >= least:
                raise ValueError(f"{field.name}={value} must be at least {least}.")
        if not 0 <= self.sparse_epochs <= self.epochs:
            raise ValueError(
                f"sparse_epochs={self.sparse_epochs} must be 0 to {self.epochs}, all epochs of the run."
            )
        if self.sparse_epochs and self.density is None:
            raise ValueError(f"sparse_epochs={self.sparse_epochs} needs a density, e.g. 0.01.")
        if self.comm == "dgc":
            raise ValueError(
                "comm='dgc' must be another, e.g. 'hitopk': no recipe has SGD without momentum."
            )
        if self.sparse_epochs and self.comm == "auto":
            raise ValueError("comm='auto' chooses in all epochs: give --sparse_epochs=0 beside it.")
        sparse = self.sparse_epochs or hasattr(communication.get(self.comm), "density")
        if self.density is not None and not 0 < self.density <= 1:
            raise ValueError(f"density={self.density} must be above 0, and 1 at most.")
        if self.density is not None and not sparse:
            raise ValueError(
                f"density={self.density} must be none with sparse_epochs=0 and comm={self.comm!r}, which is "
                "not sparse; or give --sparse_epochs."
            )

    def lasting(self) -> dict[str, Any]:
        """What a run that goes on from this one's checkpoint must have in common with it, by name."""
        fields = dataclasses.fields(self)
        kept = {field.name: getattr(self, field.name) for field in fields if field.metadata["lasting"]}
        # With float16 the checkpoint's optimizer is another one, which scales the loss.
        return kept | {"dtype_is_mixed_float16": self.dtype == "mixed_float16"}


def parse_phases(text: str) -> tuple[tuple[int, int], ...]:
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
