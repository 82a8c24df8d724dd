"""How many replicas a pool needs: roots of tail constraints, whole numbers, implicit gradients."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleets import MODELS, assert_finite, assert_no_nan, problem, slope
from hypothesis import given, settings
from hypothesis import strategies as st

from optim._compile import program
from optim.cases import cases, margins, sized_designs
from optim.problem import SLO
from optim.sizing import CONSTRAINTS, Targets, whole_replicas

UPPER = np.array([[cut, 7900.0] for cut in (100.0, 400.0, 900.0, 1456.0, 3000.0, 7000.0)])


@functools.cache
def small_case(model, rate=120.0, ttft_s=0.5, tpot_s=0.05, **changes):
    asked = problem(model=model, rate=rate, slo=SLO(ttft_s, tpot_s), **changes)
    ((_, case),) = cases(asked, num_pools=2)
    return case


OBJECTIVES = [(0.5, 0.05), (0.05, 0.05), (0.5, 0.012), (0.05, None)]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("rate", [0.001, 3.0, 300.0, 5000.0])
@pytest.mark.parametrize(("ttft_s", "tpot_s"), OBJECTIVES)
def test_whole_sizes_meet_the_constraints_and_one_less_does_not(model, rate, ttft_s, tpot_s):
    """For one pool the tails fall with every replica, so `ceil` of the root is the fewest."""
    case = small_case(model, rate, ttft_s, tpot_s if model == "step" else None)
    sized = sized_designs(case, UPPER, model=model)
    assert sized.feasible.all() or (ttft_s, model) == (0.05, "step")
    whole = whole_replicas(sized.replicas)
    assert np.all(whole >= (1.0 if model == "step" else 2.0))
    met = margins(case, UPPER, whole, model=model).excess.max(axis=2)
    assert np.all(met[sized.feasible] <= 1e-7)
    fewer = margins(case, UPPER, np.maximum(whole - 1.0, 1e-3), model=model).excess.max(axis=2)
    assert np.all(fewer[sized.feasible] > 0.0)


@pytest.mark.parametrize("model", MODELS)
def test_at_the_real_size_the_binding_constraint_is_just_met(model):
    """P99 equals the objective: the tail is 1 %, or one of the reference model's rules is an equality."""
    case = small_case(model, 900.0)
    sized = sized_designs(case, UPPER, model=model)
    found = margins(case, UPPER, sized.replicas, model=model)
    worst = found.excess.max(axis=2)
    at_capacity = found.utilization > 0.999
    assert np.all((np.abs(worst) < 1e-5) | (at_capacity & (worst <= 1e-5)))
    binding = {CONSTRAINTS[model][i] for i in np.unique(found.excess.argmax(axis=2))}
    assert binding & {"ttft_p99", "utilization_cap", "reference_minimum", "tpot_p99"}


def test_the_rules_of_the_reference_model():
    """One more than the load where that is small, 0.85 of the capacity where it is large."""
    rows = UPPER[2:]
    few, many = (sized_designs(small_case("kimura", rate), rows, model="kimura").replicas for rate in (1.0, 50_000.0))
    load_per_rate = many / 50_000.0 * 0.85
    np.testing.assert_allclose(few, 1.0 + load_per_rate, rtol=1e-5)
    used = margins(small_case("kimura", 50_000.0), rows, many, model="kimura").utilization
    np.testing.assert_allclose(used, 0.85, rtol=1e-6)


def test_unreachable_objectives_are_infeasible_with_the_constraint():
    """No number of replicas shortens a prefill or a step."""
    sized = sized_designs(small_case("step", ttft_s=0.01), UPPER, model="step")
    assert not sized.feasible.any()
    sized = sized_designs(small_case("step", tpot_s=0.003), UPPER, model="step")
    assert not sized.feasible.any()
    sized = sized_designs(small_case("kimura", tpot_s=0.003), UPPER, model="kimura")
    assert not sized.feasible.any()


@pytest.mark.parametrize("model", MODELS)
def test_an_empty_pool_needs_nothing(model):
    case, upper = small_case(model), np.array([[10.0, 7900.0], [7900.0, 7900.0]])
    sized = sized_designs(case, upper, model=model)
    assert sized.feasible.all()
    assert sized.replicas[0, 0] == sized.replicas[1, 1] == 0.0
    price = case.relaxed_usd_per_hour(case.sizes(jnp.asarray(upper[0]), model=model, relaxed=False))
    assert float(price) == pytest.approx(max(sized.replicas[0, 1], 1.0) * 4.02)


