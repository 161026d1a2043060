"""LARS and LAMB as optimizers of tf_keras (`TF_USE_LEGACY_KERAS=1`)."""

import tf_keras

from custom_ops.library import on_gpu
from lars_pto import layerwise, norms, options


class _LayerWise(layerwise.LayerWise, tf_keras.optimizers.Optimizer):
    """tf_keras's optimizer around a rule of layer-wise rates; `keras3._LayerWise` says how."""

    def __init__(self, rule, exclusions, parallel, learning_rate, weight_decay, keras_options):
        is_schedule = isinstance(learning_rate, tf_keras.optimizers.schedules.LearningRateSchedule)
        if callable(learning_rate) and not is_schedule:
            raise TypeError(
                f"learning_rate={learning_rate!r}: tf_keras calls a function once, when the optimizer is "
                "made. Pass a number, which optimizer.learning_rate.assign changes, or a schedule."
            )
        name = keras_options.pop("name", None) or type(self).__name__
        super().__init__(name=name, weight_decay=weight_decay, **keras_options)
        self._learning_rate = self._build_learning_rate(learning_rate)
        # A GPU that is there but hidden makes tf_keras compile updates, for a CPU that cannot compile ours.
        self.jit_compile = self.jit_compile and on_gpu()
        self._rule, self._exclusions = rule, exclusions
        self._norms = norms.Norms(parallel)

    def build(self, var_list):
        """Creates the state; called by tf_keras with all variables."""
        super().build(var_list)
        if getattr(self, "_built", False):
            return
        self._treatments = [
            self._exclusions.treatment(v.name, v.shape.rank).decaying_if(self._use_weight_decay(v))
            for v in var_list
        ]
        self._slots = [
            [self.add_variable_from_reference(v, name) for name in self._rule.slot_names]
            for v in var_list
        ]
        self._built = True

    def _index_of(self, variable):
        index = self._index_dict.get(self._var_key(variable))
        if index is None:
            raise KeyError(
                f"The optimizer cannot recognize variable {variable.name}: it was built on others. Call "
                "optimizer.build(variables) with all of them before the first step."
            )
        return index

    def _slots_of(self, variable):
        return self._slots[self._index_of(variable)]

    def _treatment_of(self, variable):
        return self._treatments[self._index_of(variable)]

    def _internal_apply_gradients(self, grads_and_vars):
        return super()._internal_apply_gradients(self._changes(grads_and_vars))

    def update_step(self, gradient, variable):
        """Makes the change that `_internal_apply_gradients` computed; called by tf_keras per variable."""
        layerwise.make(gradient, variable, self._slots_of(variable))

    def get_config(self):
        """The arguments of the constructor."""
        return {
            **super().get_config(),
            "learning_rate": self._serialize_hyperparameter(self._learning_rate),
            **options.config_of(self._rule, self._exclusions, self._norms),
        }


@tf_keras.utils.register_keras_serializable(package="lars_pto")
class LARS(options.LarsOptions, _LayerWise):  # documented in options.py
    __doc__ = options.LarsOptions.__doc__


@tf_keras.utils.register_keras_serializable(package="lars_pto")
class LAMB(options.LambOptions, _LayerWise):  # documented in options.py
    __doc__ = options.LambOptions.__doc__
