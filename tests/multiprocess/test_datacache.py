"""DataCache under real workers: each sample once, one copy per node, and the weights of one process."""

import contextlib
import functools
import shutil
import time

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
from datacache.callbacks import ExchangeCallback, Resume
from datacache.exchange import Exchange
from tests import datacache_help as help_
from tests.multiprocess.oracle import assert_identical
from tests.thorough import thorough
from tf_sparse_strategy.communication import TopKAllGather


@pytest.fixture
def cache(comm, topology, shared_tmp):
    """One store per node; the nodes are directories here."""
    shm = shared_tmp / f"node{topology.node}"
    if topology.rank == 0:
        help_.records(shared_tmp / "source")
    if topology.local == 0:
        shm.mkdir()
    comm.barrier()
    return help_.cache(str(shared_tmp / "source" / "*"), shm, shared_tmp / "local")


def everyones(comm, rows) -> list:
    rows = np.concatenate(rows) if len(rows) else np.zeros(0, "int64")
    return comm.all_gather(tf.constant(rows.astype("int64"))).numpy().tolist()


@pytest.mark.parametrize("shuffle", ["local", "exchange", "global"])
def test_every_sample_once_per_epoch(comm, topology, cache, shuffle):
    workers = topology.num_workers
    context = tf.distribute.InputContext(workers, topology.rank, workers)
    steps = cache.steps_per_epoch(16)
    for epoch in range(3):
        dataset = cache.dataset(
            16, shuffle=shuffle, input_context=context, start=epoch * steps, epochs=epoch + 1
        )
        assert sorted(everyones(comm, help_.numbers_of(dataset))) == list(range(150))


@pytest.mark.parametrize("by_function", [True, False])
def test_files_that_differ_are_refused(topology, cache, strategy, shared_tmp, by_function):
    """Numbers after the one that is missing would be other samples."""
    own = shared_tmp / f"own{topology.rank}"
    shutil.copytree(shared_tmp / "source", own)
    if topology.rank:
        min(own.iterdir()).unlink()
    other = help_.cache(str(own / "*"), shared_tmp / f"node{topology.node}")
    for held, differs in ((cache, False), (other, topology.num_workers > 1)):
        refused = pytest.raises(ValueError, match="files: ") if differs else contextlib.nullcontext()
        with refused:
            if by_function:
                make = functools.partial(held.dataset, 16)  # a stage behind it hides nothing
                strategy.distribute_datasets_from_function(lambda c, m=make: m(input_context=c).prefetch(1))
            else:
                strategy.experimental_distribute_dataset(held.dataset(16, epochs=1))
    # What is each worker's own may differ.
    strategy.distribute_datasets_from_function(lambda c: other.dataset(16))
    off = tf.data.Options()
    off.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    strategy.experimental_distribute_dataset(other.dataset(16, epochs=1).with_options(off))


def test_shares_are_not_shared_out_again(topology, cache, strategy, caplog):
    """Of which most samples would never be seen; and whole batches for each are told of."""
    if topology.num_workers == 1:
        return
    context = tf.distribute.InputContext(topology.num_workers, topology.rank, topology.num_workers)
    with pytest.raises(ValueError, match=r"share of a DataCache.*distribute_datasets_from_function"):
        strategy.experimental_distribute_dataset(cache.dataset(16, input_context=context).prefetch(1))
    strategy.distribute_datasets_from_function(lambda context: cache.dataset(16, input_context=context))
    assert "input_context=context" not in caplog.text
    strategy.distribute_datasets_from_function(lambda context: cache.dataset(16))
    assert ("input_context=context" in caplog.text) == (topology.rank == 0)


def test_one_copy_per_node(comm, topology, cache):
    workers = topology.num_workers
    context = tf.distribute.InputContext(workers, topology.rank, workers)
    help_.numbers_of(cache.dataset(16, input_context=context, epochs=1))
    comm.barrier()
    share = [
        sum(len(range(row, 150, 16)) for row in range(rank, 16, workers)) for rank in range(workers)
    ]
    stats = cache.stats()
    assert stats["memory_misses"] == share[topology.rank]  # what this worker has decoded
    own = [rank for rank in range(workers) if topology.of(rank).node == topology.node]
    assert stats["stored"] == sum(share[rank] for rank in own)


def weights(keras, cache, strategy=None):
    keras.utils.set_random_seed(1)

    def build():
        model = keras.Sequential([keras.layers.Input([100]), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.001), "mse")
        return model

    def dataset(context=None):
        # Workers weigh the same here, whatever their rows: all have as many in each batch.
        return cache.dataset(
            12,
            lambda b: (tf.cast(b["data"], tf.float32) / 256, tf.cast(b["number"], tf.float32)[:, None]),
            input_context=context,
            drop_remainder=True,
        )

    if strategy is None:
        model, data = build(), dataset()
    else:
        with strategy.scope():
            model = build()
        data = strategy.distribute_datasets_from_function(dataset)
    model.fit(data, epochs=2, steps_per_epoch=12, verbose=0)
    return model.get_weights()


