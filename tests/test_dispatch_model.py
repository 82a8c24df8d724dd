"""Dispatch and bursts in the analytical model: identities, an order, refusals, and the simulator."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleets import make_profile, small_workload

import des
import jaxsim
from jaxsim.engine import DISPATCHES
from jaxsim.evaluate import pool_laws, tabulate
from jaxsim.latency import log_tail
from jaxsim.step_sharing.two_choices import Spread
from optim._compile import program
from optim.figures import lengths_alone

LENGTHS = jaxsim.workload("azure-conversation")
LONGEST = float(np.max(LENGTHS.total_tokens))
ENGINE = replace(jaxsim.profile("h100-80gb"), max_num_seqs=16.0)


def fleet(replicas):
    return jaxsim.FleetDesign.of(ENGINE, [replicas], [LONGEST])


def rate_at(utilization, replicas):
    return utilization / float(jaxsim.evaluate(fleet(replicas), LENGTHS, 1.0).utilization)


def figures(replicas, rate, **arrivals):
    return jaxsim.evaluate(fleet(replicas), LENGTHS, rate, **arrivals)


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_a_single_engine_has_nothing_to_dispatch(dispatch):
    rate = rate_at(0.8, 1.0)
    assert float(figures(1.0, rate, dispatch=dispatch).ttft_p99_s) == pytest.approx(
        float(figures(1.0, rate).ttft_p99_s), rel=1e-12
    )


def test_random_dispatch_is_an_engine_of_its_own():
    rate = rate_at(0.8, 6.0)
    alone, spread = figures(1.0, rate / 6.0), figures(6.0, rate, dispatch="random")
    for name in ("ttft_p99_s", "tpot_p99_s", "utilization"):
        assert float(getattr(spread, name)) == pytest.approx(float(getattr(alone, name)), rel=1e-12)


def test_the_better_informed_dispatch_waits_less():
    rate = rate_at(0.9, 8.0)
    waits = [float(figures(8.0, rate, dispatch=name).pools.wait_p99_s[0]) for name in DISPATCHES]
    pooled, random, in_turn, of_two = waits
    assert pooled < of_two < in_turn < random


def test_bursts_wait_longer_and_even_gaps_less():
    rate = rate_at(0.85, 2.0)
    even, poisson, bursts = (float(figures(2.0, rate, dispersion=c).ttft_p99_s) for c in (0.25, 1.0, 6.0))
    assert even < poisson < bursts


@pytest.mark.parametrize(
    ("dispatch", "arrivals", "dispersion"),
    [
        ("random", des.Poisson(), 1.0),
        ("round-robin", des.Poisson(), 1.0),
        ("power-of-two", des.Poisson(), 1.0),
        ("least-loaded", des.Renewal(law="gamma", cv=2.0), 4.0),
        ("random", des.Renewal(law="gamma", cv=2.0), 4.0),
    ],
)
def test_the_simulator_agrees(dispatch, arrivals, dispersion):
    """P99 TTFT where most of it is queue wait."""
    replicas, rate = 4, rate_at(0.8, 4.0)
    expected = float(figures(float(replicas), rate, dispatch=dispatch, dispersion=dispersion).ttft_p99_s)
    found = des.simulate(
        fleet(replicas),
        LENGTHS,
        rate=rate,
        num_requests=800_000,
        replications=16,
        seed=3,
        router=des.LengthRouter(dispatch=dispatch),
        arrivals=arrivals,
    ).ttft.quantile(0.99)
    assert found.relative_half_width < 0.1
    assert expected == pytest.approx(found.value, rel=0.12 if dispersion == 1.0 else 0.25)


@pytest.mark.parametrize(
    ("arrivals", "words"),
    [
        ({"dispatch": "randomly"}, "random"),
        ({"dispersion": 0.0}, "dispersion"),
        ({"dispersion": float("nan")}, "dispersion"),
        ({"model": "kimura", "dispatch": "random"}, "least-loaded"),
        ({"model": "kimura", "dispersion": 2.0}, "Poisson"),
    ],
)
def test_refusals(arrivals, words):
    with pytest.raises(ValueError, match=words):
        figures(2.0, 1.0, **arrivals)


def spread_of(engines):
    """Of engines whose service does not grow with their load."""
    return Spread.of(jnp.asarray(float(engines)), jnp.asarray(0.0))


def test_loads_of_many_engines_are_the_doubly_exponential_law():
    """The share with n + 1 or more is the square of that with n, its mean is the load, and joined is one less."""
    spread, number, load = spread_of(1e6), jnp.arange(0.0, 80.0), jnp.asarray(40.3)
    tail = np.asarray(spread.tail(number, load))
    seen = (tail > 1e-6) & (np.arange(80) > 30)
    logs = np.log(np.maximum(tail, 1e-300))
    np.testing.assert_allclose(logs[1:][seen[1:]], 2.0 * logs[:-1][seen[1:]], rtol=1e-3)
    assert tail[1:].sum() == pytest.approx(40.3, abs=1e-3)
    found = np.asarray(spread.joined(number, load))
    assert found[1:].sum() == pytest.approx(40.3 - 1.0, abs=0.05)


@pytest.mark.parametrize("engines", [2, 6, 24])
def test_the_spread_is_that_of_a_random_walk(engines):
    """As many arrivals as departures at engines that are always busy; what the better of two has around their mean."""
    draw = np.random.default_rng(engines)
    steps = 200_000
    comes, one, two = draw.random(steps) < 0.5, *draw.integers(engines, size=(2, steps))
    loads, total, ahead = [0] * engines, 0, []
    for arrives, a, b in zip(comes.tolist(), one.tolist(), two.tolist(), strict=True):
        if arrives:
            joins = b if loads[b] < loads[a] else a
            ahead.append(loads[joins] - total / engines)
            loads[joins] += 1
            total += 1
        else:
            loads[a] -= 1
            total -= 1
    ahead = np.array(ahead[len(ahead) // 10 :])
    busy = jnp.asarray(1000.0)
    for level in (-1.0, 0.0, 1.0, 2.0, 3.0):
        over = (np.arange(16) + 0.5) / 16.0 + level - 0.5
        seen = np.mean([(ahead >= x).mean() for x in over])
        said = np.mean([float(spread_of(engines).joined(busy + x + 0.5, busy)) for x in over])
        assert said == pytest.approx(seen, rel=0.25, abs=0.004), (engines, level)


@program
def slopes_of_two(rate, replicas):
    """ln P(TTFT > 0.3 s) behind the better of two engines, and its derivatives."""
    one = jaxsim.FleetDesign.of(make_profile(max_num_seqs=8.0).unnamed(), [1.0], [8000.0])
    lengths = lengths_alone(small_workload())

    def tail(rate, replicas):
        design = eqx.tree_at(lambda d: d.replicas, one, replicas[None])
        laws = pool_laws(design, tabulate(lengths, design.profile), rate, dispatch="power-of-two")
        return log_tail(laws.ttft_tail(jnp.asarray(0.3))[0])

    return jax.value_and_grad(tail, argnums=(0, 1))(rate, replicas)


def slopes_at(rate, replicas):
    value, slopes = slopes_of_two(jnp.asarray(rate), jnp.asarray(replicas))
    return float(value), [float(slope) for slope in slopes]


@pytest.mark.parametrize(("rate", "replicas"), [(6.0, 3.0), (40.0, 16.5), (5.0, 1.6)])
def test_the_gradient_of_two_choices_is_the_central_difference(rate, replicas):
    _, slopes = slopes_at(rate, replicas)
    for argument, slope in enumerate(slopes):
        step = np.array([rate, replicas]) * 1e-5 * (np.arange(2) == argument)
        above, below = (slopes_at(*(np.array([rate, replicas]) + sign * step))[0] for sign in (1.0, -1.0))
        assert slope == pytest.approx((above - below) / (2.0 * step.sum()), rel=1e-4, abs=1e-7)
    assert slopes[0] > 0.0 > slopes[1]


@pytest.mark.parametrize(
    ("rate", "replicas"), [(0.0, 4.0), (1e-9, 2.0), (3.0, 1.0), (1.0, 0.4), (500.0, 2.0), (9.0, 200.0)]
)
def test_two_choices_at_the_edges(rate, replicas):
    value, slopes = slopes_at(rate, replicas)
    assert np.all(np.isfinite([value, *slopes]))
