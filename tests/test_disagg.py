"""Disaggregated serving: the reference model, the step model against the simulator, the search, the command."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleets import small_workload
from typer.testing import CliRunner

import des
import jaxsim
import optim
from jaxsim.disagg import (
    Factors,
    decode_workload,
    disagg_metrics,
    phases,
    prefill_workload,
    reference_decode,
    reference_prefill,
    system_rate,
)
from jaxsim.kv_transfer import KvTransfer
from optim.cli import app
from optim.disagg import Advice, DisaggStatus, disagg
from optim.disagg_reference import reference_pairs, rule_of_thumb

LINK = KvTransfer(kv_bytes_per_token=131_072, bytes_per_s=50e9, latency_s=5e-4)
MEASURED = "llama-3.1-8b@h100-sxm:tp1:kernels"


def problem(**changes):
    given = {
        "workload": small_workload(),
        "rate": 60.0,
        "profiles": (jaxsim.profile(MEASURED),),
        "slo": optim.SLO(ttft_p99_s=0.5, tpot_p99_s=0.03),
    }
    return optim.PlanProblem(**given | changes)


# --- the reference model (PEER P7: azure, rate 100, context 8192, 128 slots, input 1450, output 483)


@pytest.mark.parametrize(
    ("name", "ttft_ms", "tpot_ms", "base_s", "per_sequence_s", "chunk"),
    [("h100-80gb", 162, 45, 0.004, 0.00032, 1024), ("a100-80gb", 492, 91, 0.008, 0.00065, 512)],
    ids=["h100", "a100"],
)
def test_peer_p7_latencies_and_rates_by_hand(name, ttft_ms, tpot_ms, base_s, per_sequence_s, chunk):
    """The preset's constants are written out here, so the formulas are checked and not only themselves."""
    profile = jaxsim.profile(name)
    full = base_s + per_sequence_s * 128
    chunks = np.ceil(1450 / chunk)
    first = reference_prefill(profile, 1450.0, max_context=8192.0)
    then = reference_decode(profile, 483.0, max_context=8192.0)
    assert float(first.latency_s) == pytest.approx(1.8 * chunks * full, rel=1e-6)
    assert round(1e3 * float(first.latency_s)) == ttft_ms
    assert float(then.latency_s) == pytest.approx(full, rel=1e-6)
    assert 1e3 * float(then.latency_s) == pytest.approx(tpot_ms, abs=0.5)
    by_hand = 0.90 * 128 / ((chunks + 1) * (base_s + per_sequence_s * 1451 / 8192 * 128))
    assert float(first.rate) == pytest.approx(by_hand, rel=1e-6)
    by_hand = 0.92 * 128 / ((1 + 483) * (base_s + per_sequence_s * 484 / 8192 * 128))
    assert float(then.rate) == pytest.approx(by_hand, rel=1e-6)


def test_peer_p7_least_cost_splits():
    """At 100 requests/s: H100 + A100 is 1P + 6D, and a decoding H100 pool needs 3."""
    rates = {}
    for name in ("h100-80gb", "a100-80gb"):
        profile = jaxsim.profile(name)
        rates[name] = (
            float(reference_prefill(profile, 1450.0, max_context=8192.0).rate),
            float(reference_decode(profile, 483.0, max_context=8192.0).rate),
        )
    needed = {name: [int(np.ceil(100.0 / rate)) for rate in both] for name, both in rates.items()}
    assert needed == {"h100-80gb": [1, 3], "a100-80gb": [1, 6]}
    r = system_rate(1.0, rates["h100-80gb"][0], 6.0, rates["a100-80gb"][1])
    assert float(r) == pytest.approx(6.0 * rates["a100-80gb"][1]) and float(r) >= 100.0


def test_reference_factors_can_be_given_and_differentiated():
    profile = jaxsim.profile("h100-80gb")
    plain = reference_prefill(profile, 1450.0, max_context=8192.0, factors=Factors(1.0, 1.0, 1.0))
    usual = reference_prefill(profile, 1450.0, max_context=8192.0)
    assert float(usual.rate / plain.rate) == pytest.approx(0.90)
    assert float(usual.latency_s / plain.latency_s) == pytest.approx(1.80)

    def ttft(base_s):
        import equinox as eqx

        changed = eqx.tree_at(lambda p: p.base_s, profile, base_s)
        return reference_prefill(changed, 1450.0, max_context=8192.0).latency_s

    at = jnp.asarray(0.004)
    assert float(jax.grad(ttft)(at)) == pytest.approx(1.8 * 2, rel=1e-9)


def test_the_smaller_rate_binds_and_has_the_gradient():
    slopes = jax.grad(system_rate, argnums=(0, 2))(2.0, 50.0, 3.0, 40.0)
    assert (float(slopes[0]), float(slopes[1])) == (50.0, 0.0)


