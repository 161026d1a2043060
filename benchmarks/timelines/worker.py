"""A worker: trains a model in two ways, one after the other, and traces some steps of each."""

import argparse
import json
import os
import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf

import tf_sparse_strategy as tss
from benchmarks.sparse_training.models import CLASSES, LENGTH, WORDS, transformer
from examples.text import zipf

TRACED = (6, 9)  # steps
ROWS = 16  # of a worker
VOCABULARY, LINE = 20_000, 50
BUCKET = 2 << 20


def of_overlap() -> dict:
    """By what is written above it: (model, data). An encoder, whose gradients take long to send."""
    ways = {
        "as it is": {"bucket_bytes": BUCKET},
        "overlap=DeAR()": {"overlap": tss.overlap.DeAR(fusion=BUCKET)},
    }
    ids = np.random.default_rng(0).integers(0, WORDS, [2 * ROWS * TRACED[1], LENGTH]).astype(np.int32)
    return {title: (compiled(transformer, options), batches(ids, ids)) for title, options in ways.items()}


def of_scheduling_2d() -> dict:
    """The same for convolutions over words of a large table."""

    def build():
        ids = keras.Input([LINE], dtype="int32")
        x = tss.layers.ShardedEmbedding(VOCABULARY, 64)(ids)
        for _ in range(3):
            x = keras.layers.Conv1D(64, 5, padding="same", activation="relu")(x)
        return keras.Model(ids, keras.layers.Dense(CLASSES)(keras.layers.GlobalAveragePooling1D()(x)))

    text = zipf.Zipf(VOCABULARY, exponent=1.1)
    ids = text.draw(np.random.default_rng(0), [8 * ROWS * TRACED[1], LINE])
    return {
        f"delay_rows={delay}": (compiled(build, {"delay_rows": delay}), batches(ids, ids[:, 0] % CLASSES, 4))
        for delay in (False, True)
    }


def compiled(build, options: dict) -> keras.Model:
    """The model, to be trained with these options of the strategy."""
    with tss.SparseStrategy(**options).scope():
        model = build()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tss.optimizers.LazyAdam(1e-3), loss, jit_compile=False)
    return model


def batches(x: np.ndarray, y: np.ndarray, factor: int = 1) -> tf.data.Dataset:
    """Batches of `factor` ROWS for each of two workers."""
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(2 * ROWS * factor)


def main() -> None:
    """Writes the traces as JSON, by title, on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output")
    parser.add_argument("--picture", choices=["overlap", "scheduling_2d"], required=True)
    args = parser.parse_args()
    found = of_overlap() if args.picture == "overlap" else of_scheduling_2d()
    traces = {}
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory, "trace.json")
        for title, (model, data) in found.items():
            monitor = tss.callbacks.CommunicationMonitor(trace=os.fspath(path), trace_steps=TRACED)
            model.fit(data, epochs=1, verbose=0, callbacks=[monitor])
            if model.distribute_strategy.topology.rank == 0:
                traces[title] = json.loads(path.read_text())
    if traces:
        with open(args.output, "w") as file:
            json.dump(traces, file)


if __name__ == "__main__":
    main()
