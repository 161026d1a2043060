"""Every recipe by its command line, on two nodes of an emulated cluster."""

import pytest

from tests.lab_help import ENVIRONMENT, ROOT, require_namespaces
from tests.recipe_runs import RECIPES, command, reported
from tests.thorough import thorough_if
from tf_sparse_strategy.cluster import Netlab


def test_none_is_left_out():
    assert set(RECIPES) == {path.parent.name for path in (ROOT / "examples").glob("*/main.py")}


# Others by other launchers, test_recipes_*.py; by all of them: `make check`.
@pytest.mark.parametrize(
    "recipe", thorough_if(lambda name: name not in ("resnet50", "transformer"), RECIPES)
)
def test_runs_on_two_nodes(recipe, tmp_path):
    require_namespaces()
    with Netlab(nodes=2, local=1, rate="200mbit") as lab:
        result = lab.run(command(recipe, tmp_path), env=ENVIRONMENT, timeout=200)
    assert result.exit_code == 0, "\n".join(rank.stderr for rank in result.ranks)
    assert reported(result.ranks[0].stdout)["workers"] == "2"
    assert not reported(result.ranks[1].stdout), "only rank 0 reports"
    in_a_step = reported(result.ranks[0].stdout)["bytes on the wire"]
    sent = int(in_a_step.split(" ")[0].replace(",", ""))
    assert sent > 0 and all(link.sent > sent / 2 for link in result.links), (in_a_step, result.links)
