"""Plan files: strict keys and values, flags over files, the source of every input, profile files."""

from pathlib import Path

import numpy as np
import pytest

import des
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


RULES = """
[serving]
scheduling = "chunked"
max_num_batched_tokens = 2048
kv = "grow"
preemption = "swap"
swap_gb_per_s = 25
kv_bytes_per_token = 131072
[arrivals]
process = "weibull"
cv = 2.5
concurrency = 64
[router]
kind = "spillover"
knows = "predicted"
error = 0.4
pressure = 0.9
dispatch = "power-of-two"
"""


def rules(write, text, flags=None):
    """The simulator's rules of a file of two pools with some tables more."""
    return fleet_request(read_settings(write(POOLS + text), flags or {})).rules


def test_tables_become_the_rules_of_the_simulator(write):
    found = rules(write, RULES + "[failures]\nmean_up_hours = 2\nmean_repair_minutes = 3\n")
    assert found.serving == des.Serving(
        scheduling="chunked",
        max_num_batched_tokens=2048,
        kv="grow",
        preemption="swap",
        swap_s_per_token=131072 / 25e9,
    )
    assert found.arrivals == des.Renewal(law="weibull", cv=2.5)
    assert found.router.pressure == 0.9 and found.router.dispatch == "power-of-two"
    assert found.router.knows == des.Predicted(error=0.4)
    assert found.concurrency == 64
    assert found.failures == des.Failures(mean_up_s=7200.0, mean_repair_s=180.0)
    assert (found.transfer, found.schedule) == (None, None)
    assert "weibull" in found.arrivals_text and "64 outstanding" in found.arrivals_text


def test_every_rule_is_echoed_with_its_source(write):
    request = fleet_request(read_settings(write(POOLS + RULES), {"router.dispatch": "random"}))
    sources = {key: entry.source for key, entry in request.inputs.items()}
    assert sources["scheduling"] == sources["cv"] == sources["pressure"] == "given in mine.toml"
    assert sources["dispatch"] == "given on the command line"
    assert request.inputs["arrivals"].value == "weibull"
    plain = fleet_request(read_settings(write(POOLS), {})).inputs
    defaults = {"scheduling": "independent", "kv": "reserve", "arrivals": "poisson", "router": "length"}
    for key, value in (defaults | {"knows": "total", "dispatch": "least-loaded"}).items():
        assert (plain[key].value, plain[key].source) == (value, "default")
    assert plain["concurrency"].source == "default: no limit"


def test_a_flag_replaces_what_belongs_to_the_files_choice(write):
    found = rules(write, RULES, {"serving.scheduling": "independent", "serving.kv": "reserve"})
    assert found.serving == des.Serving()
    assert rules(write, RULES, {"arrivals.process": "poisson"}).arrivals == des.Poisson()
    assert rules(write, RULES, {"arrivals.process": "gamma"}).arrivals == des.Renewal(law="gamma", cv=2.5)
    assert rules(write, RULES, {"arrivals.cv": 3.0}).arrivals.cv == 3.0


def test_the_other_routers(write):
    compress = rules(write, '[router]\nkind = "compress"\ngamma = 1.2\nsuccess = 0.8\ncompressible = 0.5').router
    assert compress == des.CompressRouter(gamma=1.2, success=0.8, compressible=0.5)
    assert rules(write, '[router]\nkind = "any"\ndispatch = "round-robin"').router == des.AnyRouter(
        dispatch="round-robin"
    )
    assert rules(write, '[router]\nknows = "input"').router == des.LengthRouter(knows=des.InputOnly())
    most = fleet_request(read_settings(write(POOLS + '[router]\nknows = "input-plus-max"'), {}))
    assert most.rules.router.knows == des.InputPlusMax(max_tokens=1000.0)
    assert most.inputs["max_tokens"].source == "default: the longest output"


def test_modulated_arrivals_and_rate_tables(write, tmp_path):
    found = rules(write, '[arrivals]\nprocess = "markov-modulated"\nrates = [1, 5]\nmean_stay_s = [300, 60]')
    assert found.arrivals == des.MarkovModulated(rates=(1.0, 5.0), mean_stay_s=(300.0, 60.0))
    (tmp_path / "day.csv").write_text("kind,when,qps\na,0,1\na,600,3\nb,0,9\n")
    text = """[arrivals]
process = "piecewise"
rate_table = "day.csv"
map = {time_s = "when", rate = "qps"}
only = {kind = "a"}
repeat = true
"""
    request = fleet_request(read_settings(write(POOLS + text), {}))
    assert request.rules.arrivals == des.PiecewiseRate(start_s=(0.0, 600.0), rate=(1.0, 3.0), end_s=1200.0, repeat=True)
    assert (request.rate, request.inputs["rate_rps"].source) == (2.0, "the rate table's own mean")
    assert "day.csv: 2 windows over 0.3333 h, over and over, peak 1.5" in request.rules.arrivals_text
    scaled = fleet_request(read_settings(write(POOLS + text), {"workload.rate": 50.0}))
    assert (scaled.rate, scaled.inputs["rate_rps"].source) == (50.0, "given on the command line")


