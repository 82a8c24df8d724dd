"""plan: verified, infeasible in four ways, refused, corrected, certified; and what it says of its design."""

import dataclasses
import sys

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from fleets import A100, H100, make_profile, problem, slope, small_workload

import des
import optim
from des import Estimate
from jaxsim.fleet import FleetDesign
from optim.binding import Binding
from optim.cases import case_metrics, cases, margins, sized_designs
from optim.diagnose import Infeasible, infeasible
from optim.plan import PlanStatus
from optim.problem import SLO
from optim.rounding import Rounded
from optim.search import Search
from optim.sensitivity import sensitivities
from optim.sizing import whole_replicas
from optim.verify import Correction, PoolVerdict, judge, verify

planner = sys.modules["optim.plan"]  # the package exports a function of that name
searcher = sys.modules["optim.search"]

RATE = 300.0
OBJECTIVE = SLO(ttft_p99_s=0.04, tpot_p99_s=0.05)


@pytest.fixture(scope="module")
def verified():
    return optim.plan(problem(rate=RATE, slo=OBJECTIVE), seed=0)


def test_a_plan_is_verified_at_p99(verified):
    assert verified.status is PlanStatus.VERIFIED
    verdict = verified.verification
    assert verdict.slo_met
    assert not verdict.overloaded
    assert verdict.ttft_p99_s.high <= OBJECTIVE.ttft_p99_s
    assert verdict.tpot_p99_s.high <= OBJECTIVE.tpot_p99_s
    for figure in (verdict.ttft_p99_s, verdict.tpot_p99_s):
        assert figure.confidence == 0.95
        assert (figure.high - figure.low) / 2 <= 0.03 * figure.value
    assert verdict.rejected == 0
    assert verdict.attainment > 0.99
    assert np.all(verified.design.replicas == np.floor(verified.design.replicas))
    assert verified.design.upper_tokens[-1] == verified.problem.context
    assert verified.usd_per_hour == pytest.approx(float(verified.design.usd_per_hour))
    assert verified.rounds[-1].correction is not None


def test_the_model_and_the_simulator_agree_on_the_plan(verified):
    """The simulator is asked about the design that the model proposed, and finds its P99s within a tenth."""
    assert float(verified.analytic.ttft_p99_s) == pytest.approx(verified.verification.ttft_p99_s.value, rel=0.1)
    assert float(verified.analytic.tpot_p99_s) == pytest.approx(verified.verification.tpot_p99_s.value, rel=0.1)


def test_the_certificate_bounds_the_cost(verified):
    proof = verified.certificate
    assert 0.0 < proof.lower_bound_usd_per_hour <= verified.usd_per_hour * (1 + 1e-12)
    assert proof.gap == pytest.approx(1.0 - proof.lower_bound_usd_per_hour / verified.usd_per_hour, abs=1e-12)
    assert 0.0 <= proof.gap < 1.0


def test_no_design_of_a_dense_grid_beats_bound_or_plan():
    """Every threshold that separates two requests of the small workload, with exact sizes."""
    asked = problem(rate=RATE, slo=OBJECTIVE)
    unverified = optim.plan(asked, simulate=False)
    assert unverified.status is PlanStatus.UNVERIFIED
    ((_, case),) = cases(asked, num_pools=2)
    cuts = np.unique(np.asarray(small_workload().total_tokens))
    sized = sized_designs(case, np.stack([cuts, np.full(len(cuts), asked.context)], axis=1), model="step")
    cheapest = whole_replicas(sized.replicas).sum(axis=1)[sized.feasible].min() * 4.02
    assert unverified.usd_per_hour <= cheapest * (1 + 1e-9)
    assert unverified.certificate.lower_bound_usd_per_hour <= cheapest * (1 + 1e-9)


