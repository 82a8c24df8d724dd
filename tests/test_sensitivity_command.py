"""`fleetgrad sensitivity`: at a plan and at pools spelled out, its page, JSON and tables, and what it refuses."""

import csv
import json
import math

import pytest
from typer.testing import CliRunner

from optim.cli import app

REQUESTS = "input_tokens,output_tokens\n" + "".join(f"{200 + 37 * k},{50 + 7 * (k % 60)}\n" for k in range(150))
LOAD = '[workload]\ntrace = "requests.csv"\nrate = 20.0\n[slo]\nttft_p99_ms = 400\ntpot_p99_ms = 40\n'
PLANNED = '[fleet]\nprofiles = ["h100-80gb"]\nmax_pools = 2\n'
SPELLED_OUT = """
[serving]
kv = "grow"
[[fleet.pools]]
profile = "h100-80gb"
replicas = 1
max_context = 4096
upper_tokens = 2000
[[fleet.pools]]
profile = "a100-80gb"
replicas = 2
max_context = 8192
"""
DISAGGREGATED = """
[transfer]
gb_per_s = 50.0
kv_bytes_per_token = 100000.0
[[fleet.pools]]
profile = "h100-80gb"
replicas = 1
max_context = 8192
[[fleet.pools]]
profile = "h100-80gb"
replicas = 1
max_context = 8192
"""


def run(folder, text, *flags):
    (folder / "requests.csv").write_text(REQUESTS)
    (folder / "plan.toml").write_text(text)
    return CliRunner().invoke(app, ["sensitivity", str(folder / "plan.toml"), *flags])


def strict(text):
    def refuse(constant):
        raise ValueError(f"{constant} is not strict JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def spelled_out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spelled_out")
    result = run(folder, LOAD + SPELLED_OUT, "--json", "--out", str(folder / "out"))
    assert result.exit_code == 0, result.output
    return strict(result.stdout), folder / "out"


@pytest.mark.slow
def test_pools_spelled_out_are_priced_as_they_are(spelled_out):
    doc, _ = spelled_out
    assert doc["kind"] == "sensitivity" and doc["status"] == "ok" and doc["model"] == "step"
    assert [pool["replicas"] for pool in doc["design"]["pools"]] == [1, 2]
    assert doc["relaxed_cost_usd_per_hour"] > 0
    inputs = {(one["input"], one["of"]) for one in doc["sensitivities"]}
    assert {("rate_rps", "fleet"), ("ttft_p99_ms", "pool 1"), ("upper_tokens", "pool 0")} <= inputs
    for profile in ("h100-80gb", "a100-80gb"):
        assert {("usd_per_gpu_hour", profile), ("kv_blocks", profile), ("overhead_s", profile)} <= inputs
    prices = [one["cost_elasticity"] for one in doc["sensitivities"] if one["input"] == "usd_per_gpu_hour"]
    assert sum(prices) == pytest.approx(1.0)
    room = doc["headroom"]
    assert room["due_rate_rps"] == min(pool["due_rate_rps"] for pool in room["pools"])
    assert room["spare"] == pytest.approx(room["due_rate_rps"] / 20.0 - 1.0)
    assert [knob["rank"] for knob in doc["knobs"]] == list(range(1, len(doc["knobs"]) + 1))
    assert any("[serving]" in warning for warning in doc["warnings"])


@pytest.mark.slow
def test_out_holds_the_same_as_tables(spelled_out):
    doc, folder = spelled_out
    assert strict((folder / "sensitivity.json").read_text()) == doc
    with (folder / "sensitivities.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["input"], row["of"]) for row in rows] == [(one["input"], one["of"]) for one in doc["sensitivities"]]
    for row, one in zip(rows, doc["sensitivities"], strict=True):
        assert float(row["cost_usd_per_hour_per_unit"]) == one["cost_usd_per_hour_per_unit"]
        assert float(row["pool1_ttft_p99_ms_per_unit"]) == one["pools"][1]["ttft_p99_ms_per_unit"]
    with (folder / "knobs.csv").open() as file:
        assert [row["turn"] for row in csv.DictReader(file)] == [knob["turn"] for knob in doc["knobs"]]
    page = (folder / "report.txt").read_text()
    assert page.startswith("1 x h100-80gb to 2,000 tokens + 2 x a100-80gb to 8,192 tokens: $8.44/h, as given.")
    for words in (
        "Headroom: the next replica is due at",
        "1 ms of P99 TTFT in every pool costs $",
        "Knobs, by P99 TTFT",
    ):
        assert words in page
    assert max(map(len, page.splitlines())) <= 100


@pytest.mark.slow
def test_a_fleet_that_is_short_is_said_to_be(tmp_path):
    result = run(tmp_path, LOAD + SPELLED_OUT, "--rate", "200")
    assert result.exit_code == 0, result.output
    assert "Headroom: short. At 200 req/s, by the model, pool" in result.stdout
    assert "overloaded, so its P99s and the fleet's are infinite" in " ".join(result.stdout.split())


@pytest.mark.slow
def test_a_plan_is_found_first(tmp_path):
    result = run(tmp_path, LOAD + PLANNED, "--no-simulate", "--json", "--by", "tpot", "--model", "kimura")
    assert result.exit_code == 0, result.output
    doc = strict(result.stdout)
    assert doc["status"] == "unverified"
    assert doc["knobs_ranked_by"] == "tpot_p99_ms_per_usd"
    assert doc["headroom"]["spare"] >= 0.0
    for pool in doc["pools"]:
        assert pool["required_replicas"] <= pool["replicas"]
        assert pool["ttft_p99_ms"] <= 400.0
    worth = [k["tpot_p99_ms_per_usd"] for k in doc["knobs"] if k["for_sale"] and k["slo_met"]]
    numbers = [float(value) for value in worth]
    assert numbers == sorted(numbers, reverse=True) and not any(map(math.isnan, numbers))


@pytest.mark.slow
def test_what_cannot_be_is_said(tmp_path):
    fast = LOAD.replace("ttft_p99_ms = 400", "ttft_p99_ms = 1")
    result = run(tmp_path, fast + PLANNED, "--no-simulate")
    assert result.exit_code == 3
    assert "INFEASIBLE" in result.stdout
    result = run(tmp_path, fast + SPELLED_OUT)
    assert result.exit_code == 3
    assert "INFEASIBLE: no number of replicas meets the objectives in pool 0, pool 1" in result.stdout


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (LOAD.split("[slo]")[0] + SPELLED_OUT, "slo.ttft_p99_ms is required to price a fleet"),
        (
            LOAD + DISAGGREGATED,
            "fleetgrad disagg",
        ),
        (LOAD, "fleet.profiles"),
    ],
)
def test_what_is_missing_is_named(tmp_path, text, says):
    result = run(tmp_path, text)
    assert result.exit_code == 2
    assert says in result.stderr
