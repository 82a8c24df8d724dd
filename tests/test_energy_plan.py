"""Energy as what a plan is the least of, and as its budget: against every fleet of a grid."""

from dataclasses import replace
from functools import cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleets import make_profile, problem, small_workload

import jaxsim
import optim
from jaxsim.energy import fleet_energy
from jaxsim.evaluate import pool_demand, pool_law
from jaxsim.power import PowerLaw
from optim._compile import program
from optim.binding import Binding
from optim.cases import cases, sized_designs
from optim.diagnose import Infeasible
from optim.plan import PlanStatus
from optim.pool_power import spread
from optim.power_terms import PowerTerms, Prices
from optim.problem import SLO
from optim.search import Search
from optim.sizing import whole_replicas
from optim.verify import Correction

PUE = 1.25
CHEAP = make_profile(name="cheap", gpu="hungry", usd_per_gpu_hour=1.0)
THRIFTY = make_profile(name="thrifty", gpu="thrifty", usd_per_gpu_hour=2.0)
LAWS = {
    "hungry": PowerLaw(250.0, 200.0, 1.0, 3.0),
    "thrifty": PowerLaw(100.0, 150.0, 4.0, 5.0),  # bends upwards: more replicas than necessary draw less
}
RATE = 80.0
CUTS = [200.0, 700.0, 1200.0, 2500.0, 4000.0]
MORE = 5
"""Sizes above the necessary ones that the enumeration looks at."""


def asked(minimize="cost", max_kw=None, **changes):
    terms = PowerTerms(LAWS, Prices(PUE, 0.1, 0.4), minimize, max_kw, changes.pop("per_million", None))
    values = {"rate": RATE, "max_pools": 1, "profiles": (CHEAP, THRIFTY), "slo": SLO(0.4, 0.05), "power": terms}
    return problem(**(values | changes))


@program
def watts(table, profile, law, lower, upper, replicas):
    """Of one pool, by `jaxsim.energy`."""

    def one(low, high, number):
        demand = pool_demand(table, profile, low, high, high, rate=jnp.asarray(RATE))
        stacked = jax.tree.map(lambda v: jnp.asarray(v)[None], pool_law(demand, number))
        return fleet_energy(stacked, law, jnp.ones(1)).watts

    return jax.vmap(one)(lower, upper, replicas)


@cache
def every_fleet(pools=1):
    """Dollars and kilowatts of every feasible fleet of one pool, or of up to two.

    Every threshold that separates two requests, every pair of hardware, and in each pool the necessary replicas or up
    to a few more.
    """
    found = []
    longest = asked().context
    cuts = np.array([longest]) if pools == 1 else np.unique(np.asarray(small_workload().total_tokens))
    upper = np.stack([cuts, np.full(len(cuts), longest)], axis=1)
    for profiles, case in cases(asked(), num_pools=2):
        sized = sized_designs(case, upper, model="step")
        needed, rows = whole_replicas(sized.replicas), np.flatnonzero(sized.feasible)
        more, drawn = np.arange(MORE + 1.0), []
        for pool, one in enumerate(profiles):
            part = jax.tree.map(lambda leaf, pool=pool: leaf[pool], (case.tables.table, case.profile))
            law = jax.tree.map(lambda v: jnp.asarray([v]), LAWS[one.gpu])
            low = np.zeros(len(rows)) if pool == 0 else upper[rows, 0]
            number = needed[rows, pool, None] + more
            columns = [np.repeat(v, len(more)) for v in (low, upper[rows, pool])]
            at = [jnp.asarray(v) for v in (*columns, np.maximum(number, 1.0).ravel())]
            power = np.asarray(watts(*part, law, *at)).reshape(number.shape)
            drawn.append(np.where(needed[rows, pool, None] > 0, power, 0.0) * PUE / 1e3)
        price = np.asarray(case.profile.usd_per_hour)
        for a, b in product(range(MORE + 1), repeat=2):
            both = np.where(needed[rows] > 0, needed[rows] + np.array([a, b]), 0.0)
            found.append((both @ price, drawn[0][:, a] + drawn[1][:, b]))
    return tuple(np.concatenate(column) for column in zip(*found, strict=True))


def proposed(problem_):
    search, start = Search(problem_), Correction.none(problem_.max_pools)
    best = search.propose(start)
    return best, search.certificate(start, best.value)


def test_the_enumeration_has_fleets_where_more_replicas_draw_less():
    """Else the tests below would not see that sizes above the necessary ones are looked at."""
    best, _ = proposed(asked("energy"))
    ((_, case),) = cases(asked(profiles=(THRIFTY,)), num_pools=1)
    assert "thrifty" in best.design.profile.name
    needed = whole_replicas(sized_designs(case, np.array([[asked().context]]), model="step").replicas)
    assert best.design.replicas.sum() > needed.sum()


