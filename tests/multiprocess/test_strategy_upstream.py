"""TensorFlow's own tests for strategies (tensorflow/python/distribute/strategy_test_lib.py).

They are written for several replicas in one process, and look at the values of all of them through
`experimental_local_results`; here that function gathers every worker's. Two workers.

Not run, with the reason:
  OneDeviceDistributionTestBase, RemoteSingleWorkerMirroredStrategyBase: about other clusters.
  _test_input_fn_iterator, _test_numpy_dataset: iterators of TensorFlow 1.
  _test_replica_id, on worker 1: wants ids below the number of this process's devices.
"""

import tensorflow as tf
from tensorflow.python.distribute import strategy_test_lib

import tf_sparse_strategy as tss


class Gathering(tss.SparseStrategy):
    """Shows every worker's value, where MirroredStrategy shows every local replica's."""

    def experimental_local_results(self, value):
        (local,) = super().experimental_local_results(value)
        gathered = self.gather(tf.convert_to_tensor(local)[tf.newaxis], axis=0)
        return tuple(tf.unstack(gathered, num=2))

    unwrap = experimental_local_results

    def make_input_fn_iterator(self, input_fn):
        """Worker r gets element r, as replica r does."""
        return _Element(list(input_fn(None))[self.topology.rank])

    def experimental_run(self, fn, iterator):
        return self.run(fn, args=(iterator.element,))


class _Element:
    def __init__(self, element):
        self.element = element

    def initialize(self):
        return []


class DistributionTest(strategy_test_lib.DistributionTestBase):
    def setUp(self):
        super().setUp()
        self.strategy = tss.SparseStrategy()
        self.rank = self.strategy.topology.rank

    def test_minimize_loss_eager(self):
        self._test_minimize_loss_eager(self.strategy)

    def test_minimize_loss_graph(self):
        self._test_minimize_loss_graph(self.strategy)

    def test_call_and_merge_exceptions(self):
        self._test_call_and_merge_exceptions(self.strategy)

    def test_global_step_update(self):
        self._test_global_step_update(self.strategy)

    def test_trainable_variable(self):
        self._test_trainable_variable(self.strategy)

    def test_replica_id(self):
        if self.rank == 0:
            self._test_replica_id(self.strategy)

    def test_summary_for_replica_zero_only(self):
        if self.rank == 0:
            self._test_summary_for_replica_zero_only(self.strategy)
            return
        with self.assertRaisesRegex(AssertionError, "has length of 1"):
            self._test_summary_for_replica_zero_only(self.strategy)

    def test_input_fn_iterable(self):
        input_fn = self._input_fn_to_test_input_context(
            lambda: tf.data.Dataset.range(3),
            expected_num_replicas_in_sync=2,
            expected_num_input_pipelines=2,
            expected_input_pipeline_id=self.rank,
        )
        self._test_input_fn_iterable(self.strategy, input_fn, [[0], [1], [2]])


class TwoDeviceDistributionTest(strategy_test_lib.TwoDeviceDistributionTestBase):
    def setUp(self):
        super().setUp()
        self.strategy = Gathering()

    def both(self, case):
        for run_in_function in (False, True):
            case(self.strategy, run_in_function=run_in_function)

    def test_run(self):
        self.both(self._test_run)

    def test_all_reduce_sum(self):
        self.both(self._test_all_reduce_sum)

    def test_all_reduce_mean(self):
        self.both(self._test_all_reduce_mean)

    def test_all_reduce_sum_gradient_tape(self):
        self.both(self._test_all_reduce_sum_gradient_tape)

    def test_all_reduce_mean_gradient_tape(self):
        self.both(self._test_all_reduce_mean_gradient_tape)

    def test_all_reduce_sum_gradients(self):
        self._test_all_reduce_sum_gradients(self.strategy, run_in_function=True)

    def test_all_reduce_mean_gradients(self):
        self._test_all_reduce_mean_gradients(self.strategy, run_in_function=True)
