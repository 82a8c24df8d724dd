"""`fleetgrad robust`: its page, JSON and table, what it refuses, and the errors that a fit leaves in a profile."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from fleets import small_workload
from typer.testing import CliRunner

from jaxsim.fit import fit_steps, read_steps
from jaxsim.profiles import profile
from optim.build import plan_request
from optim.cli import app
from optim.config import ConfigError, read_settings
from optim.fit_errors import FitErrors
from optim.profile_file import fit_errors_of, profile_toml, read_profile
from optim.robust_request import robust_request

PLAN = """
[workload]
trace = "requests.csv"
rate = 300.0
[slo]
ttft_p99_ms = 60
tpot_p99_ms = 50
[fleet]
profiles = ["h100-80gb"]
max_pools = 1
"""
UNSURE = """
[uncertainty]
rate_cv = 0.15
step_time_factor = [0.95, 1.05]
[[uncertainty.scenarios]]
name = "as now"
probability = 0.75
[[uncertainty.scenarios]]
name = "longer answers"
probability = 0.25
output_tokens_factor = 1.3
"""


@pytest.fixture
def write(tmp_path):
    workload = small_workload()
    rows = zip(np.asarray(workload.input_tokens), np.asarray(workload.output_tokens), strict=True)
    text = "input_tokens,output_tokens\n" + "".join(f"{i:.0f},{o:.0f}\n" for i, o in rows)
    (tmp_path / "requests.csv").write_text(text)

    def make(text, name="plan.toml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return make


def run(*arguments):
    return CliRunner().invoke(app, ["robust", *map(str, arguments)])


def strict(text):
    def refuse(constant):
        raise ValueError(f"{constant} is not strict JSON")

    return json.loads(text, parse_constant=refuse)


def test_page_json_and_table_say_the_same(write, tmp_path):
    out = tmp_path / "out"
    result = run(write(PLAN + UNSURE), "--no-simulate", "--draws", "16", "--json", "--out", out)
    assert result.exit_code == 0, result.output
    doc = strict(result.stdout)
    assert (doc["kind"], doc["status"], doc["model"]) == ("robust", "unverified", "step")
    assert doc["inputs"]["rate_cv"] == {"value": 0.15, "source": "given in plan.toml"}
    assert doc["inputs"]["length_sample"]["source"] == "known exactly: not in [uncertainty]"
    assert doc["inputs"]["draws"] == {"value": 16, "source": "given on the command line"}
    assert [level["probability"] for level in doc["levels"]] == [0.5, 0.9, 0.95, 0.99, None]
    costs = [level["cost_usd_per_hour"] for level in doc["levels"]]
    assert costs == sorted(costs) and doc["cost_usd_per_hour"] == costs[-1]
    assert doc["design"]["pools"][0]["replicas"] == doc["levels"][-1]["replicas"][0]
    assert doc["plan"]["assessment"]["verdict"] == "coin_flip"
    assert {source["name"] for source in doc["sources"]} == {"scenarios", "rate_cv", "step_time_factor"}
    assert any("rate_cv: without a highest value" in warning for warning in doc["warnings"])
    assert doc["scenarios"] == {"number": 24, "draws": 16, "corners": 8, "exact": False}
    with (out / "scenarios.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 24
    assert max(int(row["pool0_replicas"]) for row in rows) == doc["levels"][-1]["replicas"][0]
    assert sum(float(row["probability"]) for row in rows) == pytest.approx(1.0)
    page = (out / "report.txt").read_text()
    assert page.startswith("Robust: ") and "NOT verified by the simulator" in page
    assert "a COIN FLIP, not met" in page.replace("\n", " ")
    assert "What robustness costs" in page and "What each source costs by itself" in page


def test_a_cap_is_infeasible_and_no_plan_is_the_plans_own_answer(write):
    plan = write(PLAN + UNSURE)
    capped = run(plan, "--no-simulate", "--draws", "16", "--max-gpus", "6")
    assert capped.exit_code == 3 and "cap on GPUs is too low to be robust" in capped.stdout.replace("\n", " ")
    none = run(plan, "--no-simulate", "--draws", "16", "--ttft-p99-ms", "0.1", "--json")
    assert none.exit_code == 3
    assert strict(none.stdout)["status"] == "no_plan" and strict(none.stdout)["plan"]["reasons"]


@pytest.mark.parametrize(
    ("text", "flags", "said"),
    [
        (PLAN, (), "must say what is not known"),
        (PLAN + UNSURE.replace("0.75", "0.5"), (), "sum to 1"),
        (PLAN + "[uncertainty]\nrate = [300, 200]\n", (), "uncertainty.rate must be [low, high]"),
        (PLAN + "[uncertainty]\nrate = [300]\n", (), "at least 2 entries"),
        (PLAN + "[uncertainty]\nrates = [1, 2]\n", (), "did you mean 'rate'"),
        (PLAN + "[uncertainty]\nrate = [200, 300]\nrate_cv = 0.1\n", (), "rate and rate_cv"),
        (PLAN + "[uncertainty]\nfit = true\n", (), "carries the errors of a fit"),
        (PLAN + "[[uncertainty.coefficients]]\nprofile = 'h100'\nbase_s = 0.1\n", (), "did you mean 'h100-80gb'"),
        (PLAN + "[[uncertainty.coefficients]]\nprofile = 'h100-80gb'\n", (), "a half-width of some coefficient"),
        (PLAN + "[[uncertainty.coefficients]]\nprofile = 'h100-80gb'\nbase_s = 1.5\n", (), "must be < 1"),
        (PLAN + "[[uncertainty.scenarios]]\nname = 'x'\n", (), "probability is required"),
        (PLAN + "[uncertainty.scenarios]\nname = 'x'\n", (), "[[uncertainty.scenarios]]"),
        (PLAN + UNSURE, ("--draws", "100"), "power of two"),
        (PLAN + UNSURE, ("--choose", "most"), "--choose must be between 0 and 1"),
        (PLAN + UNSURE, ("--probability", "0.9,2"), "--probability must be between 0 and 1"),
        (PLAN, ("--rate-range", "100"), "--rate-range must be LOW,HIGH"),
        (PLAN, ("--rate-range", "300,100"), "--rate-range must be [low, high]"),
    ],
)
def test_what_cannot_be_meant_is_refused(write, text, flags, said):
    result = run(write(text), *flags)
    assert result.exit_code == 2
    assert said in result.stderr


def test_flags_say_the_same_as_the_file(write):
    flags = {"uncertainty.rate": [200.0, 400.0], "uncertainty.length_sample": 1000}
    asked = robust_request(read_settings(write(PLAN), flags))
    assert (asked.uncertainty.rate.low, asked.uncertainty.rate.high) == (200.0, 400.0)
    assert asked.inputs["rate_range_rps"].source == "given on the command line"
    assert asked.uncertainty.sources == ("rate", "length_sample")
    with pytest.raises(ConfigError, match="--rate-range must be"):
        robust_request(read_settings(None, {**FLAGS_ALONE, "uncertainty.rate": [3.0, 2.0]}))


FLAGS_ALONE = {"workload.name": "lmsys", "workload.rate": 10.0, "slo.ttft_p99_ms": 400.0, "fleet.profiles": ["a10g"]}


def test_other_commands_say_that_it_is_not_theirs(write):
    notes = plan_request(read_settings(write(PLAN + UNSURE), {})).notes
    assert notes == ("uncertainty: for `fleetgrad robust`; it was not used",)
    assert robust_request(read_settings(write(PLAN + UNSURE), {})).notes == ()


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A fit of noisy steps."""
    rng = np.random.default_rng(0)
    batch, context = rng.integers(1, 65, 80), rng.integers(100, 4000, 80)
    time_ms = (8.0 + 0.05 * batch + 4e-5 * batch * context) * rng.normal(1.0, 0.02, 80)
    path = tmp_path_factory.mktemp("steps") / "steps.csv"
    lines = (f"{n},{n * c},{t}" for n, c, t in zip(batch, context, time_ms, strict=True))
    path.write_text("num_active,context_tokens,time_ms\n" + "\n".join(lines) + "\n")
    return fit_steps(read_steps(path))