def test_one_replica_less_in_any_pool_breaks_what_binding_says(verified):
    ((_, case),) = cases(verified.problem, num_pools=2)
    padded = verified.rounds[-1].proposal.padded
    replicas, upper = np.asarray(padded.replicas), np.asarray(padded.upper_tokens)
    for place, pool in enumerate(verified.rounds[-1].proposal.pools):
        name = verified.binding[place]
        if replicas[pool] == 1.0:
            assert name is Binding.ONE_REPLICA
            continue
        fewer = replicas.copy()
        fewer[pool] -= 1.0
        found = margins(case, upper[None], fewer[None], model="step")
        over = dict(zip(("TTFT_P99", "TPOT_P99"), found.excess[0, pool], strict=True))
        if found.utilization[0, pool] >= 1.0:
            assert name is Binding.THROUGHPUT
        else:
            assert over[name.name] == max(over.values()) > 0.0


def test_equal_arguments_give_equal_plans(verified):
    again = optim.plan(problem(rate=RATE, slo=OBJECTIVE), seed=0)
    assert np.array_equal(again.design.replicas, verified.design.replicas)
    assert np.array_equal(again.design.upper_tokens, verified.design.upper_tokens)
    assert again.verification.ttft_p99_s == verified.verification.ttft_p99_s
    other = verify(verified.design, verified.problem, analytic=verified.analytic, seed=1, precision=0.03)
    assert other.ttft_p99_s != verified.verification.ttft_p99_s
    assert other.ttft_p99_s.value == pytest.approx(verified.verification.ttft_p99_s.value, rel=0.06)


def test_one_replica_is_a_plan():
    """The least there is, in one pool."""
    plan = optim.plan(problem(rate=2.0))
    assert plan.status is PlanStatus.VERIFIED
    assert plan.design.replicas.tolist() == [1.0]
    assert plan.binding == (Binding.ONE_REPLICA,)
    assert plan.certificate.gap == 0.0


INFEASIBLE = [
    pytest.param(
        {"slo": SLO(0.003)},
        Infeasible.PREFILL,
        ["idle h100-80gb", "P99 TTFT is", "ms", "objective of 3 ms", "replicas do not shorten a single prefill"],
        id="prefill",
    ),
    pytest.param(
        {"slo": SLO(0.5, 0.003)},
        Infeasible.STEP,
        ["idle h100-80gb", "a step takes 4.", "objective of 3.0 ms", "replicas do not shorten a step"],
        id="step",
    ),
    pytest.param(
        {"profiles": (make_profile(kv_blocks=100.0),)},
        Infeasible.KV_CACHE,
        ["exceeds the KV cache of one toy replica (1,600 tokens", "% of the requests", "lower max_context"],
        id="KV cache",
    ),
    pytest.param(
        {"rate": 5000.0, "max_gpus": 3},
        Infeasible.GPU_CAP,
        ["GPUs, above the cap of 3", "raise max_gpus"],
        id="GPU cap",
    ),
]


@pytest.mark.parametrize(("changes", "kind", "words"), INFEASIBLE)
def test_each_way_to_be_infeasible_has_its_own_answer(changes, kind, words):
    plan = optim.plan(problem(**changes), simulate=False)
    assert plan.status is PlanStatus.INFEASIBLE
    assert plan.design is None
    assert plan.verification is None
    assert [reason.kind for reason in plan.reasons] == [kind]
    for word in words:
        assert word in plan.reasons[0].text


@pytest.mark.parametrize(("cap", "name", "replicas"), [(None, "slow", 9.0), (9, "slow", 9.0), (8, "fast", 3.0)])
def test_a_cap_on_gpus_is_met_by_dearer_ones_where_those_fit(monkeypatch, cap, name, replicas):
    """Nine slow GPUs are cheapest; with a cap below nine the answer is three fast ones, not that there is none."""
    slow, fast = make_profile(name="slow", usd_per_gpu_hour=0.1), make_profile(name="fast", usd_per_gpu_hour=10.0)
    asked = problem(profiles=(slow, fast), max_gpus=cap)

    def sizes(case, upper, *, model, aim):
        prices = np.asarray(case.profile.usd_per_hour)
        number = np.array([0.0, 9.0 if prices[1] < 1.0 else 3.0])
        return Rounded(number, np.array([1.0, asked.context]), number, float(number @ prices), -1.0)

    monkeypatch.setattr(searcher, "relax", lambda case, *, model: (np.zeros(1), np.zeros((1, 2))))
    monkeypatch.setattr(searcher, "round_plan", sizes)
    proposal = Search(asked).propose(Correction.none(2))
    assert proposal.design.profile.name == (name,)
    assert proposal.design.replicas.tolist() == [replicas]


