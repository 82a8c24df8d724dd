"""sensitivity: every derivative against differences of the relaxation, knobs against the simulator, exact headroom."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleets import make_profile, problem, slope

import des
from jaxsim.fleet import FleetDesign
from jaxsim.workload import Workload
from optim._compile import program
from optim.binding import Binding
from optim.cases import choice_of, sized_designs
from optim.figures import figures, lengths_alone
from optim.headroom import headroom
from optim.knobs import KnobKind, knobs
from optim.plan import Plan, PlanStatus, Round
from optim.plan_load import plan_knobs, plan_load
from optim.problem import SLO
from optim.relax import relax
from optim.search import Certificate, Proposal
from optim.sensitivity import study
from optim.sizing import Targets, whole_replicas
from optim.slopes import COEFFICIENTS, Point, elasticity, p99s, relaxed_cost
from optim.verify import Correction

OBJECTIVES = {"step": SLO(1.0, 0.0145), "kimura": SLO(0.4, 0.05)}
"""In `step`, TPOT sets the size of the first pool and TTFT that of the second."""
TOY = make_profile(overhead_s=0.001)
DEAR = make_profile(base_s=0.008, overhead_s=0.0005, usd_per_gpu_hour=3.0, kv_blocks=4096, name="dear")


def lengths():
    """4,000 requests: enough that the averaged length law has no gaps."""
    rng = np.random.default_rng(3)
    inputs = np.clip(np.floor(rng.lognormal(6.3, 1.1, 4000)), 16, 7000)
    outputs = np.clip(np.floor(rng.lognormal(4.6, 0.9, 4000)), 1, 900)
    return Workload.from_lengths(inputs, outputs, name="many")


def asked(model, **changes):
    values = {"workload": lengths(), "rate": 60.0, "profiles": (TOY, DEAR), "slo": OBJECTIVES[model], "model": model}
    return problem(**{**values, **changes})


def fleet(of, replicas=(3.0, 3.0), cut=1500.0, hardware=(TOY, DEAR)):
    return FleetDesign.of(list(hardware), list(replicas), [cut, of.context])


@pytest.fixture(scope="module", params=[pytest.param("step", marks=pytest.mark.slow), "kimura"])
def model(request):
    return request.param


@pytest.fixture(scope="module")
def found(model):
    of = asked(model)
    return study(of, fleet(of))


@program
def cost_of(point, workload, model, coarse):
    return relaxed_cost(point, workload, model=model, coarse=coarse)


@program
def p99s_of(point, workload, model, coarse):
    return p99s(point, workload, model=model, coarse=coarse)


LEAVES = {
    "rate_rps": lambda point: point.rate,
    "ttft_p99_ms": lambda point: point.ttft_s,
    "tpot_p99_ms": lambda point: point.tpot_s,
    "upper_tokens": lambda point: point.upper_tokens,
    "usd_per_gpu_hour": lambda point: point.profile.usd_per_gpu_hour,
    **{name: (lambda point, name=name: getattr(point.profile, name)) for name in COEFFICIENTS},
}
MS = {"ttft_p99_ms", "tpot_p99_ms"}


def differences(found, one, model, relative):
    """Central differences of cost and P99s in an input: sizes and roots are solved anew at every point."""
    workload = lengths_alone(found.problem.limited)
    point = Point.of(found.design, found.problem, found.targets)
    coarse, at = one.name == "upper_tokens", LEAVES[one.name]
    names = [str(name) for name in found.design.profile.name]
    here = np.array([one.of in ("fleet", f"pool {p}", names[p]) for p in range(2)])
    here = here if np.ndim(at(point)) else np.array(True)
    step = relative * float(np.max(np.where(here, np.asarray(at(point)), 0.0)))

    def moved(by):
        return eqx.tree_at(at, point, jnp.asarray(np.asarray(at(point)) + np.where(here, by, 0.0)))

    cost = slope(lambda by: float(cost_of(moved(by), workload, model, coarse)), 0.0, step)
    figures = slope(lambda by: np.asarray(p99s_of(moved(by), workload, model, coarse)), 0.0, step)
    unit = 1e-3 if one.name in MS else 1.0
    return cost * unit, figures * unit * 1e3


def assert_slopes(found, one, model):
    """At one of three steps: where a kink of the law is nearer than a step, only a shorter one is a derivative."""
    scale, mine = found.relaxed_usd_per_hour / one.value, (one.ttft_p99_ms, one.tpot_p99_ms)
    for relative in (1e-4, 1e-5, 1e-6):
        cost, figures = differences(found, one, model, relative)
        same = one.usd_per_hour == pytest.approx(cost, rel=2e-5, abs=2e-7 * scale)
        if same and np.allclose(mine, figures, rtol=1e-4, atol=1e-4 / one.value):
            return
    assert one.usd_per_hour == pytest.approx(cost, rel=2e-5, abs=2e-7 * scale), one
    np.testing.assert_allclose(mine, figures, rtol=1e-4, atol=1e-4 / one.value, err_msg=str(one))


def test_every_sensitivity_equals_a_difference_of_the_relaxation_at_sizes_found_anew(found, model):
    expected = {"rate_rps", "ttft_p99_ms", "tpot_p99_ms", "usd_per_gpu_hour", "upper_tokens", *COEFFICIENTS}
    assert {one.name for one in found.slopes} == expected
    moved = set()
    for one in found.slopes:
        assert_slopes(found, one, model)
        moved |= {one.name} if one.usd_per_hour else set()
    assert {"rate_rps", "usd_per_gpu_hour", "base_s", "per_token_s", "upper_tokens"} <= moved
    assert moved & {"ttft_p99_ms", "tpot_p99_ms"} or model == "kimura"  # where the cap on utilisation binds


def test_elasticities_are_relative_and_prices_add_up(found):
    cost = found.relaxed_usd_per_hour
    for one in found.slopes:
        assert one.elasticity == pytest.approx(one.usd_per_hour * one.value / cost, rel=1e-12)
        for mine, per_unit, pool in zip(one.ttft_p99_elasticity, one.ttft_p99_ms, found.pools, strict=True):
            assert mine == pytest.approx(per_unit * one.value / (pool.ttft_p99_s * 1e3), rel=1e-12)
    prices = [one.elasticity for one in found.slopes if one.name == "usd_per_gpu_hour"]
    assert sum(prices) == pytest.approx(1.0, rel=1e-12)
    for figure in ("ttft_p99_ms", "tpot_p99_ms"):
        whole, *parts = (one.usd_per_hour for one in found.slopes if one.name == figure)
        assert whole == pytest.approx(sum(parts), abs=1e-15)
        assert whole <= 0


def test_edges_of_an_elasticity():
    assert elasticity(2.0, 0.0, 5.0) == 0.0
    assert elasticity(0.0, np.inf, 5.0) == 0.0
    assert elasticity(-2.0, 3.0, 0.0) == -np.inf


@program
def costs_of(point, workload, cuts, model):
    def one(cut):
        upper = jnp.asarray(point.upper_tokens).at[0].set(cut)
        moved = eqx.tree_at(lambda p: (p.upper_tokens, p.spare_context), point, (upper, jnp.zeros(2)))
        return relaxed_cost(moved, workload, model=model, coarse=True)

    return jax.vmap(one)(cuts)


SMOOTH = {"step": (400.0, SLO(0.4, 0.0135), (TOY, TOY)), "kimura": (60.0, SLO(0.4, 0.05), (TOY, DEAR))}
"""Problems whose relaxed optimum is on no kink: rate, objectives, hardware."""


def optimum(of, hardware, near):
    """The least relaxed cost over the threshold, by looking closer and closer around `near`."""
    targets = Targets(jnp.full(2, of.slo.ttft_p99_s), jnp.full(2, of.slo.tpot_p99_s))
    point, width = Point.of(fleet(of, hardware=hardware), of, targets), 0.1
    for _ in range(6):
        cuts = near * np.exp(np.linspace(-width, width, 41))
        costs = np.asarray(costs_of(point, lengths_alone(of.limited), jnp.asarray(cuts), of.model))
        near, width = cuts[costs.argmin()], width / 8.0
    return float(costs.min())


def test_reoptimised_sensitivities_equal_differences_of_the_whole_relaxation(model):
    """Envelope theorem: thresholds free to move, the optimum moves as at fixed thresholds."""
    rate, slo, hardware = SMOOTH[model]
    of = asked(model, rate=rate, slo=slo)
    found = study(of, fleet(of, hardware=hardware))
    _, uppers = relax(choice_of(of, hardware).case, model=model)
    near = float(uppers[0][0])
    fleet_wide = {one.name: one for one in found.slopes if one.of == "fleet"}

    def difference(change, value):
        ends = [optimum(replace(of, **change(value * factor)), hardware, near) for factor in (1.002, 0.998)]
        return (ends[0] - ends[1]) / (0.004 * value)

    per_rate = difference(lambda rate: {"rate": rate}, of.rate)
    assert fleet_wide["rate_rps"].reoptimized_usd_per_hour == pytest.approx(per_rate, rel=0.01)
    for name, field in (("ttft_p99_ms", "ttft_p99_s"), ("tpot_p99_ms", "tpot_p99_s")):
        value = getattr(of.slo, field)
        slack = difference(lambda v, field=field: {"slo": replace(of.slo, **{field: v})}, value) * 1e-3
        scale = found.relaxed_usd_per_hour / (value * 1e3)
        assert fleet_wide[name].reoptimized_usd_per_hour == pytest.approx(slack, rel=0.03, abs=1e-3 * scale)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["step"], indirect=True)
def test_an_optimum_on_a_kink_has_no_one_slope(found):
    """Here TTFT and TPOT set the size of the first pool together, so the optimum's slope is neither's."""
    fleet_wide = [one for one in found.slopes if one.of == "fleet"]
    assert [one.reoptimized_usd_per_hour for one in fleet_wide] == [None] * 3


@pytest.mark.slow
def test_a_correction_reaches_the_price_of_an_objective():
    """The target moves by less than the objective: the price of the objective is that of the target, divided."""
    of = asked("step", slo=SLO(0.4, 0.05))
    taught = Correction(np.array([2.0, 1.5]), np.ones(2), np.array([0.03, 0.05]), np.zeros(2))
    found = study(of, fleet(of), correction=taught)
    np.testing.assert_allclose(np.asarray(found.targets.ttft_s), [0.03 + 0.37 / 2.0, 0.05 + 0.35 / 1.5])
    workload = lengths_alone(of.limited)
    mine = next(one for one in found.slopes if one.name == "ttft_p99_ms")

    def cost(by):
        targets = Targets(*(jnp.asarray(v) for v in taught.targets(SLO(0.4 + by, 0.05))))
        return float(cost_of(Point.of(found.design, of, targets), workload, "step", False))

    assert mine.usd_per_hour == pytest.approx(slope(cost, 0.0, 1e-5) * 1e-3, rel=1e-5)
    assert mine.usd_per_hour < 0


def whole(design, of, model, rate):
    """Whole replicas of each pool from the sizing, at another rate."""
    changed = replace(of, rate=rate)
    case = choice_of(changed, (TOY, DEAR)).case
    return whole_replicas(sized_designs(case, np.asarray(design.upper_tokens)[None], model=model).replicas)[0]


def test_headroom_is_where_the_sizing_asks_for_one_more(found, model):
    room, design, of = found.headroom, found.design, found.problem
    for p, due in enumerate(room.due_rate):
        below, above = (whole(design, of, model, due * f)[p] for f in (1.0 - 1e-7, 1.0 + 1e-7))
        assert below <= design.replicas[p] < above, p
        assert above == design.replicas[p] + 1
    assert room.fleet_due_rate == min(room.due_rate)
    assert room.spare == pytest.approx(room.fleet_due_rate / of.rate - 1.0)
    assert list(room.required) == whole(design, of, model, of.rate).tolist()


def test_headroom_of_a_fleet_that_is_short_is_below_its_rate(found, model):
    of = replace(found.problem, rate=found.headroom.fleet_due_rate * 1.5)
    point = Point.of(found.design, of, found.targets)
    room = headroom(point, lengths_alone(of.limited), model=model)
    assert room.spare == pytest.approx(1.0 / 1.5 - 1.0, rel=1e-6)
    assert room.required[room.pool] > found.design.replicas[room.pool]


@pytest.mark.slow
def test_what_sets_a_size_is_named():
    loose = asked("step", slo=SLO(5.0, 0.05))
    tpot = study(loose, fleet(loose)).pools[0].tpot_p99_s
    tight = asked("step", slo=SLO(5.0, 0.97 * tpot))
    assert study(tight, fleet(tight)).pools[0].binding is Binding.TPOT_P99
    small = asked("step", rate=1.0)
    assert {pool.binding for pool in study(small, fleet(small, (1.0, 1.0))).pools} == {Binding.ONE_REPLICA}
    reference = asked("kimura")
    assert study(reference, fleet(reference)).pools[0].binding in (Binding.UTILIZATION_CAP, Binding.REFERENCE_MINIMUM)


def test_objectives_out_of_reach_are_said_to_be(model):
    of = asked(model, slo=SLO(0.4, 0.002))
    found = study(of, fleet(of))
    assert not found.feasible
    assert found.headroom is None


def test_knobs_change_what_they_say(found):
    kinds = [knob.kind for knob in found.knobs]
    assert set(kinds) == set(KnobKind)
    assert kinds.count(KnobKind.REPLICAS) == 2
    for knob in found.knobs:
        price = {0: 2.0, 1: 3.0}[knob.pool] if knob.kind is KnobKind.REPLICAS else 0.0
        assert knob.usd_per_hour == pytest.approx(price)
        other = 1 - knob.pool
        if knob.kind is not KnobKind.THRESHOLD:
            assert knob.pool_ttft_p99_ms[other] == 0.0
        if knob.kind is KnobKind.REPLICAS:
            assert knob.pool_ttft_p99_ms[knob.pool] <= 0.0
            assert knob.ttft_p99_ms_per_usd == pytest.approx(-knob.ttft_p99_ms / price, abs=1e-5)
    sold = [knob for knob in found.knobs if knob.for_sale]
    assert list(found.knobs[: len(sold)]) == sold
    met = [knob.ttft_p99_ms_per_usd for knob in sold if knob.slo_met]
    assert met == sorted(met, reverse=True)


def test_the_simulator_confirms_the_order_of_the_knobs():
    """The same requests for every turn: one replica more in either pool, longer and shorter chunks in the second."""
    of = asked("step", slo=SLO(0.4, 0.05))
    design = fleet(of, (2.0, 3.0))
    targets = Targets(jnp.full(2, 0.4), jnp.full(2, 0.05))
    found = knobs(design, lengths_alone(of.limited), of.rate, targets, model="step")
    chosen = [k for k in found if k.kind is KnobKind.REPLICAS or (k.kind is KnobKind.CHUNK and k.pool == 1)]
    assert len(chosen) == 4

    def p99(of_design):
        result = des.simulate(of_design, of.limited, rate=of.rate, num_requests=200_000, seed=5)
        return result.ttft.quantile(0.99).value * 1e3

    before = p99(design)
    changes = [p99(turn(design, knob)) - before for knob in chosen]
    said = f"{[(knob.words, knob.pool, knob.ttft_p99_ms) for knob in chosen]}, simulated {changes}"
    assert np.array_equal(np.argsort(changes), np.argsort([knob.ttft_p99_ms for knob in chosen])), said
    worth = [-change / knob.usd_per_hour for change, knob in zip(changes, chosen, strict=True) if knob.usd_per_hour]
    assert worth == sorted(worth, reverse=True), said


def turn(design, knob):
    """The design after a turn, made here from its words."""
    if knob.kind is KnobKind.REPLICAS:
        return FleetDesign(
            design.profile, design.replicas + np.eye(2)[knob.pool], design.upper_tokens, design.max_context
        )
    values = np.array(design.profile.chunk_tokens)
    values[knob.pool] = float(knob.words.split("-> ")[1].replace(",", ""))
    profile = eqx.tree_at(lambda p: p.chunk_tokens, design.profile, values)
    return FleetDesign(profile, design.replicas, design.upper_tokens, design.max_context)


def planned(found, hardware=(TOY, DEAR)):
    """A plan whose only try is the fleet of a study, among the hardware of a search with a third pool that is empty."""
    of = replace(found.problem, max_pools=3)
    choice = choice_of(of, (hardware[0], hardware[0], hardware[1]))
    case = choice.case.with_targets(*(np.asarray(v)[[0, 0, 1]] for v in vars(found.targets).values()))
    design, pools = found.design, (0, 2)
    padded = case.design(jnp.asarray([3.0, 0.0, 3.0]), jnp.asarray(np.asarray(design.upper_tokens)[[0, 0, 1]]))
    analytic = figures(design, of.limited, of.rate, model=of.model)
    usd = float(design.usd_per_hour)
    proposal = Proposal(choice.profiles, case, padded, pools, design, analytic, usd, usd)
    tried = Round(Correction.none(3), proposal, None, Certificate(usd, 0.0, "none"))
    return Plan(PlanStatus.UNVERIFIED, of, 0, design, analytic, usd, rounds=(tried,))


def test_a_plans_report_has_the_headroom_and_the_knobs_of_its_study(found):
    """Through the search's own programs, with its empty pool."""
    of = planned(found)
    load = plan_load(of)
    assert load.headroom.due_rate == pytest.approx(found.headroom.due_rate, rel=2e-5)
    assert load.headroom.required == found.headroom.required
    assert load.headroom.usd_per_hour == found.headroom.usd_per_hour
    mine = {(k.kind, k.pool, k.words): k for k in plan_knobs(of)}
    all_of_them = [k for k in found.knobs if k.kind in (KnobKind.REPLICAS, KnobKind.THRESHOLD, KnobKind.MAX_NUM_SEQS)]
    assert {(k.kind, k.pool, k.words) for k in all_of_them} == set(mine)
    for knob in all_of_them:
        other = mine[knob.kind, knob.pool, knob.words]
        assert (other.slo_met, other.overloaded) == (knob.slo_met, knob.overloaded), knob.words
        for name in ("usd_per_hour", "ttft_p99_ms", "tpot_p99_ms"):
            assert getattr(other, name) == pytest.approx(getattr(knob, name), rel=1e-6, abs=1e-5), knob.words


def test_a_plans_load_has_its_own_rate_its_knee_and_its_end(found):
    of = planned(found)
    load = plan_load(of)
    assert np.all(np.diff(load.rates) > 0)
    own = load.figures[int(np.flatnonzero(load.rates == of.problem.rate)[0])]
    assert float(own.ttft_p99_s) == pytest.approx(float(of.analytic.ttft_p99_s), rel=1e-9)
    for rate, at in zip(load.rates, load.figures, strict=True):
        assert bool(at.overloaded) == (rate > load.overload_rate)
        pools = at.pools
        waits = float(np.sum(np.asarray(pools.share) * np.asarray(pools.wait_probability)))
        assert (waits <= 0.01) == (rate <= load.knee_rate)
    assert 0 < load.knee_rate <= load.overload_rate
