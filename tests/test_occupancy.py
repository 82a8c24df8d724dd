"""The occupancy of engines against birth-death chains, Erlang's formula, and at the edges of its domain."""

import csv
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleets import assert_finite, assert_no_nan, slope
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln

from jaxsim import queueing
from jaxsim.occupancy import NODE_WEIGHT, PoolLoad, occupancy
from jaxsim.step_sharing.response import averaging
from optim._compile import program


def pool_load(rate, replicas, limit, base_s, kinds):
    """Requests of some kinds (share, steps, work per step in seconds), each of constant work."""
    share, steps, work = jnp.asarray(kinds, dtype=float).T

    def mean(values):
        return (share * values).sum()

    return PoolLoad(
        arrival_rate=jnp.asarray(rate, dtype=float),
        replicas=jnp.asarray(replicas, dtype=float),
        base_s=jnp.asarray(base_s, dtype=float),
        limit=jnp.asarray(limit, dtype=float),
        steps=mean(steps),
        steps2=mean(steps**2),
        work_s=mean(steps * work),
        work2_s2=mean((steps * work) ** 2),
        steps_work_s=mean(steps**2 * work),
        squares_s2=mean(steps * work**2),
    )


solve_load = jax.jit(occupancy)
solve_kinds = jax.jit(lambda *arguments: occupancy(pool_load(*arguments)))


def solve(rate, replicas, limit, base_s, kinds):
    """The state of a pool, one program for each number of kinds."""
    return solve_kinds(*(np.asarray(v, dtype=float) for v in (rate, replicas, limit, base_s, kinds)))


def birth_death(rate, slots, steps, step_of):
    """P(all slots taken) and mean number running of a chain with departure rate n / (steps * step_of(n)).

    Beyond all slots the queue is geometric.
    """
    n = np.arange(1, slots + 1)
    log_weight = np.concatenate([[0.0], np.cumsum(np.log(rate * steps * step_of(n) / n))])
    weight = np.exp(log_weight - log_weight.max())
    load = rate * steps * step_of(slots) / slots
    weight[-1] /= 1.0 - load
    weight /= weight.sum()
    return weight[-1], (weight * np.arange(slots + 1)).sum()


