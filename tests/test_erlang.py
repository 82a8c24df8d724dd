"""Erlang B and C for real servers: values and gradients against 40-digit references, edges, invariants."""

import functools
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

from jaxsim import queueing

REFERENCE = np.genfromtxt(
    Path(__file__).parent / "data" / "erlang_reference.csv", delimiter=",", names=True, dtype=np.float64
)
SERVERS, LOADS = REFERENCE["num_servers"], REFERENCE["offered_load"]
FUNCTIONS = {
    "erlang_b": queueing.erlang_b,
    "erlang_c": queueing.erlang_c,
    "log_erlang_c": queueing.log_erlang_c,
}


GRADIENTS = {function: jax.jit(jax.grad(function, argnums=(0, 1))) for function in FUNCTIONS.values()}


@functools.cache
def computed(name):
    """Value and both slopes of one function over the whole reference table."""
    both = jax.jit(jax.vmap(jax.value_and_grad(FUNCTIONS[name], argnums=(0, 1))))
    value, slopes = both(jnp.asarray(SERVERS), jnp.asarray(LOADS))
    return np.asarray(value), *(np.asarray(slope) for slope in slopes)


def relative_error(value, reference):
    value, reference = np.asarray(value), np.asarray(reference)
    return np.where(value == reference, 0.0, np.abs(value - reference) / np.maximum(np.abs(reference), 1e-300))


def reference_of(name, selected):
    """Value and slopes of one function from the table, which lists logarithms."""
    log_name = "log_erlang_b" if name == "erlang_b" else "log_erlang_c"
    log_value, by_c, by_a = (REFERENCE[column][selected] for column in (log_name, f"{log_name}_dc", f"{log_name}_da"))
    if name == "log_erlang_c":
        return log_value, by_c, by_a
    value = np.exp(log_value)
    return value, value * by_c, value * by_a


# name, part of the table, tolerance of the value and of both slopes (relative; the value's to max(1, |ln|))
ACCURACY = [
    ("log_erlang_c", (SERVERS >= 1) & (LOADS < SERVERS), 4e-15, 6e-15),
    ("log_erlang_c", (SERVERS < 1) & (LOADS < SERVERS), 1e-15, 2e-13),
    ("erlang_c", (SERVERS >= 1) & (LOADS < SERVERS), 4e-15, 6e-15),
    ("erlang_b", (SERVERS >= 1) & (LOADS < SERVERS), 4e-15, 1e-14),
    ("erlang_b", (SERVERS >= 1) & (LOADS >= SERVERS), 1e-14, 4e-14),
    ("erlang_b", SERVERS < 1, 4e-14, 2e-12),
]


@pytest.mark.parametrize(("name", "part", "value_tolerance", "slope_tolerance"), ACCURACY)
def test_accuracy_against_40_digits(name, part, value_tolerance, slope_tolerance):
    value, *slopes = reference_of(name, part)
    # exp(-600) and below: an exponential of a rounded logarithm is no reference, and underflow follows.
    logarithm = value if name == "log_erlang_c" else np.log(np.maximum(value, 1e-300))
    kept = np.ones_like(value, dtype=bool) if name == "log_erlang_c" else value > 1e-260
    scale = np.maximum(1.0, np.abs(logarithm))
    value_found, *slopes_found = (array[part] for array in computed(name))
    unit = scale if name == "log_erlang_c" else value * scale
    assert np.max((np.abs(value_found - value) / np.where(kept, unit, 1.0))[kept]) <= value_tolerance
    for found, slope in zip(slopes_found, slopes, strict=True):
        error = relative_error(found, slope) / (1.0 if name == "log_erlang_c" else scale)
        assert np.max(error[kept]) <= slope_tolerance


def test_table_covers_the_claimed_domain():
    inside = (SERVERS >= 1) & (LOADS < SERVERS)
    assert inside.sum() > 500
    assert SERVERS[inside].max() == 1e6
    assert {np.nextafter(16.0, 0.0), 16.0} <= set(SERVERS)
    assert (LOADS / SERVERS)[inside].min() < 1.1e-6
    assert 1 - (LOADS / SERVERS)[inside].max() < 1.1e-9


def test_switch_of_method_leaves_no_step():
    below, at = np.nextafter(16.0, 0.0), 16.0
    loads = 16.0 * np.array([1e-3, 0.3, 0.8, 0.99, 1.0 - 1e-9])
    for function in FUNCTIONS.values():
        np.testing.assert_allclose(function(below, loads), function(at, loads), rtol=2e-14, atol=2e-15)


def test_integer_recursion():
    """Erlang's own recursion 1/B(c) = 1 + (c/a) / B(c - 1), from one server up."""
    loads = np.array([0.3, 2.0, 9.5, 40.0, 130.0])
    reciprocal = np.ones_like(loads)
    for c in range(1, 120):
        reciprocal = 1.0 + c / loads * reciprocal
        np.testing.assert_allclose(queueing.erlang_b(c, loads), 1.0 / reciprocal, rtol=3e-13)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_agree_with_differences(name):
    servers = np.array([0.3, 1.0, 7.5, 15.99, 16.01, 300.0])[:, None] * np.ones(3)
    loads = servers * np.array([0.4, 0.9, 0.98])
    check_grads(jax.jit(FUNCTIONS[name]), (servers, loads), order=1, modes=("fwd", "rev"), rtol=1e-5, eps=1e-5)


