"""One rank that writes what it has trained, or reads what other numbers of workers wrote.

    python -m tests.multiprocess.saving_worker {write|read} FOLDER

Two kinds of training that divide what they hold: tables by columns, and whole updates.
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
from tests.multiprocess.embedding_models import compiled, dataset, whole_state

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


def read(kind: Kind, folder: pathlib.Path) -> None:
    """Each file holds that state to the bit, from which training goes on as it did."""
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
        for one, other in zip(whole_state(model), saved, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=name)
        for one, other in zip(train(model), later, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5, err_msg=name)


def main(action: str, folder: str) -> None:
    for name, kind in KINDS.items():
        path = pathlib.Path(folder, name)
        path.mkdir(exist_ok=True)
        {"write": write, "read": read}[action](kind, path)


if __name__ == "__main__":
    main(*sys.argv[1:])
