"""LARS and LAMB as optimizers of Keras 3."""

import keras
import tensorflow as tf

from lars_pto import layerwise, norms, options


def _tensorflows(variable) -> tf.Variable:
    """The variable of TensorFlow that is in one of Keras; its own as it is."""
    return variable.value if isinstance(variable, keras.Variable) else variable


class _LayerWise(layerwise.LayerWise, keras.optimizers.Optimizer):
    """Keras's optimizer around a rule of layer-wise rates.

    Keras updates variable after variable, but the norms of all are taken before, where the
    gradients have just been summed over the workers. From there on a variable's "gradient" is its
    change, and `update_step` makes it.
    """

    def __init__(self, rule, exclusions, parallel, learning_rate, weight_decay, keras_options):
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, **keras_options)
        self._rule, self._exclusions = rule, exclusions
        self._norms = norms.Norms(parallel)

    def build(self, variables):
        """Creates the state; called by Keras with all variables."""
        if self.built:
            return
        super().build(variables)
        self._treatments = [
            self._exclusions.treatment(getattr(v, "path", v.name), len(v.shape)) for v in variables
        ]
        self._slots = self.add_optimizer_variables(variables, self._rule.slot_names)

    def _slots_of(self, variable):
        index = self._get_variable_index(variable)
        return [slot[index] for slot in self._slots]

    def _treatment_of(self, variable):
        decays = self._use_weight_decay(_tensorflows(variable))  # which may have changed since it was built
        return self._treatments[self._get_variable_index(variable)].decaying_if(decays)

    def _all_reduce_sum_gradients(self, grads_and_vars):
        summed = super()._all_reduce_sum_gradients(grads_and_vars)
        return self._changes([pair for pair in summed if pair[0] is not None])

    def update_step(self, gradient, variable, learning_rate):
        """Makes the change that `_all_reduce_sum_gradients` computed; called by Keras per variable."""
        del learning_rate
        weights, *slots = (_tensorflows(v) for v in (variable, *self._slots_of(variable)))
        layerwise.make(gradient, weights, slots)

    def take_norms_of_wholes(self, whole, add_up):
        """Makes this optimizer, whose variables are parts of another's, adapt as the other does.

        Args:
          whole: the other, built; layers are excluded by its variables' paths and ranks.
          add_up: sums a tensor over the workers that hold the other parts.
        """
        self._treatments = whole._treatments
        self._norms = lambda *layers: add_up(norms.sums_of_squares(*layers))

    def get_config(self):
        """The arguments of the constructor."""
        return {**super().get_config(), **options.config_of(self._rule, self._exclusions, self._norms)}


@keras.saving.register_keras_serializable(package="lars_pto")
class LARS(options.LarsOptions, _LayerWise):  # documented in options.py
    __doc__ = options.LarsOptions.__doc__


@keras.saving.register_keras_serializable(package="lars_pto")
class LAMB(options.LambOptions, _LayerWise):  # documented in options.py
    __doc__ = options.LambOptions.__doc__
