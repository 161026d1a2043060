"""What may be done to a table column by column, and what needs whole rows or the whole table.

A worker sees its columns only. An update that treats each element by itself is exact there; one that divides
by the norm of a row, a variable or all gradients is not, unless its sums are added up over the workers first.
"""

from typing import Any

from tf_sparse_strategy.embedding import slices

_ELEMENTWISE = {
    "Adadelta", "Adagrad", "Adam", "Adamax", "AdamW", "Ftrl", "LazyAdam", "Lion", "Nadam", "RMSprop", "SGD",
}  # fmt: skip
_REASONS = {
    "Adafactor": "it keeps means over rows and columns, and divides by the root mean square of a variable",
    "LAMB": "its trust ratio divides norms of the whole variable",
    "LARS": "its trust ratio divides norms of the whole variable",
    "Lamb": "its trust ratio divides norms of the whole variable",
    "Muon": "it orthogonalizes the whole matrix",
    "ScheduleFreeAdamW": "its slots start from the table, which is not tested on slices",
}
_KERASES = ("keras.", "tf_keras.", "tf_sparse_strategy.")


def refused_optimizer(optimizer: Any) -> str | None:
    """Why `optimizer` cannot update a slice of a table; None if it can, exactly.

    An optimizer of one's own may say that it is element-wise: `elementwise = True` on its class.
    """
    if getattr(optimizer, "elementwise", False):
        return None
    kind = _updating_class(optimizer)
    if kind is None:
        return "it is one of tf_keras.optimizers.legacy, which may clip by the norm of what a worker has"
    if wraps_another(optimizer):
        return None  # which is asked itself
    if kind.__module__.startswith(_KERASES) and kind.__name__ in _ELEMENTWISE:
        return None
    names = [c.__name__ for c in type(optimizer).__mro__]
    return next(
        (_REASONS[name] for name in names if name in _REASONS),
        "it is not known to treat each element by itself (if it does, set elementwise = True on its class)",
    )


def wraps_another(optimizer: Any) -> bool:
    """Whether `optimizer` of Keras 3 leaves updates to one within it, which is built as well."""
    return _updating_class(optimizer).__name__ == "BaseOptimizer"


def _updating_class(optimizer):
    return next((c for c in type(optimizer).__mro__ if "update_step" in vars(c)), None)


def build_for_columns(original, optimizer, variables):
    """A hook on tf_keras, before slots are made."""
    require_elementwise(optimizer, slices.first(variables))
    original(optimizer, variables)


def require_elementwise(optimizer: Any, table: Any) -> None:
    """Raises ValueError where `optimizer` cannot update exactly the slice `table`, None if there is none."""
    if table is None or table.partition.workers == 1:
        return
    reason = refused_optimizer(optimizer)
    if reason is not None:
        raise ValueError(
            f"{type(optimizer).__name__} cannot train the sharded table {table.name!r}: {reason}, and a "
            "worker sees only some columns. Use tss.optimizers.LazyAdam, Adam, Adagrad or SGD, or keep the "
            "table whole: keras.layers.Embedding."
        )


def require_no_loss_scale_factor(optimizer: Any, table: Any) -> None:
    """Raises ValueError where Keras would divide the rows of `table`'s gradient as if they were a tensor."""
    if optimizer.loss_scale_factor is not None:
        raise ValueError(
            f"{type(optimizer).__name__}(loss_scale_factor={optimizer.loss_scale_factor!r}): Keras cannot "
            f"divide a gradient of rows by it, as that of the table {table.name!r} is. Use "
            "keras.optimizers.LossScaleOptimizer, or the policy mixed_float16, which does."
        )


def refused_regularizer(regularizer: Any) -> str | None:
    """Why a table with `regularizer` cannot be sharded; None if it can."""
    if regularizer is None or type(regularizer).__name__ in ("L1", "L2", "L1L2"):
        return None
    return f"its regularizer {type(regularizer).__name__} is not known to be a sum over elements"


def refused_constraint(constraint: Any) -> str | None:
    """Why a table with `constraint` cannot be sharded; None if it can."""
    name = type(constraint).__name__
    if constraint is None or name in ("NonNeg", "NonNegative"):
        return None
    if name in ("MaxNorm", "MinMaxNorm", "UnitNorm"):
        if constraint.axis in (0, [0], (0,)):
            return None  # the norm of each column
        return f"its constraint {name}(axis={constraint.axis}) needs whole rows"
    return f"its constraint {name} is not known to act on single columns"
