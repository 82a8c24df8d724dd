"""`fleetgrad validate`: exit statuses, documents, files, and what it refuses."""

import json
import re

import benchmark_files as files
import pytest
from fleets import make_profile
from server_metrics import OF_LENGTHS, Fleet, shorten, write_plan, write_trace
from typer.testing import CliRunner

from jaxsim.fit.rescale import scaled
from optim.cli import app
from optim.profile_file import fit_errors_of, read_profile

PROFILE = make_profile()
RATE, REPLICAS = 30.0, 3


@pytest.fixture(autouse=True)
def short_runs(monkeypatch):
    shorten(monkeypatch)


def run(*words):
    return CliRunner().invoke(app, ["validate", *map(str, words)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A plan by the reference model, its workload, and scrapes of fleets as planned and 1.3 times slower."""
    made = tmp_path_factory.mktemp("validate")
    write_plan(made / "plan.json", PROFILE, replicas=REPLICAS, rate=RATE, model="kimura")
    document = json.loads((made / "plan.json").read_text(encoding="utf-8"))
    estimate = {"value": 175.0, "low": 174.0, "high": 176.0, "n": 1000, "confidence": 0.95}
    document["verification"] = {"pools": [{"ttft_p99_ms": estimate, "tpot_p99_ms": None, "active_batch": 17.5}]}
    (made / "plan.json").write_text(json.dumps(document), encoding="utf-8")
    write_plan(made / "two.json", PROFILE, replicas=(2, 1), rate=RATE, model="kimura", upper=(2000.0, 8000.0))
    write_trace(made / "lengths.csv")
    for name, factor in (("same", 1.0), ("slow", 1.3)):
        fleet = Fleet(
            scaled(PROFILE, decode=factor, prompt=factor), replicas=REPLICAS, rate=RATE, model="kimura", number=6_000
        )
        (made / name).mkdir()
        _, seconds = fleet.write(made / name, leave_out=() if name == "same" else OF_LENGTHS)
        (made / name / "seconds").write_text(f"{seconds!r}", encoding="utf-8")
    return made


def scrapes(folder, name):
    here = folder / name
    seconds = (here / "seconds").read_text(encoding="utf-8")
    return [here / "before.prom", here / "after.prom", "--seconds", seconds, "--trace", folder / "lengths.csv"]


def test_a_fleet_as_planned_holds(folder):
    result = run(folder / "plan.json", *scrapes(folder, "same"), "--json")
    assert result.exit_code == 0, result.output
    doc = json.loads(result.stdout)
    assert (doc["schema_version"], doc["kind"], doc["status"], doc["holds"]) == (1, "validation", "holds", True)
    assert doc["refit"] is None and doc["slo_met"] is True
    figures = {(row["figure"], row["statistic"]): row for row in doc["figures"]}
    tpot = figures["tpot", "mean"]
    assert tpot["agrees"] and tpot["tells_of"] == "step times"
    assert tpot["measured_over_predicted"] == pytest.approx(1.0, abs=0.02)
    assert tpot["allowed_ms"]["low"] < tpot["measured_ms"]["low"] < tpot["measured_ms"]["high"]
    assert tpot["planned_ms"] == pytest.approx(tpot["model_ms"], rel=0.02)  # nearly the plan's own load
    assert figures["e2e", "p99"]["agrees"] is None
    assert figures["ttft", "p99"]["planned_simulated_ms"] == 175.0 and tpot["planned_simulated_ms"] is None
    load = {row["name"]: row for row in doc["load"]}
    assert load["rate"]["planned"] == 10.0 and load["rate"]["measured"] == pytest.approx(10.0, rel=0.05)
    assert load["in_flight"]["measured"] == pytest.approx(load["in_flight"]["simulated"], rel=0.1)
    assert load["running"]["planned_simulated"] == 17.5
    due = doc["headroom"]
    assert due["due_rate_rps"] > RATE and due["replicas"] == REPLICAS and due["profile"] == "the plan's"
    assert due["due_rate_rps_per_replica"] == pytest.approx(due["due_rate_rps"] / REPLICAS)
    assert doc["inputs"]["replicas_measured"] == {
        "value": 3,
        "source": "counted by the labels and files of the metrics",
    }
    assert doc["inputs"]["arrivals"]["source"] == "assumed"
    assert doc["measured"]["read_as"] == "Prometheus scrapes of vLLM"


def test_a_slower_fleet_does_not_hold_and_its_profile_is_written(folder, tmp_path):
    result = run(folder / "plan.json", *scrapes(folder, "slow"), "--out", tmp_path / "out")
    assert result.exit_code == 4, result.output
    assert result.stdout.startswith("The profile does not hold: mean TPOT is 1.3")
    assert "With it every figure agrees." in result.stdout
    doc = json.loads((tmp_path / "out" / "validation.json").read_text(encoding="utf-8"))
    factor = doc["refit"]["step_time_factor"]
    assert factor["low"] < 1.3 < factor["high"] and factor["value"] == pytest.approx(1.3, rel=0.01)
    assert doc["inputs"]["lengths"]["source"] == "assumed: the plan's"
    assert any("a change of them is not seen" in note for note in doc["warnings"])
    assert doc["refit"]["agrees"] and doc["headroom"]["profile"] == "refitted"
    profile, errors = (read(tmp_path / "out" / "profile.toml") for read in (read_profile, fit_errors_of))
    assert float(profile.base_s) == pytest.approx(1.3 * float(PROFILE.base_s), rel=0.01)
    assert errors.degrees_of_freedom == 7 and "base_s" in errors.coefficients
    printed = tmp_path / "printed.toml"
    printed.write_text(result.stdout[result.stdout.index('\nname = "toy-validated"') :], encoding="utf-8")
    assert read_profile(printed).base_s == profile.base_s and fit_errors_of(printed) is not None
    rows = (tmp_path / "out" / "figures.csv").read_text(encoding="utf-8").splitlines()
    assert rows[0].startswith("figure,statistic,planned_ms") and len(rows) == 1 + len(doc["figures"])
    page = (tmp_path / "out" / "report.txt").read_text(encoding="utf-8")
    assert "the refitted profile" in " ".join(page.split()) and "due at" in page
    assert max(map(len, page.splitlines())) <= 100


def test_the_model_alone_says_so_without_scatter(folder):
    result = run(folder / "plan.json", *scrapes(folder, "slow"), "--no-simulate", "--json")
    assert result.exit_code == 4, result.output
    doc = json.loads(result.stdout)
    factor = doc["refit"]["step_time_factor"]
    assert factor["value"] == pytest.approx(1.3, rel=0.05) and factor["low"] is None
    assert all(row["simulated_ms"] is None for row in doc["figures"])
    assert doc["inputs"]["simulate"] == {"value": False, "source": "given on the command line"}


def test_a_wide_tolerance_accepts_more(folder):
    wide = ("--tolerance", 0.5, "--ttft-tolerance", 0.9)
    assert run(folder / "plan.json", *scrapes(folder, "slow"), *wide).exit_code == 0


def test_a_public_benchmark_is_read(folder, shared_data):
    """Its few requests are of another model: what is tested is that it is compared, and how."""
    path = shared_data / "formats" / "vllm_bench_serve.json"
    result = run(folder / "plan.json", path, "--trace", folder / "lengths.csv", "--json")
    assert result.exit_code in (0, 4), result.output
    doc = json.loads(result.stdout)
    assert doc["measured"]["read_as"] == "vLLM bench serve"
    assert doc["status"] in ("holds", "does_not_hold", "tails_off", "not_judged")


def test_an_overloaded_benchmark_is_not_judged(folder, tmp_path):
    sent = files.uniform(400, rate=50.0)
    path = files.write(tmp_path / "all.json", files.vllm(sent, rate="inf", detailed=False))
    result = run(folder / "plan.json", path, "--trace", folder / "lengths.csv")
    assert result.exit_code == 4 and "cannot be judged: all 400 requests were sent at once" in result.stdout
    assert "SLO now" in result.stdout


REFUSED = {
    "seconds": (lambda f: [f / "plan.json", *scrapes(f, "same")[:2]], r"after.prom|before.prom.*--seconds"),
    "one scrape": (lambda f: [f / "plan.json", f / "same" / "after.prom"], "METRICS must be scrapes in pairs"),
    "mixed": (
        lambda f: [f / "plan.json", f / "same" / "after.prom", f / "plan.json"],
        "METRICS must be Prometheus scrapes as after.prom is, got 'plan.json'",
    ),
    "restart": (
        lambda f: [f / "plan.json", f / "same" / "after.prom", f / "same" / "before.prom", "--seconds", 60],
        "went down from",
    ),
    "no file": (lambda f: [f / "plan.json", f / "none.prom"], "metrics not found"),
    "no plan": (lambda f: [f / "same" / "after.prom", f / "same" / "after.prom"], "must be JSON"),
    "no metrics": (lambda f: [f / "plan.json", f / "lengths.csv"], "not a benchmark that is known here"),
    "no pool": (lambda f: [f / "two.json", *scrapes(f, "same")], "--pool must be one of pool-0, pool-1"),
    "wrong pool": (lambda f: [f / "plan.json", *scrapes(f, "same"), "--pool", "long"], "unknown pool 'long'"),
    "no lengths": (
        lambda f: [f / "plan.json", *scrapes(f, "same")[:4]],
        "workload must be given again.*--plan-file",
    ),
    "tolerance": (
        lambda f: [f / "plan.json", *scrapes(f, "same"), "--tolerance", 10],
        r"--tolerance must be in \(0, 1\), got 10",
    ),
    "negative": (lambda f: [f / "plan.json", *scrapes(f, "same")[:2], "--seconds", -1], "--seconds must be > 0"),
    "run of scrapes": (
        lambda f: [f / "plan.json", *scrapes(f, "same"), "--run", 2],
        "--run must be left out for scrapes, got 2",
    ),
    "model": (
        lambda f: [f / "plan.json", *scrapes(f, "same"), "--served-model", "other"],
        "unknown served model 'other'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(folder, case):
    words, said = REFUSED[case]
    result = run(*words(folder))
    assert result.exit_code == 2, result.output
    assert re.search(said, " ".join(result.output.split())), result.output


def test_a_run_is_chosen_among_several(folder, tmp_path):
    sent = files.uniform(600)
    limit = round(600 / sent.duration * sent.e2e.mean())
    path = files.write(tmp_path / "runs.jsonl", [files.vllm(sent, limit=limit, detailed=False)] * 2)
    trace = ("--trace", folder / "lengths.csv")
    result = run(folder / "plan.json", path, *trace)
    assert result.exit_code == 2 and "--run must be a number from 1 to 2" in " ".join(result.output.split())
    result = run(folder / "plan.json", path, "--run", 2, "--no-simulate", *trace)
    assert result.exit_code == 2 and "must be left out for a closed loop" in " ".join(result.output.split())


@pytest.mark.slow
def test_the_step_model_end_to_end(tmp_path):
    """A plan by the default model, a slower fleet, and the profile that shows it."""
    plan = write_plan(tmp_path / "plan.json", PROFILE, replicas=REPLICAS, rate=RATE)
    trace = write_trace(tmp_path / "lengths.csv")
    fleet = Fleet(scaled(PROFILE, decode=1.3, prompt=1.3), replicas=REPLICAS, rate=RATE)
    pair, seconds = fleet.write(tmp_path)
    result = run(plan, *pair, "--seconds", seconds, "--trace", trace, "--json")
    assert result.exit_code == 4, result.output
    doc = json.loads(result.stdout)
    factor = doc["refit"]["step_time_factor"]
    assert factor["low"] < 1.3 < factor["high"] and doc["refit"]["agrees"]
    tpot = next(row for row in doc["refit"]["figures"] if (row["figure"], row["statistic"]) == ("tpot", "mean"))
    assert tpot["model_ms"] == pytest.approx(tpot["measured_ms"]["value"], rel=0.02)
    assert doc["headroom"]["profile"] == "refitted" and doc["headroom"]["due_rate_rps"] > RATE
