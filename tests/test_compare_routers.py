"""Routers side by side: the same requests for each, the price of not knowing, and the command that prints it."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import des
from optim.build import fleet_request
from optim.cli import app
from optim.compare_routers import ANYWHERE, NAMES, UNKNOWING, Contender, compare, contenders, price
from optim.config import ConfigError, read_settings

EXAMPLE = Path(__file__).parent.parent / "examples" / "two_pools.toml"
FEW = {"num_requests": 16_000, "replications": 4, "seed": 3}
SHORT = ["--requests", "16000", "--replications", "4"]


def run(*arguments: str):
    """Run the command in this process."""
    return CliRunner().invoke(app, ["compare-routers", *arguments])


def strict(text: str):
    """JSON without the tokens that JSON does not have."""

    def refuse(token):
        raise AssertionError(f"{token} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def settings():
    return read_settings(EXAMPLE, {})


@pytest.fixture(scope="module")
def request_(settings):
    return fleet_request(settings, routers=True)


@pytest.fixture(scope="module")
def found(settings, request_):
    """All routers that apply, on a few requests."""
    chosen, _ = contenders(settings, request_, None, {})
    return compare(request_, chosen, **FEW)


def standing(found, name):
    return next(s for s in found.standings if s.contender.name == name)


def test_every_router_sees_the_same_requests_at_the_same_instants(request_):
    """Whoever routes, the n-th request arrives when it does, as long as it is, in every replication."""
    routers = (des.LengthRouter(), des.AnyRouter(dispatch="random"), des.LengthRouter(knows=des.Predicted(error=1.0)))
    chosen = [Contender(str(k), "", router) for k, router in enumerate(routers)]
    tables = [
        s.result.requests_table()
        for s in compare(request_, chosen, keep="requests", **FEW | {"num_requests": 4000}).standings
    ]
    for name in ("replication", "due_s", "input_tokens", "output_tokens"):
        assert all(np.array_equal(tables[0][name], table[name]) for table in tables[1:])
    assert not np.array_equal(tables[0]["replica"], tables[1]["replica"])


def test_the_same_router_costs_nothing_and_a_perfect_prediction_is_the_oracle(request_):
    perfect = Contender("predicted", "", des.LengthRouter(knows=des.Predicted(error=0.0)))
    result = compare(request_, [Contender("length", "", des.LengthRouter()), perfect], **FEW)
    cost = result.standings[1].price
    assert result.standings[0].price is None
    assert (cost.ttft_p99_s.value, cost.ttft_p99_s.low, cost.ttft_p99_s.high) == (0.0, 0.0, 0.0)
    assert (cost.rejected_share.value, cost.attainment) == (0.0, 0.0)


def test_prices_are_differences_against_the_oracle_with_paired_intervals(found):
    oracle = standing(found, "length").result
    for name in UNKNOWING:
        result, cost = standing(found, name).result, standing(found, name).price
        gap = result.ttft.quantile(0.99).value - oracle.ttft.quantile(0.99).value
        assert cost.ttft_p99_s.value == pytest.approx(gap, rel=1e-9)
        assert cost.ttft_p99_s.low <= gap <= cost.ttft_p99_s.high
    paired = standing(found, "predicted").price.ttft_p99_s
    apart = [standing(found, name).result.ttft.quantile(0.99) for name in ("predicted", "length")]
    assert paired.high - paired.low < sum(e.high - e.low for e in apart)  # the same requests: noise cancels


def test_who_does_not_know_errs_on_its_side(found):
    short, long = standing(found, "input").result.misrouted
    assert short > 0 == long
    short, long = standing(found, "input-plus-max").result.misrouted
    assert long > 0 == short
    assert all(standing(found, "predicted").result.misrouted)
    for name in ("length", "spillover", "compress", *(set(ANYWHERE) - {"prefix-affinity"})):
        assert standing(found, name).result.misrouted == (0, 0)


def test_what_outgrows_its_pool_is_rejected_and_priced(request_):
    """Without room above the threshold, a request that was taken for shorter than it is is lost."""
    design = request_.design
    design = type(design).of([design.profile.at(0), design.profile.at(1)], [3, 1], [2048, 16384])
    oracle, guess = (
        des.simulate(design, request_.workload, rate=200.0, router=des.LengthRouter(knows=knows), **FEW)
        for knows in (des.Total(), des.InputOnly())
    )
    cost = price(guess, oracle, request_.slo)
    assert guess.rejected > 0 == oracle.rejected
    assert cost.rejected_share.value == guess.rejected / guess.requests > 0
    assert cost.rejected_share.low > 0
    assert cost.attainment == pytest.approx(-cost.rejected_share.value, abs=1e-3)


def test_overload_has_a_price_without_end(found):
    overloaded = standing(found, "input-plus-max")
    assert overloaded.result.overloaded and overloaded.slo_met is False
    assert overloaded.price.ttft_p99_s.high == np.inf
    assert found.any_met


def test_the_best_keeps_up_and_changes_no_prompt(found):
    assert standing(found, "compress").result.compressed > 0
    best = found.best
    assert best.contender.name not in ("compress", "input-plus-max")
    rivals = [s for s in found.standings if not (s.result.overloaded or s.result.compressed)]
    assert best.attainment == pytest.approx(max(s.attainment for s in rivals), abs=1e-5)


def test_what_cannot_be_compared_is_left_out_with_the_reason(settings, request_):
    chosen, left_out = contenders(settings, request_, None, {})
    assert [c.name for c in chosen] == [name for name in NAMES if name != "prefix-affinity"]
    assert left_out[0].startswith("prefix-affinity was left out: ") and "no block hashes" in left_out[0]
    with pytest.raises(ConfigError, match="--routers prefix-affinity: "):
        contenders(settings, request_, ["prefix-affinity"], {})


def test_prompts_with_a_common_prefix_make_affinity_worth_while(tmp_path):
    """Twelve families of prompts of 2,048 shared tokens, and caches for three each: whoever spreads them misses."""
    rng = np.random.default_rng(1)
    rows = []
    for i in range(3000):
        family = int(rng.integers(12))
        ids = [10 * family + k for k in range(4)] + [1000 + i]
        rows.append({"timestamp": 40 * i, "input_length": 2560, "output_length": 20, "hash_ids": ids})
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "p.toml").write_text(
        '[workload]\ntrace = "t.jsonl"\n[fleet]\nmax_context = 8192\n'
        '[[fleet.pools]]\nprofile = "a10g"\nreplicas = 4\n'
        '[serving]\nprefix_cache_tokens = 8192\n[arrivals]\nprocess = "trace"\n'
    )
    read = read_settings(tmp_path / "p.toml", {"router.affinity_slack": 8})
    request = fleet_request(read, routers=True)
    inputs = {}
    chosen, left_out = contenders(read, request, ["least-loaded", "prefix-affinity"], inputs)
    assert (left_out, inputs["affinity_slack"].value) == ((), 8)
    spread, affine = compare(request, chosen).standings
    assert affine.result.ttft.mean().value < 0.7 * spread.result.ttft.mean().value


def test_the_command_prints_a_table_that_fits_and_writes_its_files(tmp_path):
    result = run(str(EXAMPLE), *SHORT, "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("3 x h100-80gb to 2,048 tokens + 1 x h100-80gb to 16,384 tokens at 200 req/s")
    page = " ".join(result.stdout.split())
    for words in (
        "length (oracle)",
        "power-of-two (any pool)",
        "The same 16,000 requests for each, in 4 runs",
        "the price of not knowing",
        "input against length",
        "grows without end",
        "length is an oracle",
        "can worsen P99",
        "at this pressure none was handed on",
        "prefix-affinity was left out",
    ):
        assert words in page
    assert (tmp_path / "report.txt").read_text() == result.stdout
    assert (tmp_path / "routers.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "routers.csv").open() as file:
        assert [row["name"] for row in csv.DictReader(file)] == list(NAMES[:-1])
    assert strict((tmp_path / "routers.json").read_text())["kind"] == "router-comparison"


def test_the_json_has_every_figure_of_the_routers_asked_for():
    result = run(str(EXAMPLE), *SHORT, "--routers", "input, length,random", "--kv", "grow", "--error", "0.5", "--json")
    assert result.exit_code == 0, result.output
    doc = strict(result.stdout)
    assert [entry["name"] for entry in doc["routers"]] == ["input", "length", "random"]
    assert doc["inputs"]["routers"] == {"value": ["input", "length", "random"], "source": "given on the command line"}
    assert "error" not in doc["inputs"]  # no router here predicts
    entry = doc["routers"][0]
    cost = entry["price_of_not_knowing"]
    assert cost["ttft_p99_ms"]["value"] == pytest.approx(
        entry["ttft_p99_ms"]["value"] - doc["routers"][1]["ttft_p99_ms"]["value"]
    )
    assert set(cost) == {"ttft_p99_ms", "rejected_share", "attainment"}
    assert doc["routers"][1]["price_of_not_knowing"] is None
    assert entry["misrouted"]["to_too_short_pools"] > 0
    assert [pool["mean_load"] > 0 for pool in entry["pools"]] == [True, True]
    for key in ("rules", "tpot_p99_ms", "attainment", "rejected_share", "preemptions", "warnings"):
        assert key in entry
    assert doc["best"] in ("input", "length", "random")
    assert "no request was preempted" in doc["warnings"]


def test_routers_that_all_miss_exit_4_and_without_objective_nothing_is_judged(tmp_path):
    result = run(str(EXAMPLE), *SHORT, "--routers", "length,random", "--ttft-p99-ms", "5", "--json")
    assert (result.exit_code, strict(result.stdout)["status"]) == (4, "refused")
    plain = tmp_path / "plain.toml"
    text = EXAMPLE.read_text()
    plain.write_text(text[: text.index("[slo]")] + text[text.index("[[fleet.pools]]") :])
    result = run(str(plain), *SHORT, "--routers", "length,random")
    assert result.exit_code == 0
    assert "no objective was given" in " ".join(result.stdout.split())
    assert run(str(plain), *SHORT, "--routers", "length", "--rate", "500").stdout.startswith("OVERLOADED: ")