# --- the step model


def test_workloads_of_the_phases_keep_every_token():
    whole = small_workload()
    first, (rest, share) = prefill_workload(whole), decode_workload(whole)
    weight = np.asarray(whole.weight)
    assert np.asarray(first.weight) @ np.asarray(first.input_tokens) == pytest.approx(
        weight @ np.asarray(whole.input_tokens)
    )
    assert set(np.asarray(first.output_tokens)) == {1.0}
    later = share * float(np.asarray(rest.weight) @ np.asarray(rest.output_tokens))
    assert later == pytest.approx(float(weight @ (np.asarray(whole.output_tokens) - 1.0)))
    assert share == pytest.approx(float(weight[np.asarray(whole.output_tokens) > 1].sum()))


def test_a_workload_of_single_tokens_has_nothing_to_decode():
    with pytest.raises(ValueError, match="output_tokens must be > 1 for some request"):
        decode_workload(jaxsim.Workload.from_lengths([10.0, 20.0], [1.0, 1.0]))


def test_step_model_agrees_with_the_simulator():
    """At half load, with a short transfer: TTFT within 30 % (all prefill, its weakest), TPOT within 10 %."""
    profile = jaxsim.profile(MEASURED)
    workload, rate = small_workload(), 60.0
    found = phases(profile, profile, workload, rate, LINK)
    one = disagg_metrics(found, jnp.asarray(2.0), jnp.asarray(2.0))
    assert 0.2 < float(one.prefill_utilization) < 0.9 and 0.2 < float(one.decode_utilization) < 0.9
    longest = float(np.max(workload.total_tokens))
    design = jaxsim.FleetDesign.of([profile, profile], [2, 2], [longest, longest])
    result = des.simulate(design, workload, rate=rate, transfer=LINK, num_requests=200_000, seed=1)
    assert float(one.ttft_p99_s) == pytest.approx(result.ttft.quantile(0.99).value, rel=0.20)
    assert float(one.tpot_p99_s) == pytest.approx(result.tpot.quantile(0.99).value, rel=0.10)
    assert float(one.link_load) == pytest.approx(result.link_load, rel=1e-9)


def test_a_link_that_cannot_keep_up_is_overload_not_nan():
    profile = jaxsim.profile(MEASURED)
    slow = KvTransfer(kv_bytes_per_token=131_072, bytes_per_s=1e9)
    one = disagg_metrics(phases(profile, profile, small_workload(), 60.0, slow), jnp.asarray(4.0), jnp.asarray(4.0))
    assert float(one.link_load) > 1.0 and bool(one.overloaded)
    assert float(one.ttft_p99_s) == np.inf and np.isfinite(float(one.tpot_p99_s))


def test_without_bytes_there_is_no_transfer():
    profile = jaxsim.profile(MEASURED)
    found = phases(profile, profile, small_workload(), 60.0, KvTransfer(kv_bytes_per_token=0.0, bytes_per_s=1.0))
    assert (float(found.link_load), float(found.transfer_p99_s)) == (0.0, 0.0)


def test_figures_fall_with_replicas_and_have_gradients():
    profile = jaxsim.profile(MEASURED)
    found = phases(profile, profile, small_workload(), 60.0, LINK)

    def ttft(n):
        return disagg_metrics(found, n, jnp.asarray(4.0)).ttft_p99_s

    values = [float(ttft(jnp.asarray(n))) for n in (1.2, 1.5, 2.0, 4.0)]
    assert values == sorted(values, reverse=True)
    at, step = jnp.asarray(1.5), 1e-5
    central = (float(ttft(at + step)) - float(ttft(at - step))) / (2 * step)
    assert float(jax.grad(ttft)(at)) == pytest.approx(central, rel=1e-4)


def test_a_request_that_no_replica_can_hold_is_refused():
    profile = jaxsim.profile(MEASURED)
    long = jaxsim.Workload.from_lengths([5e6], [10.0])
    with pytest.raises(ValueError, match="cannot hold it"):
        phases(profile, profile, long, 1.0, LINK)


# --- the search


@pytest.fixture(scope="module")
def found():
    return disagg(problem(), LINK, precision=0.05)


def test_the_fleet_is_verified_and_one_replica_less_of_either_pool_was_not_tried_met(found):
    assert found.status is DisaggStatus.VERIFIED
    one, slo = found.fleet, found.problem.slo
    assert one.ttft_p99_s.high <= slo.ttft_p99_s and one.tpot_p99_s.high <= slo.tpot_p99_s
    assert all(not before.met for before, _ in found.tries if before.replicas < one.prefill_replicas)
    assert all(not after.met for _, after in found.tries if after.replicas < one.decode_replicas)
    price = float(found.problem.profiles[0].usd_per_hour)
    assert one.usd_per_hour == pytest.approx(price * (one.prefill_replicas + one.decode_replicas))


