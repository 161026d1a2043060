"""Steps of sparse schemes for tests: one bucket, a list of gradients, a short `fit`."""

import numpy as np
import pytest
import tensorflow as tf

from tests.multiprocess import oracle
from tests.thorough import P, thorough
from tf_sparse_strategy import residual
from tf_sparse_strategy.bucketing import BucketPlan, TensorSpec
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.communication import Dense, LinkModel
from tf_sparse_strategy.remembered import is_of_this_run
from tf_sparse_strategy.topology import Topology

SHAPES = [(3, 4), (), (7,), (0, 2), (5, 5)]
ROWS, BATCH = 48, 8
FREE = LinkModel(0.0, 0.0, 0.0, 0.0)


def placed(topology, nodes):
    """Collectives of workers that pose as standing on `nodes`."""
    return Collectives(Topology(tuple(nodes), topology.rank))


def apart(topology):
    """Every worker a node of its own."""
    return placed(topology, range(topology.num_workers))


def paired(topology):
    """Workers that pose as standing on two nodes, or each on its own where they would be uneven."""
    p = topology.num_workers
    return placed(topology, [rank % 2 if p % 2 == 0 else rank for rank in range(p)])


# One node; every worker apart, so that trees and regions have as many parts; uneven; pairs, also such whose
# ranks are not in order of nodes; nodes of three and four. Four apart are as three, but for a tree.
PLACES = {
    1: [(0,)],
    2: [(0, 0), (0, 1)],
    3: [(0, 1, 1)],
    4: [(0, 1, 1, 0), pytest.param((0, 1, 2, 3), marks=thorough)],
    5: [(0, 1, 2, 3, 4), (0, 0, 1, 1, 2)],
    6: [(0, 0, 1, 1, 2, 2), (0, 0, 0, 1, 1, 1)],
    7: [(0, 1, 2, 3, 4, 5, 6), (0, 0, 1, 1, 2, 2, 2)],
    8: [tuple(range(8)), (0, 0, 1, 1, 2, 2, 3, 3), (0, 0, 1, 1, 2, 2, 2, 2), (0, 0, 0, 0, 1, 1, 1, 1)],
}[P]


def _everywhere(request, topology):
    """Collectives of workers placed in one of several ways."""
    return placed(topology, request.param)


everywhere = pytest.fixture(_everywhere, params=PLACES, ids=str)


def bucket_of(n, dtype="float32"):
    """Of a matrix, which no scheme sums exactly for being small."""
    spec = TensorSpec("w", (n, 1), dtype, tf.as_dtype(dtype).size)
    return BucketPlan.build([spec], 1 << 40).buckets[0]


class Run:
    """One worker's steps with one bucket."""

    def __init__(self, scheme, collectives, n, dtype="float32"):
        self.scheme, self.collectives = scheme, collectives
        bucket = bucket_of(n, dtype)
        self.variables = scheme.state(bucket, collectives.topology)
        self.step = tf.function(self.eager_step)

    @tf.autograph.experimental.do_not_convert
    def eager_step(self, gradient):
        state = residual.State(self.variables)
        summed = self.scheme.reduce(gradient, state, self.collectives)
        residual.commit([state])
        return summed

    def bits(self):
        """Of all variables, by name."""
        return {name: variable.numpy().tobytes() for name, variable in self.variables.items()}

    def kept(self, n):
        """What all workers' residuals add up to."""
        share = self.scheme.share(self.collectives.topology)
        own = tf.zeros([n])
        if "residual" in self.variables:
            own = residual.flush(own, self.variables["residual"], share)
        return self.collectives.all_reduce(own).numpy()


def assert_as_dense(run, gradients):
    """Bit for bit; `gradients` are [steps, P, N]."""
    here = run.collectives
    for gradient in gradients[:, here.topology.rank]:
        dense = Dense().reduce(tf.constant(gradient), residual.State({}), here)
        summed = run.step(tf.constant(gradient))
        np.testing.assert_array_equal(summed.numpy().view(np.int32), dense.numpy().view(np.int32))


def sent_and_predicted(run, n, steps=1):
    """Bytes (in the node, to others) of a worker's steps with zeros: counted, and by its scheme's cost."""
    here = run.collectives
    before = here.traffic()[1]
    for _ in range(steps):
        run.eager_step(tf.zeros([n]))
    after = here.traffic()[1]
    predicted = run.scheme.cost(n, here.topology, FREE).bytes
    sent = np.array([after.local - before.local, after.cross - before.cross])
    return sent, steps * np.array([predicted.local, predicted.cross])


