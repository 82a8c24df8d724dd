"""Sweeps: the answers of whatif in parts, by any workers, and a sweep that was killed goes on with identical files."""

import importlib.util
import json

import numpy as np
import polars as pl
import pytest
from fleets import A100, H100, problem
from test_execution import contents, killed_writing, no_workers_left

import optim
from des.execution import Execution
from optim.sweep import _Rows, sweep
from optim.whatif import Grid
from optim.whatif_rows import few_rows

__all__ = ["no_workers_left"]

RATES = np.geomspace(1.0, 900.0, 40)[:, None]
OBJECTIVES = np.array([0.0001, 0.02, 0.06, 0.1, 0.5])
PART = 16


def one_pool(**changes):
    """What compiles in a second."""
    return problem(**{"model": "kimura", "max_pools": 1, "profiles": (H100, A100), **changes})


def swept(folder, *, workers=None, engine="local", **changes):
    """200 what-ifs in 13 parts."""
    execution = Execution(folder=folder, workers=workers, engine=engine)
    return sweep(one_pool(), rate=RATES, ttft_p99_s=OBJECTIVES, execution=execution, **{"part": PART, **changes})


def assert_equal(one, other):
    """Of all answers."""
    for name, values in vars(one).items():
        assert np.array_equal(values, getattr(other, name), equal_nan=name in ("replicas", "upper_tokens")), name


