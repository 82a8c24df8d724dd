"""`fleetgrad schedule`: a planned and a spelled-out fleet, its page, JSON, table and plot, and what it refuses."""

import csv
import json

import pytest
from typer.testing import CliRunner

from optim.cli import app
from optim.config import ConfigError, read_settings
from optim.schedule_request import schedule_request

REQUESTS = "input_tokens,output_tokens\n" + "".join(f"{200 + 37 * k},{50 + 7 * (k % 60)}\n" for k in range(150))
TIMED = "timestamp,input_tokens,output_tokens\n" + "".join(f"{0.5 * k},{200 + 37 * (k % 150)},50\n" for k in range(600))
DAY = "time_s,rate,usd_per_kwh,g_co2_per_kwh\n0,20,0.1,400\n200,90,0.2,100\n400,180,0.1,300\n600,60,0.3,200\n"
LOAD = '[workload]\ntrace = "requests.csv"\n[slo]\nttft_p99_ms = 400\ntpot_p99_ms = 40\n'
PLANNED = '[fleet]\nprofiles = ["h100-80gb"]\nmax_pools = 1\n'
SPELLED_OUT = """
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
TWO_ALIKE = SPELLED_OUT.replace("a100", "h100")
OF_A_DAY = '[demand]\ntable = "day.csv"\n[scaling]\ncold_start_s = 30\n'


@pytest.fixture
def write(tmp_path):
    """Writes the tables and a plan file, and returns its path."""

    def make(text):
        for name, table in (("requests.csv", REQUESTS), ("timed.csv", TIMED), ("day.csv", DAY)):
            (tmp_path / name).write_text(table)
        (tmp_path / "plan.toml").write_text(text)
        return tmp_path / "plan.toml"

    return make


def run(file, *flags):
    return CliRunner().invoke(app, ["schedule", str(file), *map(str, flags)])


def strict(text):
    def refuse(constant):
        raise ValueError(f"{constant} is not strict JSON")

    return json.loads(text, parse_constant=refuse)


def request(file, flags=None):
    return schedule_request(read_settings(file, flags or {}))


def test_a_fleet_over_a_day(write, tmp_path):
    reserved = "reserved_usd_per_gpu_hour = 2.0\n[power]\npue = 1.2\n"
    out = tmp_path / "out"
    result = run(write(LOAD + TWO_ALIKE + OF_A_DAY + reserved), "--json", "--out", out)
    assert result.exit_code == 0, result.output
    doc = strict(result.stdout)
    assert (doc["kind"], doc["status"], doc["day_hours"], doc["repeats"]) == ("schedule", "verified", 800 / 3600, True)
    cost, intervals = doc["cost"], doc["intervals"]
    assert [row["rate_rps"] for row in intervals] == [20.0, 90.0, 180.0, 60.0]
    most = sum(max(row["replicas"][p] for row in intervals) for p in range(2))
    assert doc["static_design"]["gpus"] == most
    price = doc["profiles"][0]["usd_per_gpu_hour"]
    assert cost["static"]["on_demand_usd"] == pytest.approx(most * price * doc["day_hours"])
    assert cost["static_reserved_usd"] == pytest.approx(most * 2.0 * doc["day_hours"])
    assert cost["schedule"]["on_demand_usd"] == pytest.approx(sum(r["schedule_on_demand_usd"] for r in intervals))
    assert cost["saved_usd"] == pytest.approx(cost["static"]["on_demand_usd"] - cost["schedule"]["on_demand_usd"])
    split = sum(min(pool["usd_by_reserved_replicas"]) for pool in cost["pools"])
    assert cost["schedule_with_reservations_usd"] == pytest.approx(split)
    assert cost["pools"][0]["breakeven_share"] == pytest.approx(2.0 / price)
    for fleet in ("static", "schedule"):
        used = doc["electricity"][fleet]
        assert used["kwh"] == pytest.approx(sum(row[f"{fleet}_kwh"] for row in intervals))
        assert used["usd"] == pytest.approx(sum(row[f"{fleet}_electricity_usd"] for row in intervals))
    assert intervals[1]["static_kg_co2"] == pytest.approx(0.1 * intervals[1]["static_kwh"])
    found = doc["verification"]
    assert found["whole_day"] and not found["schedule"]["missed"]
    assert sum(len(found["schedule"][key]) for key in ("met", "coin_flip", "missed", "empty")) == 4
    for row in intervals:
        assert row["schedule"]["ttft_p99_ms"]["low"] <= 400.0
    sources = {key: entry["source"] for key, entry in doc["inputs"].items()}
    assert sources["demand"] == sources["cold_start_s"] == "given in plan.toml"
    assert sources["usd_per_kwh"] == "given in day.csv" and sources["rate_rps"] == "the highest of the demand"
    assert sources["hold_minutes"] == sources["demand_repeats"] == "default"
    assert len(doc["assumed"]) >= 3
    assert strict((out / "schedule.json").read_text()) == doc
    with (out / "intervals.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["replicas"] for row in rows] == ["+".join(map(str, row["replicas"])) for row in intervals]
    assert float(rows[2]["schedule_ttft_p99_ms_value"]) == intervals[2]["schedule"]["ttft_p99_ms"]["value"]
    assert (out / "schedule.png").stat().st_size > 20_000
    page = (out / "report.txt").read_text()
    for words in ("for the static", "Simulated (the whole day", "Reservations (every number priced)", "Intervals (SLO"):
        assert words in page
    assert max(map(len, page.splitlines())) <= 100


def test_pools_spelled_out_under_the_model_alone(write):
    file = write(LOAD.replace("[slo]", "rate = 7.0\n[slo]") + SPELLED_OUT + OF_A_DAY)
    result = run(file, "--no-verify", "--json", "--mean-rate", 40, "--cold-start", 0)
    assert result.exit_code == 0, result.output
    doc = strict(result.stdout)
    assert doc["status"] == "unverified" and doc["verification"] is None
    assert sum(row["rate_rps"] for row in doc["intervals"]) == pytest.approx(160.0)
    assert doc["cost"]["schedule"]["starting_gpu_hours"] == 0.0
    assert [len(row["replicas"]) for row in doc["intervals"]] == [2] * 4
    notes = " ".join(doc["warnings"])
    assert "workload.rate: not used" in notes and "fleet.pools.replicas: not used" in notes
    page = " ".join(run(file, "--no-verify").stdout.split())
    assert "NOT verified by the simulator." in page


@pytest.mark.slow
def test_what_may_wait_is_moved(write):
    defer = "[defer]\nshare = 0.3\nmax_wait_hours = 0.12\nminimize = 'carbon'\n"
    result = run(write(LOAD + PLANNED + OF_A_DAY + defer), "--no-verify", "--json")
    assert result.exit_code == 0, result.output
    doc = strict(result.stdout)
    moved = doc["deferred"]
    assert moved["unit"] == "kg_co2" and moved["moved_share"] > 0.0
    assert moved["taken"] == (moved["objective_after"] < moved["objective_before"])
    assert moved["before"]["electricity"]["schedule"]["kg_co2"] == moved["objective_before"]
    asked, served = ([row[key] for row in doc["intervals"]] for key in ("asked_rate_rps", "rate_rps"))
    assert sum(asked) == pytest.approx(sum(served)) and (asked != served) == moved["taken"]


def test_what_cannot_be_is_said(write):
    fast = LOAD.replace("ttft_p99_ms = 400", "ttft_p99_ms = 1")
    result = run(write(fast + SPELLED_OUT + OF_A_DAY), "--no-verify")
    assert result.exit_code == 3
    assert "INFEASIBLE: no number of replicas meets the objectives in pool 0" in result.stdout
    result = run(write(fast + PLANNED + OF_A_DAY), "--no-verify", "--json")
    assert result.exit_code == 3
    assert strict(result.stdout)["status"] == "infeasible"


def test_demands_of_every_kind(write):
    base = LOAD + PLANNED
    listed = request(write(base + "[demand]\nrates_rps = [1.0, 2.0, 4.0]\ninterval_minutes = 30\nrepeat = false\n"))
    assert listed.demand.rate == (1.0, 2.0, 4.0) and listed.demand.end_s == 5400.0 and not listed.demand.repeat
    assert listed.problem.rate == 4.0 and listed.scaling.cold_start_s == 300.0
    assert listed.inputs["cold_start_s"].source == "default: an assumption, measure yours"
    cosine = "[demand]\npeak_rps = 9.0\ntrough_rps = 1.0\npeak_hour = 15\ninterval_minutes = 60\n"
    assert request(write(base + cosine)).demand.rates.argmax() == 15
    timed = base.replace("requests.csv", "timed.csv")
    counted = request(write(timed), {"demand.from_trace": True, "demand.interval_minutes": 1.0})
    assert counted.demand.rate == (2.0,) * 4 and any("arrivals" in note for note in counted.notes)
    over = request(write(base + cosine), {"demand.table": str(write(base).parent / "day.csv")})
    assert over.demand.rate == (20.0, 90.0, 180.0, 60.0)
    assert over.inputs["demand"].source == "given on the command line"


def test_prices_of_several_profiles(write):
    rows = "[[scaling.prices]]\nprofile = 'h100-80gb'\nreserved_usd_per_gpu_hour = 2.0\n"
    rows += (
        "[[scaling.prices]]\nprofile = 'a100-80gb'\nreserved_usd_per_gpu_hour = 1.0\non_demand_usd_per_gpu_hour = 1.5\n"
    )
    given = request(write(LOAD + SPELLED_OUT + OF_A_DAY + rows))
    prices = given.prices_of(given.fleet.design)
    assert prices.reserved == (2.0, 1.0) and prices.on_demand == (4.02, 1.5)
    assert given.electric_of(given.fleet.design).grid.usd_per_kwh == (0.1, 0.2, 0.1, 0.3)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            LOAD + PLANNED,
            ["demand must be exactly one of table, rates_rps", "got none", "--demand"],
        ),
        (LOAD + PLANNED + OF_A_DAY.replace("day", "no"), ["demand.table: table not found", "check the path"]),
        (
            LOAD + PLANNED + "[demand]\nfrom_trace = true\ninterval_minutes = 5\n",
            ["demand.from_trace", "arrival times"],
        ),
        (
            LOAD + PLANNED + "[demand]\nrates_rps = [1.0, 2.0]\n",
            ["interval_minutes is required beside rates_rps"],
        ),
        (LOAD + PLANNED + "[demand]\npeak_rps = 1.0\ninterval_minutes = 60\n", ["demand.trough_rps is required"]),
        (LOAD + PLANNED + OF_A_DAY.replace("[scaling]", "peak_hour = 3\n[scaling]"), ["peak_hour is for peak_rps"]),
        (LOAD + PLANNED + OF_A_DAY + "[power]\nusd_per_kwh = 0.1\n", ["power.usd_per_kwh is given twice", "day.csv"]),
        (LOAD + PLANNED + OF_A_DAY.replace("[scal", 'grid_table = "day.csv"\n[scal'), ["grid_table must be left out"]),
        (LOAD + PLANNED + OF_A_DAY + "[defer]\nshare = 0.2\n", ["defer.max_wait_hours is required; longest wait"]),
        (LOAD + PLANNED + OF_A_DAY + "[defer]\nshare = 20\nmax_wait_hours = 1\n", ["defer.share must be <= 1"]),
        (LOAD + PLANNED + OF_A_DAY + "hold_s = 3\n", ["unknown key 'hold_s' in [scaling]", "hold_minutes"]),
        (LOAD + PLANNED.replace("max", 'model = "kimura"\nmax') + OF_A_DAY, ["fleet.model must be step", "kimura"]),
        (LOAD.split("[slo]")[0] + SPELLED_OUT + OF_A_DAY, ["slo.ttft_p99_ms is required"]),
        (
            LOAD + SPELLED_OUT + OF_A_DAY + "reserved_usd_per_gpu_hour = 2\n",
            ["is for a fleet of one profile, here are h100-80gb, a100-80gb"],
        ),
        (
            LOAD + PLANNED + OF_A_DAY + "[[scaling.prices]]\nprofile = 'x'\nreserved_usd_per_gpu_hour = 2\n",
            ["scaling.prices[0].profile must be a profile of the fleet", "got 'x'"],
        ),
    ],
)
def test_what_is_wrong_is_named(write, text, says):
    with pytest.raises(ConfigError) as error:
        request(write(text))
    for words in says:
        assert words in str(error.value)


def test_a_grid_of_its_own(write, tmp_path):
    text = LOAD + PLANNED + '[demand]\nrates_rps = [1.0, 2.0]\ninterval_minutes = 60\ngrid_table = "grid.csv"\n'
    file = write(text)
    grid = tmp_path / "grid.csv"
    grid.write_text("hour,g_co2_per_kwh,rate\n0,100,1\n0.5,300,1\n1,500,1\n1.5,500,1\n2,900,1\n")
    given = request(file)
    assert given.grid.kg_co2_per_kwh == pytest.approx((0.2, 0.5)) and given.grid.usd_per_kwh is None
    assert any("its rates are not used" in note for note in given.notes)
    assert any("after the demand's end" in note for note in given.notes)
    grid.write_text("hour,g_co2_per_kwh\n1,100\n2,300\n3,1\n")
    with pytest.raises(ConfigError, match="starts at 1 h, the demand at 0 h"):
        request(file)
    grid.write_text("hour,g_co2_per_kwh\n0,100\n0.5,300\n")
    with pytest.raises(ConfigError, match="the time that prices cover must be at least that of the demand"):
        request(file)


def test_a_gpu_without_a_power_law_has_no_electricity(write):
    """Where nothing asks for it, it is said; where something does, it is an error."""
    text = LOAD + PLANNED.replace("h100-80gb", "llama-3.1-70b@b200:tp1:fp8:vllm")
    listed = "[demand]\nrates_rps = [1.0, 2.0]\ninterval_minutes = 60\n"
    given = request(write(text + listed))
    assert given.grid is None and any("no electricity is reckoned" in note for note in given.notes)
    with pytest.raises(ConfigError, match="unknown power law of GPU 'b200'"):
        request(write(text + listed + "[power]\npue = 1.1\n"))


def test_bad_flags_are_one_line(write):
    file = write(LOAD + PLANNED + OF_A_DAY)
    for flags in (["--play-hours", "0"], ["--rounds", "-1"], ["--defer-share", "0.2"], ["--minimize", "money"]):
        result = run(file, *flags)
        assert result.exit_code == 2, flags
        assert "Traceback" not in result.output
