"""`tss doctor --measure`: the model of an emulated cluster is that of its links."""

import os
import pathlib
import sys

import pytest

from tests.lab_help import require_namespaces
from tests.thorough import thorough
from tf_sparse_strategy.cluster import Netlab, doctor, links
from tf_sparse_strategy.cost_model import LinkModel
from tf_sparse_strategy.topology import Topology

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCTOR = [sys.executable, "-m", "tf_sparse_strategy.cli", "doctor", "--measure", "--model"]
ENVIRONMENT = {
    **os.environ,
    "CUDA_VISIBLE_DEVICES": "-1",
    "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    "TF_NUM_INTRAOP_THREADS": "1",
}


@pytest.mark.parametrize("rate", [40e6, pytest.param(160e6, marks=thorough)])
def test_the_rate_of_the_links_is_found(tmp_path, rate):
    """Within generous bounds, for a busy machine; half or twice the rate would be out of them."""
    require_namespaces()
    file = tmp_path / "links.json"
    with Netlab(nodes=2, local=1, rate=int(rate)) as lab:
        result = lab.run([*DOCTOR, str(file)], env=ENVIRONMENT, timeout=180)
    assert result.exit_code == 0, result.ranks
    model = LinkModel.from_json(file.read_text())
    assert 0.6 * rate < 8 / model.cross_beta < 1.1 * rate
    assert 0 < model.cross_alpha < 0.1 and (model.local_alpha, model.local_beta) == (0, 0)
    assert "links of 2 workers on 2 nodes" in result.ranks[0].stdout
    assert not result.ranks[1].stdout


def test_description_by_hand():
    model = LinkModel(1e-5, 8e-9, 1e-4, 8e-8, phase=2e-3, exchange=3e-3)
    said = links.describe(model, Topology((0, 0, 1, 1), 0))
    assert "starts after 2.00 ms, an all-to-all after 5.00 ms" in said
    assert "inside a node: 10 µs a message, 1000 Mbit/s of each worker" in said
    assert "between nodes: 100 µs a message, 100 Mbit/s of each node" in said
    assert "100 MB of gradients by dense: 12.003 s predicted" in said  # 150 MB at 80 ns, 6 hops, a phase


def test_uneven_nodes_have_no_prediction():
    assert "predicted" not in links.describe(LinkModel(0.0, 0.0, 0.0, 0.0), Topology((0, 0, 1), 0))


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["--measure", "-H", "vm1:1,vm2:1"], "needs all workers of a job"),
        (["--model", "links.json"], "give both"),
    ],
)
def test_arguments_that_do_not_fit(arguments, text, capsys):
    with pytest.raises(SystemExit):
        doctor.main(arguments)
    assert text in capsys.readouterr().err


def test_one_worker_alone_has_no_links(tmp_path, monkeypatch):
    """A model of free links would have `Auto` take the dense sum for everything."""
    monkeypatch.delenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", raising=False)
    file = tmp_path / "links.json"
    with pytest.raises(ValueError, match="at least two workers"):
        links.measure(file)
    assert not file.exists()