@program
def sizes(case, upper, rate, ttft_s, tpot_s, model):
    targets = Targets(jnp.full(2, 1.0) * ttft_s, jnp.full(2, 1.0) * tpot_s)
    moved = eqx.tree_at(lambda c: (c.rate, c.targets), case, (rate, targets))
    return moved.sizes(upper, model=model, relaxed=True).replicas


@program
def size_slopes(case, upper, rate, ttft_s, tpot_s, model):
    def function(upper, rate, ttft_s, tpot_s):
        return sizes.__wrapped__(case, upper, rate, ttft_s, tpot_s, model)

    return jax.jacrev(function, argnums=(0, 1, 2, 3))(upper, rate, ttft_s, tpot_s)


def size_at(case, upper, rate, ttft_s, tpot_s, model):
    return np.asarray(sizes(case, *(jnp.asarray(v, dtype=float) for v in (upper, rate, ttft_s, tpot_s)), model))


def slopes_at(case, upper, rate, ttft_s, tpot_s, model):
    return size_slopes(case, *(jnp.asarray(v, dtype=float) for v in (upper, rate, ttft_s, tpot_s)), model)


POINTS = [  # threshold (inside a token), rate, objectives: TTFT binds, TPOT binds, both far
    (1455.6, 900.0, 0.09, 1.0),
    (1455.6, 900.0, 0.5, 0.011),
    (1455.6, 900.0, 5.0, 1.0),
]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("point", POINTS)
def test_gradients_agree_with_differences(model, point):
    """Of required replicas in the threshold, the rate and both objectives, by the implicit function theorem."""
    cut, *rest = point
    if model == "kimura":
        rest[2] = np.inf
    case = small_case(model)
    by_upper, by_rate, by_ttft, by_tpot = slopes_at(case, (cut, 7900.0), *rest, model)
    numeric = slope(lambda x: size_at(case, (x, 7900.0), *rest, model), cut, 0.02)
    np.testing.assert_allclose(by_upper[:, 0], numeric, rtol=1e-3, atol=1e-6)
    numeric = slope(lambda x: size_at(case, (cut, 7900.0), x, *rest[1:], model), rest[0], 1.0)
    np.testing.assert_allclose(by_rate, numeric, rtol=1e-3, atol=1e-7)
    numeric = slope(lambda x: size_at(case, (cut, 7900.0), rest[0], x, rest[2], model), rest[1], 2e-3 * rest[1])
    np.testing.assert_allclose(by_ttft, numeric, rtol=2e-3, atol=1e-4)
    if np.isfinite(rest[2]):
        numeric = slope(lambda x: size_at(case, (cut, 7900.0), *rest[:2], x, model), rest[2], 2e-4 * rest[2])
        np.testing.assert_allclose(by_tpot, numeric, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_gradients_are_finite_at_the_edges(model):
    """Empty pools, hardly any load, an objective out of reach or without bound, a threshold on a length."""
    case = small_case(model)
    for upper in ((10.0, 7900.0), (1456.0, 7900.0), (7900.0, 7900.0)):
        for rate in (1e-9, 50.0, 1e5):
            for ttft_s, tpot_s in ((0.5, np.inf), (1e-4, 1e-4), (1e4, 1e4)):
                assert_finite(slopes_at(case, upper, rate, ttft_s, tpot_s, model))


@given(
    cut=st.floats(30.0, 8000.0),
    rate=st.floats(1e-3, 5000.0),
    ttft_s=st.floats(0.01, 10.0),
    growth=st.floats(1.0, 2.0),
)
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("model", MODELS)
def test_more_load_and_less_time_need_more(model, cut, rate, ttft_s, growth):
    case = small_case(model)
    here = size_at(case, (cut, 8000.0), rate, ttft_s, np.inf, model)
    assert_no_nan(here)
    assert np.all(here >= 0.0)
    assert np.all(size_at(case, (cut, 8000.0), rate * growth, ttft_s, np.inf, model) >= here * (1 - 1e-4) - 1e-4)
    assert np.all(size_at(case, (cut, 8000.0), rate, ttft_s / growth, np.inf, model) >= here * (1 - 1e-4) - 1e-4)


def test_rounding_up_forgives_rounding_errors_only():
    found = whole_replicas(np.array([0.0, 2.0, 2.0 + 1e-9, 2.0 + 1e-7, 2.5, 1.0 - 1e-12]))
    assert found.tolist() == [0.0, 2.0, 2.0, 3.0, 3.0, 1.0]
