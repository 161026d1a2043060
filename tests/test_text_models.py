"""The recipes' models for text have the parameters of EmbRace's table 1; their parts, by brute force."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from examples.bert import model as bert
from examples.bert import train as bert_train
from examples.gnmt import model as gnmt
from examples.language_model import model as language_model
from examples.language_model import sampling
from examples.text import translation
from examples.text.lstm import TwoBiasLSTM
from examples.transformer import model as transformer


def weights(make):
    """Numbers of elements by path of the weights of `make()`, without memory for them."""
    with keras.StatelessScope(initialize_variables=False):
        found = {w.path: int(np.prod(w.shape)) for w in make().weights}
    keras.utils.clear_session()  # which remembers them, to initialize them later
    return found


def language():
    return language_model.build_model(language_model.SIZES["paper"], sharded=True)


def in_tables(found, *names):
    return sum(n for path, n in found.items() if path.split("/")[-2] in names)


def test_language_model_has_835_million_parameters():
    found = weights(language)
    assert sum(found.values()) == 835_344_767
    biases = language_model.SIZES["paper"].vocabulary
    assert in_tables(found, "words", "candidates") - biases == 812_514_304


def test_gnmt_has_194_million_parameters():
    found = weights(lambda: gnmt.build_model(gnmt.SIZES["paper"], sharded=True))
    assert sum(found.values()) == 193_757_758
    assert in_tables(found, "source_words", "target_words") == 66_185_216


def test_transformer_has_280_million_parameters():
    """The last normalizations, which the first paper's has not, are 4,096 of them."""
    found = weights(lambda: transformer.build_model(transformer.SIZES["paper"], sharded=True))
    assert sum(found.values()) == 279_846_912 + 4_096
    assert in_tables(found, "source_words", "target_words") == 69_042_176


def test_bert_has_109_million_parameters():
    found = weights(lambda: bert.build_model(bert.SIZES["paper"], sharded=True))
    assert sum(found.values()) == 109_488_386
    assert in_tables(found, "words") == 23_445_504


def test_bert_reads_question_and_text_without_the_padding():
    size = bert.SIZES["tiny"]
    model = bert.build_model(size, sharded=False)
    random = np.random.default_rng(0)
    ids = random.integers(4, size.vocabulary, [3, 10]).astype("int32")
    segments = np.broadcast_to(np.arange(10) > 3, ids.shape).astype("int32")

    def logits(ids, segments):
        return model({"ids": ids, "segments": segments}).numpy()

    found = logits(ids, segments)
    assert found.shape == (3, 2, 10)
    longer = [np.pad(x, [(0, 0), (0, 5)]) for x in (ids, segments)]
    np.testing.assert_allclose(logits(*longer)[:, :, :10], found, atol=1e-5)
    for changed in (logits(ids[:, ::-1], segments), logits(ids, 1 - segments)):
        assert np.abs(changed - found).max(axis=2).min() > 1e-5


def test_questions_are_answered_by_the_words_between():
    document = list(range(100, 170))
    samples = bert_train.questions([document, [7] * 8], 40, np.random.default_rng(1))
    assert len(samples) == 2  # pieces of 31 words; the rest and the second document are too short
    for ids, segments, (first, last) in zip(
        samples.inputs["ids"], samples.inputs["segments"], samples.labels, strict=True
    ):
        assert list(segments) == [0] * 8 + [1] * 32
        assert list(ids[1:4]) == list(ids[first - 3 : first])
        assert list(ids[4:7]) == list(ids[last + 1 : last + 4])
        assert 0 <= last - first < bert_train.LONGEST and first >= 8 + bert_train.ASKED


@pytest.mark.parametrize(
    "translator, scale",
    # GNMT's initial weights let 1e-4 of the source through, tripled 5e-2 (60 seeds);
    # the Transformer's let 9e-3 through, and tripled they saturate its attention.
    [pytest.param(gnmt, 3, id="gnmt"), pytest.param(transformer, 1, id="transformer")],
)
def test_words_depend_on_the_source_and_the_words_before(translator, scale):
    """Not on padding, not on words behind."""
    keras.utils.set_random_seed(0)
    size = translator.SIZES["tiny"]
    model = translator.build_model(size, sharded=False)
    model.set_weights([scale * weight for weight in model.get_weights()])
    random = np.random.default_rng(0)
    source, target = random.integers(4, size.vocabulary, [2, 3, 6]).astype("int32")

    def logits(source, target):
        return model({"source": source, "target": target}).numpy()

    found = logits(source, target)
    assert found.shape == (3, 6, size.vocabulary)
    padded = np.pad(source, [(0, 0), (0, 4)])
    np.testing.assert_allclose(logits(padded, target), found, atol=1e-5)
    behind = target.copy()
    behind[:, 4:] = 5
    np.testing.assert_allclose(logits(source, behind)[:, :4], found[:, :4], atol=1e-5)
    for before in (source[:, ::-1], np.where(np.arange(6) == 5, 7, source)):
        assert np.abs(logits(before, target) - found).max(axis=2).min() > 1e-4
    target[:, 0] = 5
    assert np.abs(logits(source, target) - found)[:, 0].max() > 1e-4