def test_a_fits_errors_travel_in_the_profile(fitted, write):
    errors = FitErrors.of(fitted)
    assert errors.coefficients == ("base_s", "per_sequence_s", "per_token_s")
    one = replace(fitted.applied_to(profile("h100-80gb"), name="mine"), prefill_per_token_s=np.asarray(1e-5))
    path = write(profile_toml(one, errors), "mine.toml")
    assert read_profile(path).name == "mine"
    back = fit_errors_of(path)
    assert back.coefficients == errors.coefficients and back.degrees_of_freedom == errors.degrees_of_freedom
    assert np.array_equal(back.covariance_s2, errors.covariance_s2)
    assert back.standard_errors_s["base_s"] == pytest.approx(fitted.standard_errors.base_s)
    assert fit_errors_of(write(profile_toml(one), "plain.toml")) is None
    asked = robust_request(
        read_settings(write(PLAN.replace("h100-80gb", "mine.toml") + "[uncertainty]\nfit = true\n"), {})
    )
    assert asked.uncertainty.sources == ("fit",) and list(asked.uncertainty.fits) == ["mine"]
    assert set(asked.inputs["coefficients_standard_errors"].value["mine"]) == set(errors.coefficients)
    assert any("on rows held out" in note and "step_time_factor" in note for note in asked.notes)


FIT = """
[fit]
coefficients = ["base_s", "per_token_s"]
degrees_of_freedom = 10
covariance_s2 = [[1e-8, 0.0], [0.0, 1e-16]]
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"per_token_s"', '"per_tokens_s"', "fit.coefficients must be some of base_s"),
        ('"per_token_s"', '"base_s"', "must be different"),
        ("= 10", "= 0", "whole number >= 1"),
        ("[0.0, 1e-16]", "[0.0]", "fit.covariance_s2 must be"),
        ("[0.0, 1e-16]", "[0.0, -1e-16]", "no negative eigenvalue"),
        ("0.0], [0.0", "3e-12], [3e-12", "no negative eigenvalue"),
        ("degrees_of_freedom = 10", "", "degrees_of_freedom missing"),
        ("[fit]", "[fit]\nrows = 3", "unknown key 'rows' in [fit]"),
    ],
)
def test_a_table_of_errors_that_is_wrong_is_refused(write, old, new, said):
    good = profile_toml(profile("h100-80gb")) + FIT
    assert fit_errors_of(write(good)).degrees_of_freedom == 10
    with pytest.raises(ConfigError) as refused:
        read_profile(write(profile_toml(profile("h100-80gb")) + FIT.replace(old, new)))
    assert said in str(refused.value)
