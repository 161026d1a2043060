"""DataCache: read once, decode once, train from memory. Works with any tf.data and Keras code."""

import importlib

# Imported on first use: `tss cache --help` does not wait for TensorFlow.
_HOMES = {
    "DataCache": "datacache.cache",
    "ImageFolder": "datacache.source",
    "Samples": "datacache.source",
    "TFRecords": "datacache.source",
    "callbacks": "datacache.callbacks",
}
__all__ = list(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_HOMES[name])
    return module if name == "callbacks" else getattr(module, name)
