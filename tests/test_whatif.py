"""whatif: broadcasting, the planner's own costs, infeasible elements, one program for any grid."""

import json
import os
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import numpy as np
import polars as pl
import pytest
from fleets import problem

import optim
from optim import whatif_rows
from optim._compile import program
from optim.problem import SLO
from optim.search import Search
from optim.verify import Correction

RATES = np.array([0.5, 40.0, 900.0])
OBJECTIVES = np.array([0.001, 0.06, 0.5])


@pytest.fixture(scope="module", autouse=True)
def one_program():
    """The program of `whatif`, traced once at most and compiled fast, in small batches."""
    patch = pytest.MonkeyPatch()
    traced_once = eqx.debug.assert_max_traces(max_traces=2)(whatif_rows._solve.__wrapped__)
    patch.setattr(whatif_rows, "_solve", program(traced_once))
    patch.setattr(whatif_rows, "CHUNK", 5)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def grid(one_program):
    return optim.whatif(problem(), rate=RATES[:, None], ttft_p99_s=OBJECTIVES)


def test_inputs_broadcast(grid):
    for name in ("rate", "ttft_p99_s", "tpot_p99_s", "usd_per_hour", "relaxed_usd_per_hour", "feasible"):
        assert getattr(grid, name).shape == (3, 3), name
    for name in ("replicas", "upper_tokens", "profile"):
        assert getattr(grid, name).shape == (3, 3, 2), name
    assert np.array_equal(grid.rate[:, 0], RATES)
    assert np.array_equal(grid.ttft_p99_s[0], OBJECTIVES)
    assert np.all(grid.tpot_p99_s == 0.05)


def test_infeasible_elements_are_inf_and_the_others_are_whole(grid):
    """1 ms is less than one step of an H100."""
    assert np.array_equal(grid.feasible, np.tile([False, True, True], (3, 1)))
    assert np.array_equal(np.isinf(grid.usd_per_hour), ~grid.feasible)
    assert np.array_equal(np.isinf(grid.relaxed_usd_per_hour), ~grid.feasible)
    assert np.all(np.isnan(grid.replicas[~grid.feasible]))
    assert np.all(grid.profile[~grid.feasible] == "")
    whole = grid.replicas[grid.feasible]
    assert np.array_equal(whole, np.round(whole))
    np.testing.assert_allclose(whole.sum(axis=1) * 4.02, grid.usd_per_hour[grid.feasible])
    assert np.all(grid.relaxed_usd_per_hour[grid.feasible] <= grid.usd_per_hour[grid.feasible] * (1 + 1e-9))
    assert np.all(grid.profile[grid.feasible] == "h100-80gb")


def test_more_load_and_less_time_never_cost_less(grid):
    """By one replica at most: each element finds its own thresholds."""
    assert np.all(np.diff(grid.usd_per_hour[:, 1:], axis=0) >= 0.0)
    assert np.all(np.diff(grid.usd_per_hour[:, 1:], axis=1) <= 4.02 + 1e-9)


@pytest.mark.slow
def test_costs_are_those_that_the_planner_proposes(grid):
    """The planner also fits thresholds to whole sizes: it saves at most the rounding up of each of two pools."""
    for i, j in ((0, 1), (1, 2), (2, 1), (2, 2)):
        asked = problem(rate=float(RATES[i]), slo=SLO(float(OBJECTIVES[j]), 0.05))
        proposal = Search(asked).propose(Correction.none(2))
        assert proposal.usd_per_hour <= grid.usd_per_hour[i, j] <= proposal.usd_per_hour + 2 * 4.02 + 1e-9


@pytest.mark.slow
def test_one_program_serves_every_grid(grid):
    """Other shapes, more than a batch of them and no TPOT objective; the fixture bounds the traces."""
    many = optim.whatif(problem(), rate=np.linspace(1.0, 900.0, 6), tpot_p99_s=np.inf)
    assert many.usd_per_hour.shape == (6,)
    assert np.all(many.feasible)
    one = optim.whatif(problem(), rate=40.0, ttft_p99_s=0.06)
    assert one.usd_per_hour.shape == ()
    assert float(one.usd_per_hour) == grid.usd_per_hour[1, 1]
    assert optim.whatif(problem(rate=40.0, slo=SLO(0.06, 0.05))).usd_per_hour == one.usd_per_hour


