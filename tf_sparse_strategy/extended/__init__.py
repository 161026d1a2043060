"""The strategy's seam into TensorFlow: the only package that imports `tensorflow.python`.

`StrategyExtended` is `MirroredExtended` with one device per process: variables are TensorFlow's own
`MirroredVariable` and `SyncOnReadVariable` with one component each, so reading, saving, checkpoints
and AutoCast are TensorFlow's. Replica functions are called directly, without a replica thread:
collectives work in nested functions, conditions and loops.

What arrives here, and where it goes:

| caller                                      | arrives in                 | goes to            |
|---------------------------------------------|----------------------------|--------------------|
| Keras 3 optimizers (keras_optimizers.py)    | reduce_gradients           | Communication      |
| tf_keras optimizers: (gradient, variable)   | _batch_reduce_to           | Communication      |
| SyncBatchNormalization, `ctx.all_reduce`    | _batch_reduce_to           | dense collectives  |
| metrics, assignments, `strategy.reduce`     | _reduce_to                 | dense collectives  |

The hooks for variables, reductions and datasets are a class each, in the module of that name; all are of one
object.
"""

from tf_sparse_strategy.extended.replicas import StrategyExtended

__all__ = ["StrategyExtended"]