@pytest.mark.parametrize(
    ("pools", "minimize"),
    [
        (1, "cost"),
        (1, "energy"),
        (1, "cost+electricity"),
        (1, "carbon"),
        pytest.param(2, "energy", marks=pytest.mark.slow),
    ],
)
def test_the_least_is_that_of_every_fleet(pools, minimize):
    best, proof = proposed(asked(minimize, max_pools=pools))
    usd, kw = every_fleet(pools)
    least = {"cost": usd, "energy": kw, "cost+electricity": usd + 0.1 * kw, "carbon": 0.4 * kw}[minimize].min()
    assert best.value == pytest.approx(least, rel=1e-6)
    assert 0.8 * least < proof.lower_bound <= least * (1 + 1e-9)
    assert proof.gap == pytest.approx(1.0 - proof.lower_bound / best.value, abs=1e-12)
    assert proof.minimize == minimize


def test_what_costs_least_and_what_draws_least_are_different_gpus():
    cheap, thrifty = (proposed(asked(minimize))[0] for minimize in ("cost", "energy"))
    assert set(cheap.design.profile.name) == {"cheap"}
    assert set(thrifty.design.profile.name) == {"thrifty"}
    assert thrifty.kilowatts < cheap.kilowatts
    assert thrifty.usd_per_hour > cheap.usd_per_hour


def binding_budgets(pools=1):
    usd, kw = every_fleet(pools)
    free = kw[usd == usd.min()].min()
    return [kw.min() + share * (free - kw.min()) for share in (0.05, 0.3, 0.6, 0.9)]


@pytest.mark.parametrize(("pools", "which"), [(1, 0), (1, 1), (1, 2), pytest.param(2, 2, marks=pytest.mark.slow)])
def test_a_budget_that_binds_is_kept_at_the_least_cost_of_every_fleet(pools, which):
    budget = binding_budgets(pools)[which]
    usd, kw = every_fleet(pools)
    within = usd[kw <= budget].min()
    assert within > usd.min()
    best, proof = proposed(asked(max_kw=budget, max_pools=pools))
    assert best.kilowatts <= budget * (1 + 1e-9)
    assert best.usd_per_hour == pytest.approx(within, rel=1e-9)
    assert proof.lower_bound <= within * (1 + 1e-9)
    assert proof.lower_bound >= 0.6 * within


def test_a_budget_on_the_energy_of_tokens_is_one_on_power():
    budget = binding_budgets()[2]
    load = asked()
    per_million = budget / (load.output_tokens_per_s * 3600.0 / 1e6)
    by_kw, _ = proposed(asked(max_kw=budget))
    by_tokens, _ = proposed(asked(per_million=per_million))
    assert by_tokens.value == by_kw.value
    design = by_kw.design
    metrics = jaxsim.energy.energy(design, load.limited, load.rate, power=load.power.stacked((design.profile.at(0),)))
    assert float(metrics.output_tokens_per_s) == pytest.approx(load.output_tokens_per_s, rel=1e-9)


def test_a_plan_is_verified_by_simulated_power():
    made = optim.plan(asked("energy"), seed=1)
    assert made.status is PlanStatus.VERIFIED
    power = made.power
    assert power.simulated_kilowatts == pytest.approx(float(power.bill.kilowatts), rel=0.02)
    assert float(power.bill.kilowatts) == pytest.approx(made.rounds[-1].proposal.kilowatts, rel=1e-9)
    assert power.nominal_kilowatts == pytest.approx(PUE * 0.25 * made.design.replicas.sum())
    assert power.nominal_kilowatts > power.simulated_kilowatts
    assert made.binding == (Binding.POWER,)


def test_a_simulated_budget_overrun_is_a_no(monkeypatch):
    """Told that fleets draw a twentieth more than the model says, the planner keeps the budget with a dearer one."""
    import sys

    planner = sys.modules["optim.plan"]
    budget = binding_budgets()[2]
    plain = proposed(asked(max_kw=budget))[0]
    honest = planner.simulated_kilowatts
    more = 1.02 * budget / plain.kilowatts
    monkeypatch.setattr(planner, "simulated_kilowatts", lambda *given: float(more * honest(*given)))
    made = optim.plan(asked(max_kw=budget), seed=0)
    assert made.rounds[0].verification.slo_met and not made.rounds[0].met
    assert made.rounds[0].kilowatts > budget
    assert made.rounds[1].correction.power > 1.0
    if made.status is PlanStatus.VERIFIED:
        chosen = next(each for each in made.rounds if each.proposal.design is made.design)
        assert chosen.kilowatts <= budget
    else:
        assert all(not each.met for each in made.rounds)


def test_too_low_a_budget_is_refused_with_the_least_there_is():
    _, kw = every_fleet()
    made = optim.plan(asked(max_kw=0.5 * kw.min()), simulate=False)
    assert made.status is PlanStatus.INFEASIBLE
    (reason,) = made.reasons
    assert reason.kind is Infeasible.POWER
    assert f"the least power found is {kw.min():.4g} kW with a PUE of 1.25" in reason.text
    assert f"above the budget max_kw of {0.5 * kw.min():g} kW" in reason.text


def test_an_objective_out_of_reach_is_not_blamed_on_the_budget():
    made = optim.plan(asked(max_kw=1e-3, slo=SLO(1e-3)), simulate=False)
    assert {reason.kind for reason in made.reasons} == {Infeasible.PREFILL}