def published_rows(folder):
    with (folder / "theory" / "oracles.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["model"] == "LPS M/M state-dep"]


def test_state_dependent_sharing_equals_the_closed_form(shared_data):
    """Step time 8 + 0.65 n ms, service 1 s at full batch: P(wait) and the mean number running of five engines."""
    rows = published_rows(shared_data)
    assert len(rows) == 15
    for row in rows:
        slots, rho = int(row["c"]), float(row["rho"])
        steps = 1.0 / (0.008 + 0.00065 * slots)
        state = solve(rho * slots, 1.0, slots, 0.008, [(1.0, steps, 0.00065)])
        assert float(state.utilization) == pytest.approx(rho, rel=1e-10)
        ours = {"P(W>0)": state.wait_probability, "E[n_active]": state.mean_active}
        if row["quantity"] in ours:
            assert float(ours[row["quantity"]]) == pytest.approx(float(row["value"]), rel=1e-9), row
        elif float(row["value"]) == 0.0:  # the 99 % quantile of the wait is 0
            assert float(state.wait_probability) <= 0.01


def test_queue_wait_of_exponential_work_equals_the_closed_form(shared_data):
    """M/M with state-dependent sharing: beyond full slots the wait is exponential at the rate left over."""
    for row in published_rows(shared_data):
        if row["quantity"] != "W_p0.99" or float(row["value"]) == 0.0:
            continue
        slots, rho = int(row["c"]), float(row["rho"])
        steps, work = 1.0 / (0.008 + 0.00065 * slots), 0.00065
        load = pool_load(rho * slots, 1.0, slots, 0.008, [(1.0, steps, work)])
        exponential = PoolLoad(
            load.arrival_rate,
            load.replicas,
            load.base_s,
            load.limit,
            load.steps,
            2.0 * load.steps2,
            load.work_s,
            2.0 * load.work2_s2,
            2.0 * load.steps_work_s,
            load.squares_s2,
        )
        state = solve_load(exponential)
        quantile = float(state.wait_scale_s) * math.log(float(state.wait_probability) / 0.01)
        assert quantile == pytest.approx(float(row["value"]), rel=1e-9)


@given(
    slots=st.integers(1, 400),
    rho=st.floats(0.02, 0.99),
    steps=st.floats(1.0, 2000.0),
    base=st.floats(1e-3, 0.1),
    work_share=st.floats(1e-4, 0.99),
)
@settings(max_examples=150, deadline=None)
def test_one_engine_of_equal_work_equals_its_birth_death_chain(slots, rho, steps, base, work_share):
    """Exact whatever the lengths' law, but for the quadrature.

    `work_share` is the share of a full batch's step that is not the base.
    """
    work = base * work_share / (1.0 - work_share) / slots
    rate = rho * slots / (steps * (base + work * slots))
    full, running = birth_death(rate, slots, steps, lambda n: base + work * n)
    state = solve(rate, 1.0, slots, base, [(0.5, 0.5 * steps, work), (0.5, 1.5 * steps, work)])
    assert float(state.wait_probability) == pytest.approx(full, rel=1e-6, abs=1e-14)
    assert float(state.mean_active) == pytest.approx(running, rel=1e-6)


@pytest.mark.parametrize(("slots", "rho"), [(1, 0.5), (8, 0.8), (64, 0.8), (256, 0.95)])
@pytest.mark.parametrize("replicas", [1, 5])
def test_without_work_it_is_erlang_c(slots, rho, replicas):
    """Steps of constant length are independent servers, `slots` in each engine of the pool."""
    servers = slots * replicas
    expected = float(queueing.erlang_c(float(servers), rho * servers))
    state = solve(rho * servers / (100 * 0.01), replicas, slots, 0.01, [(1.0, 100.0, 0.0)])
    assert float(state.wait_probability) == pytest.approx(expected, rel=1e-6)
    assert float(state.mean_active) == pytest.approx(rho * slots, rel=1e-6)
    assert float(state.mean_step_s) == pytest.approx(0.01, rel=1e-9)
    assert_no_nan(state)


def test_a_pool_of_engines_shares_its_slots():
    """Least-loaded dispatch: the pool is one chain over all slots, each engine with its part of the work."""
    full, running = birth_death(90.0, 64, 100.0, lambda n: 0.004 + 3e-5 * n / 4)
    state = solve(90.0, 4.0, 16, 0.004, [(1.0, 100.0, 3e-5)])
    assert float(state.wait_probability) == pytest.approx(full, rel=1e-8)
    assert float(state.mean_active) == pytest.approx(running / 4, rel=1e-8)


CHAT = [(0.7, 80.0, 4e-5), (0.3, 400.0, 2e-4)]
"""Two kinds of requests: 176 steps and 26.24 ms of work on average."""


def chat_utilization(replicas, limit, base_s=0.004):
    return lambda rate: rate / replicas * (176.0 * base_s / limit + (0.7 * 80 * 4e-5 + 0.3 * 400 * 2e-4))


def test_utilization_and_fixed_point_by_hand():
    """Mean step W / (1 - a) without a limit, with a the rate times the mean work."""
    state = solve(10.0, 2.0, 1e6, 0.004, CHAT)
    branching = 5.0 * (0.7 * 80 * 4e-5 + 0.3 * 400 * 2e-4)
    step = 0.004 / (1.0 - branching)
    assert float(state.utilization) == pytest.approx(chat_utilization(2.0, 1e6)(10.0), rel=1e-10)
    assert float(state.mean_active) == pytest.approx(5.0 * 176.0 * step, rel=2e-2)
    nodes = float((state.work_nodes_s * NODE_WEIGHT).sum())
    assert nodes == pytest.approx(float(state.work_mean_s), rel=1e-2)


EDGE_RATES = [0.0, 1e-9, 1.0, 20.0, 28.0, "full", 40.0, 1e6]


@program
def values_and_slopes(rate, replicas, limit, base_s, kinds):
    def flat(*arguments):
        state = occupancy(pool_load(*arguments, kinds))
        return jnp.concatenate([jnp.atleast_1d(leaf) for leaf in jax.tree.leaves(state)])

    arguments = (rate, replicas, limit, base_s)
    return flat(*arguments), jax.jacfwd(flat, argnums=(0, 1, 2, 3))(*arguments)


@pytest.mark.parametrize(
    "kinds",
    [CHAT, [(1.0, 1.0, 0.0), (0.0, 1.0, 0.0)], [(0.5, 300.0, 1e-3), (0.5, 300.0, 1e-3)]],
    ids=["chat", "no work", "equal"],
)
def test_no_nan_in_value_or_gradient_at_the_edges(kinds):
    """No load, utilisation 1, overload; one slot and less; a sliver of an engine."""
    for replicas, limit in [(1.0, 64.0), (1e-3, 64.0), (1.0, 1.0), (1.0, 0.3), (500.0, 256.0)]:
        per_request = sum(p * k * (0.004 / limit + w) for p, k, w in kinds)
        for rate in EDGE_RATES:
            at = replicas / per_request if rate == "full" else rate
            arguments = [jnp.asarray(v, dtype=float) for v in (at, replicas, limit, 0.004, kinds)]
            assert_finite(values_and_slopes(*arguments))


def test_utilization_of_overload_is_reported_as_it_is():
    state = solve(1000.0, 2.0, 64.0, 0.004, CHAT)
    assert float(state.utilization) == pytest.approx(chat_utilization(2.0, 64.0)(1000.0), rel=1e-10)
    assert float(state.utilization) > 10.0


load_strategy = {
    "rate": st.floats(0.01, 60.0),
    "replicas": st.floats(0.5, 40.0),
    "limit": st.floats(1.0, 300.0),
    "steps": st.floats(2.0, 1000.0),
    "spread": st.floats(0.0, 0.99),
    "work": st.floats(0.0, 1e-3),
    "work_spread": st.floats(0.0, 0.99),
}


def solve_spread(rate, replicas, limit, steps, spread, work, work_spread):
    kinds = [
        (0.5, steps * (1.0 - spread), work * (1.0 + work_spread)),
        (0.5, steps * (1.0 + spread), work * (1.0 - work_spread)),
    ]
    return solve(rate, replicas, limit, 0.004, kinds)


@given(**load_strategy)
@settings(max_examples=150, deadline=None)
def test_bounds_hold_everywhere(**values):
    state = solve_spread(**values)
    assert_no_nan(state)
    assert 0.0 <= float(state.wait_probability) <= 1.0
    assert 0.0 <= float(state.mean_active) <= values["limit"] * (1.0 + 1e-9)
    assert 0.004 <= float(state.mean_step_s) <= float(state.full_step_s) * (1.0 + 1e-9)
    assert np.all((np.asarray(state.busy) >= 0.0) & (np.asarray(state.busy) <= 1.0))


@given(**load_strategy, growth=st.floats(1.0, 3.0))
@settings(max_examples=150, deadline=None)
def test_more_replicas_and_less_load_never_wait_more(growth, **values):
    here = float(solve_spread(**values).wait_probability)
    more = float(solve_spread(**{**values, "replicas": values["replicas"] * growth}).wait_probability)
    less = float(solve_spread(**{**values, "rate": values["rate"] / growth}).wait_probability)
    assert more <= here * (1.0 + 1e-6) + 1e-12
    assert less <= here * (1.0 + 1e-6) + 1e-12


@pytest.mark.parametrize("at", [(24.0, 1.3, 30.0), (3.0, 2.0, 16.0), (36.0, 1.1, 200.0)])
def test_gradients_agree_with_differences(at):
    kinds = jnp.asarray(CHAT)

    def value(*arguments):
        return np.asarray(values_and_slopes(*(jnp.asarray(v) for v in (*arguments, 0.004)), kinds)[0])

    slopes = values_and_slopes(*(jnp.asarray(v) for v in (*at, 0.004)), kinds)[1]
    for argument in range(3):

        def moved(x, argument=argument):
            return value(*(x if i == argument else v for i, v in enumerate(at)))

        numeric = slope(moved, at[argument], 1e-4 * at[argument])
        np.testing.assert_allclose(slopes[argument], numeric, rtol=2e-6, atol=1e-9, err_msg=str(argument))


def test_averaging_of_a_window():
    """One step keeps its own spread; over many it shrinks as the mean of a process of correlation time 1."""
    y = np.array([1e-6, 1e-2, 1.0, 30.0, 1e4])
    exact = np.sqrt(2.0 * (y - 1.0 + np.exp(-y))) / y
    np.testing.assert_allclose(averaging(jnp.asarray(y))[1:], exact[1:], rtol=1e-9)
    assert float(averaging(jnp.asarray(0.0))) == 1.0
    assert float(averaging(jnp.asarray(1e8))) == pytest.approx(math.sqrt(2e-8), rel=1e-6)
    slopes = jax.vmap(jax.grad(averaging))(jnp.asarray([0.0, 1e-9, 1e-3, 0.1, 1e6]))
    assert np.all(np.isfinite(slopes))
    assert np.all(np.asarray(slopes) < 0.0)
    below, above = (float(averaging(jnp.asarray(1e-3 * (1.0 + s)))) for s in (-1e-9, 1e-9))
    assert below == pytest.approx(above, abs=1e-7)


def test_negative_binomial_moments_of_the_work():
    """Equal work: the number running is negative binomial, so the work present has its mean, and nearly its variance.

    The model takes the variance seen at the steps; in time it is larger by 1 / order, 2.5 % here.
    """
    steps, work, base, rate = 200.0, 1e-4, 0.004, 30.0
    a = rate * steps * work
    order = base / work + 1.0
    n = np.arange(4000)
    log_p = gammaln(n + order) - gammaln(n + 1) - gammaln(order) + order * math.log1p(-a) + n * math.log(a)
    p = np.exp(log_p)
    mean = (p * n).sum()
    variance = (p * n**2).sum() - mean**2
    state = solve(rate, 1.0, 1e6, base, [(1.0, steps, work)])
    assert float(state.mean_active) == pytest.approx(mean, rel=1e-6)
    assert float(state.work_mean_s) == pytest.approx(work * mean, rel=1e-6)
    assert float(state.work_mean_s) ** 2 / float(state.work_shape) == pytest.approx(work**2 * variance, rel=0.03)