@pytest.fixture(scope="module")
def answers():
    return optim.whatif(one_pool(), rate=RATES, ttft_p99_s=OBJECTIVES)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A sweep that nobody stopped."""
    return swept(tmp_path_factory.mktemp("whole"))


def test_a_sweep_has_the_answers_of_whatif(whole, answers):
    assert_equal(whole.answers(), answers)
    assert (whole.computed, len(whole.names)) == (13, 13)
    assert whole.feasible == answers.feasible.sum()
    costs = answers.usd_per_hour[answers.feasible]
    assert whole.usd_per_hour == (costs.min(), costs.max())
    assert pl.concat(whole.tables()).equals(answers.table())
    assert set(answers.profile[answers.feasible].ravel()) <= {"h100-80gb", "a100-80gb"}


def test_a_manifest_says_what_the_parts_are_of(whole):
    said = json.loads((whole.parts.folder / "manifest.json").read_text())
    assert (said["kind"], said["what_ifs"], said["what_ifs_of_a_part"], said["complete"]) == ("what-ifs", 200, 16, True)
    assert sorted(said["parts"]) == [f"part-{k:06d}.parquet" for k in range(13)]


def test_worker_processes_write_the_same_files(whole, answers, tmp_path):
    assert swept(tmp_path, workers=2).computed == 13
    assert contents(tmp_path) == contents(whole.parts.folder)
    assert_equal(optim.whatif(one_pool(), rate=RATES, ttft_p99_s=OBJECTIVES, execution=Execution(workers=2)), answers)


def test_a_finished_sweep_computes_nothing(whole):
    before = contents(whole.parts.folder)
    said = []
    again = swept(whole.parts.folder, progress=said.append)
    assert (again.computed, said) == (0, ["200 of 200 what-ifs"])
    assert contents(whole.parts.folder) == before


def test_a_few_rows_alone_are_answered_as_among_many(answers):
    """They take a chunk of their own size, not one of 64."""
    assert few_rows(2) and not few_rows(answers.usd_per_hour.size)
    few = optim.whatif(one_pool(), rate=RATES[20:22], ttft_p99_s=OBJECTIVES[3:4])
    assert np.isfinite(few.usd_per_hour).all()
    np.testing.assert_array_equal(few.replicas, answers.replicas[20:22, 3:4])
    np.testing.assert_array_equal(few.usd_per_hour, answers.usd_per_hour[20:22, 3:4])
    np.testing.assert_allclose(few.relaxed_usd_per_hour, answers.relaxed_usd_per_hour[20:22, 3:4], rtol=1e-12)


SWEEPS = """
from test_sweep import swept
swept(Path(sys.argv[2]))
"""


def test_a_sweep_killed_while_it_writes_is_resumed_with_identical_files(whole, tmp_path):
    killed_writing(SWEEPS, 5, tmp_path)
    finished = {path: path.stat().st_mtime_ns for path in tmp_path.glob("part-*.parquet")}
    assert len(finished) == 5
    said = []
    resumed = swept(tmp_path, progress=said.append)
    assert resumed.computed == 8
    assert said[0] == "80 of 200 what-ifs"
    assert contents(tmp_path) == contents(whole.parts.folder)
    assert {path: path.stat().st_mtime_ns for path in finished} == finished


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"part": 32}, "what_ifs_of_a_part 16 instead of 32"),
        ({"rate": 3.0}, "what_ifs 200 instead of 5"),
        ({"ttft_p99_s": OBJECTIVES * 1.01}, "got inputs "),
        ({"tpot_p99_s": 0.04}, "got inputs "),
    ],
)
def test_parts_of_another_sweep_are_refused(changes, text, whole):
    before = contents(whole.parts.folder)
    asked = {"rate": RATES, "ttft_p99_s": OBJECTIVES, "part": PART, **changes}
    with pytest.raises(ValueError, match=f"must be of the same request.*{text}"):
        sweep(one_pool(), **asked, execution=Execution(folder=whole.parts.folder))
    assert contents(whole.parts.folder) == before


def test_a_sweep_needs_a_folder():
    with pytest.raises(ValueError, match=r"a sweep needs Execution\(folder=...\)"):
        sweep(one_pool(), execution=Execution())


def test_workers_and_accelerators_do_not_mix(monkeypatch):
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    with pytest.raises(ValueError, match="workers must be left out where JAX computes on 'gpu'"):
        optim.whatif(one_pool(), execution=Execution(workers=2))


def test_a_grid_is_not_laid_out():
    """10^15 what-ifs: any share of them is at hand."""
    axis = np.arange(1.0, 100_001.0)
    grid = Grid.of(problem(), rate=axis[:, None, None], ttft_p99_s=axis[:, None], tpot_p99_s=axis)
    assert len(grid) == 10**15
    assert grid.rows(10**15 - 1, 10**15).tolist() == [[1e5, 1e5, 1e5]]
    assert grid.rows(10**10 + 2, 10**10 + 4).tolist() == [[2.0, 1.0, 3.0], [2.0, 1.0, 4.0]]
    assert [axis.shape for axis in grid.axes] == [(100_000, 1, 1), (1, 100_000, 1), (1, 1, 100_000)]
    assert grid.rows_of(3, 3 * 10**14) == range(9 * 10**14, 10**15)
    assert _Rows(grid, 2, [0, 5])[1].tolist() == [[1.0, 1.0, 11.0], [1.0, 1.0, 12.0]]
    assert Grid.of(problem()).rows(0, 1).tolist() == [[120.0, 0.5, 0.05]]


@pytest.mark.slow
def test_pareto_is_the_same_by_workers():
    asked = {"thresholds": [500.0, 1000.0, 4000.0]}
    two = one_pool(max_pools=2)
    alone, shared = optim.pareto(two, **asked), optim.pareto(two, **asked, execution=Execution(workers=2))
    assert len(alone.points) == len(shared.points) >= 10
    for one, other in zip(alone.points, shared.points, strict=True):
        for name in ("usd_per_hour", "threshold", "slo_met", "dominated"):
            assert getattr(one, name) == getattr(other, name)
        assert one.design.profile.name == other.design.profile.name
        assert np.array_equal(one.design.replicas, other.design.replicas)
        for name in ("ttft_p99_s", "tpot_p99_s", "utilization"):
            assert float(getattr(one.analytic, name)) == float(getattr(other.analytic, name))


ON_RAY = """
import os, signal, sys
from pathlib import Path
import jax
jax.config.update("jax_enable_x64", True)
from test_sweep import swept
assert swept(Path(sys.argv[1]), workers=2, engine="ray").computed == 13
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_ray_cluster_writes_the_same_files(whole, tmp_path):
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: pip install 'fleetgrad[ray]'")
    killed(ON_RAY, tmp_path)
    assert contents(tmp_path) == contents(whole.parts.folder)