def test_clients_send_as_fast_as_they_can_unless_a_rate_is_given(write):
    loop = "[arrivals]\nconcurrency = 8"
    request = fleet_request(read_settings(write(POOLS + loop), {}))
    assert (request.rate, request.inputs["rate_rps"].source) == (None, "default: as fast as its clients can")
    assert fleet_request(read_settings(write(POOLS + loop), {"workload.rate": 5.0})).rate == 5.0


def test_two_pools_with_a_link_serve_the_same_requests(write):
    text = (
        POOLS.replace("upper_tokens = 4096\n", "")
        + "[transfer]\nkv_bytes_per_token = 1e5\ngb_per_s = 50\nlatency_ms = 2"
    )
    request = fleet_request(read_settings(write(text), {}))
    assert request.rules.transfer == des.KvTransfer(kv_bytes_per_token=1e5, bytes_per_s=50e9, latency_s=0.002)
    assert np.asarray(request.design.upper_tokens).tolist() == [8192.0, 8192.0]
    assert np.asarray(request.design.max_context).tolist() == [8192.0, 16384.0]


def test_a_schedule_is_rows(write):
    text = ROW.format(0, 0, 1) + ROW.format(60, 0, 2) + "startup_s = 30"
    request = fleet_request(read_settings(write(POOLS + text), {}))
    assert request.rules.schedule == des.Schedule(time_s=(0.0, 60.0), pool=(0, 0), replicas=(1, 2), startup_s=30.0)
    assert request.inputs["schedule"].value[1] == {"time_s": 60.0, "pool": 0, "replicas": 2}


def test_a_prefix_cache_is_in_whole_blocks_of_the_trace(write, tmp_path):
    lines = [f'{{"timestamp": {i}, "input_length": 1024, "output_length": 5, "hash_ids": [0, {i}]}}' for i in (1, 2, 3)]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    text = POOLS.replace('name = "azure-conversation"', 'trace = "t.jsonl"\nrate = 1.0')
    request = fleet_request(read_settings(write(text + "[serving]\nprefix_cache_tokens = 1600"), {}))
    assert request.rules.serving.prefix_cache_blocks == 3
    assert "hits are overstated" in request.notes[-1]
    with pytest.raises(ConfigError, match=r"serving\.prefix_cache_tokens must be >= 512, one block, got 100"):
        rules(write, "[serving]\nprefix_cache_tokens = 100", {"workload.trace": str(tmp_path / "t.jsonl")})


def test_what_only_the_simulator_uses_is_said_to_be_unused_by_a_plan(write):
    settings = read_settings(write(PLAN + RULES + "[transfer]\nkv_bytes_per_token = 1\ngb_per_s = 1"), {})
    assert plan_request(settings).notes == (
        "serving, arrivals, router, transfer: for `fleetgrad simulate` and `compare-routers`; they were not used",
    )
    assert plan_request(read_settings(write(PLAN + "[serving]\n"), {})).notes == ()


