"""What recipes share: flags that follow from settings, checks, rates, the strategy, the report."""

import dataclasses
import doctest
import subprocess
import sys

import keras
import numpy as np
import pytest
from absl import flags

from examples.common import batches, command_line, report, schedule, settings, strategy
from examples.common.saving import Saving
from examples.common.settings import Settings, setting
from tf_sparse_strategy.communication import Dense, HiTopK, Piecewise, Torus2D


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run(Settings):
    """A recipe's settings."""

    phases: tuple[tuple[int, int], ...] = setting("Sizes.", ((8, 2),), parse=settings.parse_phases)
    more: tuple[tuple[int, int], ...] | None = setting("Others.", ((9, 9),), parse=settings.parse_phases)
    output_dir: str = setting("Where.", "build/test")
    epochs: int = setting("In all.", 3, positive=True)


SMALL = Run(global_batch_size=8, learning_rate=0.1)
LARGE = dataclasses.replace(SMALL, global_batch_size=64, sparse_epochs=2, density=0.5)
RECIPES = {"small": SMALL, "large": LARGE}


def parsed(*arguments):
    line = flags.FlagValues()
    command_line.define(RECIPES, line)
    line(["main", *arguments])
    return command_line.chosen(RECIPES, line)


def test_flags_change_the_recipe():
    assert parsed() == SMALL
    assert parsed("--recipe=large") == LARGE
    everything = parsed(
        "--recipe=large", "--density=0.1", "--resume", "--phases=8:1,9:2", "--pto=on"
    )
    changed = {"density": 0.1, "resume": True, "phases": ((8, 1), (9, 2)), "pto": "on"}
    assert everything == dataclasses.replace(LARGE, **changed)


def test_what_a_recipe_gives_can_be_left_out():
    left = ["--sparse_epochs=0", "--density=none", "--pto=on", "--pto=none", "--more=none"]
    dense = parsed("--recipe=large", *left)
    assert dense == dataclasses.replace(LARGE, sparse_epochs=0, density=None, more=None)
    assert parsed("--more=8:1").more == ((8, 1),)


@pytest.mark.parametrize(
    "wrong",
    ["--pto=maybe", "--density=much", "--seed=none", "--recipe=none", "--seed=x", "--nosuch=1"],
)
def test_wrong_flags_are_refused(wrong):
    with pytest.raises(flags.Error):
        parsed(wrong)


def test_help_says_where_recipes_start():
    line = flags.FlagValues()
    command_line.define(RECIPES, line)
    assert line["global_batch_size"].help.endswith("Recipes: small 8, large 64.")
    assert line["learning_rate"].help.endswith("Recipes: 0.1.")
    assert "Recipes" not in line["pto"].help


