"""An optimizer like another one, with what its configuration leaves out."""

from collections.abc import Sequence
from typing import Any

from tf_sparse_strategy.hooking import while_set


def optimizer_like(optimizer: Any, copies: Sequence[tuple[Any, Any]]) -> Any:
    """A new one of Keras 3, with the same rates and exclusions from weight decay; it is not built.

    Schedules and functions are the very same: they may have no configuration. (A `MultiOptimizer` that
    chooses by a function is made from its configuration.)

    Args:
      optimizer: to be copied, with those in it.
      copies: (variable, its copy) for the model's variables.
    """
    wrapped = getattr(optimizer, "inner_optimizer", None)
    if wrapped is not None:  # one that scales the loss
        options = ("name", "initial_scale", "dynamic_growth_steps")
        return type(optimizer)(
            optimizer_like(wrapped, copies), **{name: getattr(optimizer, name) for name in options}
        )
    by_path = getattr(optimizer, "_optimizer_map", None)
    if hasattr(by_path, "default_optimizer"):  # one for some variables each
        made = {id(inner): optimizer_like(inner, copies) for inner in optimizer.optimizers}
        default, others = made[id(by_path.default_optimizer)], by_path.items()
        of_copy = type(by_path)(default, {path: made[id(inner)] for path, inner in others})
        return type(optimizer)(of_copy, optimizer.loss_scale_factor, optimizer.name)
    config, rate = configuration(optimizer), _rate_of_its_own(optimizer)
    if rate is not None:
        config["learning_rate"] = rate
    made = type(optimizer).from_config(config)
    excluded = getattr(optimizer, "_exclude_from_weight_decay", ())
    made._exclude_from_weight_decay = {
        made._var_key(copy) for variable, copy in copies if optimizer._var_key(variable) in excluded
    }
    made._exclude_from_weight_decay_pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    return made


def configuration(optimizer: Any) -> dict[str, Any]:
    """That of one of Keras 3; with a rate of 0 instead of a schedule or function, which may have none."""
    if _rate_of_its_own(optimizer) is None:
        return optimizer.get_config()
    with while_set(optimizer, _learning_rate=0.0):
        return {**optimizer.get_config(), "learning_rate": 0.0}


def _rate_of_its_own(optimizer):
    """The schedule or function that an optimizer has for a rate; None for a number, which is a variable."""
    rate = vars(optimizer).get("_learning_rate")
    return None if hasattr(rate, "assign") else rate