def test_every_profile_says_why_it_cannot():
    plan = optim.plan(problem(profiles=(A100, H100), slo=SLO(0.003)), simulate=False)
    assert [reason.kind for reason in plan.reasons] == [Infeasible.PREFILL, Infeasible.PREFILL]
    assert "a100-80gb" in plan.reasons[0].text
    assert "h100-80gb" in plan.reasons[1].text


def test_one_profile_that_can_is_enough():
    """A100 steps take 8 ms, above this objective, so they are no reason while H100s meet it."""
    asked = problem(profiles=(A100, H100), slo=SLO(0.5, 0.007))
    assert infeasible(asked, Search(asked).single) == ()
    alone = problem(profiles=(A100,), slo=SLO(0.5, 0.007))
    (reason,) = infeasible(alone, Search(alone).single)
    assert reason.kind is Infeasible.STEP


def verdict_of(plan_, design, *, slo_met, ttft_s):
    """A verification that finds every pool at one P99 TTFT."""
    estimate = Estimate(value=ttft_s, low=0.99 * ttft_s, high=1.01 * ttft_s, n=10_000, confidence=0.95)
    step = Estimate(value=0.012, low=0.0119, high=0.0121, n=10_000, confidence=0.95)
    pools = tuple(PoolVerdict(estimate, step, False) for _ in range(design.num_pools))
    return dataclasses.replace(plan_.verification, ttft_p99_s=estimate, pools=pools, slo_met=slo_met)


def test_a_no_from_the_simulator_corrects_the_model_and_replans(verified, monkeypatch):
    """Told that every P99 TTFT is half as much again as the objective, the planner asks for a larger fleet."""
    asked = []

    def once_no(design, problem_, **_):
        asked.append(design)
        first = len(asked) == 1
        return verdict_of(verified, design, slo_met=not first, ttft_s=OBJECTIVE.ttft_p99_s * (1.5 if first else 0.9))

    monkeypatch.setattr(planner, "verify", once_no)
    monkeypatch.setattr(planner, "MAX_ROUNDS", 3)
    plan = optim.plan(problem(rate=RATE, slo=OBJECTIVE), seed=0)
    assert len(asked) == len(plan.rounds) >= 2
    assert np.all(plan.rounds[0].correction.ttft == 1.0)
    assert plan.rounds[1].correction.ttft.max() > 1.4
    assert plan.rounds[1].proposal.usd_per_hour > plan.rounds[0].proposal.usd_per_hour
    assert plan.status is PlanStatus.VERIFIED
    assert plan.usd_per_hour == min(r.proposal.usd_per_hour for r in plan.rounds[1:])


def test_no_to_every_candidate_is_a_refusal(verified, monkeypatch):
    def never(design, problem_, **_):
        return verdict_of(verified, design, slo_met=False, ttft_s=10.0)

    monkeypatch.setattr(planner, "verify", never)
    monkeypatch.setattr(planner, "MAX_ROUNDS", 3)
    plan = optim.plan(problem(rate=RATE, slo=OBJECTIVE), seed=0)
    assert plan.status is PlanStatus.REFUSED
    assert not plan.verification.slo_met
    assert plan.design is not None
    seen = [tuple(r.proposal.design.replicas) + tuple(r.proposal.design.upper_tokens) for r in plan.rounds]
    assert len(set(seen)) == len(seen) <= planner.MAX_ROUNDS


