"""The blind prediction of engine runs: what it reads of them, its closed loop, and what programs read."""

import importlib
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from test_benchmarks import KEYS, lines

FOLDER = str(Path(__file__).parent.parent / "benchmarks")


@pytest.fixture(scope="module")
def blind(shared_data):
    """The script as a module, beside the modules that it uses."""
    sys.path.insert(0, FOLDER)
    try:
        yield importlib.import_module("blind")
    finally:
        sys.path.remove(FOLDER)


@pytest.fixture(scope="module")
def predict(blind):
    return importlib.import_module("_blind_predict")


@pytest.fixture(scope="module")
def found(blind):
    return blind.engine_runs()


def test_every_row_is_a_run_or_counted_with_the_reason(found):
    rows = importlib.import_module("_engine_runs").rows()
    assert len(found.used) + len(found.speculative) + sum(found.left_out.values()) == len(rows) == 3108
    assert len(found.used) > 2500 and 1.0 <= found.repeated < 1.05
    assert {run.engine for run in found.used} == {"vllm", "sglang", "trtllm"}


def test_layouts_are_those_that_the_ids_name(found):
    """Columns hold products in some sources: TP 64 of 8 x 8 experts is one engine of 8 GPUs."""
    rows = importlib.import_module("_engine_runs").rows()
    gpus = importlib.import_module("_engine_runs")._gpus
    named = rows.filter(rows["id"].str.contains(r"_tp\d+.*_ep\d+"))
    for row in named.iter_rows(named=True):
        tp = int(row["id"].rpartition("_tp")[2].partition("_")[0])
        assert gpus(row)[0] == tp, row["id"]
    assert len(named) > 1500
    assert all(run.shape.tp <= 8 and run.shape.tp % run.attention_dp == 0 for run in found.used)


def test_lengths_are_drawn_as_the_clients_draw_them(predict, found):
    run = next(run for run in found.used if run.spread and run.input_tokens == 1024)
    inputs, outputs = predict.lengths(run, 20_000)
    assert inputs.min() >= 819 and inputs.max() == 1024
    assert (inputs.mean(), outputs.mean()) == pytest.approx(run.mean_lengths, rel=0.005)
    fixed = next(run for run in found.used if not run.spread)
    assert set(predict.lengths(fixed, 100)[0]) == {fixed.input_tokens}


def test_constants_that_made_the_runs_are_found_again(blind, found):
    """Times of a few runs by the formula itself: the fit has nothing left to miss."""
    law = importlib.import_module("_engine_law")
    runs = blind.spread_out(found.used, 120)
    rows = law.columns(runs)
    truth = law.START._replace(alpha_bw=0.7, alpha_flops=0.5, layer_s=3e-5, sequence_s=np.array([1e-5, 2e-5, 5e-6]))
    _, tpot = law.loops(truth, rows)
    fit = law.fit_law(rows._replace(tpot_s=np.asarray(tpot)), np.ones(len(runs), bool))
    for name in ("alpha_bw", "alpha_flops", "expert_efficiency", "layer_s", "expert_layer_s", "sequence_s"):
        assert np.asarray(getattr(fit, name)) == pytest.approx(np.asarray(getattr(truth, name)), rel=1e-2), name
    step = np.linspace(0.01, 0.05, 40)
    assert law.fit_client(2 * step, step, 2 * step + 0.05 + 3 * step) == pytest.approx((0.05, 3.0), rel=1e-4)


def test_a_prediction_uses_no_run_of_its_own_label(blind, predict, found):
    """Other times of the runs that are predicted change nothing."""
    runs = blind.spread_out(found.used, 30)
    labels = np.array([run.system for run in runs])
    chosen = labels == labels[0]
    other = [run._replace(tpot_s=3 * run.tpot_s, ttft_s=3 * run.ttft_s) if own else run
             for run, own in zip(runs, chosen, strict=True)]  # fmt: skip
    law = importlib.import_module("_engine_law")
    both = [predict.fitted(these, law.columns(these), ~chosen) for these in (runs, other)]
    for first, second in zip(*both, strict=True):
        assert np.asarray(first) == pytest.approx(np.asarray(second), rel=1e-9, abs=1e-12)


def test_quick_run_prints_json_lines(shared_data):
    rows = lines("blind.py")
    names = [row["name"] for row in rows]
    assert len(set(names)) == len(names)
    for scheme in ("datasheet", "other_systems", "other_models"):
        assert {f"blind.{scheme}.vllm.{figure}.median" for figure in ("tpot", "ttft", "formula_tpot")} <= {*names}
    for row in rows:
        assert set(row) == KEYS
        assert math.isfinite(row["value"]) and row["unit"]
        assert row["target"] is None and row["ok"] is None  # those are of all runs
