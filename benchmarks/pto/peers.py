"""What LARS is compared with: its norms and steps by ordinary operations, one tensor at a time."""

import importlib.util
import pathlib
import types
from collections.abc import Callable

import keras
import tensorflow as tf


def norms_one_by_one(weights, directions, decays) -> tf.Tensor:
    """`tf.norm` of each weight and direction, as tf-models-official's LARS takes them."""
    rows = [
        [tf.norm(w), tf.norm(x + c * w if c else x)]
        for w, x, c in zip(weights, directions, decays, strict=True)
    ]
    return tf.square(tf.cast(tf.stack([tf.stack(row) for row in rows]), tf.float64))


def official(name: str) -> types.ModuleType | None:
    """tf-models-official's "lars" or "lamb"; None where that package is not installed.

    Its file is loaded alone: the package around it needs many others, and brings another TensorFlow.
    """
    package = importlib.util.find_spec("official")
    if package is None:
        return None
    path = pathlib.Path(package.submodule_search_locations[0], f"modeling/optimization/{name}.py")
    spec = importlib.util.spec_from_file_location(f"official_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def official_lars(learning_rate: float, vectors: str) -> Callable | None:
    """Makes tf-models-official's own LARS; None where that package is not installed.

    Args:
      learning_rate: γ.
      vectors: pattern of the names of variables that neither decay nor have a rate of their own.
    """
    module = official("lars")
    if module is None:
        return None
    return lambda: module.LARS(
        learning_rate, weight_decay_rate=1e-4, exclude_from_weight_decay=[vectors]
    )


class PlainLARS(keras.optimizers.Optimizer):
    """LARS as one writes it with Keras: `update_step` takes the two norms of its own variable.

    The formula is that of tf-models-official's default (`variant="joint_norm"`).
    """

    momentum, decay, eta = 0.9, 1e-4, 0.001

    def build(self, variables):
        """Creates the velocities."""
        if not self.built:
            super().build(variables)
            self.velocities = self.add_optimizer_variables(variables, "velocity")

    def update_step(self, gradient, variable, learning_rate):
        """One variable's step."""
        velocity = self.velocities[self._get_variable_index(variable)]
        ratio = 1.0
        if len(variable.shape) > 1:
            gradient += self.decay * variable
            weight_norm, direction_norm = tf.norm(variable), tf.norm(gradient)
            ratio = tf.where(
                (weight_norm > 0) & (direction_norm > 0),
                self.eta * weight_norm / direction_norm,
                1.0,
            )
        rate = learning_rate * ratio
        self.assign(velocity, self.momentum * velocity + rate * gradient)
        self.assign_sub(variable, velocity)
