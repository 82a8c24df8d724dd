"""Plan files: strict keys and values, flags over files, the source of every input, profile files."""

from pathlib import Path

import numpy as np
import pytest

from jaxsim.profiles import profile, profile_names
from optim.build import fleet_request, plan_request
from optim.config import ConfigError, PlanFile, read_settings
from optim.profile_file import KEYS, find_profile, profile_toml, read_profile

PLAN = """
[workload]
name = "azure-conversation"
rate = 200.0
[slo]
ttft_p99_ms = 500
[fleet]
profiles = ["h100-80gb"]
"""

POOLS = """
[workload]
name = "azure-conversation"
[fleet]
max_context = 16384
[[fleet.pools]]
profile = "a100-80gb"
replicas = 2
max_context = 8192
upper_tokens = 4096
[[fleet.pools]]
profile = "h100-80gb"
replicas = 1
"""


@pytest.fixture
def write(tmp_path):
    """Writes a file and returns its path."""

    def make(text: str, name: str = "mine.toml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return make


def test_a_plan_file_becomes_a_problem_and_every_input_has_a_source(write):
    request = plan_request(read_settings(write(PLAN), {"fleet.max_pools": 1}))
    problem = request.problem
    assert (problem.rate, problem.slo.ttft_p99_s, problem.slo.tpot_p99_s, problem.max_pools) == (200.0, 0.5, None, 1)
    sources = {key: entry.source for key, entry in request.inputs.items()}
    assert sources["rate_rps"] == "given in mine.toml"
    assert sources["max_pools"] == "given on the command line"
    assert sources["tpot_p99_ms"] == "default: no objective"
    assert sources["max_context_tokens"] == "default: the longest request of the workload"
    assert request.inputs["max_context_tokens"].value == float(np.max(problem.workload.total_tokens))
    assert sources["model"] == "default"


def test_a_rate_left_out_is_the_workloads_own_and_said_to_be(write):
    request = plan_request(read_settings(write(PLAN.replace("rate = 200.0", "")), {}))
    assert request.problem.rate == pytest.approx(5.53042198907183)
    assert request.inputs["rate_rps"].source == "the workload's own rate"


def test_flags_alone_say_enough():
    flags = {"workload.name": "lmsys", "workload.rate": 10.0, "slo.ttft_p99_ms": 400.0, "fleet.profiles": ["a10g"]}
    assert plan_request(read_settings(None, flags)).problem.profiles[0].name == "a10g"


def test_another_workload_on_the_command_line_replaces_all_that_belongs_to_the_files(write):
    text = PLAN.replace('name = "azure-conversation"', 'cdf = "x.json"\noutput_share = 0.2')
    request = plan_request(read_settings(write(text), {"workload.name": "azure-conversation"}))
    assert request.problem.workload.name == "azure-conversation"
    assert "output_share" not in request.inputs
    assert request.problem.rate == 200.0


def test_paths_in_a_file_are_relative_to_it(write, tmp_path, monkeypatch):
    folder = tmp_path / "plans"
    folder.mkdir()
    (folder / "cdf.json").write_text("[[100, 0.5], [1000, 1]]")
    (folder / "mine.profile.toml").write_text(profile_toml(profile("h100-80gb")))
    text = PLAN.replace('name = "azure-conversation"', 'cdf = "cdf.json"\noutput_share = 0.25')
    path = write(text.replace("h100-80gb", "mine.profile.toml"), "plans/p.toml")
    monkeypatch.chdir(tmp_path)
    problem = plan_request(read_settings(path, {})).problem
    assert problem.context == 1000.0
    assert problem.profiles[0].name == "h100-80gb"


def test_a_trace_takes_its_mapping_and_unit(write, tmp_path):
    (tmp_path / "t.csv").write_text("when,a,b\n0,10,5\n2000,20,7\n")
    text = PLAN.replace('name = "azure-conversation"', 'trace = "t.csv"\ntime_unit = "ms"\nfailed = "keep"')
    text = text.replace("[slo]", '[workload.map]\ninput_tokens = "a"\noutput_tokens = "b"\ntimestamp = "when"\n[slo]')
    assert plan_request(read_settings(write(text), {})).problem.workload.rate == 1.0


def test_pools_become_a_design(write):
    request = fleet_request(read_settings(write(POOLS), {}))
    design = request.design
    assert design.profile.name == ("a100-80gb", "h100-80gb")
    assert np.asarray(design.replicas).tolist() == [2.0, 1.0]
    assert np.asarray(design.upper_tokens).tolist() == [4096.0, 16384.0]
    assert np.asarray(design.max_context).tolist() == [8192.0, 16384.0]
    assert request.slo is None


def test_what_a_command_does_not_use_is_said(write):
    both = POOLS.replace("[fleet]", '[slo]\nttft_p99_ms = 100\n[fleet]\nprofiles = ["h100-80gb"]')
    settings = read_settings(write(both), {})
    assert "fleet.profiles" in fleet_request(settings).notes[0]
    assert "fleet.pools" in plan_request(settings).notes[0]


BAD_FILES = [
    ("[workload\n", ["not TOML", "line 1, column 10"]),
    (PLAN + "max_pool = 2", ["mine.toml", "unknown key 'max_pool' in [fleet]", "did you mean 'max_pools'"]),
    ('model = "step"\n' + PLAN, ["unknown key 'model'", "it belongs in [fleet]"]),
    (PLAN + "[fleets]\n", ["unknown key 'fleets'", "did you mean 'fleet'"]),
    (PLAN.replace("200.0", "0"), ["workload.rate must be > 0 and finite, got 0"]),
    (PLAN.replace("200.0", "nan"), ["workload.rate must be a finite number, got nan"]),
    (PLAN.replace("200.0", "inf"), ["workload.rate must be", "finite", "got inf"]),
    (PLAN.replace("200.0", "-3"), ["workload.rate must be > 0 and finite, got -3"]),
    (PLAN.replace("200.0", '"200"'), ["workload.rate must be a number, got '200'"]),
    (PLAN.replace("200.0", "true"), ["workload.rate must be a number, got True"]),
    (PLAN.replace("500", "-1"), ["slo.ttft_p99_ms must be > 0"]),
    (PLAN.replace("ttft_p99_ms = 500", ""), ["slo.ttft_p99_ms", "is required", "no default"]),
    (PLAN.replace("h100-80gb", "h100-80g"), ["fleet.profiles: unknown profile 'h100-80g'", "'h100-80gb'"]),
    (PLAN.replace("h100-80gb", "no.toml"), ["profile file not found", "no.toml"]),
    (PLAN.replace('["h100-80gb"]', "[]"), ["fleet.profiles must be a list with at least one entry"]),
    (PLAN.replace("azure-conversation", "azure-conversion"), ["unknown workload", "'azure-conversation'"]),
    (PLAN + 'model = "kimera"', ["fleet.model must be 'step' or 'kimura', got 'kimera'", "did you mean 'kimura'"]),
    (PLAN + 'long_requests = "drop"', ["fleet.long_requests must be 'reject' or 'truncate'"]),
    (PLAN + "max_pools = 2.5", ["fleet.max_pools must be a whole number, got 2.5"]),
    (PLAN + "max_pools = 7", ["fleet.max_pools must be <= 6"]),
    (PLAN + "max_context = 0", ["fleet.max_context must be >= 2"]),
    (
        PLAN + "max_context = 2",
        ["fleet.max_context must be >= the shortest request", "every request would be rejected"],
    ),
    (PLAN.replace('name = "azure-conversation"', ""), ["exactly one of name", "got none"]),
    (PLAN.replace("rate = 200.0", 'cdf = "c.json"'), ["exactly one of name", "got name and cdf"]),
    (PLAN.replace("rate = 200.0", "output_share = 0.2"), ["output_share must be left out"]),
    (PLAN.replace("rate = 200.0", 'time_unit = "s"'), ["workload.time_unit is for a trace"]),
    (PLAN.replace('name = "azure-conversation"', 'trace = "no.csv"'), ["workload.trace", "trace file not found"]),
    (PLAN.replace('name = "azure-conversation"', 'cdf = "no.json"'), ["workload.output_share", "is required"]),
    (
        PLAN.replace('name = "azure-conversation"\nrate = 200.0', 'name = "sharegpt"'),
        ["workload.rate", "none of its own"],
    ),
]


@pytest.mark.parametrize(("text", "found"), BAD_FILES)
def test_bad_plan_files_say_what_where_and_why(write, text, found):
    with pytest.raises(ConfigError) as caught:
        plan_request(read_settings(write(text), {}))
    for words in found:
        assert words in str(caught.value)


BAD_POOLS = [
    (PLAN, ["fleet.pools is required to simulate"]),
    (POOLS.replace("upper_tokens = 4096", ""), ["fleet.pools[0].upper_tokens is required"]),
    (POOLS.replace("upper_tokens = 4096", "upper_tokens = 9000"), ["must be <= the pool's max_context 8192, got 9000"]),
    (POOLS.replace("upper_tokens = 4096", "upper_tokens = 0"), ["fleet.pools[0].upper_tokens must be >= 2"]),
    (POOLS.replace("max_context = 16384\n", ""), ["fleet.pools[1].max_context is required"]),
    (POOLS.replace("max_context = 16384\n", "max_context = 4096\n"), ["fleet.pools[1].upper_tokens must be > 4096"]),
    (POOLS.replace("replicas = 1", "replicas = 0"), ["fleet.pools[1].replicas must be >= 1"]),
    (POOLS.replace("replicas = 1", "replica = 1"), ["unknown key 'replica'", "did you mean 'replicas'"]),
    (POOLS.replace("replicas = 1", ""), ["fleet.pools[1].replicas is required"]),
    (POOLS.replace('"h100-80gb"', '"b200"'), ["fleet.pools[1].profile: unknown profile 'b200'"]),
]


@pytest.mark.parametrize(("text", "found"), BAD_POOLS)
def test_bad_pools_say_what_where_and_why(write, text, found):
    with pytest.raises(ConfigError) as caught:
        fleet_request(read_settings(write(text), {}))
    for words in found:
        assert words in str(caught.value)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": 1}', "[[1, 0.5]]", "[[5, 1], [3, 1]]", "[[1, NaN], [2, 1]]"])
def test_bad_cdfs_are_errors_that_name_the_file(write, tmp_path, content):
    (tmp_path / "c.json").write_text(content)
    text = PLAN.replace('name = "azure-conversation"', 'cdf = "c.json"\noutput_share = 0.2')
    with pytest.raises(ConfigError, match=r"mine\.toml: workload\.cdf: c\.json: "):
        plan_request(read_settings(write(text), {}))


@pytest.mark.parametrize("name", profile_names())
def test_a_profile_file_reads_back_equal(write, name):
    original = profile(name)
    read = read_profile(write(profile_toml(original)))
    assert all(np.array_equal(getattr(read, key), getattr(original, key)) for key in KEYS)


BAD_PROFILES = [
    (lambda t: t.replace("base_s = 0.004", ""), ["base_s missing"]),
    (lambda t: t + "base_ms = 4.0", ["unknown key 'base_ms'", "did you mean 'base_s'"]),
    (lambda t: t.replace("base_s = 0.004", "base_s = -1.0"), ["base_s must be > 0", "-1.0"]),
    (lambda t: t.replace("base_s = 0.004", "base_s = nan"), ["base_s must be a finite number, got nan"]),
    (lambda t: t.replace("base_s = 0.004", 'base_s = "4"'), ["base_s must be a finite number, got '4'"]),
    (lambda t: t.replace('gpu = "H100-80GB"', 'gpu = ""'), ["gpu must be text"]),
    (lambda t: "=", ["not TOML"]),
]


@pytest.mark.parametrize(("edit", "found"), BAD_PROFILES)
def test_bad_profile_files_say_what_is_wrong(write, edit, found):
    path = write(edit(profile_toml(profile("h100-80gb"))), "p.toml")
    with pytest.raises(ConfigError) as caught:
        find_profile("p.toml", path)
    for words in ("p.toml", *found):
        assert words in str(caught.value)


def test_the_schema_forbids_unknown_keys_and_describes_every_key():
    schema = PlanFile.model_json_schema()
    tables = [schema, *schema["$defs"].values()]
    assert all(table["additionalProperties"] is False for table in tables)
    leaves = [entry for table in schema["$defs"].values() for entry in table["properties"].values()]
    assert all(entry.get("description") for entry in leaves)
