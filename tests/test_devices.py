"""Each worker takes a GPU of its own; TensorFlow's part is replaced, as there is none here."""

import pytest
import tensorflow as tf

from tf_sparse_strategy import collectives, devices


def on_gpus(monkeypatch, names, local_rank, choose):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: list(names))
    monkeypatch.setattr(tf.config, "set_visible_devices", choose)
    monkeypatch.setattr(collectives, "local_rank", lambda: local_rank)
    return devices.pin()


@pytest.mark.parametrize(
    ("names", "local_rank", "device", "chosen"),
    [
        ([], 1, "/CPU:0", []),
        (["a", "b", "c"], 2, "/GPU:0", [("c", "GPU")]),
        (["a"], 2, "/GPU:0", [("a", "GPU")]),  # CUDA_VISIBLE_DEVICES per process
    ],
)
def test_the_gpu_is_that_of_the_local_rank(monkeypatch, names, local_rank, device, chosen):
    asked = []
    assert on_gpus(monkeypatch, names, local_rank, lambda *what: asked.append(what)) == device
    assert asked == chosen


def test_a_gpu_that_was_touched_before(monkeypatch):
    def choose(name, kind):
        raise RuntimeError("Visible devices cannot be modified after being initialized")

    with pytest.raises(RuntimeError, match="must be created before TensorFlow touches a GPU.*initialized"):
        on_gpus(monkeypatch, ["a"], 0, choose)
