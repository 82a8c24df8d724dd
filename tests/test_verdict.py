"""Met, missed, a coin flip: intervals against limits, and shares with Wilson's interval."""

import numpy as np
import pytest
from fleets import small_workload, two_pools
from scipy.stats import binomtest

import des
from des import Estimate
from optim.problem import SLO
from optim.verdict import Verdict, verdict_of, wilson, worst
from optim.verify import PoolVerdict, judge


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.1, 0.5, Verdict.MET),
        (0.1, 0.5000001, Verdict.COIN_FLIP),
        (0.5, 0.6, Verdict.COIN_FLIP),
        (0.0, np.inf, Verdict.COIN_FLIP),
        (0.51, np.inf, Verdict.MISSED),
    ],
)
def test_an_interval_that_crosses_is_a_coin_flip(low, high, said):
    assert verdict_of(low, high, 0.5) is said


def test_the_worst_of_several_counts():
    assert worst([]) is Verdict.MET
    assert worst([Verdict.COIN_FLIP, Verdict.MET]) is Verdict.COIN_FLIP
    assert worst([Verdict.MISSED, Verdict.COIN_FLIP]) is Verdict.MISSED


@pytest.mark.parametrize("hits", [0, 1, 37, 199, 200])
def test_wilson_is_scipys(hits):
    found = binomtest(hits, 200).proportion_ci(0.95, method="wilson")
    assert wilson(hits / 200, 200) == pytest.approx((found.low, found.high), abs=1e-12)


@pytest.mark.parametrize("bad", [{"share": 1.1}, {"number": 0}, {"confidence": 1.0}])
def test_a_share_of_nothing_is_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        wilson(**{"share": 0.5, "number": 10, "confidence": 0.95, **bad})


@pytest.fixture(scope="module")
def simulated():
    """A small run, whose intervals are wide; two pools."""
    return des.simulate(two_pools(), small_workload(), rate=60.0, num_requests=4_000, seed=0, replications=4)


def test_the_simulators_intervals_give_the_verdict(simulated):
    p99s = [simulated.ttft.quantile(0.99), *(pool.ttft.quantile(0.99) for pool in simulated.pools)]
    highest, lowest = max(p.high for p in p99s), min(p.low for p in p99s)
    met = judge(simulated, SLO(ttft_p99_s=highest))
    assert met.verdict is Verdict.MET and met.slo_met
    missed = judge(simulated, SLO(ttft_p99_s=0.9 * lowest))
    assert missed.verdict is Verdict.MISSED and not missed.slo_met
    worst_pool = max(p99s[1:], key=lambda p: p.low)
    across = judge(simulated, SLO(ttft_p99_s=max(worst_pool.low, p99s[0].low) * 1.0001))
    assert across.verdict is Verdict.COIN_FLIP and not across.slo_met
    assert across.slo_met is (across.verdict is Verdict.MET)


def test_an_objective_on_tpot_counts_as_much(simulated):
    tpots = [simulated.tpot.quantile(0.99), *(pool.tpot.quantile(0.99) for pool in simulated.pools)]
    below = SLO(ttft_p99_s=100.0, tpot_p99_s=0.9 * min(t.low for t in tpots))
    assert judge(simulated, below).verdict is Verdict.MISSED
    assert judge(simulated, SLO(ttft_p99_s=100.0, tpot_p99_s=max(t.high for t in tpots))).verdict is Verdict.MET


def test_overload_and_nothing_served_are_missed():
    crowded = des.simulate(two_pools((1.0, 1.0)), small_workload(), rate=900.0, num_requests=8_000, replications=2)
    assert crowded.overloaded
    assert judge(crowded, SLO(ttft_p99_s=1e6)).verdict is Verdict.MISSED
    none = two_pools(upper=(2.0, 3.0))
    rejected = des.simulate(none, small_workload(), rate=10.0, num_requests=100, replications=2)
    assert judge(rejected, SLO(ttft_p99_s=1e6)).verdict is Verdict.MISSED


BELOW, ACROSS = Estimate(0.35, 0.3, 0.4, 1000), Estimate(0.05, 0.04, 0.06, 1000)


def test_a_pool_says_its_own():
    slo = SLO(ttft_p99_s=0.5, tpot_p99_s=0.05)
    assert PoolVerdict(BELOW, ACROSS, False).verdict(slo) is Verdict.COIN_FLIP
    assert PoolVerdict(BELOW, None, False).verdict(slo) is Verdict.MET
    assert PoolVerdict(BELOW, None, True).verdict(slo) is Verdict.MISSED
