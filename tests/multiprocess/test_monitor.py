"""CommunicationMonitor in real jobs, where it touches Keras in both: it reports what can be worked out."""

import csv
import json

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_strategy as tss
from tests.thorough import MOSTLY_KERAS3
from tf_sparse_strategy import cli, metrics, traffic
from tf_sparse_strategy.communication import Guarded, OkTopK

ROWS, BATCH = 22, 8  # batches of 8, 8 and 6 rows
STEPS = 3
PARAMETERS = 5 * 4 + 4  # of the one Dense layer


def dataset(rows=ROWS):
    x = np.arange(rows * 5, dtype="float32").reshape(rows, 5) / rows
    y = (np.arange(rows) % 4).astype("int32")
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)


def compiled(strategy, keras, **options):
    with strategy.scope():
        model = keras.Sequential([keras.Input([5]), keras.layers.Dense(4)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False, **options)
    return model


def gradient_bytes(topology):
    """What all workers together send for one step's gradients: one bucket, one ring."""
    p = topology.num_workers
    return p * (2 * PARAMETERS * 4 * (p - 1) // p)


@MOSTLY_KERAS3
@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_epoch_logs(strategy, topology, keras, shared_tmp, steps_per_execution):
    model = compiled(strategy, keras, steps_per_execution=steps_per_execution)
    monitor = tss.callbacks.CommunicationMonitor()
    later = keras.callbacks.CSVLogger(str(shared_tmp / "log.csv"))
    counted = []
    keep = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: counted.append(metrics.read(strategy))
    )
    history = model.fit(
        dataset(),
        epochs=2,
        validation_data=dataset(2 * ROWS),
        callbacks=[monitor, later, keep],
        verbose=0,
    ).history
    assert counted[1].steps - counted[0].steps == STEPS + 6  # validation's six included
    for epoch in range(2):
        assert 0 < history["samples_per_second"][epoch] < 1e6
        per_second = history["samples_per_second"][epoch] * history["seconds_per_step"][epoch]
        np.testing.assert_allclose(per_second, ROWS / STEPS, rtol=1e-6)
        if topology.num_workers == 1:
            assert history["bytes_per_step"][epoch] == history["collectives_per_step"][epoch] == 0
            continue
        # The gradients, and a few bytes of every worker for every other, of the loss for the logs.
        extra = history["bytes_per_step"][epoch] - gradient_bytes(topology)
        assert 0 <= extra < 50 * topology.num_workers * (topology.num_workers - 1)
        assert history["collectives_per_step"][epoch] >= 1
        if topology.num_nodes == 1:
            assert history["cross_bytes_per_step"][epoch] == 0
    if topology.num_nodes == 2:  # two of the ring's links join the nodes
        crossing = np.array(history["bytes_per_step"]) * 2 / topology.num_workers
        np.testing.assert_allclose(history["cross_bytes_per_step"], crossing, rtol=0.2)
    if topology.rank == 0:  # the worker that writes files
        with open(shared_tmp / "log.csv") as file:
            logged = [float(row["bytes_per_step"]) for row in csv.DictReader(file)]
        np.testing.assert_allclose(logged, history["bytes_per_step"], rtol=1e-6)


def test_short_batches_count_their_true_rows(strategy, topology, keras):
    """Nine rows in batches of eight: most workers' last batch is a row of no account."""
    before = metrics.read(strategy)
    compiled(strategy, keras).fit(dataset(9), verbose=0)
    mine = metrics.read(strategy) - before
    workers = metrics.gather(mine, strategy.extended.collectives)
    assert sum(worker.rows for worker in workers) == 9
    assert {worker.steps for worker in workers} == {2}


def changes_told(caplog):
    """What this worker has logged of changes of schemes."""
    return [r.getMessage() for r in caplog.records if "gradients are now summed by" in r.getMessage()]


def scalars(directory):
    """By tag, the numbers, and words, of the only event file in `directory` by step."""
    [file] = directory.iterdir()  # rank 0's alone
    found = {}
    for event in tf.compat.v1.train.summary_iterator(str(file)):
        for value in event.summary.value:
            of_tag = found.setdefault(value.tag, {})
            assert event.step not in of_tag
            found_there = tf.make_ndarray(value.tensor).item()
            of_tag[event.step] = found_there.decode() if isinstance(found_there, bytes) else found_there
    return found


def test_tensorboard(strategy, topology, keras, shared_tmp):
    directory = shared_tmp / "logs"
    monitor = tss.callbacks.CommunicationMonitor(log_dir=directory, update_freq=2)
    compiled(strategy, keras).fit(dataset(), epochs=2, callbacks=[monitor], verbose=0)
    strategy.extended.collectives.barrier()
    written = scalars(directory)
    assert list(written["epoch_samples_per_second"]) == [0, 1]
    assert list(written["batch_bytes_per_step"]) == [2, 4, 6]


def test_trace(strategy, topology, keras, shared_tmp):
    path = shared_tmp / "trace" / "trace.json"
    monitor = tss.callbacks.CommunicationMonitor(trace=path, trace_steps=(2, 5))
    fit = compiled(strategy, keras).fit(dataset(), epochs=3, callbacks=[monitor], verbose=0)
    strategy.extended.collectives.barrier()
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {f"rank {r} (node {n})" for r, n in enumerate(topology.nodes)}
    bars = [e for e in events if e["ph"] == "X"]
    steps = {(e["pid"], e["name"]) for e in bars if e["cat"] == "step"}
    assert steps == {(r, f"step {s}") for r in range(topology.num_workers) for s in (2, 3, 4)}
    gradients = [e for e in bars if e["name"] == "gradients.all_reduce_sum"]
    assert len(gradients) == (3 * topology.num_workers if topology.num_workers > 1 else 0)
    for bar in gradients:
        step = next(
            e for e in bars if e["pid"] == bar["pid"] and e["name"] == f"step {bar['args']['step']}"
        )
        assert step["ts"] <= bar["ts"] + 1000
        assert bar["ts"] + bar["dur"] <= step["ts"] + step["dur"] + 1000
        sent = bar["args"]["local_bytes"] + bar["args"]["cross_bytes"]
        assert sent == gradient_bytes(topology) // topology.num_workers
    computed = [e for e in bars if e["cat"] == "compute"]
    assert {e["pid"] for e in computed} == set(range(topology.num_workers))
    seconds = [1e-6 * e["dur"] for e in bars if e["cat"] == "step"]
    for logged in fit.history["computation_stall"]:  # from the epoch on in which the trace ends
        assert 0 < logged < max(seconds)
    assert len(fit.history["computation_stall"]) == 2
    assert all(0 <= part < 1 for part in fit.history["overlap_ratio"])
    # An all-reduce ends nowhere before it has begun everywhere.
    for number in (2, 3, 4):
        one = [e for e in gradients if e["args"]["step"] == number]
        if one:
            assert max(e["ts"] for e in one) <= min(e["ts"] + e["dur"] for e in one) + 1000


def test_each_worker_can_write_its_own_trace(strategy, topology, shared_tmp, capsys):
    monitor = tss.callbacks.CommunicationMonitor(trace=shared_tmp / "{rank}.json", trace_steps=(1, 3))
    compiled(strategy, keras3).fit(dataset(), epochs=2, callbacks=[monitor], verbose=0)
    strategy.extended.collectives.barrier()
    if topology.rank == 0:
        paths = [str(path) for path in shared_tmp.glob("*.json")]
        assert cli.main(["trace", *paths, "--output", str(shared_tmp / "all")]) == 0
        rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
        assert [int(row[0]) for row in rows] == list(range(topology.num_workers))
        assert all(row[3] == "2" for row in rows)


def test_trace_of_a_training_that_ends_early(strategy, shared_tmp):
    path = shared_tmp / "short.json"
    monitor = tss.callbacks.CommunicationMonitor(trace=path, trace_steps=(1, 1000))
    model = compiled(strategy, keras3, steps_per_execution=2)
    model.fit(dataset(16), callbacks=[monitor], verbose=0)
    compiled(strategy, keras3).fit(dataset(), callbacks=[monitor], verbose=0)
    strategy.extended.collectives.barrier()
    bars = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]
    assert {e["name"] for e in bars if e["cat"] == "step"} == {"step 1", "step 2"}


