"""One rank that writes what it has trained, or reads what other numbers of workers wrote.

    python -m tests.multiprocess.saving_worker {write|read} FOLDER

Trainings that divide what they hold, tables by columns and whole updates, or have weights that are behind
within an epoch; and what sparse sums have not sent yet.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import lars_pto
import tf_sparse_strategy as tss
from tests.multiprocess import sparse_runs
from tests.multiprocess.embedding_models import compiled, dataset, whole_state
from tf_sparse_strategy.collectives import Collectives, find_topology, start
from tf_sparse_strategy.communication import HiTopK, TopKAllGather
from tf_sparse_strategy.gradients import GradientReducer

FILES = ("whole.keras", "weights.weights.h5", "checkpoint")


@dataclasses.dataclass
class Kind:
    """A strategy, the class of tables in its model, and the optimizer."""

    strategy: Callable[[], tss.SparseStrategy]
    table: type
    optimizer: Callable[[], keras.optimizers.Optimizer]


KINDS = {
    "tables": Kind(
        tss.SparseStrategy, tss.layers.ShardedEmbedding, lambda: keras.optimizers.Adam(0.05)
    ),
    "updates": Kind(
        lambda: tss.SparseStrategy(overlap=tss.overlap.ShardedUpdate(64)),
        keras.layers.Embedding,
        lambda: lars_pto.LAMB(0.05),
    ),
    "overlap": Kind(
        lambda: tss.SparseStrategy(overlap=tss.overlap.DeAR(64), delay_rows=True),
        tss.layers.ShardedEmbedding,
        lambda: tss.optimizers.LazyAdam(0.05),
    ),
}


def build(kind: Kind, seed: int) -> keras.Model:
    """A model with all slots."""
    model = compiled(kind.table, seed, kind.optimizer)
    model.optimizer.build(model.trainable_variables)
    return model


def train(model) -> list[np.ndarray]:
    """The state after an epoch."""
    model.fit(dataset(16), epochs=1, verbose=0)
    return whole_state(model)


def checkpoint(model):
    return tf.train.Checkpoint(model=model, optimizer=model.optimizer)


def write(kind: Kind, folder: pathlib.Path) -> None:
    """Three files of a trained model, and its state then and an epoch later."""
    strategy = kind.strategy()
    with strategy.scope():
        model = build(kind, seed=1)
    saved = train(model)
    paths = [str(folder / name) for name in FILES]
    model.save(paths[0])
    model.save_weights(paths[1])
    checkpoint(model).write(paths[2])
    later = train(model)
    if strategy.topology.rank == 0:
        np.savez(folder / "saved.npz", *saved)
        np.savez(folder / "later.npz", *later)


def read(kind: Kind, folder: pathlib.Path) -> list[str]:
    """Each file holds that state to the bit, from which training goes on as it did; returns where not."""
    wrong = []
    saved, later = (list(np.load(folder / f"{name}.npz").values()) for name in ("saved", "later"))
    strategy = kind.strategy()
    for name in FILES:
        path = str(folder / name)
        with strategy.scope():
            if name.endswith(".keras"):
                model = keras.models.load_model(path)
            else:
                model = build(kind, seed=2)
        if name.endswith(".h5"):
            model.load_weights(path)
        elif name == "checkpoint":
            checkpoint(model).read(path).assert_consumed()
        pairs = zip(whole_state(model), saved, strict=True)
        if not all(np.array_equal(one, other) for one, other in pairs):
            wrong.append(f"the state in {path} is another")
        for one, other in zip(train(model), later, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5, err_msg=name)
    return wrong


def residuals(action: str, file: pathlib.Path) -> None:
    """What four workers on two nodes have not sent yet arrives, all of it, on whatever reads it."""
    here = Collectives(find_topology())
    scheme = HiTopK(0.05) if action == "write" else TopKAllGather(0.3)
    reducer = GradientReducer(scheme, here, bucket_bytes=100 if action == "write" else 64)
    variables = [tf.Variable(tf.zeros(shape)) for shape in sparse_runs.SHAPES]
    if action == "write":
        for seed in range(3):
            sparse_runs.step(reducer, variables, here.topology, seed)
        reducer.memory.save(str(file), variables)
    else:
        reducer.memory.load(str(file), variables)
    rest = sparse_runs.sent_in_all(reducer, variables)
    if action == "write" and here.topology.rank == 0:
        np.save(file.with_suffix(".npy"), rest)
    if action == "read":
        np.testing.assert_array_equal(rest, np.load(file.with_suffix(".npy")))
    assert rest.any()


def backup(action: str, folder: pathlib.Path) -> None:
    """Of a `fit` of four workers on two nodes: what they have not sent yet is resumed with the weights."""
    keras_backup = keras.callbacks.BackupAndRestore(str(folder), delete_checkpoint=False)
    scheme = HiTopK(0.05) if action == "write" else TopKAllGather(0.3)
    strategy, model, history = sparse_runs.fit(keras, scheme, epochs=2, callbacks=[keras_backup])
    weights = model.get_weights()
    rest = sparse_runs.sent_in_all(strategy.extended.gradients, [v.value for v in model.trainable_variables])
    if action == "write" and strategy.topology.rank == 0:
        np.savez(folder / "backup.npz", rest, *weights)
    if action == "read":
        assert not history.epoch  # it had ended
        [there, *saved] = np.load(folder / "backup.npz").values()
        for one, other in zip(weights, saved, strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(rest, there, rtol=1e-5, atol=1e-6)
    assert rest.any()


def main(action: str, folder: str) -> None:
    start()
    residuals(action, pathlib.Path(folder, "residual.npz"))
    backup(action, pathlib.Path(folder, "backup"))
    wrong = []
    for name, kind in KINDS.items():
        path = pathlib.Path(folder, name)
        path.mkdir(exist_ok=True)
        wrong += {"write": write, "read": read}[action](kind, path) or []
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main(*sys.argv[1:])
