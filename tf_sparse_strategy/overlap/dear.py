"""DeAR: an all-reduce in two halves, one behind the backward and one behind the forward pass."""

import dataclasses

from tf_sparse_strategy.overlap.divided import Divided


@dataclasses.dataclass(frozen=True)
class DeAR(Divided):
    """Splits the sum of gradients into a reduce-scatter and, in the next step, an all-gather.

    With P workers, worker r owns elements [r c, (r+1) c), c = ceil(n/P), of each variable of n elements.
    In a step, bucket by bucket,

        forward:    weights = all_gather(chunks)         of the first layers first, while they compute
        backward:   g_r = reduce_scatter(gradients)      of the last layers first, while the others compute
        update:     chunk_r, slots_r = optimizer(chunk_r, slots_r, g_r)

    which moves what an all-reduce does, 2N(P-1)/P elements per worker in at most 2(P-1) messages a bucket,
    but can hide half of it behind the forward pass. Without `overlap`, a bucket's all-reduce can hide behind
    the backward pass alone.

    The weights are gathered at the start of the next step. Until then the variables are behind, and reading
    one raises an error: call `strategy.synchronize()` on all workers first. `fit`, `evaluate` and `predict`
    do so wherever Keras or a callback looks: before validation, at the ends of epochs, at the end.

    When not to use it: where the backward pass hides the all-reduce, there is nothing to gain; each end of
    an epoch gathers weights and slots once more. Works with `communication="dense"`, optimizers of Keras 3
    that treat each element by itself, LARS and LAMB of `lars_pto`, and no moving averages (`use_ema`) or
    constraints of weights.

    Args:
      fusion: bytes of a bucket, at most; a larger variable has one of its own, and so have the first
        variables, up to fusion/8, which nothing hides. Default 25 MiB, as in the paper before tuning. "auto"
        to try up to nine sizes while `fit` trains, chosen by Bayesian optimisation, and keep the fastest for
        this and later runs; for runs that must be repeatable, give bytes.
      exclude: regular expressions; a variable whose path matches one is summed and updated as without
        overlap. Default: the tables of `Embedding`, whose gradients are sparse.
      tuning: of the training time, the part, at most, that the search may cost: each size is traced anew.
        0 < tuning <= 1; default 0.01.

    Raises:
      ValueError: an argument is out of range; or, later, it does not work with the communication, an
        optimizer, a constraint or a sparse gradient.
      ImportError: `fusion="auto"` without scikit-learn.
      RuntimeError: (in training) a variable is read or written while it is behind; an optimizer is built
        within a step, or applied twice in one.
      NotImplementedError: (in training) the optimizer is one of tf_keras.

    Example:
      >>> import tf_sparse_strategy as tss
      >>> strategy = tss.SparseStrategy(overlap=tss.overlap.DeAR(fusion=4 << 20))

    Source: Zhang et al., "DeAR: Accelerating Distributed Deep Learning with Fine-Grained All-Reduce
    Pipelining", ICDCS 2023, sections III and IV.
    """
