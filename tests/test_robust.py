"""robust: the plan itself without uncertainty, enough where it says, dearer with probability, checked by simulation."""

import dataclasses
import sys

import numpy as np
import pytest
from fleets import problem

from optim.assessment import Spread, verdict_of_share, weighted_quantile
from optim.chance import covered
from optim.plan import PlanStatus
from optim.problem import SLO
from optim.robust import RobustStatus, robust
from optim.uncertainty import DemandScenario, Interval, Uncertainty
from optim.verdict import Verdict
from optim.verify import verify

ASKED = problem(rate=300.0, slo=SLO(ttft_p99_s=0.06, tpot_p99_s=0.05), max_pools=1)
UNSURE = Uncertainty(
    rate=Interval(220.0, 420.0),
    step_time_factor=Interval(0.95, 1.05),
    output_tokens_factor=Interval(0.9, 1.2),
    length_sample=2_000,
)


@pytest.fixture(scope="module")
def found():
    return robust(ASKED, UNSURE, draws=32)


@pytest.fixture(scope="module")
def model_alone():
    return robust(ASKED, UNSURE, draws=32, simulate=False)


@pytest.mark.slow
def test_without_uncertainty_it_is_the_plan():
    known = robust(ASKED, Uncertainty(), simulate=False)
    assert known.status is RobustStatus.UNVERIFIED
    assert len(known.scenarios) == 1 and known.scenarios.exact
    for level in known.levels:
        assert np.array_equal(level.replicas, known.plan.design.replicas)
        assert level.premium_usd_per_hour == pytest.approx(0.0)
    assert known.nominal.verdict is Verdict.MET
    assert (known.nominal.share_met, known.nominal.low, known.nominal.high) == (1.0, 1.0, 1.0)
    assert known.nominal.met_everywhere and known.sources == ()


def test_the_worst_case_fleet_is_enough_in_every_scenario(found):
    worst = found.levels[-1]
    assert worst.probability is None
    assert covered(found.required, worst.replicas).all()
    assert worst.assessment.met_everywhere and worst.assessment.share_met == 1.0
    for pool in range(len(worst.replicas)):  # and with one replica less it is not
        if worst.replicas[pool] > 1:
            fewer = worst.replicas - np.eye(len(worst.replicas))[pool]
            assert not covered(found.required, fewer).all()
    for spread in worst.assessment.pools:
        assert spread.ttft_p99_s.worst <= ASKED.slo.ttft_p99_s * (1 + 1e-9)
        assert spread.utilization.worst < 1.0


def test_more_probability_never_costs_less(found):
    costs = [level.usd_per_hour for level in found.levels]
    assert costs == sorted(costs) and costs[-1] > costs[0]
    for level in found.levels[:-1]:
        assert level.assessment.share_met >= level.probability - 1e-9
        assert level.assessment.low <= level.assessment.share_met <= level.assessment.high
        assert level.premium_usd_per_hour == pytest.approx(level.usd_per_hour - found.plan.usd_per_hour)


def test_a_plan_for_the_middle_is_a_coin_flip_not_met(found):
    assert found.plan.status is PlanStatus.VERIFIED
    nominal = found.nominal
    assert nominal.verdict is Verdict.COIN_FLIP
    assert 0.025 < nominal.share_met < 0.975 and not nominal.met_everywhere
    assert any(pool.utilization.crosses(1.0) or pool.ttft_p99_s.crosses(ASKED.slo.ttft_p99_s) for pool in nominal.pools)
    needed = np.all(found.required <= np.asarray(found.plan.design.replicas), axis=1)
    assert nominal.share_met == pytest.approx(found.scenarios.probability[needed].sum())


def test_the_simulator_agrees_where_the_robust_fleet_has_least_room(found):
    assert found.status is RobustStatus.VERIFIED and found.checks
    assert sorted(pool for check in found.checks for pool in check.pools) == list(range(found.design.num_pools))
    for check in found.checks:
        assert check.robust.slo_met
        assert check.robust.result.pools[0].replicas == found.level.replicas[0]
        for pool in check.pools:  # nothing that the fleet is enough in asks for more
            most = found.required[:, pool].max()
            assert found.required[check.row, pool] == most
    assert any(not check.nominal.slo_met for check in found.checks)
    assert all(check.robust.result.seed == check.nominal.result.seed == 0 for check in found.checks)