def test_second_derivatives_exist():
    """The slopes are differentiable formulas themselves: needed by second-order optimisers."""
    slope = GRADIENTS[queueing.log_erlang_c]
    for servers, load in ((20.0, 15.0), (5.0, 3.0), (20.0, 20.0)):
        found = np.array(jax.jvp(slope, (servers, load), (1.0, 0.0))[1])
        if load < servers:
            above, below = (slope(servers + step, load) for step in (1e-5, -1e-5))
            np.testing.assert_allclose(found, (np.array(above) - np.array(below)) / 2e-5, rtol=1e-6)
        assert np.isfinite(found).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_broadcasting_and_dtypes(name):
    function = FUNCTIONS[name]
    servers, loads = np.array([0.5, 3.0, 17.0, 1e4]), np.array([0.2, 2.0, 16.0])
    table = function(servers[:, None], jnp.asarray(loads)[None, :])
    assert table.dtype == jnp.float64
    one_by_one = [[float(function(c, a)) for a in loads] for c in servers]
    np.testing.assert_allclose(table, one_by_one, rtol=1e-13)
    for three, two in ((3, 2), (np.int32(3), np.float32(2.0)), (jnp.asarray(3), jnp.float32(2.0))):
        assert function(three, two) == function(3.0, 2.0)
        assert function(three, two).dtype == jnp.float64


def test_one_compilation_for_all_values():
    traced = eqx.filter_jit(eqx.debug.assert_max_traces(queueing.log_erlang_c, max_traces=1))
    for servers in (0.5, 2.0, 16.0, 1e5):
        traced(jnp.asarray(servers), jnp.asarray(0.9 * servers))


# name, servers, load, value, slope by servers, slope by load (None: finite is enough)
EDGES = [
    ("erlang_b", 1.0, 0.0, 0.0, None, 1.0),
    ("erlang_b", 3.0, 0.0, 0.0, 0.0, 0.0),
    ("erlang_b", 0.5, 0.0, 0.0, None, None),
    ("erlang_c", 1.0, 0.0, 0.0, None, 1.0),
    ("erlang_c", 3.0, 0.0, 0.0, 0.0, 0.0),
    ("erlang_c", 0.5, 0.0, 0.0, None, None),
    ("erlang_c", 4.0, 4.0, 1.0, None, None),
    ("erlang_c", 4.0, 5.0, 1.0, 0.0, 0.0),
    ("log_erlang_c", 1.0, 0.0, -np.inf, None, None),
    ("log_erlang_c", 40.0, 0.0, -np.inf, None, None),
    ("log_erlang_c", 1.0, 1.0, 0.0, -1.0, 1.0),
    ("log_erlang_c", 40.0, 80.0, 0.0, 0.0, 0.0),
]


@pytest.mark.parametrize(("name", "servers", "load", "value", "by_c", "by_a"), EDGES)
def test_value_and_gradient_at_the_edge(name, servers, load, value, by_c, by_a):
    function = FUNCTIONS[name]
    np.testing.assert_allclose(function(servers, load), value, rtol=1e-15)
    slopes = jax.grad(function, argnums=(0, 1))(servers, load)
    for slope, expected in zip(slopes, (by_c, by_a), strict=True):
        assert np.isfinite(slope)
        if expected is not None:
            np.testing.assert_allclose(slope, expected, rtol=1e-12)


servers_drawn = st.one_of(st.floats(1e-3, 1e7), st.floats(-3.0, 7.0).map(lambda x: min(max(10.0**x, 1e-3), 1e7)))
fractions = st.one_of(st.floats(0.0, 2.0), st.floats(-12.0, -1.0).map(lambda x: 1.0 - 10.0**x))


@given(servers=servers_drawn, fraction=fractions)
@example(servers=1e-3, fraction=0.0)
@example(servers=1e-3, fraction=2.0)
@example(servers=1e7, fraction=0.0)
@example(servers=1e7, fraction=1.0)
@example(servers=1e7, fraction=2.0)
@example(servers=16.0, fraction=1.0)
@example(servers=5.0, fraction=5e-324)
@settings(max_examples=80, deadline=None)
def test_no_nan_and_the_bounds_hold(servers, fraction):
    load = servers * fraction
    for function in FUNCTIONS.values():
        assert not np.isnan(function(servers, load))
        by_c, by_a = GRADIENTS[function](servers, load)
        assert not np.isnan(by_c)
        assert not np.isnan(by_a)
        assert by_c <= 0.0
        assert by_a >= 0.0
    loss, delay = float(queueing.erlang_b(servers, load)), float(queueing.erlang_c(servers, load))
    assert 0.0 <= loss <= delay * (1 + 1e-12) <= 1.0 + 1e-12


@given(servers=servers_drawn, fraction=st.floats(0.0, 2.0), growth=st.floats(1.001, 3.0))
@settings(max_examples=60, deadline=None)
def test_more_load_waits_more_and_more_servers_wait_less(servers, fraction, growth):
    load = servers * fraction
    for function in FUNCTIONS.values():
        here = float(function(servers, load))
        slack = 1e-12 * max(1.0, abs(here)) if np.isfinite(here) else 0.0
        assert function(servers, load * growth) >= here - slack
        assert function(servers * growth, load) <= here + slack


def test_infinite_gradients_do_not_leak_through_the_chain_rule():
    """At no arrivals the load is 0 and so is its slope by the service rate: 0 times huge stays 0."""
    slope = jax.grad(lambda service_rate: queueing.log_erlang_c(3.0, 0.0 / service_rate))(2.0)
    assert slope == 0.0
