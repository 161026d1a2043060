"""Prints what Horovod was built with and how many GPUs TensorFlow sees, as one JSON line."""

import json

import tensorflow as tf

from tf_sparse_strategy import collectives

if __name__ == "__main__":
    gpus = len(tf.config.list_physical_devices("GPU"))
    print(json.dumps({**collectives.features(), "gpus": gpus}))