def test_smoothed_crossentropy_and_perplexity_leave_padding_out():
    labels = tf.constant([[5, 3, 0], [2, 0, 0]])
    logits = tf.constant(np.random.default_rng(0).normal(size=[2, 3, 7]), tf.float32)
    losses = [
        keras.losses.CategoricalCrossentropy(True, label_smoothing=0.1, reduction="none")(
            tf.one_hot(labels[place], 7), logits[place]
        )
        for place in ((0, 0), (0, 1), (1, 0))
    ]
    found = translation.SmoothedCrossentropy(0.1)(labels, logits)
    assert float(found) == pytest.approx(float(tf.add_n(losses)) / 6, rel=1e-5)
    metric = translation.Perplexity()
    metric.update_state(labels, logits)
    exact = [tf.nn.log_softmax(logits)[b, t, labels[b, t]] for b, t in ((0, 0), (0, 1), (1, 0))]
    assert float(metric.result()) == pytest.approx(np.exp(-np.mean(exact)), rel=1e-5)


def test_lstm_with_two_biases_adds_them():
    random = np.random.default_rng(0)
    x = tf.constant(random.normal(size=[2, 5, 3]), tf.float32)
    ours = keras.layers.Bidirectional(TwoBiasLSTM(4, return_sequences=True))
    keras_own = keras.layers.Bidirectional(keras.layers.LSTM(4, return_sequences=True))
    ours(x), keras_own(x)
    values = [random.normal(size=w.shape).astype("float32") for w in ours.get_weights()]
    ours.set_weights(values)
    assert len(values) == 8
    one_bias = []
    for kernel, recurrent, bias, second in (values[:4], values[4:]):
        one_bias += [kernel, recurrent, bias + second]
    keras_own.set_weights(one_bias)
    np.testing.assert_allclose(ours(x), keras_own(x), atol=1e-6)
    copy = keras.layers.Bidirectional.from_config(ours.get_config())
    copy(x)
    copy.set_weights(values)
    np.testing.assert_array_equal(copy(x), ours(x))


N, D, VOCABULARY, SAMPLES = 6, 4, 11, 5


@pytest.fixture
def problem():
    random = np.random.default_rng(3)
    hidden = tf.constant(random.normal(size=[N, D]), tf.float32)
    table = tf.constant(random.normal(size=[VOCABULARY, D + 1]), tf.float32)
    labels = tf.constant(random.integers(0, VOCABULARY, [N]), tf.int32)
    return hidden, table, labels


def test_sampled_losses_are_tensorflows(problem):
    """Also where a sample is a label."""
    hidden, table, labels = problem
    hits = 0
    for seed in range(4):
        ids, expected, of_labels = sampling.draw(labels, SAMPLES, VOCABULARY, seed)
        assert len(set(ids.numpy())) == SAMPLES
        hits += len(set(ids.numpy()) & set(labels.numpy()))
        found = sampling.sampled_losses(
            hidden,
            labels,
            tf.gather(table, labels),
            ids,
            tf.gather(table, ids),
            expected,
            of_labels,
        )
        whole = tf.nn.sampled_softmax_loss(
            table[:, :-1],
            table[:, -1],
            labels[:, None],
            hidden,
            SAMPLES,
            VOCABULARY,
            sampled_values=(ids, of_labels[:, None], expected),
        )
        np.testing.assert_allclose(found, whole, rtol=1e-5)
    assert hits > 0


@pytest.mark.parametrize("piece", [1, 4, 11, 100])
def test_full_losses_by_pieces(problem, piece):
    hidden, table, labels = problem
    found = sampling.full_losses(
        hidden, labels, lambda ids: tf.gather(table, ids), VOCABULARY, piece
    )
    logits = tf.matmul(hidden, table[:, :-1], transpose_b=True) + table[:, -1]
    expected = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_pieces_come_one_after_the_other(problem):
    """All at once they would need the memory that pieces are to save."""
    hidden, table, labels = problem
    read = []

    def rows(ids):
        read.append(tf.gather(table, ids).op)
        return read[-1].outputs[0]

    sums = tf.function(lambda: sampling.full_losses(hidden, labels, rows, VOCABULARY, piece=4))
    graph = sums.get_concrete_function().graph  # keeps them
    assert graph is read[0].graph
    first, second, third, _ = read  # the last is of the labels
    assert first in before(second) and second in before(third)
    assert second not in before(first)


def before(operation):
    """The operations that have ended when this one starts."""
    found, todo = set(), [operation]
    while todo:
        op = todo.pop()
        new = {*op.control_inputs, *(x.op for x in op.inputs)} - found
        found |= new
        todo += new
    return found
