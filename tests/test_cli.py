"""The command line: exit statuses, clean errors, strict JSON, readable pages, files."""

import csv
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars
import pytest
from typer.testing import CliRunner

from jaxsim.profiles import profile
from optim.cli import app
from optim.commands._common import grid
from optim.profile_file import profile_toml
from optim.verify import verify

REPOSITORY = Path(__file__).parent.parent
EXAMPLE = str(REPOSITORY / "tests" / "data" / "azure_conversation.toml")
FAST = ["--max-pools", "1", "--precision", "0.2"]
"""One pool and few requests; the shapes of `examples/01_plan.py`, so that both share their compiled programs."""


def run(*arguments: str):
    """Run the command in this process."""
    return CliRunner().invoke(app, list(arguments))


def strict(text: str):
    """JSON without the tokens that JSON does not have."""

    def refuse(token):
        raise AssertionError(f"{token} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """One plan, as JSON and in a folder."""
    folder = tmp_path_factory.mktemp("out")
    result = run("plan", EXAMPLE, *FAST, "--json", "--out", str(folder))
    assert result.exit_code == 0, result.output
    return strict(result.stdout), folder


def test_a_plan_is_strict_json_with_everything_in_it(planned):
    doc, _ = planned
    assert doc["schema_version"] == 1
    assert doc["status"] == "verified"
    assert doc["model"] == "step"
    pool = doc["design"]["pools"][0]
    assert (pool["profile"], pool["replicas"], pool["max_context"], pool["upper_tokens"]) == (
        "h100-80gb",
        3,
        16384.0,
        16384.0,
    )
    assert doc["cost_usd_per_hour"] == pytest.approx(12.06)
    assert doc["cost_usd_per_year"] == pytest.approx(12.06 * 8760)
    assert doc["cost_usd_per_million_output_tokens"] > 0
    assert 0 < doc["analytic"]["ttft_p99_ms"] < 500
    assert 0.8 < doc["analytic"]["utilization"] < 1
    assert len(doc["analytic"]["pools"]) == 1
    found = doc["verification"]
    for name in ("ttft_p99_ms", "tpot_p99_ms"):
        assert found[name]["low"] <= found[name]["value"] <= found[name]["high"]
        assert found[name]["n"] > 0
    assert found["slo_met"] is True
    assert found["requests"] > 0 and found["rejected"] == 0 and found["overloaded"] is False
    assert doc["certificate"]["lower_bound_usd_per_hour"] <= doc["cost_usd_per_hour"] + 1e-9
    assert 0 <= doc["certificate"]["gap"] < 1
    assert isinstance(doc["binding_constraint"], str)
    assert pool["binding_constraint"] == doc["binding_constraint"]
    assert doc["sensitivities"]["usd_per_hour_per_rps"] > 0
    assert doc["rounds"] and doc["seed"] == 0 and doc["version"]


def test_every_input_and_constant_says_where_it_came_from(planned):
    doc, _ = planned
    assert all(set(entry) == {"value", "source"} for entry in doc["inputs"].values())
    assert doc["inputs"]["rate_rps"] == {"value": 200.0, "source": "given in azure_conversation.toml"}
    assert doc["inputs"]["max_pools"]["source"] == "given on the command line"
    assert doc["inputs"]["seed"]["source"] == "default"
    assert "published, not measured" in doc["profiles"][0]["source"]
    assert doc["profiles"][0]["base_s"] == 0.004
    assert doc["workload"]["source"] and doc["workload"]["notes"]
    assert any("optimistic" in warning for warning in doc["warnings"])


def test_out_holds_json_tables_and_plots(planned):
    doc, folder = planned
    assert strict((folder / "plan.json").read_text()) == doc
    with (folder / "pools.csv").open() as file:
        assert [row["replicas"] for row in csv.DictReader(file)] == ["3.0"]
    with (folder / "pareto.csv").open() as file:
        assert sum(row["recommended"] == "True" for row in csv.DictReader(file)) == 1
    for name in ("pareto.png", "ttft.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    assert (folder / "report.txt").read_text().startswith("3 x h100-80gb")
    page = (folder / "report.html").read_text(encoding="utf-8")
    for words in ("3 x h100-80gb, one pool", doc["validity"][0]["region"], "The knee is at", "due at", "$4.02"):
        assert words in page


def test_the_page_says_the_verdict_first_and_fits_a_hundred_columns(planned):
    result = run("plan", EXAMPLE, *FAST)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("3 x h100-80gb, one pool to 16,384 tokens: $12.06/h. Simulated P99 TTFT")
    assert ": met." in lines[0] + lines[1]
    assert max(map(len, lines)) <= 100
    page = " ".join(result.stdout.split())
    for words in ("(SLO 500 ms)", "Certificate", "Binding", "+1 req/s costs $0.0", "published, not measured"):
        assert words in page
    assert "\x1b" not in result.stdout
    assert result.stderr == ""


def test_without_the_simulator_a_plan_says_it_is_not_verified():
    result = run("plan", EXAMPLE, *FAST, "--no-simulate", "--json")
    assert result.exit_code == 0
    doc = strict(result.stdout)
    assert (doc["status"], doc["verification"]) == ("unverified", None)
    assert "NOT verified" in run("plan", EXAMPLE, *FAST, "--no-simulate").stdout


def test_what_the_simulator_refuses_exits_4(monkeypatch):
    def refuse(*args, **kwargs):
        return replace(verify(*args, **kwargs), slo_met=False)

    monkeypatch.setattr(sys.modules["optim.plan"], "verify", refuse)
    result = run("plan", EXAMPLE, *FAST, "--json")
    assert result.exit_code == 4
    assert strict(result.stdout)["status"] == "refused"


def test_infeasible_exits_3_with_the_reason():
    arguments = ("plan", EXAMPLE, "--max-pools", "1", "--ttft-p99-ms", "5")
    result = run(*arguments, "--json")
    assert result.exit_code == 3
    doc = strict(result.stdout)
    assert doc["status"] == "infeasible"
    assert doc["binding_constraint"] == doc["reasons"][0]["kind"] == "prefill"
    assert "replicas do not shorten a single prefill" in doc["reasons"][0]["text"]
    assert run(*arguments).stdout.startswith("INFEASIBLE: ")


def test_a_cap_on_gpus_is_another_reason():
    result = run("plan", EXAMPLE, *FAST, "--max-gpus", "2", "--json")
    assert result.exit_code == 3
    assert strict(result.stdout)["binding_constraint"] == "gpu_cap"


OVERLOADED = str(REPOSITORY / "examples" / "overloaded_a100.toml")
SMALL = ["--requests", "4000", "--replications", "4"]


def test_simulated_overload_is_loud():
    result = run("simulate", OVERLOADED, *SMALL, "--json")
    assert result.exit_code == 0, result.output
    doc = strict(result.stdout)
    assert doc["status"] == "overloaded"
    assert doc["verification"]["slo_met"] is False
    assert doc["verification"]["ttft_p99_ms"]["high"] == "inf"
    assert doc["analytic"]["ttft_p99_ms"] == "inf"
    assert doc["analytic"]["utilization"] == pytest.approx(20 / 11.19, rel=1e-3)
    page = run("simulate", OVERLOADED, *SMALL)
    assert page.stdout.startswith("OVERLOADED: 1 x a100-80gb")


def test_a_fleet_that_keeps_up_is_ok_and_writes_its_plot(tmp_path):
    result = run("simulate", OVERLOADED, *SMALL, "--rate", "5", "--json", "--out", str(tmp_path / "new" / "folder"))
    doc = strict(result.stdout)
    assert (result.exit_code, doc["status"], doc["verification"]["slo_met"]) == (0, "ok", True)
    assert doc["inputs"]["rate_rps"]["source"] == "given on the command line"
    assert (tmp_path / "new" / "folder" / "ttft.png").exists()


def test_a_trace_is_played_with_its_own_arrivals(tmp_path):
    rows = "\n".join(f"{i * 0.2},100,20" for i in range(50))
    (tmp_path / "t.csv").write_text("timestamp,input_tokens,output_tokens\n" + rows)
    result = run(
        "simulate", OVERLOADED, "--trace", str(tmp_path / "t.csv"), "--rate", "5", "--arrivals", "trace", "--json"
    )
    assert result.exit_code == 0, result.output
    assert strict(result.stdout)["verification"]["simulated_requests"] == 50


TWO = """
[workload]
name = "azure-conversation"
rate = 100.0
[slo]
ttft_p99_ms = 500
tpot_p99_ms = 60
[[fleet.pools]]
profile = "h100-80gb"
replicas = 2
max_context = 4096
upper_tokens = 2048
[[fleet.pools]]
profile = "h100-80gb"
replicas = 1
max_context = 16384
"""
"""Two pools that keep up."""


@pytest.fixture
def two(tmp_path):
    """Writes a plan file of two pools and more tables, and returns its path."""

    def write(more: str = "", edit=lambda text: text) -> str:
        path = tmp_path / "two.toml"
        path.write_text(edit(TWO) + more, encoding="utf-8")
        return str(path)

    return write


TIGHT = profile_toml(replace(profile("h100-80gb"), kv_blocks=np.asarray(2000.0)))
"""An H100 whose KV cache holds some forty conversations."""


def test_rules_and_what_they_cost_are_in_the_json(two, tmp_path):
    (tmp_path / "tight.toml").write_text(TIGHT)
    more = '[serving]\nscheduling = "chunked"\nmax_num_batched_tokens = 2048\nkv = "grow"\n[router]\nknows = "input"\n'
    file = two(more, lambda text: text.replace('"h100-80gb"', '"tight.toml"', 1))
    out = tmp_path / "out"
    result = run("simulate", file, *SMALL, "--itl", "--windows", "40", "--json", "--out", str(out), "--requests-out")
    assert result.exit_code == 0, result.output
    doc = strict(result.stdout)
    assert doc["serving"] == "chunked scheduling, 2,048 tokens a step, KV blocks: grow (recompute)"
    assert "the input alone" in doc["router"] and doc["arrivals"] == "Poisson"
    found = doc["verification"]
    assert found["preemptions"] >= found["preempted_requests"] > 0
    assert found["misrouted"]["to_too_short_pools"] > 0 == found["misrouted"]["to_too_long_pools"]
    assert found["compressed"] == 0 and sum(found["rejected_by_reason"].values()) == found["rejected"]
    assert found["itl_p99_ms"]["n"] > found["ttft_p99_ms"]["n"] > 0
    assert "client_wait_p99_ms" not in found and "transfer_p99_ms" not in found
    for pool in found["pools"]:
        assert 0 < pool["kv_utilization"] <= 1 and 0 < pool["sequence_utilization"] <= 1
        assert pool["mean_queued"] >= 0 and pool["replica_hours"] > 0
    assert sum(pool["preempted_requests"] for pool in found["pools"]) == found["preempted_requests"]
    series = doc["time_series"]
    assert {len(series["start_s"]), *(len(values) for p in series["pools"] for values in p.values())} == {40}
    assert doc["inputs"]["windows"] == {"value": 40, "source": "given on the command line"}
    assert any("do not know chunked scheduling" in warning for warning in doc["warnings"])
    for name in ("ttft.png", "occupancy.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    table = polars.read_parquet(out / "requests.parquet")
    assert table.height == found["simulated_requests"]
    assert table.filter("measured")["preemptions"].sum() == found["preemptions"]
    page = " ".join((out / "report.txt").read_text().split())
    for words in ("Serving: chunked scheduling", "Router: by length", "Arrivals: Poisson.", "requests preempted"):
        assert words in page


def test_a_disaggregated_fleet_has_its_own_waits_and_no_model(two):
    link = "[transfer]\nkv_bytes_per_token = 131072\ngb_per_s = 50\nlatency_ms = 1\n"
    file = two(link, lambda text: text.replace("upper_tokens = 2048\n", ""))
    doc = strict(run("simulate", file, *SMALL, "--json").stdout)
    assert doc["analytic"] is None and "cost_usd_per_million_output_tokens" not in doc
    assert [pool["role"] for pool in doc["design"]["pools"]] == ["prefill", "decode"]
    found = doc["verification"]
    for name in ("prefill_wait", "transfer", "decode_wait"):
        assert found[f"{name}_p99_ms"]["value"] >= 0
    assert found["transfer_p50_ms"]["value"] > 1
    assert any("no figures of a fleet under these rules" in warning for warning in doc["warnings"])
    page = run("simulate", file, *SMALL, "--rate", "50").stdout
    assert page.startswith("2 x h100-80gb (prefill) + 1 x h100-80gb (decode), to 4,096 tokens")
    assert "wait for the link and transfer" in page


def test_a_closed_loop_counts_whom_it_measured(two):
    doc = strict(run("simulate", two(), *SMALL, "--concurrency", "40", "--rate", "2000", "--json").stdout)
    found = doc["verification"]
    assert found["requests"] == found["ttft_p99_ms"]["n"]
    assert found["attainment"] == 1.0
    assert found["client_wait_p99_ms"]["value"] > 0
    assert any("the clients could send only" in warning for warning in doc["warnings"])
    free = strict(
        run(
            "simulate", two("", lambda t: t.replace("rate = 100.0", "")), *SMALL, "--concurrency", "40", "--json"
        ).stdout
    )
    assert free["inputs"]["rate_rps"] == {"value": None, "source": "default: as fast as its clients can"}
    assert free["verification"]["offered_rate_rps"] > 0


def test_a_rate_table_is_played_to_its_end(two, tmp_path):
    (tmp_path / "day.csv").write_text("time_s,rate\n0,5\n100,40\n")
    more = '[arrivals]\nprocess = "piecewise"\nrate_table = "day.csv"\n'
    file = two(more, lambda text: text.replace("rate = 100.0", ""))
    doc = strict(run("simulate", file, "--replications", "4", "--json").stdout)
    assert doc["verification"]["simulated_requests"] == pytest.approx(4 * 4500, rel=0.02)
    assert doc["inputs"]["rate_rps"]["value"] == 22.5
    assert any("--warmup 0 measures all" in warning for warning in doc["warnings"])


def test_a_schedule_and_failures_are_held_against_the_length_of_the_run(two):
    row = "[[schedule]]\ntime_s = {}\npool = 0\nreplicas = 2\n"
    warnings = strict(run("simulate", two(row.format(0) + row.format(1e6)), *SMALL, "--json").stdout)["warnings"]
    assert any("1 of 2 rows of the schedule come after the last arrival" in warning for warning in warnings)
    rare = two("[failures]\nmean_up_hours = 1000\nmean_repair_minutes = 1\n")
    page = " ".join(run("simulate", rare, *SMALL).stdout.split())
    assert "failures are expected in the" in page and "replica-hours up" in page
    assert "Failures: each replica up for 1000 h and down for 1 min on average" in page


def test_whatif_is_the_outer_product_of_its_grids(tmp_path):
    grids = ("--rate", "100,200", "--ttft-p99-ms", "50:100:50,500")
    out = ("--json", "--out", str(tmp_path))
    result = run("whatif", EXAMPLE, "--max-pools", "1", "--tpot-p99-ms", "60", *grids, *out)
    assert result.exit_code == 0, result.output
    doc = strict(result.stdout)
    points = [(p["rate_rps"], round(p["slo_ttft_p99_ms"], 9)) for p in doc["points"]]
    assert points == [(rate, ttft) for rate in (100, 200) for ttft in (50, 100, 500)]
    costs = [p["cost_usd_per_hour"] for p in doc["points"]]
    assert costs[0] >= costs[2] and costs[5] >= costs[2]
    with (tmp_path / "whatif.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 6


def test_pareto_recommends_a_point_that_nothing_beats():
    result = run("pareto", EXAMPLE, "--json")
    assert result.exit_code == 0, result.output
    doc = strict(result.stdout)
    best = doc["recommended"]
    assert best["slo_met"] and not best["dominated"]
    assert None in {p["threshold_tokens"] for p in doc["points"]}
    good = [p for p in doc["points"] if p["slo_met"]]
    assert best["cost_usd_per_hour"] == min(p["cost_usd_per_hour"] for p in good)


@pytest.mark.parametrize(
    ("text", "values"),
    [("50", [50]), ("50,100.5", [50, 100.5]), ("1:2:0.25", [1, 1.25, 1.5, 1.75, 2]), ("1:10:4,20", [1, 5, 9, 20])],
)
def test_grids_are_lists_and_ranges(text, values):
    assert grid("--rate", text) == pytest.approx(values)


def test_trace_says_what_it_read(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("timestamp,a,output_tokens\n0,10,5\n1,20,0\n2,30,7\n")
    result = run("trace", str(path), "--map", "input_tokens=a", "--json")
    assert result.exit_code == 0, result.output
    doc = strict(result.stdout)
    assert doc["num_requests"] == 2
    assert any("0 output tokens" in note for note in doc["notes"])
    assert (
        strict(run("trace", str(path), "--map", "input_tokens=a", "--failed", "keep", "--json").stdout)["num_requests"]
        == 3
    )
    assert "Notes:" in run("trace", str(path), "--map", "input_tokens=a").stdout
    assert "azure-code" in run("trace", "azure-code").stdout


def test_profiles_lists_every_constant_and_source():
    doc = strict(run("profiles", "--json").stdout)
    assert {p["name"] for p in doc["profiles"]} == {"a100-80gb", "h100-80gb", "a10g"}
    assert all(p["source"] for p in doc["profiles"])
    assert {"azure-conversation", "lmsys"} <= {w["name"] for w in doc["workloads"]}
    page = run("profiles").stdout
    assert "base_s" in page and "published, not measured" in page


def test_the_schema_is_printed():
    schema = strict(run("plan", "--schema").stdout)
    of_the_simulator = {"serving", "router", "arrivals", "transfer", "failures", "schedule"}
    own = {"power", "demand", "scaling", "defer", "uncertainty"}
    assert set(schema["properties"]) == {"workload", "slo", "fleet"} | own | of_the_simulator


ENOUGH = ["--workload", "azure-conversation", "--profile", "h100-80gb", "--ttft-p99-ms", "500"]

BAD = [
    (["plan", "missing.toml"], ["plan file not found: missing.toml"]),
    (["plan"], ["--ttft-p99-ms", "is required"]),
    (["plan", *ENOUGH[:4]], ["--ttft-p99-ms", "is required"]),
    (["plan", *ENOUGH, "--rate", "0"], ["--rate must be > 0"]),
    (["plan", *ENOUGH, "--rate", "-1"], ["--rate must be > 0"]),
    (["plan", *ENOUGH, "--rate", "nan"], ["--rate must be a finite number, got nan"]),
    (["plan", *ENOUGH, "--rate", "inf"], ["--rate must be", "finite"]),
    (["plan", *ENOUGH, "--rate", "many"], ["--rate"]),
    (["plan", *ENOUGH, "--tpot-p99-ms", "-1"], ["--tpot-p99-ms must be > 0"]),
    (["plan", *ENOUGH, "--slo", "-1"], ["No such option", "--slo"]),
    (["plan", *ENOUGH, "--profile", "h200"], ["--profile: unknown profile 'h200'", "known: "]),
    (["plan", *ENOUGH, "--model", "step2"], ["--model must be 'step' or 'kimura'", "did you mean 'step'"]),
    (["plan", *ENOUGH[2:], "--workload", "azur"], ["--workload: unknown workload 'azur'", "'azure'"]),
    (["plan", *ENOUGH[2:], "--workload", "sharegpt"], ["--rate", "none of its own"]),
    (["plan", *ENOUGH[2:], "--trace", "no.csv"], ["--trace: trace file not found"]),
    (["plan", *ENOUGH[2:], "--trace", "empty.csv"], ["--trace: empty.csv", "0 requests"]),
    (["plan", *ENOUGH[2:], "--trace", "bad.csv"], ["bad.csv: line 3, column 'input_tokens'", "got '-5'"]),
    (["plan", *ENOUGH[2:], "--trace", "bad.csv", "--map", "x"], ["--map must be OURS=THEIRS"]),
    (["plan", *ENOUGH[2:], "--trace", "bad.csv", "--map", "x=y"], ["unknown column to map 'x'"]),
    (["plan", *ENOUGH[2:], "--cdf", "junk.json"], ["--output-share", "is required"]),
    (["plan", *ENOUGH[2:], "--cdf", "junk.json", "--output-share", "0.2"], ["--cdf: junk.json: not JSON"]),
    (["plan", *ENOUGH[2:], "--cdf", "falls.json", "--output-share", "0.2"], ["cumulative share"]),
    (["plan", *ENOUGH[2:], "--cdf", "falls.json", "--output-share", "1.5"], ["--output-share must be < 1"]),
    (["plan", *ENOUGH, "--cdf", "falls.json"], ["exactly one of name", "got name and cdf"]),
    (["plan", *ENOUGH, "--max-pools", "0"], ["--max-pools must be >= 1"]),
    (["plan", *ENOUGH, "--max-context", "1"], ["--max-context must be >= 2"]),
    (["plan", *ENOUGH, "--precision", "0"], ["--precision must be > 0"]),
    (["plan", *ENOUGH, "--precision", "nan"], ["--precision must be > 0"]),
    (["plan", *ENOUGH, "--seed", "-1"], ["--seed"]),
    (["plan", *ENOUGH, "--out", "junk.json"], ["--out junk.json", "cannot be made"]),
    (["plan", "junk.json", *ENOUGH], ["junk.json: not TOML"]),
    (["pareto", *ENOUGH, "--thresholds", "0"], ["--thresholds must be > 0"]),
    (["pareto", *ENOUGH, "--thresholds", "16384", "--max-context", "8192"], ["threshold", "16384", "max_context"]),
    (["whatif", *ENOUGH[:4], "--ttft-p99-ms", "1:x:2"], ["--ttft-p99-ms must be numbers"]),
    (["whatif", *ENOUGH, "--rate", "10,-5"], ["--rate must be > 0"]),
    (["whatif", *ENOUGH, "--rate", "1:1e9:1e-3"], ["--rate range must have at most"]),
    (
        ["simulate", OVERLOADED, "--arrivals", "burst"],
        ["--arrivals must be 'poisson', 'gamma', ", "or 'trace', got 'burst'"],
    ),
    (["simulate", OVERLOADED, "--arrivals", "trace"], ["arrival times"]),
    (["simulate", OVERLOADED, "--warmup", "1"], ["--warmup must be in [0, 1)"]),
    (["simulate", OVERLOADED, "--requests", "0"], ["--requests"]),
    (["simulate", "nothing.toml"], ["fleet.pools is required to simulate"]),
    (["simulate"], ["fleet.pools is required to simulate"]),
    (["simulate", OVERLOADED, "--arrivals", "gamma"], ["arrivals.cv (or --cv) is required for process = 'gamma'"]),
    (["simulate", OVERLOADED, "--cv", "2"], ["--cv is for process = 'gamma' or 'weibull'"]),
    (["simulate", OVERLOADED, "--kv", "grow"], ["--kv must be 'reserve' or 'overflow' under model", "constant work"]),
    (["simulate", OVERLOADED, "--concurrency", "0"], ["--concurrency must be >= 1"]),
    (["simulate", OVERLOADED, "--dispatch", "least"], ["--dispatch must be", "did you mean 'least-loaded'"]),
    (["simulate", OVERLOADED, "--requests-out"], ["--requests-out needs --out DIR"]),
    (["simulate", "empty.toml"], ["empty.toml: schedule: ", "never comes up"]),
    (
        ["simulate", "budget.toml"],
        ["budget.toml: serving.max_num_batched_tokens must be >= max_num_seqs (256), got 100"],
    ),
    (["compare-routers", "nothing.toml"], ["fleet.pools is required to simulate"]),
    (["compare-routers", "link.toml"], ["link.toml: transfer must be left out"]),
    (["compare-routers", OVERLOADED, "--routers", "lenght"], ["--routers must be", "did you mean 'length'"]),
    (["compare-routers", OVERLOADED, "--routers", "length,length"], ["--routers must name each router once"]),
    (
        ["compare-routers", OVERLOADED, "--routers", "prefix-affinity"],
        ["--routers prefix-affinity: ", "no block hashes"],
    ),
    (["compare-routers", OVERLOADED, "--max-tokens", "9"], ["--max-tokens must be >= 400, the workload's longest"]),
    (["compare-routers", OVERLOADED, "--pressure", "0"], ["--pressure must be > 0"]),
    (["compare-routers", OVERLOADED, "--gamma", "0.5"], ["--gamma must be >= 1"]),
    (["trace", "no.csv"], ["trace file not found: no.csv"]),
    (["trace", "empty.csv"], ["0 requests"]),
    (["trace", "bad.csv", "--time-unit", "min"], ["unknown time_unit 'min'"]),
    (["plam"], ["No such command 'plam'"]),
]


@pytest.mark.parametrize(("arguments", "found"), BAD, ids=lambda value: " ".join(value))
def test_bad_input_exits_2_with_one_clean_message(arguments, found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("empty.csv").write_text("")
    Path("bad.csv").write_text("input_tokens,output_tokens\n10,5\n-5,5\n")
    Path("junk.json").write_text("{[")
    Path("nothing.toml").write_text("[fleet]")
    Path("empty.toml").write_text(TWO + "[[schedule]]\ntime_s = 0\npool = 1\nreplicas = 0\n")
    Path("budget.toml").write_text(TWO + '[serving]\nscheduling = "chunked"\nmax_num_batched_tokens = 100\n')
    link = TWO.replace("upper_tokens = 2048\n", "") + "[transfer]\nkv_bytes_per_token = 1e5\ngb_per_s = 5\n"
    Path("link.toml").write_text(link)
    Path("falls.json").write_text("[[10, 0.5], [20, 0.4], [30, 1]]")
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    for words in found:
        assert words in result.stderr
    assert sum(line.lower().startswith("error: ") for line in result.stderr.splitlines()) == 1


def test_the_installed_command_answers(tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", "from optim.cli import main; main()"]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, env=environment, check=True)
    assert version.stdout.startswith("fleetgrad ")
    missing = subprocess.run([*command, "plan", "no.toml"], capture_output=True, text=True, env=environment)
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr.startswith("error: plan file not found: no.toml")


def test_the_first_example_runs_on_measured_profiles_and_verifies():
    """What `make plan` does: Llama 3.1 70B on three GPUs whose laws were fitted to runs of vLLM."""
    result = run("plan", str(REPOSITORY / "examples" / "azure_conversation.toml"), "--json", "--precision", "0.1")
    assert result.exit_code == 0
    doc = strict(result.stdout)
    assert doc["status"] == "verified"
    assert len(doc["profiles"]) == 3
    assert all("fitted to" in profile["source"] and "held out" in profile["source"] for profile in doc["profiles"])
    assert doc["verification"]["ttft_p99_ms"]["high"] <= 1000.0
    assert doc["verification"]["tpot_p99_ms"]["high"] <= 50.0
