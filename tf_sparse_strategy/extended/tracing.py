"""When TensorFlow traces a function anew: within steps, and outside of them, it does not do the same."""

import weakref

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import function_context

from tf_sparse_strategy import keras_losses
from tf_sparse_strategy.hooking import ours, wrap


def install() -> None:
    """Lets TensorFlow tell a function that is called in a step from the same outside. Idempotent."""
    wrap(function_context, "make_function_context", _by_step)


def _by_step(original, *args, **kwargs):
    """Adds to TensorFlow's key of a trace what our hooks depend on.

    That a step runs, that its batch tells which rows count, whether a Loss returns a whole mean, which tables
    are trained.
    """
    found, extended = original(*args, **kwargs), ours(tf.distribute.get_strategy())
    if extended is None or tf.distribute.in_cross_replica_context():
        return found
    trained = frozenset(id(table) for table in extended.slices.tables if table.is_trained)
    step = weakref.ref(extended), extended.is_tagged, keras_losses.wants_whole(), trained
    place = found.context.xla_context_id, *step
    return found._replace(context=found.context._replace(xla_context_id=place))
