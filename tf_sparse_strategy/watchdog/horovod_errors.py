"""Errors that Horovod raises on a worker because another one was lost: a consequence, and no cause."""

import re

import tensorflow as tf

_SHUT_DOWN = "Horovod has been shut down"
# Its operations, its Python and its Gloo; not any folder's name, as that of an environment.
_HOROVODS_OWN = r"Horovod(?!\w*/)\w|horovod/tensorflow/mpi_ops|third_party/\w*gloo/"


def is_horovods(error: BaseException | None) -> bool:
    """Whether Horovod, because another worker was lost, caused `error` or what it was raised from."""
    while error is not None:
        if isinstance(error, tf.errors.UnknownError):
            text = str(error)
            if re.search(r"nccl\w+ failed: (?!remote)", text):  # this worker's own
                return False
            # What Python raised in the user's data pipeline comes as one, too, with paths in its traceback.
            of_python = "Traceback (most recent call last)" in text
            if _SHUT_DOWN in text or (re.search(_HOROVODS_OWN, text) and not of_python):
                return True
        error = error.__cause__ or error.__context__
    return False
