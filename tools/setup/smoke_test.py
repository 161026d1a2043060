"""Smoke test of the installed wheel: its names, its command, its operators, a training with one worker.

Run as `python smoke_test.py SITE_PACKAGES` outside the checkout.
"""

import pathlib
import subprocess
import sys

import keras
import numpy as np

import custom_ops
import tf_sparse_strategy as tss


def main() -> None:
    site = pathlib.Path(sys.argv[1])
    origin = pathlib.Path(tss.__file__)
    assert origin.is_relative_to(site), f"imported from {origin}, not from the wheel in {site}"
    assert not (site / "tests").exists(), "the wheel ships the tests"
    for name in tss.__all__:
        assert hasattr(tss, name), f"tss.__all__ names {name}, which is missing"

    tss_command = pathlib.Path(sys.executable).with_name("tss")
    said = subprocess.run([tss_command, "--help"], check=True, capture_output=True, text=True).stdout
    assert "netlab" in said and "doctor" in said, f"tss --help says {said}"

    top = custom_ops.mstopk(np.array([1.0, -3.0, 2.0], "float32"), 1)
    assert top.indices.numpy().tolist() == [1], f"custom_ops.mstopk selects {top.indices}"
    total, _ = custom_ops.sum_entries([[[1.0, 2.0]]], [[[2, 0]]], length=3)
    assert total.numpy().tolist() == [2, 0, 1], f"custom_ops.sum_entries gives {total}"

    places = custom_ops.permuted_index([0, 1, 2], 3, key=[1])
    assert sorted(places.numpy().tolist()) == [0, 1, 2], f"custom_ops.permuted_index gives {places}"

    keras.utils.set_random_seed(0)
    features = np.random.normal(size=(64, 4)).astype("float32")
    targets = features @ np.array([[1.0], [-2.0], [0.5], [3.0]], "float32")
    strategy = tss.SparseStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    losses = model.fit(features, targets, batch_size=16, epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0] / 4, f"the loss does not fall: {losses}"
    print(f"smoke test passed: {origin.parent.name}, loss {losses[0]:.3f} -> {losses[-1]:.5f}")


if __name__ == "__main__":
    main()
