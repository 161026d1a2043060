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
from benchmarks.overlap import models
from benchmarks.scheduling_2d import settings
from benchmarks.scheduling_2d import worker as scheduling_2d

TRACED = (6, 9)  # steps
ROWS, BUCKET = 4, 4 << 20


def of_overlap() -> dict:
    """By what is written above it: (model, data). An encoder of layers that wait."""
    ways = {
        "without overlap=": {"bucket_bytes": BUCKET},
        "overlap=DeAR()": {"overlap": tss.overlap.DeAR(fusion=BUCKET)},
    }
    rows = 2 * ROWS * TRACED[1]
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=[rows, models.CLASSES]).astype(np.float32), rng.integers(0, models.CLASSES, rows)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(2 * ROWS)
    found = {}
    for title, options in ways.items():
        with tss.SparseStrategy(**options).scope():
            model = models.build("transformer")
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)
        found[title] = model, data
    return found


def of_scheduling_2d() -> dict:
    """The same for a model with a table."""
    model = settings.MODELS["small"]
    data = scheduling_2d.batches(scheduling_2d.words(model, 2, TRACED[1]))
    ways = {"delay_rows=False": settings.WITHOUT, "delay_rows=True": settings.WITH}
    return {title: (scheduling_2d.method(name, model, 2), data) for title, name in ways.items()}


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