@pytest.mark.parametrize("steps", [(1, 2), (50, 60)])
def test_a_trace_of_calls_of_several_steps(strategy, topology, shared_tmp, caplog, steps):
    """A call is recorded if one of its steps is to be; where none is, the log says so."""
    path = shared_tmp / "trace.json"
    monitor = tss.callbacks.CommunicationMonitor(trace=path, trace_steps=steps)
    model = compiled(strategy, keras3, steps_per_execution=3)
    model.fit(dataset(), epochs=2, callbacks=[monitor], verbose=0)
    strategy.extended.collectives.barrier()
    assert path.exists() == (steps == (1, 2))  # an empty one would replace that of another training
    said = "none of the steps 50 to 59 was run" in caplog.text
    assert said == (steps == (50, 60) and topology.rank == 0)


def test_progress_bar_on_rank_0_only(strategy, topology, keras, capfd):
    model = compiled(strategy, keras)
    model.fit(dataset(), epochs=2, verbose=1)
    model.evaluate(dataset(), verbose=1)
    model.predict(dataset(), verbose=1)
    model.fit(dataset(), verbose=2)
    printed = capfd.readouterr().out
    assert ("Epoch 1/2" in printed) == (topology.rank == 0)
    assert topology.rank == 0 or printed == ""


def test_progress_bar_without_the_strategy(keras, capfd):
    """The hook acts on models of a SparseStrategy alone: negative control of the test above."""
    model = compiled(tf.distribute.get_strategy(), keras)
    model.fit(dataset(), epochs=2, verbose=1)
    assert "Epoch 1/2" in capfd.readouterr().out