GROW_SWAP = '[serving]\nkv = "grow"\npreemption = "swap"\n'
ROW = "[[schedule]]\ntime_s = {}\npool = {}\nreplicas = {}\n"
LINK = "[transfer]\nkv_bytes_per_token = 1\ngb_per_s = 1\n"
BAD_RULES = [
    ('[serving]\nschedulling = "chunked"', ["unknown key 'schedulling' in [serving]", "did you mean 'scheduling'"]),
    ("[servings]\n", ["unknown key 'servings'", "did you mean 'serving'"]),
    ('[serving]\nscheduling = "chunk"', ["serving.scheduling must be", "got 'chunk'", "did you mean 'chunked'"]),
    (
        '[serving]\nscheduling = "chunked"',
        ["serving.max_num_batched_tokens (or --max-num-batched-tokens) is required for scheduling"],
    ),
    ("[serving]\nmax_num_batched_tokens = 64", ["is for scheduling = 'chunked'", "'independent', the default"]),
    ('[serving]\npreemption = "swap"', ["serving.preemption is for kv = 'grow'; kv is 'reserve', the default"]),
    (GROW_SWAP, ["serving.swap_gb_per_s is required for preemption = 'swap'"]),
    (GROW_SWAP + "swap_gb_per_s = 9", ["serving.kv_bytes_per_token is required"]),
    ("[serving]\nprefix_cache_tokens = 9000", ["lists block hashes", "'azure-conversation' has none"]),
    ("[arrivals]\ncv = 3.0", ["arrivals.cv is for process = 'gamma' or 'weibull'; process is 'poisson'"]),
    ('[arrivals]\nprocess = "gamma"', ["arrivals.cv (or --cv) is required for process"]),
    ('[arrivals]\nprocess = "gamma"\ncv = 300', ["arrivals.cv must be <= 20, got 300"]),
    (
        '[arrivals]\nprocess = "markov-modulated"\nrates = [1]',
        ["arrivals.rates must be a list with at least 2 entries"],
    ),
    ('[arrivals]\nprocess = "piecewise"\nrate_table = "no.csv"', ["arrivals.rate_table: rate table not found"]),
    ('[arrivals]\nprocess = "piecewise"\nrate_table = "two.csv"', ["two.csv", "arrivals.only keeps the rows of one"]),
    ('[arrivals]\nprocess = "trace"', ["arrivals.process 'trace' needs a workload with arrival times"]),
    ("[arrivals]\nconcurrency = 0", ["arrivals.concurrency must be >= 1"]),
    ('[router]\nkind = "spill"', ["router.kind must be", "did you mean 'spillover'"]),
    ('[router]\nkind = "model"', ["router.kind must be", "des.ModelRouter"]),
    (
        '[router]\nknows = "input-plus-max"\nmax_tokens = 10',
        ["router.max_tokens must be >= 1000, the workload's longest"],
    ),
    ('[router]\nkind = "compress"\nknows = "predicted"', ["router.knows must be", "how much to cut"]),
    ("[router]\npressure = 2.0", ["router.pressure is for kind = 'spillover'; kind is 'length', the default"]),
    ('[router]\nkind = "any"\nknows = "input"', ["router.knows is for kind = 'length'", "kind is 'any'"]),
    ('[router]\ndispatch = "prefix-affinity"', ["router.dispatch 'prefix-affinity' needs a prefix cache"]),
    ("[transfer]\nkv_bytes_per_token = 3", ["transfer.gb_per_s is required; bandwidth of the link"]),
    (LINK, ["fleet.pools[0].upper_tokens must be left out beside [transfer]"]),
    ("[failures]\nmean_up_hours = 0\nmean_repair_minutes = 1", ["failures.mean_up_hours must be > 0"]),
    ("[failures]\nmean_up_hours = 1\nmean_repair_minutes = 1\n" + ROW.format(0, 0, 1), ["failures must be left out"]),
    ("[schedule]\ntime_s = 0", ["schedule must be a list", "each row is a table [[schedule]]"]),
    (ROW.format(0, 2, 1), ["schedule[0].pool must be < 2, the number of pools, got 2"]),
    (
        ROW.format(0, 0, 9),
        ["schedule[0].replicas must be <= 2, pool 0's, got 9", "the most that the schedule asks for"],
    ),
    (ROW.format(9, 0, 1) + ROW.format(5, 0, 2), ["schedule[1].time_s must be >= 9, the row before, got 5"]),
    (
        ROW.format(0, 0, 1) + "startup_s = 1\n" + ROW.format(5, 0, 2) + "startup_s = 2\n",
        ["schedule.startup_s must be one value for all rows"],
    ),
]


@pytest.mark.parametrize(("text", "found"), BAD_RULES)
def test_bad_rules_say_what_where_and_why(write, tmp_path, text, found):
    (tmp_path / "two.csv").write_text("time_s,rate\n0,1\n600,2\n0,3\n600,4\n")
    with pytest.raises(ConfigError) as caught:
        rules(write, text)
    assert str(caught.value).startswith("mine.toml: ")
    for words in found:
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('[serving]\nscheduling = "chunked"\nmax_num_batched_tokens = 512', "serving.scheduling must be 'independent'"),
        ('[serving]\nkv = "grow"', "serving.kv must be 'reserve' or 'overflow'"),
        (LINK, "transfer must be left out"),
    ],
)
def test_what_the_reference_model_refuses(write, text, found):
    pools = POOLS.replace("upper_tokens = 4096\n", "") if text == LINK else POOLS
    with pytest.raises(ConfigError, match="the reference model has constant work"):
        fleet_request(read_settings(write(pools + text), {"fleet.model": "kimura"}))
    with pytest.raises(ConfigError) as caught:
        fleet_request(read_settings(write(pools + text), {"fleet.model": "kimura"}))
    assert found in str(caught.value)


def test_power_is_said_not_to_be_used_by_the_others(write):
    settings = read_settings(write(PLAN + "[power]\nusd_per_kwh = 0.1\n"), {})
    said = "power: for `fleetgrad plan`, `pareto`, `power` and `schedule`; it was not used"
    assert said in plan_request(settings).notes
    assert plan_request(settings).problem.power is None
    assert plan_request(settings, power=True).problem.power.prices.usd_per_kwh == 0.1
