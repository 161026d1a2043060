"""An update of which each worker does its part, with its part of the optimizer's state."""

import dataclasses

from tf_sparse_strategy.overlap.divided import Divided


@dataclasses.dataclass(frozen=True)
class ShardedUpdate(Divided):
    """Divides the update of the weights, and the optimizer's slots, over the workers (ZeRO stage 1).

    With P workers, worker r owns elements [r c, (r+1) c), c = ceil(n/P), of each variable of n elements, and
    holds these elements alone of each slot: momentum, moments. In a step, bucket by bucket,

        g_r = reduce_scatter(gradients)
        chunk_r, slots_r = optimizer(chunk_r, slots_r, g_r)
        weights = all_gather(chunks)

    The all-gather is at the end of the same step, so that weights are always what they are without it:
    callbacks, constraints and moving averages need nothing special; a custom loop builds the optimizer before
    its first step, `optimizer.build(model.trainable_variables)`. Files hold whole slots, which any number of
    workers, and plain Keras, load; while one is written the first worker asks the others for their parts, so
    all must call. Outside of files a slot, e.g. in `optimizer.variables`, is a worker's part.

    Sent per step: what the all-reduce sends that it replaces, 2N(P-1)/P elements per worker, in at most
    2(P-1) messages a bucket. Elements updated and state per worker: 1/P. Memory: 1/P of the weights more, and
    1/P instead of all of the slots.

    When not to use it: with SGD or few weights, where the update takes no time; `DeAR` divides it as well and
    hides the all-gather, but keeps whole slots. Works with `communication="dense"`, optimizers of Keras 3
    that treat each element by itself, and LARS and LAMB of `lars_pto`.

    Args:
      fusion: bytes of a bucket, at most; a larger variable has one of its own, and so have the first
        variables, up to fusion/8. Default 25 MiB; or "auto", as of `DeAR`.
      exclude: regular expressions; a variable whose path matches one is summed and updated as without.
        Default: the tables of `Embedding`, whose gradients are sparse.
      tuning: of the training time, the part, at most, that "auto" may cost, 0 < tuning <= 1; default 0.01.

    Raises:
      ValueError: an argument is out of range; or, later, it does not work with the communication, an
        optimizer or a sparse gradient.
      ImportError: `fusion="auto"` without scikit-learn.
      RuntimeError: (in training) an optimizer is built within a step.
      NotImplementedError: (in training) the optimizer is one of tf_keras.

    Example:
      >>> import tf_sparse_strategy as tss
      >>> strategy = tss.SparseStrategy(overlap=tss.overlap.ShardedUpdate())

    Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
    SC 2020, section 5.1; the update is what Shi et al., MLSys 2021, section 4.2, divide the norms of.
    """
