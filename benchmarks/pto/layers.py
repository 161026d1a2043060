"""Shapes of the trainable tensors of three models, in order of creation; pure."""

import math

Shape = tuple[int, ...]


def resnet50() -> list[Shape]:
    """ResNet-50 v1.5: 161 tensors, 25,557,032 elements."""
    shapes: list[Shape] = [(7, 7, 3, 64), (64,), (64,)]
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            kernels = [(1, 1, inputs, width), (3, 3, width, width), (1, 1, width, 4 * width)]
            if block == 0:
                kernels.insert(0, (1, 1, inputs, 4 * width))
            for kernel in kernels:
                shapes += [kernel, kernel[-1:], kernel[-1:]]
            inputs = 4 * width
    return [*shapes, (2048, 1000), (1000,)]


def transformer() -> list[Shape]:
    """Transformer base with one table of 33,708 words: 185 tensors, 61,362,176 elements."""
    width, inner = 512, 2048
    norm = [(width,)] * 2
    attention = [(width, width)] * 4
    feed_forward = [(width, inner), (inner,), (inner, width), (width,)]
    encoder = [*attention, *norm, *feed_forward, *norm]
    decoder = [*attention, *norm, *attention, *norm, *feed_forward, *norm]
    return [(33_708, width), *encoder * 6, *norm, *decoder * 6, *norm]


def bert_large() -> list[Shape]:
    """BERT-large's encoder and pooler: 391 tensors, 335,141,888 elements."""
    width, inner = 1024, 4096
    norm = [(width,)] * 2
    dense = [(width, width), (width,)]
    block = [*dense * 4, *norm, (width, inner), (inner,), (inner, width), (width,), *norm]
    return [(30_522, width), (512, width), (2, width), *norm, *block * 24, *dense]


MODELS = {"ResNet-50": resnet50, "Transformer": transformer, "BERT-large": bert_large}


def elements(shapes: list[Shape]) -> int:
    """Elements of all tensors together."""
    return sum(map(math.prod, shapes))
