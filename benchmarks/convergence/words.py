"""A recurrent model of the words in the Python standard library's docstrings: perplexity."""

import collections
import hashlib
import math
import re

import keras
import numpy as np
import tensorflow as tf

from examples.text.corpus import docstrings

LENGTH, BATCH = 20, 64  # words of a row; rows of all workers
EPOCHS, RATE, CLIP, ADAMS_RATE = 5, 2.0, 1.0, 2e-3
LEAST = 10  # rarer words are one and the same


def corpus(part: float) -> tuple[np.ndarray, np.ndarray, int, str]:
    """(rows to train on, rows to test on, int32 [n, LENGTH + 1]; number of words; a hash of the text)."""
    texts = docstrings()
    texts = texts[: max(1, int(part * len(texts)))]
    lines = [re.findall(r"\w+|[^\w\s]", text.lower()) + ["<end>"] for text in texts]
    flat = [word for line in lines for word in line]
    counted = collections.Counter(flat)
    kept = sorted(word for word, count in counted.items() if count >= LEAST)
    number = {word: i + 1 for i, word in enumerate(kept)}
    ids = np.array([number.get(word, 0) for word in flat], np.int32)
    rows = (len(ids) - 1) // LENGTH
    pairs = np.stack([ids[i * LENGTH : (i + 1) * LENGTH + 1] for i in range(rows)])
    pairs = pairs[np.random.default_rng(0).permutation(rows)]
    test = rows // 10 // BATCH * BATCH or rows // 10
    digest = hashlib.blake2b(" ".join(flat).encode(), digest_size=6).hexdigest()
    return pairs[test:], pairs[:test], len(kept) + 1, digest


def train(strategy, seed: int, epochs: int, rows: tuple, adam: bool) -> float:
    """Perplexity on the test rows after training, by SGD or by Adam; collective."""
    keras.utils.set_random_seed(seed)
    training, test, vocabulary, _ = rows
    layers, steps = keras.layers, epochs * (len(training) // BATCH)
    rate = ADAMS_RATE if adam else RATE
    rates = keras.optimizers.schedules.PolynomialDecay(rate, max(1, steps), rate / 100)
    with strategy.scope():
        model = keras.Sequential(
            [
                layers.Input([LENGTH], dtype="int32"),
                layers.Embedding(vocabulary, 64),
                layers.LSTM(128, return_sequences=True),
                layers.Dense(vocabulary),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        if adam:
            optimizer = keras.optimizers.Adam(rates)
        else:
            optimizer = keras.optimizers.SGD(rates, global_clipnorm=CLIP)
        model.compile(optimizer, loss)
    order = np.random.default_rng(seed)
    for _ in range(epochs):
        mixed = training[order.permutation(len(training))]
        data = tf.data.Dataset.from_tensor_slices((mixed[:, :-1], mixed[:, 1:]))
        model.fit(data.batch(BATCH, drop_remainder=True), verbose=0)
    found = model.evaluate(test[:, :-1], test[:, 1:], batch_size=BATCH, verbose=0)
    return math.exp(found)
