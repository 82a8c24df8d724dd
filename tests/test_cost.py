"""Dollars per million: the formula and its gradient, break-even with an API, a run's bill, claims with one mistake."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from typer.testing import CliRunner

from jaxsim.cost import api_usd_per_hour, break_even_utilization, per_million, usd_per_million
from optim.cli import app
from optim.cost import check_claim, fleet_cost, run_cost, with_total


def cost(*arguments):
    return CliRunner().invoke(app, ["cost", *map(str, arguments)])


def test_idle_time_is_paid_for():
    full, tenth = usd_per_million(3.6, 1000.0, utilization=np.array([1.0, 0.1]))
    assert (float(full), float(tenth)) == (pytest.approx(1.0), pytest.approx(10.0))


def test_nothing_served_costs_infinitely_much_and_has_no_nan_gradient():
    assert float(usd_per_million(2.5, 0.0)) == np.inf
    slope = jax.grad(lambda rate: jnp.where(rate > 0, usd_per_million(2.5, rate), 0.0))(0.0)
    assert np.isfinite(slope)
    assert float(break_even_utilization(2.5, 0.0)) == np.inf


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (per_million, (3.0, 2000.0)),
        (lambda usd, rate, share: usd_per_million(usd, rate, utilization=share), (3.0, 700.0, 0.4)),
        (api_usd_per_hour, (700.0, 2.0)),
        (break_even_utilization, (3.0, 8.0)),
    ],
)
def test_gradients_and_batches(function, arguments):
    arguments = tuple(jnp.asarray(a) for a in arguments)
    check_grads(function, arguments, order=1, modes=("fwd", "rev"))
    batch = jax.jit(jax.vmap(function))(*(jnp.stack([a, 2.0 * a]) if a < 0.45 or a > 1 else a for a in arguments))
    assert float(batch[0]) == pytest.approx(float(function(*arguments)))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (partial(usd_per_million, 1.0, 1.0, utilization=0.0), "utilization must be > 0"),
        (partial(usd_per_million, 1.0, 1.0, utilization=10.0), "10 % is 0.1"),
        (partial(usd_per_million, -1.0, 1.0), "usd must be >= 0"),
        (partial(usd_per_million, 1.0, -1.0), "per_s must be >= 0"),
        (partial(fleet_cost, 1.0, {}), "must be given for one unit at least"),
        (partial(fleet_cost, 1.0, {"tokens": 0.0}), "tokens must be > 0"),
        (partial(fleet_cost, 1.0, {"output tokens": 1.0}, api={"input tokens": 1.0}), "how many are served"),
        (
            partial(fleet_cost, 1.0, {"output tokens": 1.0, "tokens": 3.0}, api={"tokens": 1.0, "output tokens": 1.0}),
            "got both",
        ),
        (partial(run_cost, 1.0, wall_s=0.0, counts={"tokens": 1.0}), "wall_s must be > 0"),
        (partial(run_cost, 1.0, wall_s=1.0, counts={}), "one unit at least"),
        (partial(check_claim, 1.0, "pages", {"tokens": 1.0}), "unit must be one of tokens, got 'pages'"),
        (partial(check_claim, 0.0, "tokens", {"tokens": 1.0}), "claim must be > 0"),
        (partial(with_total, {"output tokens": 1, "input tokens": 2, "tokens": 4}, "x"), "together"),
        (partial(with_total, {"output tokens": 4, "tokens": 4}, "x"), "more than 4"),
    ],
)
def test_bad_values_are_refused(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_of_two_kinds_of_tokens_the_third_follows():
    assert with_total({"output tokens": 100, "input tokens": 300}, "x")["tokens"] == 400
    assert with_total({"tokens": 400, "input tokens": 300}, "x")["output tokens"] == 100
    assert with_total({"tokens": 400, "output tokens": 100, "pages": 3}, "x") == {
        "output tokens": 100, "input tokens": 300, "tokens": 400, "pages": 3,
    }  # fmt: skip
    assert with_total({"tokens": 400}, "x") == {"tokens": 400}


def test_at_break_even_the_api_costs_the_same():
    prices = {"output tokens": 2.0, "input tokens": 0.5}
    rates = {"output tokens": 1500.0, "input tokens": 6000.0}
    found = fleet_cost(10.0, rates, utilization=(0.2, 0.9), api=prices)
    even = fleet_cost(10.0, rates, utilization=(found.break_even,), api=prices)
    assert even.served[0].over_api == pytest.approx(1.0)
    day = found.break_even_per_day
    by_api = sum(day[unit] / 1e6 * price for unit, price in prices.items())
    assert by_api == pytest.approx(24 * 10.0)
    low, high = found.served
    assert low.over_api > 1.0 > high.over_api
    assert low.idle_usd_per_hour == pytest.approx(8.0)
    assert low.usd_per_million["tokens"] == pytest.approx(10.0 / (0.2 * 7500 * 3600 / 1e6))
    assert fleet_cost(10.0, rates).break_even is None and fleet_cost(10.0, rates).break_even_per_day == {}


RIGHT = {"output tokens": 8.0, "input tokens": 2.0, "tokens": 1.6}


@pytest.mark.parametrize(
    ("claimed", "unit", "said"),
    [
        (1.6, "output tokens", "unit mix-up tokens vs output tokens"),
        (1.0, "output tokens", "price of one GPU, and the bill is for 8"),
        (2.4, "output tokens", "forgets idle time: the GPUs are paid for the 70 % that they idle"),
        (0.3, "output tokens", "forgets idle time (70 %) and all GPUs but one"),
        (0.0016, "tokens", "for a thousand tokens, not a million"),
        (1600.0, "tokens", "a thousand times too high"),
        (1.6 / 3600, "tokens", "by the second was taken for one by the hour"),
        (16.8, "tokens", "10.5 times what the facts give, and no single usual mistake"),
    ],
)
def test_a_claim_is_told_what_it_forgot(claimed, unit, said):
    found = check_claim(claimed, unit, RIGHT, num_gpus=8, utilization=0.3)
    assert not found.holds
    assert any(said in doubt for doubt in found.doubts), found.doubts
    assert found.over == pytest.approx(claimed / RIGHT[unit])


def test_a_claim_that_is_rounded_holds():
    found = check_claim(8.1, "output tokens", RIGHT)
    assert found.holds and found.doubts == ()


@pytest.mark.parametrize(
    ("counts", "concurrency", "said"),
    [
        ({"tokens": 5e6, "requests": 9000}, 1, "single-stream run (5e+04 tokens/s): cost at concurrency 1"),
        ({"tokens": 5e6, "requests": 9000}, 8, "only 8 requests at a time"),
        ({"tokens": 2000, "pages": 3}, None, "3 pages in all (20 tokens/s), so at most as many at a time"),
        ({"tokens": 5e6, "requests": 9000}, None, "concurrency not given"),
    ],
)
def test_a_run_of_few_streams_is_not_a_fleet(counts, concurrency, said):
    found = run_cost(3.0, wall_s=100.0, counts=counts, concurrency=concurrency)
    assert any(said in doubt for doubt in found.doubts), found.doubts
    assert any("not fleet cost" in doubt for doubt in found.doubts)


def test_a_full_run_with_its_tokens_told_apart_has_no_doubts():
    counts = {"output tokens": 1e6, "input tokens": 4e6, "requests": 9000}
    found = run_cost(3.6, wall_s=1000.0, counts=counts, concurrency=256)
    assert found.doubts == ()
    assert found.usd == pytest.approx(1.0) and found.usd_per_million["output tokens"] == pytest.approx(1.0)
    assert found.usd_per_million["tokens"] == pytest.approx(0.2)


FLEET = """
[workload]
trace = "requests.csv"
rate = 20.0
[[fleet.pools]]
profile = "h100-80gb"
replicas = 2
max_context = 8192
"""


def test_a_fleet_in_a_file_at_its_own_load_and_at_saturation(tmp_path):
    rows = "".join(f"{200 + 37 * k},{50 + 7 * (k % 60)}\n" for k in range(150))
    (tmp_path / "requests.csv").write_text("input_tokens,output_tokens\n" + rows)
    (tmp_path / "fleet.toml").write_text(FLEET)
    result = cost(tmp_path / "fleet.toml", "--utilization", "0.5", "--json")
    assert result.exit_code == 0, result.output
    doc = json.loads(result.stdout)
    own, half = doc["served"]
    outputs = np.mean([50 + 7 * (k % 60) for k in range(150)])
    assert own["cost_usd_per_million"]["output_tokens"] == pytest.approx(2 * 4.02e6 / (20.0 * outputs * 3600))
    ratio = half["cost_usd_per_million"]["tokens"] / own["cost_usd_per_million"]["tokens"]
    assert ratio == pytest.approx(own["utilization"] / 0.5)
    assert doc["per_s_at_saturation"]["output_tokens"] == pytest.approx(20.0 * outputs / own["utilization"])
    assert doc["inputs"]["utilization"]["source"] == "given on the command line"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--output-tokens-per-s", 700), "--usd-per-gpu-hour or --usd-per-gpu-s, one of them"),
        (("--usd-per-gpu-hour", 2, "--usd-per-gpu-s", 1, "--tokens-per-s", 1), "one of them"),
        (("--usd-per-gpu-hour", 2), "tokens a second must be given"),
        (("--usd-per-gpu-hour", 2, "--tokens-per-s", 5, "--utilization", "10"), "--utilization must be in (0, 1]"),
        (("--usd-per-gpu-hour", 2, "--tokens-per-s", 5, "--count", "pages=3"), "--count cannot be given"),
        (("--usd-per-gpu-hour", 2, "--wall-s", 5, "--tokens-per-s", 5), "--tokens-per-s cannot be given"),
        (("--usd-per-gpu-hour", 2, "--wall-s", 5, "--count", "pages"), "--count must be UNIT=NUMBER"),
        (("--usd-per-gpu-hour", 2, "--wall-s", 5, "--tokens", 5, "--count", "tokens=6"), "given twice"),
        (("--usd-per-gpu-hour", 2, "--wall-s", 5, "--tokens", 5, "--claim-unit", "pages"), "give --claim"),
        (("--usd-per-gpu-hour", 2, "--wall-s", -5, "--tokens", 5), "--wall-s must be > 0"),
        (("fleet.toml", "--gpus", 5), "--gpus cannot be given with FILE.toml"),
        (("fleet.toml",), "not found"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments, said):
    result = cost(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_the_least_cost_of_a_token_is_said_to_be_that(tmp_path):
    result = cost("--usd-per-gpu-hour", 2, "--tokens-per-s", 500, "--api-usd-per-million", 0.5, "--out", tmp_path / "o")
    assert result.exit_code == 0
    page = " ".join(result.stdout.split())
    assert "utilisation 100 %: no fleet with a P99 objective runs there" in page
    assert "is cheaper at any load" in page
    assert json.loads((tmp_path / "o" / "cost.json").read_text())["break_even_utilization"] > 1
