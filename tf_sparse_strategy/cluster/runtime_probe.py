"""Prints what Horovod was built with, and which GPUs there are, as one JSON line."""

import json
import os

import tensorflow as tf

from tf_sparse_strategy import collectives

if __name__ == "__main__":
    gpus = len(tf.config.list_physical_devices("GPU"))
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")
    driver = wanted and os.path.exists("/dev/nvidiactl")  # /proc has it in containers without GPUs, too
    print(json.dumps({**collectives.features(), "gpus": gpus, "driver": driver}))