def test_advice_is_the_cheaper_of_the_two(found):
    plain = found.aggregated.usd_per_hour
    cheaper = found.fleet.usd_per_hour < plain
    assert found.advice is (Advice.DISAGGREGATE if cheaper else Advice.AGGREGATE)


def test_an_objective_that_a_lone_prompt_misses_is_infeasible_with_the_floor():
    found = disagg(problem(slo=optim.SLO(ttft_p99_s=0.004, tpot_p99_s=0.03)), LINK, simulate=False)
    assert found.status is DisaggStatus.INFEASIBLE and found.fleet is None
    assert any("prefill" in reason and "without load" in reason for reason in found.reasons)
    assert found.advice is Advice.NEITHER


def test_a_slow_link_is_named():
    slow = KvTransfer(kv_bytes_per_token=131_072, bytes_per_s=1e9)
    found = disagg(problem(), slow, simulate=False)
    assert found.status is DisaggStatus.INFEASIBLE and "needs more bandwidth" in found.reasons[0]
    assert found.advice is Advice.AGGREGATE


def test_an_objective_on_tpot_is_required():
    with pytest.raises(ValueError, match="tpot_p99_ms is required"):
        disagg(problem(slo=optim.SLO(ttft_p99_s=0.5)), LINK)


def test_reference_pairs_are_least_and_sorted():
    profiles = (jaxsim.profile("h100-80gb"), jaxsim.profile("a100-80gb"))
    pairs = reference_pairs(problem(profiles=profiles, rate=100.0))
    assert len(pairs) == 4
    assert [pair.usd_per_hour for pair in pairs] == sorted(pair.usd_per_hour for pair in pairs)
    assert all(pair.rate >= 100.0 for pair in pairs)


def test_rule_of_thumb_follows_the_documents():
    assert "seldom" in rule_of_thumb(49.0) and "depends" in rule_of_thumb(75.0) and "can pay" in rule_of_thumb(100.0)


# --- the command


PLAN = f"""
[workload]
trace = "lengths.csv"
rate = 60.0
[slo]
ttft_p99_ms = 500
tpot_p99_ms = 30
[fleet]
profiles = ["{MEASURED}"]
[transfer]
gb_per_s = 50
"""


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    workload = small_workload()
    rows = zip(np.asarray(workload.input_tokens), np.asarray(workload.output_tokens), strict=True)
    lines = [f"{k},{int(i)},{int(o)}" for k, (i, o) in enumerate(rows)]
    (tmp_path / "lengths.csv").write_text("\n".join(["arrival_s,input_tokens,output_tokens", *lines]) + "\n")
    (tmp_path / "plan.toml").write_text(PLAN)
    return tmp_path / "plan.toml"


def run(*arguments):
    return CliRunner().invoke(app, ["disagg", *map(str, arguments)])


def test_command_says_which_and_why(plan_file, tmp_path):
    result = run(plan_file, "--no-simulate", "--json", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    doc = json.loads(result.output)
    assert doc["kind"] == "disagg" and doc["status"] == "unverified"
    assert doc["advice"] in ("disaggregate", "aggregate")
    link = next(entry for name, entry in doc["inputs"].items() if name == "transfer")
    assert link["value"]["kv_bytes_per_token"] == 131_072 and "llama-3.1-8b" in link["source"]
    assert (tmp_path / "out" / "disagg.json").is_file()
    page = (tmp_path / "out" / "report.txt").read_text()
    assert "prefill + decode" in page and "Rule of thumb" in page and "Reference model" in page


def test_command_refuses_what_is_missing(plan_file):
    plan_file.write_text(PLAN.replace("[transfer]\ngb_per_s = 50\n", ""))
    result = run(plan_file, "--no-simulate")
    assert result.exit_code == 2 and "transfer.gb_per_s (or --link-gb-per-s) is required" in result.stderr
    plan_file.write_text(PLAN.replace("tpot_p99_ms = 30\n", ""))
    result = run(plan_file, "--no-simulate")
    assert result.exit_code == 2 and "slo.tpot_p99_ms" in result.stderr
    plan_file.write_text(PLAN.replace(MEASURED, "h100-80gb"))
    result = run(plan_file, "--no-simulate")
    assert result.exit_code == 2 and "transfer.kv_bytes_per_token" in result.stderr
    assert run(plan_file, "--no-simulate", "--kv-bytes-per-token", "131072").exit_code in (0, 3)