def test_each_source_by_itself_costs_no_more_than_all_together(found):
    worst = found.levels[-1].usd_per_hour - found.plan.usd_per_hour
    assert {source.name for source in found.sources} == set(UNSURE.sources)
    for source in found.sources:
        assert 0.0 <= source.worst_premium_usd_per_hour <= worst + 4.02 + 1e-9
    assert found.sources[0].name == "rate"


def test_equal_seeds_give_equal_answers(model_alone):
    again = robust(ASKED, UNSURE, draws=32, simulate=False)
    assert np.array_equal(again.required, model_alone.required)
    assert [level.usd_per_hour for level in again.levels] == [level.usd_per_hour for level in model_alone.levels]
    assert again.sources == model_alone.sources
    other = robust(ASKED, UNSURE, draws=32, simulate=False, seed=1)
    assert not np.array_equal(other.scenarios.rate, model_alone.scenarios.rate)


@pytest.mark.slow
def test_a_no_of_the_simulator_corrects_the_model_and_adds_replicas(found, monkeypatch):
    """It refuses the fleet that the model holds for enough, once; and then every fleet."""
    module, before = sys.modules["optim.robust"], found.level.replicas.sum()

    def refuse(most):
        def harsh(design, *args, **kwargs):
            said = verify(design, *args, **kwargs)
            refused = float(np.sum(design.replicas)) <= most
            return dataclasses.replace(said, slo_met=False, verdict=Verdict.MISSED) if refused else said

        monkeypatch.setattr(module, "verify", harsh)

    refuse(before)
    once = robust(ASKED, UNSURE, draws=32)
    assert once.status is RobustStatus.VERIFIED and 1 < once.rounds <= 4
    assert once.level.replicas.sum() > before
    refuse(np.inf)
    never = robust(ASKED, UNSURE, draws=32)
    assert never.status is RobustStatus.REFUSED and never.rounds == 4
    assert never.level.replicas is not None and never.checks


def test_a_cap_on_gpus_and_hopeless_scenarios_are_two_answers(model_alone):
    capped = dataclasses.replace(ASKED, max_gpus=int(model_alone.levels[-1].gpus) - 1)
    assert robust(capped, UNSURE, draws=32, simulate=False).status is RobustStatus.GPU_CAP
    slow = Uncertainty(
        scenarios=(DemandScenario("as now", 0.9), DemandScenario("far longer", 0.1, input_tokens_factor=9.0))
    )
    hopeless = robust(ASKED, slow, draws=32, simulate=False)
    assert hopeless.status is RobustStatus.INFEASIBLE and hopeless.design is None
    assert hopeless.levels[-1].replicas is None and hopeless.levels[0].replicas is not None
    chosen = robust(ASKED, slow, draws=32, simulate=False, choose=0.9)
    assert chosen.status is RobustStatus.UNVERIFIED and chosen.level.probability == 0.9
    assert chosen.level.assessment.share_met == pytest.approx(0.9)


def test_without_a_plan_there_is_nothing_to_make_robust():
    none = robust(problem(slo=SLO(ttft_p99_s=1e-4), max_pools=1), UNSURE, draws=32, simulate=False)
    assert none.status is RobustStatus.NO_PLAN
    assert none.plan.status is PlanStatus.INFEASIBLE and none.levels == () and none.design is None


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"probabilities": (0.0,)}, "probability must be between 0 and 1"),
        ({"choose": 1.0}, "probability must be between 0 and 1"),
        ({"draws": 30}, "power of two"),
    ],
)
def test_bad_values_are_refused(more, text):
    with pytest.raises(ValueError, match=text):
        robust(ASKED, UNSURE, **{"draws": 32, **more})


def test_shares_and_quantiles_by_weight():
    assert [verdict_of_share(share) for share in (1.0, 0.975, 0.974, 0.5, 0.025)] == [
        Verdict.MET, Verdict.MET, Verdict.COIN_FLIP, Verdict.COIN_FLIP, Verdict.MISSED,
    ]  # fmt: skip
    values, weight = np.array([3.0, 1.0, 2.0, 99.0]), np.array([0.2, 0.5, 0.3, 0.0])
    assert [weighted_quantile(values, weight, q) for q in (0.5, 0.51, 0.8, 0.81, 1.0)] == [1.0, 2.0, 2.0, 3.0, 3.0]
    spread = Spread.of(values, weight)
    assert (spread.median, spread.low, spread.high, spread.worst) == (1.0, 1.0, 3.0, 99.0)
    assert spread.crosses(2.0) and not spread.crosses(3.0) and not spread.crosses(None)
