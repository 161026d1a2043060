"""Which accelerator a worker takes."""

import tensorflow as tf

from tf_sparse_strategy import collectives


def pin() -> str:
    """Limits this process to the GPU of its local rank; returns the device's name. After `collectives.start`.

    Returns:
      "/GPU:0", or "/CPU:0" on a machine without GPUs.

    Raises:
      RuntimeError: TensorFlow has touched a GPU already.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return "/CPU:0"
    mine = gpus[collectives.local_rank() % len(gpus)]
    try:
        tf.config.set_visible_devices(mine, "GPU")
    except RuntimeError as error:
        raise RuntimeError(
            "SparseStrategy must be created before TensorFlow touches a GPU, so that each process "
            f"takes only the one of its local rank ({error}). Create the strategy first, or set "
            "CUDA_VISIBLE_DEVICES per process."
        ) from error
    return "/GPU:0"
