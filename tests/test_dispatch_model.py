"""Dispatch and bursts in the analytical model: identities, an order, refusals, and the simulator."""

from dataclasses import replace

import numpy as np
import pytest

import des
import jaxsim
from jaxsim.engine import DISPATCHES

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
    pooled, random, in_turn = waits
    assert pooled < in_turn < random


def test_bursts_wait_longer_and_even_gaps_less():
    rate = rate_at(0.85, 2.0)
    even, poisson, bursts = (float(figures(2.0, rate, dispersion=c).ttft_p99_s) for c in (0.25, 1.0, 6.0))
    assert even < poisson < bursts


@pytest.mark.parametrize(
    ("dispatch", "arrivals", "dispersion"),
    [
        ("random", des.Poisson(), 1.0),
        ("round-robin", des.Poisson(), 1.0),
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