REFUSED = [
    ({"rate": [1.0, 0.0]}, "rate must be > 0 and finite, got 0.0"),
    ({"rate": -1.0}, "rate must be > 0 and finite, got -1.0"),
    ({"rate": [np.nan]}, "rate must be > 0 and finite, got nan"),
    ({"ttft_p99_s": 0.0}, "ttft_p99_s must be > 0 and finite"),
    ({"ttft_p99_s": np.inf}, "ttft_p99_s must be > 0 and finite"),
    ({"tpot_p99_s": -0.01}, "tpot_p99_s must be > 0 and finite, got -0.01"),
    ({"rate": [1.0, 2.0], "ttft_p99_s": [0.1, 0.2, 0.3]}, "broadcast"),
]


@pytest.mark.parametrize(("changes", "text"), REFUSED)
def test_bad_inputs_are_refused(changes, text):
    with pytest.raises(ValueError) as error:
        optim.whatif(problem(), **changes)
    assert text in str(error.value)


def test_a_table_has_a_row_for_each_element_and_nulls_for_what_is_not(grid, tmp_path):
    grid.write(tmp_path / "grid.parquet")
    table = pl.read_parquet(tmp_path / "grid.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["grid.parquet"]
    assert table["rate_rps"].to_list() == np.repeat(RATES, 3).tolist()
    np.testing.assert_allclose(table["slo_ttft_p99_ms"], np.tile(OBJECTIVES * 1e3, 3))
    assert table["slo_tpot_p99_ms"].to_list() == [50.0] * 9
    assert table["feasible"].to_list() == [False, True, True] * 3
    for column in table.columns:
        assert table.filter(~pl.col("feasible"))[column].null_count() == (3 if column not in table.columns[:4] else 0)
    known = table.filter("feasible")
    replicas = known["pool0_replicas"] + known["pool1_replicas"]
    np.testing.assert_allclose(replicas * 4.02, known["cost_usd_per_hour"])
    assert replicas.dtype == pl.Int64
    assert set(known["pool0_profile"].drop_nulls()) == {"h100-80gb"}
    for p in (0, 1):
        used = known[f"pool{p}_replicas"] > 0
        assert known[f"pool{p}_profile"].is_not_null().to_list() == used.to_list()
        assert known[f"pool{p}_upper_tokens"].is_not_null().to_list() == used.to_list()


def test_a_table_that_cannot_be_written_leaves_nothing(grid, tmp_path, monkeypatch):
    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", broken)
    with pytest.raises(OSError, match="disk full"):
        grid.write(tmp_path / "grid.parquet")
    assert list(tmp_path.iterdir()) == []


ON_DEVICES = """
import json, sys
import jax
jax.config.update("jax_enable_x64", True)
import numpy as np
import optim
from fleets import problem
module = optim.whatif_rows
module.CHUNK = 4
module._solve = optim._compile.program(module._solve.__wrapped__)
said = []
rates, objectives = np.geomspace(1.0, 900.0, 9), np.array([0.001, 0.06, 0.5])
grid = optim.whatif(problem(), rate=rates[:, None], ttft_p99_s=objectives, progress=said.append)
names = ("usd_per_hour", "relaxed_usd_per_hour", "feasible", "replicas", "upper_tokens", "profile")
values = {name: getattr(grid, name).ravel().tolist() for name in names}
print(json.dumps({"devices": jax.device_count(), "said": said} | values))
"""


def on_devices(*counts):
    """What processes with so many devices answer: 27 problems, 4 at a time on each."""
    running = []
    for count in counts:
        flags = f"--xla_force_host_platform_device_count={count} --xla_backend_optimization_level=0"
        changes = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": str(Path(__file__).parent)}
        command = [sys.executable, "-c", ON_DEVICES]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | changes))
    answers = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0] * len(counts)
    return [json.loads(answer) for answer in answers]


@pytest.mark.slow
def test_any_number_of_devices_gives_identical_answers():
    one, eight = on_devices(1, 8)
    assert (one.pop("devices"), eight.pop("devices")) == (1, 8)
    assert one.pop("said") == [f"{k} of 27 what-ifs" for k in (*range(0, 27, 4), 27)]
    assert eight.pop("said") == ["0 of 27 what-ifs", "27 of 27 what-ifs"]
    for name, values in one.items():
        assert np.array_equal(values, eight[name], equal_nan=name in ("replicas", "upper_tokens")), name
    assert sum(one["feasible"]) == 18
