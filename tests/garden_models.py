"""Makes the Model Garden's models of the recipes, prints what they are; needs TF_USE_LEGACY_KERAS=1."""

import json

import numpy as np
import tensorflow as tf

from examples.bert import garden as bert
from examples.bert import model as bert_model
from examples.common.precision import computing_in
from examples.resnet50 import model as resnet50
from examples.transformer import garden as transformer
from examples.transformer import model as transformer_model


def sizes(model) -> list[list[int]]:
    """Elements of each weight: of those that are trained, and of the others."""
    kinds = (model.trainable_weights, model.non_trainable_weights)
    return [sorted(int(np.prod(weight.shape)) for weight in weights) for weights in kinds]


def norms(model) -> dict:
    """How many batch normalizations there are, how many start from zero, and what they average by."""
    found = [n for n in model.submodules if isinstance(n, tf.keras.layers.BatchNormalization)]
    return {
        "count": len(found),
        "zero gammas": sum(not norm.gamma.numpy().any() for norm in found),
        "momentum, epsilon": sorted({(norm.momentum, norm.epsilon) for norm in found}),
    }


def logits(model) -> dict:
    """What a half-precision model computes its convolutions and its logits in; deviation of their weights."""
    convolutions = [m for m in model.submodules if isinstance(m, tf.keras.layers.Conv2D)]
    kernel, _ = model.layers[-1].get_weights()
    return {
        "convolutions": sorted({layer.compute_dtype for layer in convolutions}),
        "dtype": model.output.dtype.name,
        "deviation": float(np.std(kernel)),
    }


def read_by_transformer() -> dict[str, float]:
    """The largest change of logits as another part of the input changes."""
    model = transformer.build_model(transformer_model.SIZES["tiny"], sharded=False)
    source, target = np.random.default_rng(0).integers(4, 500, [2, 3, 6]).astype("int32")

    def logits(source, target):
        return model({"source": source, "target": target}).numpy()

    found = logits(source, target)
    behind, first = target.copy(), target.copy()
    behind[:, 4:], first[:, 0] = 5, 5
    changed = {
        "padding": logits(np.pad(source, [(0, 0), (0, 4)]), target) - found,
        "words behind": (logits(source, behind) - found)[:, :4],
        "the first word": (logits(source, first) - found)[:, 5],
        "the source": logits(source[:, ::-1], target) - found,
    }
    return {name: float(np.abs(difference).max()) for name, difference in changed.items()}


def read_by_bert() -> dict[str, float]:
    """The same."""
    model = bert.build_model(bert_model.SIZES["tiny"], sharded=False)
    ids = np.random.default_rng(0).integers(4, 500, [3, 10]).astype("int32")
    segments = np.broadcast_to(np.arange(10) > 3, ids.shape).astype("int32")

    def logits(ids, segments):
        return model({"ids": ids, "segments": segments}).numpy()

    found = logits(ids, segments)
    longer = [np.pad(x, [(0, 0), (0, 5)]) for x in (ids, segments)]
    changed = {
        "padding": logits(*longer)[:, :, :10] - found,
        "the words": logits(ids[:, ::-1], segments) - found,
        "the segments": logits(ids, 1 - segments) - found,
    }
    return {name: float(np.abs(difference).max()) for name, difference in changed.items()}


def main() -> None:
    """Prints."""
    texts = {"transformer": (transformer, transformer_model), "bert": (bert, bert_model)}
    found = {
        f"{name}, {size}": sizes(garden.build_model(own.SIZES[size], sharded=True))
        for name, (garden, own) in texts.items()
        for size in ("tiny", "laptop")
    }
    with computing_in("mixed_float16"):
        images = resnet50.garden()
    found["resnet50"] = sizes(images)
    read = {"transformer": read_by_transformer(), "bert": read_by_bert()}
    parts = {"norms": norms(images), "logits": logits(images)}
    print(json.dumps({"sizes": found, **parts, "read": read}))


if __name__ == "__main__":
    main()
