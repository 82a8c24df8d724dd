"""`fleetgrad power`: both reports, their JSON, files and errors; what ranking and request are made of."""

import json

import pytest
from fleets import H100, make_profile
from typer.testing import CliRunner

import jaxsim
from optim.cli import app
from optim.config import ConfigError, read_settings
from optim.power_request import power_request
from optim.power_terms import Prices
from optim.power_tokens import same_model

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

[[fleet.pools]]
profile = "h100-80gb"
replicas = 8

[power]
pue = 1.25
usd_per_kwh = 0.1
"""


def run(*arguments):
    """Run the command in this process."""
    return CliRunner().invoke(app, ["power", *map(str, arguments)])


def strict(text):
    """JSON without the tokens that JSON does not have."""

    def refuse(token):
        raise AssertionError(f"{token} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory):
    """The plan file above."""
    path = tmp_path_factory.mktemp("plan") / "power.toml"
    path.write_text(PLAN, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def flexed(plan_file):
    """The flex report as JSON and in a folder."""
    folder = plan_file.parent / "flex"
    result = run(plan_file, "--levels", "4,30", "--event-minutes", "2", "--json", "--out", folder)
    assert result.exit_code == 0, result.output
    return strict(result.stdout), folder


def test_flex_is_strict_json_with_units(flexed):
    doc, _ = flexed
    assert (doc["kind"], doc["model"], doc["lever"]) == ("power-flex", "step", "cap")
    now = doc["now"]
    assert now["watts"] == pytest.approx(8 * now["pools"][0]["watts_per_gpu"])
    assert now["electricity"]["kilowatts"] == pytest.approx(1.25e-3 * now["watts"])
    assert now["electricity"]["usd_per_hour"] == pytest.approx(0.1 * now["electricity"]["kilowatts"])
    assert now["electricity"]["kg_co2_per_hour"] is None
    none, some, much = doc["levels"]
    assert (none["asked_percent"], none["caps"], none["delivered_percent"]) == (0.0, None, 0.0)
    assert some["delivered_percent"] >= 4.0
    assert some["sustained"]["ttft_p99_ms"] == "inf"
    assert some["event"]["ttft_p99_ms"]["low"] < some["event"]["ttft_p99_ms"]["high"]
    assert not much["reachable"]
    assert doc["event_safe"]["safe_percent"] < 4.0


def test_every_input_has_its_source(flexed):
    doc, _ = flexed
    inputs = doc["inputs"]
    assert inputs["pue"] == {"value": 1.25, "source": "given in power.toml"}
    assert inputs["kg_co2_per_kwh"] == {"value": None, "source": "not given: no emissions are given"}
    assert "published, not measured" in inputs["power_law_H100-80GB"]["source"]
    assert inputs["event_minutes"] == {"value": 2.0, "source": "given on the command line"}
    assert inputs["lever"]["source"] == "default"


def test_flex_writes_its_files(flexed):
    _, folder = flexed
    assert {path.name for path in folder.iterdir()} == {
        "flex.json",
        "flex.csv",
        "flex.png",
        "report.txt",
        "report.html",
    }
    assert len((folder / "flex.csv").read_text().splitlines()) == 4
    page = (folder / "report.txt").read_text()
    assert "No level is safe for an event of 2 min (simulated)" in " ".join(page.split())
    assert max(map(len, page.splitlines())) <= 100


def test_replicas_off_on_a_page(plan_file):
    result = run(plan_file, "--levels", "30", "--event-minutes", "2", "--lever", "off", "--startup-minutes", "1")
    assert result.exit_code == 0, result.output
    assert "replicas on" in result.stdout
    assert "the SLO is kept for an event of 2 min (simulated, with 1 replica on)" in " ".join(result.stdout.split())
    assert "startup_minutes" in result.stdout


@pytest.fixture(scope="module")
def ranked(plan_file):
    """The tokens report by the model alone."""
    folder = plan_file.parent / "tokens"
    given = ["--utilization", "0.3,0.9", "--no-simulate", "--pue", "1", "--kg-co2-per-kwh", "0.4"]
    result = run(plan_file, "--report", "tokens", *given, "--json", "--out", folder)
    assert result.exit_code == 0, result.output
    return strict(result.stdout), folder


def test_tokens_are_ranked_by_energy(ranked):
    doc, folder = ranked
    best, other = doc["ranking"]
    per_joule = [one["energy"]["output_tokens_per_joule"] for one in (best, other)]
    assert per_joule[0] > per_joule[1] > 0
    for one in (best, other):
        used, bill = one["energy"], one["electricity"]
        assert used["output_tokens_per_joule"] == pytest.approx(used["output_tokens_per_s"] / used["watts"])
        assert bill["kwh_per_million_tokens"] == pytest.approx(1e6 / used["output_tokens_per_joule"] / 3.6e6)
        assert bill["kg_co2_per_million_tokens"] == pytest.approx(0.4 * bill["kwh_per_million_tokens"])
        assert [point["utilization"] for point in one["curve"]] == pytest.approx([0.3, 0.9])
        assert one["curve"][0]["output_tokens_per_joule"] < one["curve"][1]["output_tokens_per_joule"]
        assert one["ttft_p99_ms"] <= 500.0
        assert not one["verified"]
    assert doc["same_model"] is None
    assert "do not say of which model" in doc["same_model_text"]
    assert {path.name for path in folder.iterdir()} == {
        "tokens.json",
        "tokens.csv",
        "tokens.png",
        "report.txt",
        "report.html",
    }


def test_no_profile_is_exit_status_3(plan_file):
    result = run(plan_file, "--report", "tokens", "--no-simulate", "--ttft-p99-ms", "1")
    assert result.exit_code == 3, result.output
    assert "INFEASIBLE" in result.stdout


def named(*names):
    """Profiles of these names."""
    return [make_profile(name=name) for name in names]


def test_profiles_are_of_one_model_or_not():
    assert same_model(named("llama-3.1-8b@h100-sxm:tp1", "llama-3.1-8b@a100-80gb-sxm:tp1"))[0] is True
    known, text = same_model(named("llama-3.1-8b@h100-sxm:tp1", "llama-3.1-70b@h100-sxm:tp4"))
    assert known is False
    assert "different models (llama-3.1-70b, llama-3.1-8b)" in text
    known, text = same_model(named("llama-3.1-8b@h100-sxm:tp1", "h100-80gb"))
    assert known is None
    assert text.startswith("the name h100-80gb does not say of which model")


# --- the request


LAW = '\n[[power.laws]]\ngpu = "{gpu}"\nidle_w = 100\nnominal_w = {nominal}\nsteepness = 1.0\nlog2_midpoint = 3\n'


def settings(tmp_path, text, **flags):
    """Read a plan file."""
    path = tmp_path / "power.toml"
    path.write_text(text, encoding="utf-8")
    return read_settings(path, flags)


def test_a_law_of_ones_own_comes_before_the_published_one(tmp_path):
    request = power_request(settings(tmp_path, PLAN + LAW.format(gpu="H100-80GB", nominal=700)), flex=True, tokens=True)
    assert request.law_of(H100) == (100.0, 600.0, 1.0, 3.0)
    assert request.laws["A100-80GB"] == jaxsim.power.power_law("a100")
    assert request.inputs["power_law_H100-80GB"].source == "given in power.toml"


def test_what_is_not_given_is_said(tmp_path):
    request = power_request(settings(tmp_path, PLAN.partition("[power]")[0]), flex=True, tokens=False)
    assert request.prices == Prices(pue=1.0, usd_per_kwh=None, kg_co2_per_kwh=None)
    assert "GPUs alone" in request.inputs["pue"].source
    assert "nothing is priced" in request.inputs["usd_per_kwh"].source


def test_rules_of_the_simulator_are_not_used_silently(tmp_path):
    request = power_request(
        settings(tmp_path, PLAN + '\n[serving]\nscheduling = "independent"\n'), flex=True, tokens=False
    )
    assert request.notes == ("serving: not used; events are simulated under the default rules and Poisson arrivals",)


BAD = [
    (PLAN + LAW.format(gpu="h200", nominal=700), r"power.laws\[0\].gpu must be a GPU of the profiles.*got 'h200'"),
    (PLAN + LAW.format(gpu="H100-80GB", nominal=90), r"power.laws\[0\].nominal_w must be > idle_w \(100\), got 90"),
    (PLAN + 2 * LAW.format(gpu="H100-80GB", nominal=700), r"power.laws\[1\].gpu is there twice"),
    (
        PLAN.replace('profile = "h100-80gb"', 'profile = "llama-3.1-8b@h200:tp1"'),
        r"unknown power law.*\[\[power.laws\]\]",
    ),
    (PLAN.replace("max_context", 'model = "kimura"\nmax_context'), "fleet.model must be step, got 'kimura'"),
]


@pytest.mark.parametrize(("text", "said"), BAD)
def test_bad_requests_are_refused(tmp_path, text, said):
    with pytest.raises(ConfigError, match=said):
        power_request(settings(tmp_path, text), flex=True, tokens=False)


BAD_FILES = [
    ("pue = 1.25", "pue = 0.9", "power.pue must be >= 1 and finite, got 0.9"),
    ("usd_per_kwh = 0.1", "usd_per_kwh = -1", "power.usd_per_kwh must be > 0 and finite, got -1"),
    ("usd_per_kwh = 0.1", "price = 1", "unknown key 'price' in [power]"),
    ("pue = 1.25", 'laws = {gpu = "h200"}', "each row is a table [[power.laws]]"),
]


@pytest.mark.parametrize(("old", "new", "said"), BAD_FILES)
def test_bad_tables_are_refused(tmp_path, old, new, said):
    path = tmp_path / "power.toml"
    path.write_text(PLAN.replace(old, new), encoding="utf-8")
    result = run(path)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


BAD_FLAGS = [
    (["--report", "cost"], "--report must be one of flex, tokens, got 'cost'"),
    (["--levels", "50,100"], "--levels must be below 100 percent"),
    (["--event-minutes", "0"], "--event-minutes must be > 0"),
    (["--lever", "dim"], "unknown lever 'dim'"),
    (["--rate", "100000"], "overloaded as it is"),
    (["--report", "tokens", "--utilization", "1.5"], "utilizations must be in (0, 1)"),
]


@pytest.mark.parametrize(("flags", "said"), BAD_FLAGS)
def test_bad_flags_are_refused(plan_file, flags, said):
    result = run(plan_file, *flags)
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.stderr.split())
