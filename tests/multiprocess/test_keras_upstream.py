"""Keras 3's own tests under tf.distribute, with this strategy in place of MirroredStrategy.

They come with the wheel, in keras/src/backend/tensorflow/{distribute,optimizer_distribute}_test.py,
and are written for two replicas in one process. Two workers.

Not run, with the reason:
  test_strategy_run: wants both replicas' values in one process.
  test_ema: wants averages before the first update, which MirroredStrategy alone leaves there.
"""

import tensorflow as tf
from keras.src import testing
from keras.src.backend.tensorflow import distribute_test, optimizer_distribute_test

import tf_sparse_strategy as tss


class _With:
    """A module with some names replaced."""

    def __init__(self, module, **names):
        self._module = module
        self.__dict__.update(names)

    def __getattr__(self, name):
        return getattr(self._module, name)


def _strategy(devices):
    assert len(devices) == 2
    return tss.SparseStrategy()


_TF = _With(tf, distribute=_With(tf.distribute, MirroredStrategy=_strategy))
distribute_test.tf = _TF
optimizer_distribute_test.tf = _TF


class DistributeTest(distribute_test.DistributeTest):
    test_strategy_run = None

    def setUp(self):
        testing.TestCase.setUp(self)  # the original makes two devices of one


class OptimizerDistributeTest(optimizer_distribute_test.OptimizerDistributeTest):
    test_ema = None

    def setUp(self):
        testing.TestCase.setUp(self)
        self.strategy = _strategy(["CPU:0", "CPU:1"])