def test_other_strategies_are_refused(keras):
    model = compiled(tf.distribute.get_strategy(), keras)
    with pytest.raises(ValueError, match="needs a model of a SparseStrategy"):
        model.fit(dataset(), callbacks=[tss.callbacks.CommunicationMonitor()], verbose=0)


def changing(strategy):
    """The buckets whose scheme may change."""
    return [bucket for bucket, _ in strategy.residual.buckets if not bucket.is_exact]


def test_sparse_schemes_are_described(topology, shared_tmp, caplog):
    """Two epochs of one scheme, then an exact one; what is logged is what can be worked out."""
    phases = [(0, OkTopK(0.1, threshold_period=1)), (2, tss.communication.Dense())]
    strategy = tss.SparseStrategy(communication=tss.communication.Piecewise(phases))
    monitor = tss.callbacks.CommunicationMonitor(log_dir=shared_tmp / "logs", scheme_freq=2)
    with caplog.at_level("WARNING"):
        history = compiled(strategy, keras3).fit(dataset(), epochs=3, callbacks=[monitor], verbose=0)
    strategy.extended.collectives.barrier()
    logs = history.history
    said = changes_told(caplog)
    if topology.num_workers == 1:
        assert "sparse_part" not in logs
        return
    drops = OkTopK().share(topology).holders > 1
    assert logs["sparse_part"] == pytest.approx([drops * 20 / 24, drops * 20 / 24, 0.0])  # not the bias
    assert len(said) == (topology.rank == 0) and (not said or said[0].startswith("Epoch 3: "))
    assert all(ratio >= 1 for ratio in logs["imbalance"])
    if drops:
        assert 0 < logs["applied_density"][0] < logs["applied_density"][2] <= 1
        assert logs["residual_ratio"][0] > 0 == logs["residual_ratio"][2]
        assert logs["threshold_hits"][0] > 0 == logs["threshold_hits"][2]
    assert strategy.extended.gradients.probe is None
    written = scalars(shared_tmp / "logs")
    assert ["OkTopK" in words for words in written["epoch_communication"].values()] == [True, False]
    assert logs["scheme_changes"] == [0, 0, len(changing(strategy))]
    for name in ("sparse_part", "applied_density", "residual_ratio", "threshold_hits", "imbalance"):
        np.testing.assert_allclose(list(written[f"epoch_{name}"].values()), logs[name], rtol=1e-6)