def test_rejected_requests_are_counted_and_are_misses():
    asked = problem(max_context=2000.0, rate=50.0)
    share = float(np.asarray(small_workload().weight)[np.asarray(small_workload().total_tokens) > 2000].sum())
    assert asked.rejected_share == pytest.approx(share)
    plan = optim.plan(asked, seed=0)
    assert plan.status is PlanStatus.VERIFIED
    assert float(plan.analytic.rejected_share) == pytest.approx(share, rel=1e-9)
    found = plan.verification
    assert found.rejected / found.requests == pytest.approx(share, rel=0.05)
    assert found.attainment <= 1.0 - 0.9 * share


def test_truncated_requests_are_served_and_noted():
    asked = problem(max_context=2000.0, long_requests="truncate")
    assert asked.rejected_share == 0.0
    assert float(np.max(asked.limited.total_tokens)) == 2000.0
    assert any("truncated to 2000 tokens" in note for note in asked.limited.notes)
    plain = problem(max_context=2000.0)
    design = FleetDesign.of(H100, [2.0], [2000.0])
    served, refused = (des.simulate(design, p.limited, rate=50.0, num_requests=20_000, seed=1) for p in (asked, plain))
    assert served.rejected == 0
    assert refused.rejected / refused.requests == pytest.approx(plain.rejected_share, rel=0.1)


POINT = (np.array([2.0, 4.0]), np.array([700.4, 7900.0]))


@pytest.fixture(scope="module")
def case():
    ((_, found),) = cases(problem(rate=RATE, slo=SLO(OBJECTIVE.ttft_p99_s)), num_pools=2)
    return found


def test_sensitivities_of_the_cost_agree_with_differences(case):
    replicas, upper = (jnp.asarray(v) for v in POINT)
    found = sensitivities(case, case.design(replicas, upper), model="step")

    def cost(rate=RATE, ttft_s=OBJECTIVE.ttft_p99_s):
        moved = eqx.tree_at(lambda c: c.rate, case, jnp.asarray(rate)).with_targets(
            np.full(2, ttft_s), np.full(2, np.inf)
        )
        return 4.02 * sized_designs(moved, np.asarray(upper)[None], model="step").replicas[0].sum()

    assert found.usd_per_hour_per_rps == pytest.approx(slope(lambda x: cost(rate=x), RATE, 1.0), rel=1e-3)
    by_ttft = slope(lambda x: cost(ttft_s=x), OBJECTIVE.ttft_p99_s, 1e-4) / 1e3
    assert by_ttft < 0.0
    assert found.usd_per_hour_per_ttft_ms == pytest.approx(by_ttft, rel=5e-3)
    assert found.usd_per_hour_per_tpot_ms == 0.0


def test_sensitivities_of_the_latency_agree_with_differences(case):
    replicas, upper = POINT
    found = sensitivities(case, case.design(jnp.asarray(replicas), jnp.asarray(upper)), model="step")
    for index in range(2):

        def p99(x, index=index):
            moved = replicas.copy()
            moved[index] = x
            pools = case_metrics(case, jnp.asarray(moved), jnp.asarray(upper), model="step").pools
            return 1e3 * np.array([float(pools.ttft_p99_s[index]), float(pools.tpot_p99_s[index])])

        numeric = slope(p99, replicas[index], 0.01)
        assert found.ttft_p99_ms_per_replica[index] == pytest.approx(numeric[0], rel=2e-3)
        assert found.tpot_p99_ms_per_replica[index] == pytest.approx(numeric[1], rel=2e-3)
        assert numeric[0] < 0.0


def test_sensitivities_of_some_pools():
    found = optim.sensitivity.Sensitivities(1.0, -2.0, 0.0, (-3.0, -4.0, -5.0), (-6.0, -7.0, -8.0))
    assert found.of_pools((2, 0)).ttft_p99_ms_per_replica == (-5.0, -3.0)
    assert found.of_pools((1,)).tpot_p99_ms_per_replica == (-7.0,)


def pools_with(metrics, ttft_s, tpot_s):
    return eqx.tree_at(lambda m: (m.ttft_p99_s, m.tpot_p99_s), metrics.pools, (np.array(ttft_s), np.array(tpot_s)))


