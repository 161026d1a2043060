"""What every multi-process test needs: a strategy, and workers that stay in step."""

import gc
import os

import pytest
import tensorflow as tf

from tests.multiprocess.sparse_runs import SHAPES, paired, placed
from tests.thorough import P, thorough_if
from tf_sparse_strategy import collectives
from tf_sparse_strategy.pipelines import without_tuning


def pytest_collection_finish(session):
    """Collections of garbage, of which there are many, need not look at what will never be any."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True, hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Remembers whether the test's body failed here, and says so before the launcher ends us."""
    outcome = yield
    report = outcome.get_result()
    if report.failed and not hasattr(item, "failed_here"):
        item.failed_here = report.when == "call"
        os.write(2, f"{item.nodeid}: {report.when}\n{report.longreprtext}\n".encode())


@pytest.fixture(autouse=True)
def in_step(request, comm):
    """Ends each test on all workers together: a failure on one is a failure on all.

    Without it the next test's collectives would pair with what the failed one left behind.
    """
    yield
    failed = getattr(request.node, "failed_here", False)
    failures = int(comm.all_reduce(tf.constant(int(failed)), purpose="in_step"))
    if failures and not failed:
        pytest.fail(f"this test failed on {failures} other worker(s)")


@pytest.fixture(scope="session")
def comm():
    """The collectives of this worker."""
    collectives.start()
    return collectives.Collectives(collectives.find_topology())


@pytest.fixture(scope="session")
def topology(comm):
    """Where this worker stands."""
    return comm.topology


@pytest.fixture(autouse=True, scope="session")
def iterators_end_at_once():
    """Also those of models without the strategy, whose end all workers wait for: `without_tuning`."""
    with pytest.MonkeyPatch.context() as patch:
        begin = tf.data.Dataset.__iter__
        patch.setattr(tf.data.Dataset, "__iter__", lambda dataset: begin(without_tuning(dataset)))
        yield


@pytest.fixture
def partners(topology):
    """For what takes two: with one worker nothing can differ between workers."""
    if topology.num_workers == 1:
        pytest.skip("one worker has no partner")


@pytest.fixture
def tolerance(comm):
    """What rounding may do. With more than two workers sums have several orders, whose difference grows from
    step to step (BatchNormalization of two rows divides by little): float64 keeps it small.
    """
    if comm.topology.num_workers <= 2:
        yield 1e-6
        return
    import keras

    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield 1e-10
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


# Beside two nodes: three of two workers, and uneven ones.
OTHERS = {3: [(0, 1, 1)], 6: [(0, 0, 1, 1, 2, 2)], 8: [(0, 0, 1, 1, 2, 2, 2, 2)]}.get(P, [])


@pytest.fixture(params=["two nodes", *thorough_if(bool, OTHERS)], ids=str)
def here(request, topology):
    """Collectives of workers that pose as standing elsewhere; two nodes are `paired`."""
    return paired(topology) if request.param == "two nodes" else placed(topology, request.param)


@pytest.fixture
def strategy(comm):
    """A new dense SparseStrategy."""
    import tf_sparse_strategy as tss

    return tss.SparseStrategy()


@pytest.fixture(params=["keras", "tf_keras"])
def keras(request):
    """Both Kerases, one after the other."""
    import importlib

    return importlib.import_module(request.param)


@pytest.fixture
def shared_tmp(comm, topology, tmp_path_factory):
    """A directory that all workers see."""
    import pathlib

    path = str(tmp_path_factory.mktemp("shared")).ljust(256).encode()
    sent = comm.broadcast(tf.io.decode_raw(tf.constant(path), tf.uint8), purpose="shared_tmp")
    return pathlib.Path(bytes(sent.numpy()).decode().strip())


@pytest.fixture
def variables():
    """Zeros of the shapes whose gradients the tests of residuals add up."""
    return [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