def test_a_change_between_two_calls_of_fit_is_told(topology, caplog):
    scheme = tss.communication.Piecewise([(0, OkTopK(0.1)), (1, tss.communication.Dense())])
    model = compiled(tss.SparseStrategy(communication=scheme), keras3)
    monitor = tss.callbacks.CommunicationMonitor()
    with caplog.at_level("WARNING"):
        for epoch in range(2):
            model.fit(dataset(), initial_epoch=epoch, epochs=epoch + 1, callbacks=[monitor], verbose=0)
    said = changes_told(caplog)
    assert len(said) == (topology.rank == 0 and topology.num_workers > 1)
    assert not said or said[0].startswith("Epoch 2: ")


def test_checks_beyond_the_limit_are_counted(topology, shared_tmp):
    """Every second step is checked. With so low a limit only an eps of 0 is within it."""
    keras3.utils.set_random_seed(1)
    guarded = Guarded(OkTopK(0.3), limit=1e-9, every=2, action="dense")
    strategy = tss.SparseStrategy(communication=guarded)
    monitor = tss.callbacks.CommunicationMonitor(log_dir=shared_tmp / "logs", update_freq=1)
    logs = compiled(strategy, keras3).fit(dataset(), epochs=4, callbacks=[monitor], verbose=0).history
    strategy.extended.collectives.barrier()
    if topology.num_workers == 1:
        assert "eps" not in logs and "beyond_limit" not in logs
        return
    written = scalars(shared_tmp / "logs")
    assert list(written["epoch_beyond_limit"].values()) == logs["beyond_limit"]
    np.testing.assert_allclose(list(written["epoch_eps"].values()), logs["eps"], rtol=1e-6)
    eps = written["batch_eps"]
    beyond = [step for step in range(2, 4 * STEPS + 1, 2) if eps[step] > 1e-9]
    assert logs["beyond_limit"] == [sum((s - 1) // STEPS == epoch for s in beyond) for epoch in range(4)]
    assert bool(beyond) == (OkTopK().share(topology).holders > 1)


def test_checks_before_a_backup_are_not_counted_again(partners, topology, shared_tmp):
    """The counter is of this run; what training goes on from is restored."""
    guarded = Guarded(OkTopK(0.3), limit=1e-9, every=1)
    counted = []
    for epochs in (1, 2):
        keras3.utils.set_random_seed(1)
        strategy = tss.SparseStrategy(communication=guarded)
        backup = keras3.callbacks.BackupAndRestore(str(shared_tmp / "backup"), delete_checkpoint=False)
        callbacks = [backup, tss.callbacks.CommunicationMonitor()]
        fit = compiled(strategy, keras3).fit(dataset(), epochs=epochs, callbacks=callbacks, verbose=0)
        counted.append(fit.history["beyond_limit"])
        strategy.extended.collectives.barrier()
    assert [len(epochs) for epochs in counted] == [1, 1]
    assert all(0 <= count <= STEPS for [count] in counted)
    assert counted[0][0] > 0 or OkTopK().share(topology).holders == 1


def test_nested_guards_are_counted_together(partners, topology):
    """Piecewise may hold several."""
    phases = [(0, Guarded(OkTopK(0.3), 1e-9, every=1)), (STEPS, Guarded(OkTopK(0.2), 1e-9, every=1))]
    keras3.utils.set_random_seed(1)
    strategy = tss.SparseStrategy(communication=tss.communication.Piecewise(phases, unit="step"))
    model, monitor = compiled(strategy, keras3), tss.callbacks.CommunicationMonitor()
    logs = model.fit(dataset(), epochs=2, callbacks=[monitor], verbose=0).history
    holders = OkTopK().share(topology).holders
    assert all((0 < count <= STEPS) if holders > 1 else count == 0 for count in logs["beyond_limit"])


def test_a_change_within_an_epoch_is_told_when_it_happens(topology, shared_tmp, caplog):
    phases = [(0, OkTopK(0.1)), (3, tss.communication.Dense())]
    scheme = tss.communication.Piecewise(phases, unit="step")
    strategy = tss.SparseStrategy(communication=scheme)
    monitor = tss.callbacks.CommunicationMonitor(log_dir=shared_tmp / "logs", update_freq=2)
    with caplog.at_level("WARNING"):
        compiled(strategy, keras3).fit(dataset().repeat(3), callbacks=[monitor], verbose=0)
    said = changes_told(caplog)
    tells = topology.rank == 0 and topology.num_workers > 1
    assert [text.partition(":")[0] for text in said] == ["Step 4"] * tells


def test_a_change_there_and_back_within_an_epoch_is_told(topology, shared_tmp, caplog):
    """Exact in the second step alone; the last step of both epochs is summed by the same scheme."""
    sparse, exact = OkTopK(0.1), tss.communication.Dense()
    scheme = tss.communication.Piecewise([(0, sparse), (1, exact), (2, sparse)], unit="step")
    strategy = tss.SparseStrategy(communication=scheme)
    monitor = tss.callbacks.CommunicationMonitor(log_dir=shared_tmp / "logs")
    with caplog.at_level("WARNING"):
        logs = compiled(strategy, keras3).fit(dataset(), epochs=2, callbacks=[monitor], verbose=0).history
    said = changes_told(caplog)
    if topology.num_workers == 1:
        assert "scheme_changes" not in logs and not said
        return
    changes = 2 * len(changing(strategy))
    assert logs["scheme_changes"] == [changes, 0]
    assert len(said) == (topology.rank == 0) and (not said or f"({changes} changes" in said[0])
    strategy.extended.collectives.barrier()
    assert list(scalars(shared_tmp / "logs")["epoch_scheme_changes"].values()) == [changes, 0]


def test_a_training_that_begins_in_a_later_phase_changes_nothing(partners, caplog):
    scheme = tss.communication.Piecewise([(0, OkTopK(0.1)), (1, tss.communication.Dense())])
    model = compiled(tss.SparseStrategy(communication=scheme), keras3)
    monitor = tss.callbacks.CommunicationMonitor()
    with caplog.at_level("WARNING"):
        fit = model.fit(dataset(), initial_epoch=2, epochs=4, callbacks=[monitor], verbose=0)
    assert fit.history["scheme_changes"] == [0, 0]
    assert not changes_told(caplog)


def test_dense_schemes_have_nothing_to_describe(strategy):
    monitor = tss.callbacks.CommunicationMonitor(scheme_freq=1)
    logs = compiled(strategy, keras3).fit(dataset(), callbacks=[monitor], verbose=0).history
    assert "imbalance" in logs and "sparse_part" not in logs and "applied_density" not in logs


BAD = [
    {"update_freq": 0}, {"update_freq": "batch"}, {"trace_steps": (2, 2)}, {"trace_steps": 5},
    {"trace_steps": (1, 2, 3)}, {"scheme_freq": 0},
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_bad_arguments(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        tss.callbacks.CommunicationMonitor(**bad)


def test_sizes_of_messages(comm, topology):
    """`Counts` follows a known exchange."""
    before, sent = comm.traffic()
    comm.all_reduce(tf.zeros([1000]), purpose="known")
    after, moved = comm.traffic()
    expected = traffic.ring_all_reduce(topology, 4000)
    assert after - before == (topology.num_workers > 1)
    assert (moved.local - sent.local, moved.cross - sent.cross) == (expected.local, expected.cross)
