"""What sparse schemes choose by under LARS: how far an entry moves its weight, not how large it is.

LARS moves a layer l by its learning rate and u_l = η‖w‖ / (‖g‖ + …) times the gradient. Chosen by the size of
gradients, layers of large gradients would come first, though they need not move further; the few entries that
arrive of others move these as far as all would. So entries are chosen by u_l |g|. Sums and residuals are of
gradients as ever: how workers weigh decides only what goes first, and they need not agree on it.

Cost: sums of squares of gradients and weights, a weight and a product for each element, and a selection that
is not fused with error feedback: about as much again as a selection by size takes. `OkTopK`, whose thresholds
hold for many steps, chooses by gradients.

Source: this library; what is learnt so: docs/convergence.md.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

# (variables, sums of squares of their gradients [L]) -> float32 [L]: by what an optimizer multiplies such
# gradients beside its learning rate; 0 where it cannot be said.
UnitsOf = Callable[[Sequence[tf.Variable], tf.Tensor], tf.Tensor]


def weights(
    units_of: UnitsOf, pairs: Sequence[tuple[tf.Tensor, tf.Variable]], num_workers: int
) -> tf.Tensor:
    """The units of the elements of a bucket, as far as this worker's gradients tell.

    The sum of all workers' gradients is taken to be P^(3/4) times as long as this worker's: it would be P
    times if all were the same, P^(1/2) times if they were orthogonal.

    Args:
      units_of: the optimizer's.
      pairs: [(gradient, variable), …] in the bucket's order.
      num_workers: P.

    Returns:
      float32 [N], above 0, at most 1, which is the largest unit; the least of the others' where a gradient is
      zero or not finite.

    Example:
      >>> pairs = [(tf.constant([3.0, 4.0]), tf.Variable([0.0, 1.0])), (tf.ones([1]), tf.Variable([1.0]))]
      >>> weights(lambda _, squares: squares, pairs, num_workers=2).numpy()
      array([1.  , 1.  , 0.04], dtype=float32)
    """
    squares = tf.stack([2 * tf.nn.l2_loss(tf.cast(gradient, tf.float32)) for gradient, _ in pairs])
    units = units_of([variable for _, variable in pairs], num_workers**1.5 * squares)
    known = tf.logical_and(units > 0, tf.math.is_finite(units))
    least = tf.reduce_min(tf.where(known, units, units.dtype.max))
    # No product with them overflows, or finite entries would look like those that are not.
    units = tf.where(known, units, least) / tf.reduce_max(tf.where(known, units, least))
    sizes = [gradient.shape.num_elements() for gradient, _ in pairs]
    return tf.concat([tf.fill([n], u) for n, u in zip(sizes, tf.unstack(units), strict=True)], axis=0)