def test_a_correction_scales_what_load_adds_to_an_idle_p99(verified):
    """100 ms idle, 200 ms by the model, 300 ms by the simulator: load adds twice what the model says."""
    estimate = Estimate(value=0.3, low=0.29, high=0.31, n=1000, confidence=0.95)
    verdict = dataclasses.replace(
        verified.verification,
        pools=(PoolVerdict(estimate, None, False), PoolVerdict(estimate, estimate, True)),
        slo_met=True,
    )
    idle, model = (pools_with(verified.analytic, v, v) for v in ([0.1, 0.1], [0.2, 0.2]))
    found = Correction.none(3).updated((0, 2), verdict, model, idle)
    assert found.ttft[0] == pytest.approx(2.0)
    assert found.tpot[0] == 1.0  # no request had a TPOT
    assert found.ttft[2] == found.tpot[2] == Correction.LIMITS[1]  # overloaded
    assert found.ttft[1] == found.ttft[2]  # left empty: what the worst pool taught
    ttft, tpot = found.targets(SLO(0.5))
    assert ttft[0] == pytest.approx(0.1 + 0.4 / 2.0)
    assert np.all(ttft > 0.1)
    assert np.all(np.isinf(tpot))
    plain, _ = Correction.none(3).targets(SLO(0.5))
    assert plain.tolist() == [0.5] * 3
    refused = dataclasses.replace(verdict, slo_met=False)
    again = found.updated((0, 2), refused, model, idle)
    assert np.all(again.ttft >= 1.5 * found.ttft * (1 - 1e-12))
    assert np.all(again.between(found).ttft == np.sqrt(again.ttft * found.ttft))


def test_an_interval_across_the_objective_is_a_no():
    """Met means the whole interval of the fleet's P99 lies below; on the edge of it is not met."""
    design = optim.plan(problem(rate=50.0), simulate=False).design
    result = des.simulate(design, small_workload(), rate=50.0, num_requests=20_000, seed=3)
    figure = result.ttft.quantile(0.99)
    pools = max(pool.ttft.quantile(0.99).value for pool in result.pools)
    assert judge(result, SLO(1.001 * max(figure.high, pools))).slo_met
    assert not judge(result, SLO(0.5 * (figure.value + figure.high))).slo_met
    assert not judge(result, SLO(0.5 * figure.value)).slo_met
    step = result.tpot.quantile(0.99)
    assert not judge(result, SLO(10.0, 0.5 * (step.value + step.high))).slo_met


REFUSED = [
    ({"rate": 0.0}, "rate must be > 0 and finite, got 0.0; requests per second"),
    ({"rate": -5.0}, "rate must be > 0 and finite, got -5.0"),
    ({"rate": float("nan")}, "rate must be > 0 and finite, got nan"),
    ({"rate": float("inf")}, "rate must be > 0 and finite, got inf"),
    ({"profiles": ()}, "profiles must be a tuple of one or more profiles"),
    ({"max_pools": 0}, "max_pools must be a whole number from 1 to 6, got 0"),
    ({"max_pools": 7}, "max_pools must be a whole number from 1 to 6, got 7"),
    ({"model": "steps"}, "unknown model 'steps'; did you mean 'step'?"),
    ({"long_requests": "drop"}, "unknown long_requests policy 'drop'"),
    ({"max_context": 1.0}, "max_context must be at least 2 tokens and finite, got 1.0"),
    ({"max_context": float("nan")}, "max_context must be at least 2 tokens and finite, got nan"),
    ({"max_context": 20.0}, "max_context must be >= the shortest request"),
    ({"max_gpus": 0}, "max_gpus must be >= 1, got 0"),
]


@pytest.mark.parametrize(("changes", "text"), REFUSED)
def test_bad_problems_are_refused(changes, text):
    with pytest.raises(ValueError) as error:
        problem(**changes)
    assert text in str(error.value)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), True])
def test_bad_objectives_are_refused(value):
    with pytest.raises(ValueError, match="ttft_p99_s must be > 0 and finite"):
        SLO(value)
    with pytest.raises(ValueError, match="tpot_p99_s must be > 0 and finite"):
        SLO(0.5, value)
