"""Early rows: that they are used, that nothing holds them up, and what they must not outlive."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
from tests.multiprocess import oracle
from tests.multiprocess.delayed_runs import adversarial, pair, trained
from tests.thorough import P, thorough_if
from tf_sparse_strategy.collectives import Collectives
from tf_sparse_strategy.overlap.update import ChunkedUpdate
from tf_sparse_strategy.scheduling.early import EarlyRows

pytestmark = pytest.mark.usefixtures("partners")


@pytest.fixture(scope="module")
def strategies(comm):
    """(without delayed rows, with)."""
    return pair()


def bytes_by_purpose(strategy, **options):
    """What this worker sends in `trained`."""
    comm, found = strategy.extended.collectives, {}
    before = {name: site[1] + site[2] for name, site in comm.sites.sites()}
    trained(strategy, **options)
    for name, site in comm.sites.sites():
        purpose = name.split(".")[0]
        found[purpose] = found.get(purpose, 0) + int(site[1] + site[2] - before.get(name, 0))
    return found


SETTINGS = [{}, {"fitting": {"epochs": 2}}, {"steps_per_execution": 4}]


@pytest.mark.parametrize("settings", thorough_if(lambda given: P > 2 and given, SETTINGS), ids=str)
def test_rows_travel_once(strategies, settings):
    """A step early or not: together as many as without delay; a wrong batch announced would send others."""
    without, early = (bytes_by_purpose(strategy, **settings) for strategy in strategies)
    assert early["embedding_early"] > early["embedding_rows"] // 4
    assert early["embedding_early"] + early["embedding_rows"] == without["embedding_rows"]


def before(tensor):
    """Names of all operations that run before `tensor` is there."""
    found, waiting = set(), [tensor.op]
    while waiting:
        op = waiting.pop()
        if op.name not in found:
            found.add(op.name)
            waiting += [x.op for x in op.inputs] + list(op.control_inputs)
    return found


@pytest.fixture
def sent(monkeypatch):
    """(what is sent, splits, received) of all-to-alls in graphs, by purpose."""
    sent, original = {}, Collectives.all_to_all

    def noted(comm, x, splits=None, purpose="value", **options):
        received = original(comm, x, splits, purpose=purpose, **options)
        if not tf.executing_eagerly():
            sent.setdefault(purpose, []).append((x, splits, received[0]))
        return received

    monkeypatch.setattr(Collectives, "all_to_all", noted)
    return sent


def test_nothing_holds_them_up(strategies, sent):
    """What early rows need is there before the backward pass; what the gradients need is not."""
    trained(strategies[1])
    for rows, splits, received in sent["embedding_early"]:
        graph = [(x, g) for x, _, g in sent["embedding_gradients"] if x.graph is rows.graph]
        assert graph, "not in the step's own graph"
        for message, gradients in graph:
            assert message.op.name not in before(received)
            assert received.op.name not in before(gradients)
        assert {rows.op.name, splits.op.name} <= before(received)  # `before` finds something


def test_weights_that_dear_gathers_go_first(comm, sent, monkeypatch):
    """The forward pass waits for them, and not for early rows."""
    gathered, original = [], ChunkedUpdate.begin

    def noted(update):
        tensors = original(update)
        gathered.extend(x for x in tensors if tf.is_symbolic_tensor(x))
        return tensors

    monkeypatch.setattr(ChunkedUpdate, "begin", noted)
    trained(tss.SparseStrategy(overlap=tss.overlap.DeAR(), delay_rows=True))
    for _, _, received in sent["embedding_early"]:
        weights = {x.op.name for x in gathered if x.graph is received.graph}
        assert weights and weights <= before(received)


class Writes(keras.callbacks.Callback):
    """Within an epoch doubles all weights."""

    def on_train_batch_end(self, batch, logs=None):
        if batch in (2, 3, 5):
            self.model.distribute_strategy.synchronize()
            self.model.set_weights([2 * w for w in self.model.get_weights()])


@pytest.mark.parametrize("forgotten", thorough_if(lambda forgotten: P > 2 and forgotten, [False, True]))
def test_written_tables_are_looked_up_again(strategies, monkeypatch, forgotten):
    """With the negative control: rows that outlive the writing are the old ones."""
    if forgotten:
        monkeypatch.setattr(EarlyRows, "drop", lambda rows: None)
    options = {"data": adversarial(), "callbacks": [Writes()], "run_eagerly": True}
    (expected, _), (delayed, waited) = (trained(strategy, **options) for strategy in strategies)
    assert waited
    if forgotten:
        assert any(not np.array_equal(delayed[name], value) for name, value in expected.items())
    else:
        oracle.assert_same(delayed, expected, rtol=0, atol=0)