def test_the_weights_of_one_process(comm, strategy, keras, cache):
    alone = weights(keras, cache)
    together = weights(keras, cache, strategy)
    for value in together:
        assert_identical(comm, value)
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "communication", [pytest.param("dense", marks=thorough), TopKAllGather(0.2)], ids=["dense", "sparse"]
)
def test_resuming_in_the_middle_of_an_epoch(comm, topology, cache, shared_tmp, communication):
    """Equals an uninterrupted run bit for bit, with what the seeds of the samples draw and what is kept."""
    import keras

    def augment(batch, seed):
        noise = tf.map_fn(
            lambda one: tf.random.stateless_normal([100], one), seed, fn_output_signature=tf.float32
        )
        return tf.cast(batch["data"], tf.float32) / 256 + noise, tf.cast(batch["number"], tf.float32)[:, None]

    def train(directory, stop_after=None, keep=True):
        keras.utils.set_random_seed(1)
        strategy = tss.SparseStrategy(communication=communication)
        with strategy.scope():
            layers = [keras.layers.Dropout(0.3), keras.layers.Dense(1)]  # the former draws in each step
            model = keras.Sequential([keras.layers.Input([100]), *layers])
            model.compile(keras.optimizers.SGD(0.0001, momentum=0.9), "mse")
        also = {"residual": strategy.residual} if keep else {}
        resume = Resume(shared_tmp / directory, model, every=4, **also)

        def stop(batch, logs):
            model.stop_training = resume.step == stop_after

        stopping = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
        begun = resume.step
        for span in resume.spans(2, cache.steps_per_epoch(12, drop_remainder=True)):
            data = strategy.distribute_datasets_from_function(
                lambda context, span=span: cache.dataset(
                    12, augment, start=span.start, input_context=context, drop_remainder=True
                )
            )
            model.fit(data, verbose=0, callbacks=[resume, stopping], **span.fit_arguments())
            if resume.step == stop_after:
                break
        return begun, resume.step, model.get_weights()

    *steps, whole = train("whole")
    assert steps == [0, 24]
    for stop_after in (6, 13):
        assert train(f"parts{stop_after}", stop_after)[:2] == (0, stop_after)
        *steps, resumed = train(f"parts{stop_after}")
        assert steps == [stop_after, 24]
        for one, other in zip(whole, resumed, strict=True):
            np.testing.assert_array_equal(one, other)
            assert_identical(comm, other)
    train("lost", 13, keep=False)
    *_, lost = train("lost", keep=False)
    same = all((one == other).all() for one, other in zip(whole, lost, strict=True))
    assert same == (communication == "dense" or topology.num_workers == 1)


class Mail:
    """Carries arrays between nodes, as files."""

    def __init__(self, directory, node: int, nodes: int):
        self._directory, self._node, self._nodes, self._round = directory, node, nodes, 0
        directory.mkdir(exist_ok=True)

    def all_to_all(self, sent):
        self._round += 1
        for target, array in enumerate(sent):
            temporary = self._path(self._node, target).with_suffix(".tmp")
            temporary.write_bytes(array.tobytes())
            temporary.rename(self._path(self._node, target))
        return [self._received(source) for source in range(self._nodes)]

    def _path(self, source: int, target: int):
        return self._directory / f"{self._round}_{source}_{target}.mail"

    def _received(self, source: int):
        path, until = self._path(source, self._node), time.monotonic() + 60
        while not path.exists():
            assert time.monotonic() < until, path
            time.sleep(0.001)
        return np.fromfile(path, np.uint8)


def by_horovod(comm):
    """Carries arrays between nodes of one worker by Horovod's AlltoAll, beside the training's sums."""

    def all_to_all(sent):
        rows, sizes = comm.all_to_all(tf.constant(np.concatenate(sent)), [len(array) for array in sent])
        return np.split(rows.numpy(), np.cumsum(sizes.numpy())[:-1])

    return all_to_all


def test_exchange_under_fit(comm, topology, strategy, shared_tmp):
    """Nodes with room for little more than their share decode nothing after the first epoch."""
    import keras

    samples, batch, fraction, epochs = 144, topology.num_workers, 0.25, 5
    nodes = [topology.of(rank).node for rank in range(batch)]
    share = samples // batch * nodes.count(topology.node)
    shm = shared_tmp / f"node{topology.node}"
    if topology.rank == 0:
        help_.records(shared_tmp / "source", per_file=samples // 3)
    if topology.local == 0:
        shm.mkdir()
    comm.barrier()
    room = share + int(fraction * share) + 8
    source = str(shared_tmp / "source" / "*")
    cache = help_.cache(source, shm, memory=room * 256, nodes=max(nodes) + 1)
    assert cache.stats()["capacity"] == min(room, samples)

    def dataset(context=None):
        return cache.dataset(
            batch,
            lambda b: (tf.cast(b["data"], tf.float32) / 256, tf.cast(b["number"], tf.float32)[:, None]),
            shuffle="exchange", fraction=fraction, input_context=context,
        )

    def build():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.layers.Input([100]), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0001), "mse")
        return model

    misses = []
    count = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: misses.append(cache.stats()["memory_misses"])
    )
    callbacks = [count]
    if topology.local == 0:
        # Horovod would need the nodes' other workers, too.
        mail = Mail(shared_tmp / "mail", topology.node, max(nodes) + 1)
        all_to_all = by_horovod(comm) if max(topology.node_sizes) == 1 else mail.all_to_all
        plan = cache.order(batch, shuffle="exchange", fraction=fraction)
        swap = Exchange(cache, plan, nodes, topology.node, all_to_all)
        # A real epoch is longer than a transfer; this one waits for it.
        arrived = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda step, logs: swap._thread.join() if step == 1 else None
        )
        callbacks = [ExchangeCallback(swap), arrived, count]
    with strategy.scope():
        model = build()
    data = strategy.distribute_datasets_from_function(dataset)
    steps = cache.steps_per_epoch(batch)
    model.fit(data, epochs=epochs, steps_per_epoch=steps, verbose=0, callbacks=callbacks)
    assert len(misses) == epochs and set(misses) == {misses[0]}
    comm.barrier()
    assert share <= cache.stats()["stored"] <= room
    alone = build()
    alone.fit(dataset(), epochs=epochs, steps_per_epoch=steps, verbose=0)
    for one, other in zip(alone.get_weights(), model.get_weights(), strict=True):
        assert_identical(comm, other)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