def descend(run, targets, count, rate):
    """This worker's weights after steps of least squares, from zeros to the mean of all workers' targets."""
    weights = tf.Variable(tf.zeros(targets.shape))

    @tf.function
    def steps():
        for _ in tf.range(count):
            weights.assign_sub(run.eager_step(weights - targets) * rate)

    steps()
    return weights.numpy()


def assert_all_descend_alike(run, n, rate):
    """In 50 steps, to the bit."""
    here = run.collectives
    targets = floats(1, here.topology.num_workers, n, 1)[0]
    weights = descend(run, targets[here.topology.rank], 50, rate)
    oracle.assert_identical(here, weights.view(np.int32))
    start, end = (np.linalg.norm(w - targets.mean(axis=0)) for w in (0, weights))
    assert end < start


def integers(seed, p, n, steps):
    """[steps, P, N] whole numbers, heavy-tailed; every sum of them is exact in float32. No -0."""
    rng = np.random.default_rng(seed)
    return np.round(rng.standard_t(2, (steps, p, n)) * 4).clip(-999, 999).astype(np.float32) + 0.0


def floats(seed, p, n, steps):
    rng = np.random.default_rng(seed)
    return rng.standard_t(2, (steps, p, n)).astype(np.float32)


def step(reducer, variables, topology, seed):
    """The sums of whole numbers that differ between workers."""
    rng = np.random.default_rng([seed, topology.rank])
    gradients = [tf.constant(rng.integers(-99, 100, v.shape), tf.float32) for v in variables]
    reducer.begin_step()
    summed = reducer.reduce(list(zip(gradients, variables, strict=True)))
    return np.concatenate([g.numpy().ravel() for g in summed])


def kept(reducer):
    """All that training goes on from; counts of checks and changes are of a run."""
    states = [state for _, state in reducer.memory.buckets]
    return [v.numpy() for state in states for name, v in state.items() if not is_of_this_run(name)]


def sent_in_all(reducer, variables):
    """All that is left in residuals, made to come out by steps that add nothing."""
    zeros = [(tf.zeros_like(v), v) for v in variables]
    nothing = tf.function(lambda: tf.concat([tf.reshape(g, [-1]) for g in reducer.reduce(zeros)], 0))
    total = sum(nothing().numpy() for _ in range(60))
    left = [r for r in kept(reducer) if r.ndim and r.dtype.kind == "f"]  # others count
    if "OkTopK" in repr(reducer.communication):  # what cancels stays: its sum is never among the largest
        group = reducer.communication.share(reducer._collectives.topology).group
        left = [reducer._collectives.all_reduce(r, group).numpy() for r in left]
    assert not any(r.any() for r in left)
    return total


def moved(comm, blob):
    """Rank 0's bytes on every worker, as a shared file would bring them."""
    length = int(comm.broadcast(tf.constant(len(blob))))
    letters = tf.io.decode_raw(tf.constant(blob.ljust(length)), tf.uint8)
    return comm.broadcast(letters[:length]).numpy().tobytes()


def fit(
    keras, scheme, epochs=1, optimizer=None, policy=None, embedding=False, callbacks=(), **compile_options
):
    """(strategy, model, history) after a short training from weights that are always the same."""
    import tf_sparse_strategy as tss

    strategy = tss.SparseStrategy(communication=scheme, bucket_bytes=128)
    with strategy.scope():
        layers = [keras.layers.Dense(8, activation="tanh", dtype=policy), keras.layers.Dense(1)]
        if embedding:
            layers = [keras.layers.Embedding(16, 4), keras.layers.Flatten(), *layers]
        model = keras.Sequential([keras.layers.Input((oracle.FEATURES,)), *layers])
        oracle.start(model)
        optimizer = optimizer() if optimizer else keras.optimizers.SGD(0.05, momentum=0.5)
        model.compile(optimizer=optimizer, loss="mse", **compile_options)
    x, y = oracle.regression(ROWS)
    if embedding:
        x = (x * 4).astype("int32") % 16
    fitting = {"epochs": epochs, "callbacks": list(callbacks)}
    history = model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, **fitting)
    return strategy, model, history
