"""Energy in `fleetgrad plan` and `pareto`: flags, tables, JSON, files, and what is refused or said not to be used."""

import json

import pytest
from typer.testing import CliRunner

from optim.build import plan_request
from optim.cli import app
from optim.config import ConfigError, read_settings
from optim.power_request import power_request

PLAN = """
[workload]
name = "azure-conversation"
rate = 60.0

[slo]
ttft_p99_ms = 500
tpot_p99_ms = 60

[fleet]
profiles = ["h100-80gb", "a100-80gb"]
max_context = 16384
max_pools = 1

[power]
pue = 1.25
usd_per_kwh = 0.1
kg_co2_per_kwh = 0.4
"""


def run(*arguments):
    """Run the command in this process."""
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory):
    """The plan file above."""
    path = tmp_path_factory.mktemp("plan") / "energy.toml"
    path.write_text(PLAN, encoding="utf-8")
    return path


def request(path, **flags):
    """What `plan` and `pareto` read."""
    return plan_request(read_settings(path, {f"power.{key}": value for key, value in flags.items()}), power=True)


def test_a_plan_of_least_energy_as_json(plan_file):
    result = run("plan", plan_file, "--minimize", "energy", "--max-kw", "3", "--no-simulate", "--json")
    assert result.exit_code == 0, result.output
    doc = json.loads(result.stdout)
    power, proof = doc["power"], doc["certificate"]
    assert (power["minimize"], proof["minimize"]) == ("energy", "energy")
    assert power["kilowatts"] == pytest.approx(1.25e-3 * power["watts"])
    assert power["electricity"]["usd_per_hour"] == pytest.approx(0.1 * power["kilowatts"])
    assert power["electricity"]["kg_co2_per_hour"] == pytest.approx(0.4 * power["kilowatts"])
    assert power["budget"] == {
        "max_kw": 3.0,
        "max_kwh_per_million_tokens": None,
        "kilowatts": 3.0,
        "simulated_met": None,
    }
    assert 0.0 < proof["lower_bound_kw"] <= power["kilowatts"] * (1 + 1e-9)
    assert "lower_bound_usd_per_hour" not in proof
    assert doc["inputs"]["minimize"] == {"value": "energy", "source": "given on the command line"}
    assert doc["inputs"]["max_kwh_per_million_tokens"]["source"] == "default: no budget"
    assert not any("not used" in note for note in doc["warnings"])


def test_a_budget_too_low_is_exit_status_3_with_the_least_there_is(plan_file):
    result = run("plan", plan_file, "--max-kw", "0.1", "--no-simulate")
    assert result.exit_code == 3, result.output
    page = " ".join(result.stdout.split())
    assert "INFEASIBLE: the least power found is" in page
    assert "above the budget max_kw of 0.1 kW; raise it, relax the SLO" in page


def test_a_front_with_energy_writes_its_columns(plan_file, tmp_path):
    given = ["--thresholds", "1024,4096", "--axes", "cost,ttft,energy", "--out", tmp_path, "--json"]
    result = run("pareto", plan_file, *given)
    assert result.exit_code == 0, result.output
    doc = json.loads(result.stdout)
    assert doc["axes"] == ["cost", "ttft", "energy"]
    for point in doc["points"]:
        assert point["kilowatts"] > 0.0 and point["within_budget"]
    assert "kilowatts,kwh_per_million_tokens,within_budget" in (tmp_path / "pareto.csv").read_text()
    assert (tmp_path / "pareto.png").stat().st_size > 10_000
    page = (tmp_path / "report.txt").read_text()
    assert "kWh per million output tokens" in " ".join(page.split()) and max(map(len, page.splitlines())) <= 100


REFUSED = [
    ({"minimize": "watts"}, "--minimize must be 'cost', 'energy', 'cost+electricity' or 'carbon', got 'watts'"),
    ({"max_kw": 0.0}, "--max-kw must be > 0 and finite, got 0.0"),
]


@pytest.mark.parametrize(("flags", "said"), REFUSED)
def test_bad_values_are_refused(plan_file, flags, said):
    with pytest.raises(ConfigError) as error:
        request(plan_file, **flags)
    assert said in str(error.value)


def test_what_is_to_be_least_needs_its_price(plan_file):
    bare = plan_file.parent / "bare.toml"
    bare.write_text(PLAN.partition("[power]")[0], encoding="utf-8")
    with pytest.raises(ConfigError, match=r"usd_per_kwh must be > 0 to minimize 'cost.electricity', got None"):
        request(bare, minimize="cost+electricity")
    with pytest.raises(ConfigError, match="kg_co2_per_kwh must be > 0 to minimize 'carbon', got None"):
        request(bare, minimize="carbon")
    plain = request(bare)
    assert plain.problem.power is None
    assert plain.inputs["minimize"].value == "cost"
    assert request(bare, minimize="energy").inputs["pue"].source.startswith("default: the GPUs alone")


def test_power_that_is_not_known_is_refused_where_it_decides_and_noted_where_not(plan_file):
    other = plan_file.parent / "other.toml"
    text = PLAN.replace('"h100-80gb", "a100-80gb"', '"llama-3.1-70b@h200:tp2:fp8:vllm"')
    other.write_text(text, encoding="utf-8")
    noted = request(other)
    assert noted.problem.power is None
    assert any(note.startswith("power: not used; unknown power law of GPU 'h200") for note in noted.notes)
    with pytest.raises(ConfigError, match="unknown power law of GPU 'h200"):
        request(other, minimize="energy")
    kimura = plan_file.parent / "kimura.toml"
    kimura.write_text(PLAN.replace("max_pools = 1", 'model = "kimura"').replace("tpot_p99_ms = 60", ""))
    assert any("power: not used; the slots of the kimura model" in note for note in request(kimura).notes)
    with pytest.raises(ConfigError, match=r"model must be step for power.max_kw, got 'kimura'"):
        request(kimura, max_kw=3.0)


def test_tokens_do_not_say_that_the_table_they_use_is_not_used(plan_file):
    asked = power_request(read_settings(plan_file, {}), flex=False, tokens=True)
    assert asked.notes == ()
    asked = power_request(read_settings(plan_file, {"power.minimize": "energy"}), flex=False, tokens=True)
    assert asked.notes == ("power.minimize: for `fleetgrad plan` and `pareto`; it was not used",)
