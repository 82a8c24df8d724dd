"""`evaluate`: against the simulator, by hand, at the edges, and as a JAX function."""

import functools
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleets import (
    A100,
    H100,
    MODELS,
    assert_finite,
    assert_no_nan,
    figures,
    make_profile,
    slope,
    small_workload,
    two_pools,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import des
import jaxsim
from jaxsim.evaluate import evaluate, metrics, pool_laws, tabulate
from jaxsim.fleet import FleetDesign
from optim._compile import program

evaluation = sys.modules["jaxsim.evaluate"]  # the package exports a function of that name

CONVERSATION = 14_089.0
"""Longest request of the embedded conversation trace, tokens."""


@functools.cache
def conversation(replicas, upper, rate, max_num_seqs):
    """Model and simulator on the conversation trace, H100s with that many sequences."""
    profile = eqx.tree_at(lambda p: p.max_num_seqs, H100, np.asarray(max_num_seqs))
    design = FleetDesign.of(profile, replicas, upper)
    workload = jaxsim.workload("azure-conversation")
    simulated = des.simulate(design, workload, rate=rate, num_requests=120_000, seed=4)
    padded = design
    if len(replicas) == 1:  # a second, empty pool keeps the compiled shape
        padded = FleetDesign.of(profile, [*replicas, 0.0], [CONVERSATION, CONVERSATION])
    return figures(padded, rate, workload=workload), simulated


# replicas, thresholds, rate, sequences, allowed errors of P99 TTFT and P99 TPOT
AGAINST_THE_SIMULATOR = [
    pytest.param((1.0,), (CONVERSATION,), 10.0, 256.0, 0.03, 0.03, id="light"),
    pytest.param((1.0,), (CONVERSATION,), 28.0, 256.0, 0.04, 0.04, id="busy"),
    pytest.param((4.0,), (CONVERSATION,), 110.0, 256.0, 0.04, 0.04, id="pool"),
    pytest.param((2.0, 3.0), (1500.0, CONVERSATION), 110.0, 256.0, 0.05, 0.05, id="two pools"),
    pytest.param((1.0,), (CONVERSATION,), 11.0, 16.0, 0.2, 0.05, id="queueing"),
]


@pytest.mark.parametrize(("replicas", "upper", "rate", "seqs", "ttft_error", "tpot_error"), AGAINST_THE_SIMULATOR)
def test_the_model_agrees_with_the_simulator(replicas, upper, rate, seqs, ttft_error, tpot_error):
    """P99 over the fleet and in every pool, utilisation-free: the simulator knows none of the model's formulas."""
    model, simulated = conversation(replicas, upper, rate, seqs)
    assert not simulated.overloaded
    assert float(model.ttft_p99_s) == pytest.approx(simulated.ttft.quantile(0.99).value, rel=ttft_error)
    assert float(model.tpot_p99_s) == pytest.approx(simulated.tpot.quantile(0.99).value, rel=tpot_error)
    assert float(model.ttft_p50_s) == pytest.approx(simulated.ttft.quantile(0.5).value, rel=0.1)
    for index, result in enumerate(simulated.pools):
        assert float(model.pools.ttft_p99_s[index]) == pytest.approx(result.ttft.quantile(0.99).value, rel=ttft_error)
        assert float(model.pools.tpot_p99_s[index]) == pytest.approx(result.tpot.quantile(0.99).value, rel=tpot_error)
        assert float(model.pools.active_batch[index]) == pytest.approx(result.mean_active / replicas[index], rel=0.03)
        assert float(model.pools.tpot_mean_s[index]) == pytest.approx(result.tpot.mean().value, rel=0.02)


def test_the_model_and_the_simulator_call_the_same_designs_overloaded():
    """3 % below and 6 % above the rate at which the model's utilisation is 1."""
    design = FleetDesign.of(A100, [2.0, 1.0], [900.0, 7900.0])
    full = float(1.0 / figures(design, 1.0).utilization)
    for share in (0.97, 1.06):
        model = figures(design, share * full)
        simulated = des.simulate(design, small_workload(), rate=share * full, num_requests=150_000, seed=2)
        assert bool(model.overloaded) == (share > 1.0)
        assert simulated.overloaded == (share > 1.0)


@pytest.mark.parametrize("model", MODELS)
def test_costs_and_counts_by_hand(model):
    """Rates, shares, dollars, and dollars per million output tokens, summed over the requests."""
    work = small_workload()
    design = FleetDesign.of((A100, make_profile(gpus_per_replica=2)), [3.0, 2.0], [1000.0, 5000.0])
    found = figures(design, 20.0, model=model)
    total, weight = np.asarray(work.total_tokens), np.asarray(work.weight)
    short, long = total <= 1000, (total > 1000) & (total <= 5000)
    np.testing.assert_allclose(found.pools.share, [weight[short].sum(), weight[long].sum()], rtol=1e-12)
    assert float(found.rejected_share) == pytest.approx(weight[total > 5000].sum(), rel=1e-9)
    assert weight[total > 5000].sum() > 0.0
    np.testing.assert_allclose(found.pools.rate, 20.0 * np.asarray(found.pools.share), rtol=1e-12)
    dollars = np.array([3 * 2.21, 2 * 2 * 2.0])
    np.testing.assert_allclose(found.pools.usd_per_hour, dollars, rtol=1e-14)
    assert float(found.usd_per_hour) == pytest.approx(dollars.sum(), rel=1e-14)
    outputs = [(weight * work.output_tokens)[mask].sum() * 20.0 * 3600.0 for mask in (short, long)]
    np.testing.assert_allclose(found.pools.usd_per_million_output_tokens, dollars / outputs * 1e6, rtol=1e-12)
    fleet = dollars.sum() / sum(outputs) * 1e6
    assert float(found.usd_per_million_output_tokens) == pytest.approx(fleet, rel=1e-12)


def test_utilization_by_hand():
    """Steps and work of every request at full batch, the sequences being the limit."""
    work, rate, seqs = small_workload(), 40.0, float(A100.max_num_seqs)
    found = figures(FleetDesign.of(A100, [2.0, 0.0], [7900.0, 7900.0]), rate)
    steps, seconds = [], []
    for tokens, outputs in zip(work.input_tokens, work.output_tokens, strict=True):
        chunks = int(np.ceil(tokens / 512))
        held = [min(512 * (j + 1), tokens) for j in range(chunks)]
        held += [tokens + j for j in range(1, int(outputs))]
        steps.append(len(held))
        seconds.append(sum(held) * 0.00065 / 8192)
    expected = rate / 2.0 * np.average(np.asarray(steps) * 0.008 / seqs + seconds, weights=work.weight)
    assert float(found.pools.concurrency_limit[0]) == seqs
    assert float(found.utilization) == pytest.approx(expected, rel=1e-9)


def test_the_kv_cache_limits_how_many_run():
    """Less than `max_num_seqs` where the blocks of a mean running request and of a blocked head do not fit."""
    few = make_profile(kv_blocks=600.0)
    found = figures(FleetDesign.of(few, [2.0, 0.0], [7900.0, 7900.0]), 2.0)
    limit = float(found.pools.concurrency_limit[0])
    assert 1.0 <= limit < 12.0
    assert float(found.rejected_share) == 0.0
    tiny = figures(FleetDesign.of(make_profile(kv_blocks=100.0), [2.0, 0.0], [7900.0, 7900.0]), 2.0)
    above = np.asarray(small_workload().weight)[np.asarray(small_workload().total_tokens) > 1600].sum()
    assert float(tiny.rejected_share) == pytest.approx(above, rel=1e-9)


@pytest.mark.parametrize("model", MODELS)
def test_an_empty_pool_changes_nothing(model):
    """Below the shortest request, above the longest, or by equal thresholds."""
    alone = figures(two_pools((3.0, 0.0), (7900.0, 7900.0)), model=model)
    first = figures(two_pools((0.0, 3.0), (10.0, 7900.0)), model=model)
    idle = figures(two_pools((3.0, 5.0), (7900.0, 7950.0)), model=model)
    for name in ("ttft_p50_s", "ttft_p99_s", "tpot_mean_s", "tpot_p99_s", "utilization", "rejected_share"):
        assert float(getattr(first, name)) == pytest.approx(float(getattr(alone, name)), rel=1e-5), name
        if model == "step":
            assert float(getattr(idle, name)) == pytest.approx(float(getattr(alone, name)), rel=1e-5), name
    assert float(idle.pools.share[1]) == float(idle.pools.utilization[1]) == 0.0
    assert float(idle.usd_per_hour) == pytest.approx(8 * 4.02)
    assert np.isinf(float(idle.pools.usd_per_million_output_tokens[1]))


@pytest.mark.parametrize("model", MODELS)
def test_requests_without_replicas_are_an_overload(model):
    found = figures(two_pools((0.0, 3.0)), model=model)
    assert np.asarray(found.pools.overloaded).tolist() == [True, False]
    assert bool(found.overloaded)
    assert np.isinf(float(found.utilization))
    assert np.isinf(float(found.ttft_p99_s))
    assert np.isfinite(float(found.pools.ttft_p99_s[1]))


@pytest.mark.parametrize("model", MODELS)
def test_no_load(model):
    """Latencies of a lone request, no output to pay for, nothing overloaded."""
    found = figures(two_pools(), 0.0, model=model)
    assert_no_nan(found)
    assert not bool(found.overloaded)
    assert float(found.utilization) == float(found.rate) == 0.0
    assert np.isinf(float(found.usd_per_million_output_tokens))
    little = figures(two_pools(), 1e-6, model=model)
    for name in ("ttft_p50_s", "ttft_p99_s", "tpot_p99_s", "tpot_mean_s"):
        assert float(getattr(found, name)) == pytest.approx(float(getattr(little, name)), rel=1e-4)
    if model == "step":
        assert float(found.tpot_p99_s) >= float(H100.base_s)


def test_two_halves_of_a_pool_are_two_independent_pools():
    """Equal requests and engines in two pools, and one of as many: splitting costs pooling and nothing else."""
    lengths = np.arange(150) * 2.0 + 60.0
    alike = jaxsim.Workload.from_lengths(lengths, np.full(150, 100.0))
    middle = np.median(lengths) + 100.0
    rate = 500.0
    whole = figures(FleetDesign.of(H100, [4.0, 0.0], [458.0, 458.0]), rate, workload=alike)
    halves = figures(FleetDesign.of(H100, [2.0, 2.0], [middle, 458.0]), rate, workload=alike)
    np.testing.assert_allclose(halves.pools.share, [0.5, 0.5])
    assert np.asarray(halves.pools.utilization).mean() == pytest.approx(float(whole.utilization), rel=0.01)
    assert float(halves.ttft_p99_s) >= float(whole.ttft_p99_s) * (1.0 - 1e-3)
    assert float(halves.tpot_mean_s) == pytest.approx(float(whole.tpot_mean_s), rel=0.02)


def test_quantiles_of_the_fleet_lie_between_those_of_its_pools():
    for rate in (1.0, 100.0, 200.0):
        found = figures(two_pools((1.0, 3.0), (800.0, 7900.0)), rate)
        for name in ("ttft_p50_s", "ttft_p95_s", "ttft_p99_s", "tpot_p99_s"):
            pools = np.asarray(getattr(found.pools, name))
            fleet = float(getattr(found, name))
            assert pools.min() * (1 - 1e-3) <= fleet <= pools.max() * (1 + 1e-3), name
        assert float(found.ttft_p50_s) <= float(found.ttft_p95_s) <= float(found.ttft_p99_s)


@given(
    rate=st.just(0.0) | st.floats(1e-9, 3000.0),
    first=st.just(0.0) | st.floats(1e-3, 20.0),
    last=st.just(0.0) | st.floats(1e-3, 20.0),
    cut=st.floats(1.0, 8000.0),
)
@settings(max_examples=60, deadline=None)
def test_no_nan_and_the_bounds_hold(rate, first, last, cut):
    found = figures(two_pools((first, last), (cut, 8000.0)), rate)
    assert_no_nan(found)
    pools = found.pools
    overloaded = np.asarray(pools.overloaded)
    assert np.array_equal(overloaded, np.asarray(pools.utilization) >= 1.0)
    for name in ("wait_p99_s", "ttft_p50_s", "ttft_p95_s", "ttft_p99_s", "tpot_mean_s", "tpot_p99_s"):
        assert np.array_equal(np.isinf(np.asarray(getattr(pools, name))), overloaded), name
    assert float(np.asarray(pools.share).sum() + found.rejected_share) == pytest.approx(1.0, abs=1e-9)
    assert np.all(np.asarray(pools.active_batch) <= np.asarray(pools.concurrency_limit) * (1 + 1e-9))


FIGURES = ("ttft_p99_s", "tpot_p99_s", "tpot_mean_s", "utilization", "usd_per_hour")


@program
def fleet_slopes(rate, replicas, upper, profile, workload):
    def values(rate, replicas, upper, profile):
        design = FleetDesign(profile, replicas, upper, upper)
        found = metrics(pool_laws(design, tabulate(workload, profile), rate))
        return jnp.stack([getattr(found, name) for name in FIGURES])

    return jax.jacrev(values, argnums=(0, 1, 2, 3))(rate, replicas, upper, profile)


def slopes_at(rate, replicas, upper, profile=None):
    stacked = jax.tree.map(jnp.asarray, (profile or two_pools().profile).unnamed())
    return fleet_slopes(*(jnp.asarray(v, dtype=float) for v in (rate, replicas, upper)), stacked, small_workload())


def test_gradients_of_evaluate_agree_with_differences():
    """In the rate, in a threshold and in a profile's coefficients, reverse mode."""
    rate, replicas, upper = 90.0, (1.0, 2.0), (1456.4, 7900.0)
    by_rate, _, by_upper, by_profile = slopes_at(rate, replicas, upper)

    def values(**changes):
        design = two_pools(replicas, changes.get("upper", upper))
        if "base_s" in changes:
            moved = design.profile.base_s + np.array([changes["base_s"], 0.0])
            design = eqx.tree_at(lambda d: d.profile.base_s, design, moved)
        found = figures(design, changes.get("rate", rate))
        return np.array([float(getattr(found, name)) for name in FIGURES])

    np.testing.assert_allclose(by_rate, slope(lambda x: values(rate=x), rate, 0.05), rtol=1e-3, atol=1e-9)
    numeric = slope(lambda x: values(upper=(x, 7900.0)), upper[0], 0.05)
    np.testing.assert_allclose(by_upper[:, 0], numeric, rtol=2e-3, atol=1e-8)
    numeric = slope(lambda x: values(base_s=x), 0.0, 1e-5)
    np.testing.assert_allclose(by_profile.base_s[:, 0], numeric, rtol=2e-3, atol=1e-7)
    assert_finite(by_profile)


EDGES = [
    (0.0, (1.0, 2.0), (1500.0, 7900.0)),  # no load
    (90.0, (1.0, 2.0), (1.0, 7900.0)),  # the first pool empty
    (90.0, (2.0, 1.0), (7900.0, 7900.0)),  # the last pool empty
    (90.0, (1.0, 2.0), (1456.0, 7900.0)),  # a threshold on a length
    (1e5, (1.0, 2.0), (1500.0, 7900.0)),  # overload
    (90.0, (0.0, 2.0), (1500.0, 7900.0)),  # requests without replicas
]


@pytest.mark.parametrize("edge", EDGES)
def test_gradients_are_finite_at_the_edges(edge):
    assert_finite(slopes_at(*edge))


def test_gradients_are_finite_where_utilization_is_one():
    full = 90.0 / float(np.asarray(figures(two_pools((1.0, 2.0)), 90.0).pools.utilization)[0])
    for rate in (full * (1 - 1e-12), full, full * (1 + 1e-12)):
        assert_finite(slopes_at(rate, (1.0, 2.0), (1500.0, 7900.0)))


@pytest.mark.parametrize("work", ["per_token_s", "per_sequence_s"])
def test_gradients_are_finite_without_work(work):
    """A profile whose requests add hardly anything to a step, or nothing that grows with context."""
    profile = two_pools(profiles=(make_profile(), make_profile())).profile
    profile = eqx.tree_at(lambda p: getattr(p, work), profile, np.zeros(2))
    assert_finite(slopes_at(20.0, (1.0, 2.0), (1500.0, 7900.0), profile))
    profile = eqx.tree_at(lambda p: (p.per_token_s, p.per_sequence_s), profile, (np.zeros(2), np.zeros(2)))
    assert_finite(slopes_at(20.0, (1.0, 2.0), (1500.0, 7900.0), profile))


def test_one_compilation_serves_all_designs_and_all_names(monkeypatch):
    """Values, profiles and their names vary; `evaluate` is traced once, also inside jit, vmap and grad."""
    counted = eqx.debug.assert_max_traces(max_traces=1)(evaluation._evaluate.__wrapped__)
    monkeypatch.setattr(evaluation, "_evaluate", eqx.filter_jit(counted))
    work = small_workload()
    for profiles in ((A100, H100), (H100, make_profile(name="another", gpu="x", source="y"))):
        for rate, replicas, upper in ((1.0, (1.0, 2.0), (900.0, 7900.0)), (50, (3.0, 0.0), (1.0, 7000.0))):
            found = evaluate(two_pools(replicas, upper, profiles), work, rate, model="kimura")
            assert float(found.rate) <= rate
    costs = jax.vmap(jax.grad(lambda rate: evaluate(two_pools(), work, rate, model="kimura").utilization))
    np.testing.assert_allclose(costs(jnp.asarray([1.0, 2.0, 30.0])), float(costs(jnp.ones(1))[0]), rtol=1e-12)


def test_evaluate_equals_its_pieces():
    whole = evaluate(two_pools(), small_workload(), 100.0, model="kimura")
    pieces = figures(two_pools(), 100.0, model="kimura")
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(pieces), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


REFUSED = [
    ({"rate": -1.0}, "rate must be >= 0 and finite, got -1.0"),
    ({"rate": np.nan}, "rate must be >= 0 and finite, got nan"),
    ({"rate": np.inf}, "rate must be >= 0 and finite, got inf"),
    ({"model": "kimora"}, "unknown model 'kimora'; did you mean 'kimura'?"),
]


@pytest.mark.parametrize(("changes", "text"), REFUSED)
def test_refusals(changes, text):
    arguments = {"rate": 1.0, "model": "step", **changes}
    with pytest.raises(ValueError) as error:
        evaluate(two_pools(), small_workload(), arguments["rate"], model=arguments["model"])
    assert text in str(error.value)