def test_a_program_refuses_settings_and_says_why():
    command = [sys.executable, "-m", "examples.digits.main", "--optimizer=adam", "--pto=on"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "pto='on' must be none (--pto=none): adam takes no norms." in ended.stderr + ended.stdout
    assert "--global_batch_size: Samples per step" in ended.stderr + ended.stdout


BAD = [
    {"global_batch_size": 0},
    {"learning_rate": -1.0},
    {"overlap": "yes"},
    {"dtype": "float8"},
    {"sparse_epochs": 4, "density": 0.1},
    {"density": 0.1},
    {"density": 2.0, "sparse_epochs": 1},
    {"seed": -1},
    {"comm": "dgc"},
    {"epochs": 0},
]


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_settings_are_checked(bad):
    with pytest.raises(ValueError, match=f"{next(iter(bad))}=.* must be"):
        dataclasses.replace(SMALL, **bad)


def test_sparse_epochs_need_a_density():
    with pytest.raises(ValueError, match="sparse_epochs=1 needs a density"):
        dataclasses.replace(SMALL, sparse_epochs=1)


def coded(density):
    """What sparse epochs sum by."""
    return HiTopK(density, wire_dtype="float16", index_coding="delta")


def test_density_is_that_of_a_sparse_comm_too():
    given = dataclasses.replace(SMALL, comm="hitopk", density=0.05)
    assert strategy.communication(given) == HiTopK(0.05)
    assert strategy.communication(dataclasses.replace(given, comm="auto")).density == 0.05
    assert strategy.communication(dataclasses.replace(given, density=None)) == HiTopK(0.01)
    both = dataclasses.replace(given, sparse_epochs=2)
    assert strategy.communication(both) == Piecewise([(0, coded(0.05)), (2, HiTopK(0.05))])


def test_communication():
    assert strategy.communication(SMALL) == Dense()
    expected = Piecewise([(0, coded(0.5)), (2, Torus2D())])
    assert strategy.communication(dataclasses.replace(LARGE, comm="torus2d")) == expected


def test_overlap_is_passed_on():
    with pytest.raises(ValueError, match="use communication='dense'"):
        strategy.start(dataclasses.replace(LARGE, overlap="dear"))


def test_the_rate_rises_and_falls_by_epochs():
    """Also where the epochs of one phase have more steps; from its configuration as well."""
    phases = [(20, 2), (30, 1)]
    one = schedule.RiseAndFall(phases, 9.0, rising=1 / 3, last=1.0)
    again = schedule.RiseAndFall.from_config(one.get_config())
    rates = [float(one(step)) for step in range(50)]
    assert rates == [float(again(step)) for step in range(50)]
    assert max(rates) == rates[9] == pytest.approx(9.0)
    assert rates[4] == pytest.approx(4.5)
    assert rates[19] == pytest.approx(5.0) and rates[34] == pytest.approx(3.0)
    assert rates[49] == pytest.approx(1.0)


def test_rates_by_steps():
    """As their papers write them; also from the configuration."""
    for name, expected in (
        ("inverse_root", lambda step: 6 * min(step / 20, (20 / step) ** 0.5)),
        (
            "halving",
            lambda step: (
                6
                * (0.01 ** (1 - step / 20) if step < 20 else 1)
                * 0.5 ** (0 if step < 80 else min((step - 80) // 10 + 1, 4))
            ),
        ),
    ):
        one = schedule.BySteps(name, 6.0, warm_up=20, steps=120)
        again = schedule.BySteps.from_config(one.get_config())
        rates = [float(again(step)) for step in range(130)]
        assert rates == [float(one(step)) for step in range(130)]
        np.testing.assert_allclose(rates, [expected(step + 1) for step in range(130)], rtol=1e-5)


def test_report(capsys):
    history = {"samples_per_second": [1.0, 1000.0, 3000.0], "bytes_per_step": [0.0, 5000.0]}
    report.show(report.speed_and_bytes(strategy.start(SMALL), history))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "samples/s          2,000.0"
    assert lines[2] == "bytes on the wire  5,000 per step, all workers together"
    assert 0.1 < float(lines[3].split()[1]) < 16


@pytest.mark.parametrize("module", [schedule, settings])
def test_examples_in_docstrings(module):
    found = doctest.testmod(module)
    assert found.failed == 0 and found.attempted > 0


def test_phases_are_read():
    with pytest.raises(ValueError, match="phases='8' must be SIZE:EPOCHS"):
        settings.parse_phases("8")


def test_the_order_of_the_samples_follows_from_the_epoch():
    whole = batches.order(3, range(4), count=10, batch=4)
    np.testing.assert_array_equal(whole[16:], batches.order(3, range(2, 4), count=10, batch=4))
    assert all(len(set(epoch)) == 8 for epoch in whole.reshape(4, 8))
    assert (whole[:8] != whole[8:16]).any()


def test_a_run_goes_on_from_one_of_its_kind_alone(tmp_path):
    run = dataclasses.replace(SMALL, output_dir=str(tmp_path))

    def saving(settings, widths=(1,), **lasting):
        made = strategy.start(settings)
        with made.scope():
            model = keras.Sequential([keras.Input([2]), *map(keras.layers.Dense, widths)])
            model.compile("sgd", "mse")
        return Saving(settings, model, made, **lasting)

    saving(dataclasses.replace(run, seed=7))  # nothing is saved yet
    saving(run).on_epoch_end(1)
    assert saving(dataclasses.replace(run, learning_rate=0.2, epochs=9, comm="torus2d")).epoch == 2
    for other in ({"seed": 1}, {"global_batch_size": 16}):
        with pytest.raises(ValueError, match=next(iter(other))):
            saving(dataclasses.replace(run, **other))
    saving(run, batch_of_epoch_2=4).on_epoch_end(2)  # an epoch that the first run did not have
    saving(run).on_epoch_end(3)
    with pytest.raises(ValueError, match="batch_of_epoch_2=8 must be 4"):
        saving(run, batch_of_epoch_2=8)
    for widths in ((2,), (1, 1)):
        with pytest.raises(ValueError, match="holds a checkpoint of another model: leave out --resume"):
            saving(run, widths)