def test_a_cap_on_gpus_holds_where_more_replicas_would_draw_less():
    free = proposed(asked("energy"))[0]
    cap = int(free.gpus) - 1
    capped = proposed(asked("energy", max_gpus=cap))[0]
    assert capped.gpus <= cap
    assert capped.kilowatts > free.kilowatts


@cache
def front():
    return optim.pareto(asked(max_kw=binding_budgets()[2]), thresholds=CUTS, axes=("cost", "ttft", "energy"))


def test_a_front_in_three_axes_is_what_nothing_beats():
    """Compared point by point, one axis after the other."""
    found = front()
    assert found.axes == optim.pareto(asked(), thresholds=[1000.0]).axes == ("cost", "ttft", "energy")
    rows = [(p.usd_per_hour, float(p.analytic.ttft_p99_s) * 1e3, p.kilowatts) for p in found.points]
    for k, (point, row) in enumerate(zip(found.points, rows, strict=True)):
        beaten = False
        for j, other in enumerate(rows):
            no_worse = all(theirs <= ours for theirs, ours in zip(other, row, strict=True))
            beaten = beaten or (no_worse and (other != row or j < k))
        assert point.dominated == beaten
    in_two = optim.pareto(asked(), thresholds=CUTS, axes=("cost", "ttft"))
    assert sum(not p.dominated for p in found.points) > sum(not p.dominated for p in in_two.points)


def test_points_of_a_front_draw_what_jaxsim_says_and_the_best_is_recommended():
    found, load = front(), asked()
    for point in found.points[::7]:
        profiles = tuple(point.design.profile.at(p) for p in range(point.design.num_pools))
        power = load.power.stacked(profiles)
        used = jaxsim.energy.energy(point.design, load.limited, load.rate, power=power)
        bill = jaxsim.energy.electricity(used, pue=PUE)
        assert point.kilowatts == pytest.approx(float(bill.kilowatts), rel=1e-9)
        assert point.kwh_per_million_tokens == pytest.approx(float(bill.kwh_per_million_tokens), rel=1e-9)
    good = [p for p in found.points if p.slo_met and p.within_budget and not p.dominated]
    assert any(not p.within_budget for p in found.points)
    assert found.points[found.recommended].usd_per_hour == min(p.usd_per_hour for p in good)
    thrifty = optim.pareto(asked("energy"), thresholds=CUTS)
    met = [p.kilowatts for p in thrifty.points if p.slo_met]
    assert thrifty.points[thrifty.recommended].kilowatts == min(met)


REFUSED = [
    ({"minimize": "watts"}, "unknown minimize 'watts'"),
    ({"max_kw": 0.0}, "max_kw must be > 0 and finite, got 0.0"),
    ({"max_kwh_per_million_tokens": -1.0}, "max_kwh_per_million_tokens must be > 0"),
    ({"prices": Prices(0.9, None, None)}, "pue must be >= 1, got 0.9"),
    ({"minimize": "cost+electricity", "prices": Prices(1.0, None, None)}, "usd_per_kwh must be given to minimize"),
    ({"minimize": "carbon", "prices": Prices(1.0, 0.1, 0.0)}, "kg_co2_per_kwh must be > 0 to minimize 'carbon'"),
]


@pytest.mark.parametrize(("changes", "text"), REFUSED)
def test_bad_terms_are_refused(changes, text):
    with pytest.raises(ValueError) as error:
        PowerTerms(**{"laws": LAWS, "prices": Prices(1.0, 0.1, 0.4), **changes})
    assert text in str(error.value)


def test_problems_that_power_cannot_be_known_of_are_refused():
    terms = asked().power
    with pytest.raises(ValueError, match="unknown power law of GPU 'toy'"):
        asked(profiles=(make_profile(),))
    with pytest.raises(ValueError, match="model must be step beside power, got 'kimura'"):
        asked(model="kimura", slo=SLO(0.4))
    free = {**LAWS, "thrifty": LAWS["thrifty"]._replace(idle_w=0.0)}
    assert problem(profiles=(THRIFTY,), power=replace(terms, laws=free)).aim.powered is False
    with pytest.raises(ValueError, match=r"idle_w must be > 0 for GPU 'thrifty', got 0\.0; if idling is free"):
        problem(profiles=(THRIFTY,), power=replace(terms, laws=free, minimize="energy"))
    with pytest.raises(ValueError, match="unknown axis 'joules'"):
        optim.pareto(asked(), axes=("cost", "joules"))
    with pytest.raises(ValueError, match="axes must be two or more different ones"):
        optim.pareto(asked(), axes=("cost",))
    with pytest.raises(ValueError, match="axes must be without energy"):
        optim.pareto(problem(), axes=("cost", "energy"))


def test_sizes_spread_over_a_range():
    found = spread(np.array([3.0, 3.0, 5.0]), np.array([5.0, 33.0, 5.0]), 4)
    assert found.tolist() == [[3.0, 4.0, 5.0, 5.0], [3.0, 5.0, 11.0, 33.0], [5.0] * 4]
