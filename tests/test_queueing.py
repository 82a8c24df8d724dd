"""The queueing functions: oracles, invariants, edges, and every way to say no. Erlang: `test_erlang.py`."""

import csv
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

from jaxsim import queueing as qu

# name, function, arguments, reference value (closed forms by hand)
TABLE = [
    ("little", qu.little_law_concurrency, (4.0, 2.5), 10.0),
    ("utilization", lambda a, s: qu.utilization(a, s, servers=4), (6.0, 2.0), 0.75),
    ("mm1_response", lambda a, s: qu.mm1_stats(a, s).avg_response_time, (3.0, 5.0), 0.5),
    ("mm1_wait", lambda a, s: qu.mm1_stats(a, s).avg_queue_wait, (3.0, 5.0), 0.3),
    ("mm1_number", lambda a, s: qu.mm1_stats(a, s).avg_in_system, (3.0, 5.0), 1.5),
    ("mm1_queue", lambda a, s: qu.mm1_stats(a, s).avg_queue_length, (3.0, 5.0), 0.9),
    ("mm1_rate", qu.required_mm1_service_rate, (3.0, 0.5), 5.0),
    ("mmc_probability", lambda a, s: qu.erlang_c_wait_probability(a, s, servers=2), (3.0, 3.0), 1.0 / 3.0),
    ("mmc_wait", lambda a, s: qu.mmc_avg_queue_wait(a, s, servers=2), (3.0, 3.0), 1.0 / 9.0),
    (
        "mmc_quantile",
        lambda q, a, s: qu.mmc_wait_quantile(q, a, s, servers=2),
        (0.9, 3.0, 3.0),
        math.log(10.0 / 3.0) / 3.0,
    ),
    ("mg1_wait", lambda a, s, cv: qu.mg1_queue_wait(a, s, service_time_cv=cv), (2.0, 0.25, 2.0), 0.625),
    (
        "mg1_response",
        lambda a, s, cv: qu.mg1_response_time(a, s, service_time_cv=cv),
        (2.0, 0.25, 2.0),
        0.875,
    ),
    (
        "kimura_tail",
        lambda t, c, a, s, v: qu.kimura_wait_tail(t, c, a, s, service_time_cv2=v),
        (0.5, 2.0, 3.0, 3.0, 2.0),
        math.exp(-1.0) / 3.0,
    ),
    (
        "kimura_quantile",
        lambda q, c, a, s, v: qu.kimura_wait_quantile(q, c, a, s, service_time_cv2=v),
        (0.9, 2.0, 3.0, 3.0, 2.0),
        math.log(10.0 / 3.0) / 2.0,
    ),
]
CASES = pytest.mark.parametrize(("function", "arguments", "expected"), [pytest.param(*r[1:], id=r[0]) for r in TABLE])


@CASES
def test_closed_form(function, arguments, expected):
    value = function(*arguments)
    assert value.dtype == jnp.float64
    np.testing.assert_allclose(value, expected, rtol=4e-15)


@CASES
def test_jit_and_vmap(function, arguments, expected):
    columns = [jnp.asarray([x, x]) for x in arguments]
    np.testing.assert_allclose(jax.jit(jax.vmap(function))(*columns), [expected, expected], rtol=4e-15)
    np.testing.assert_allclose(function(columns[0], *arguments[1:]), [expected, expected], rtol=4e-15)


@CASES
def test_gradient(function, arguments, expected):
    check_grads(function, arguments, order=1, modes=("rev",), rtol=1e-5, eps=1e-6)


def oracle_rows(folder, model):
    with (folder / "theory" / "oracles.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == model]
    assert rows
    return rows


def mmc_value(row):
    """The reference table sets E[S] = 1, so the arrival rate is the offered load."""
    c, quantity = float(row["c"]), row["quantity"]
    load = float(row["params"].removeprefix("a=")) if row["params"].startswith("a=") else float(row["rho"]) * c
    if quantity == "ErlangB":
        return qu.erlang_b(c, load)
    if quantity == "ErlangC=P(W>0)":
        return qu.erlang_c_wait_probability(load, 1.0, servers=c)
    if quantity == "EW":
        return qu.mmc_avg_queue_wait(load, 1.0, servers=c)
    return qu.mmc_wait_quantile(float(quantity.removeprefix("W_p")), load, 1.0, servers=c)


def test_mmc_oracles(shared_data):
    for row in oracle_rows(shared_data, "M/M/c"):
        assert abs(mmc_value(row) - float(row["value"])) <= float(row["abs_tol"]), row


def test_continuous_erlang_oracles(shared_data):
    functions = {
        "lnC": qu.log_erlang_c,
        "dlnC_dc": jax.grad(qu.log_erlang_c, argnums=0),
        "dlnC_da": jax.grad(qu.log_erlang_c, argnums=1),
    }
    for row in oracle_rows(shared_data, "continuous Erlang-C"):
        expected = float(row["value"])
        value = functions[row["quantity"]](float(row["c"]), float(row["params"].removeprefix("a=")))
        assert abs(value - expected) <= max(float(row["abs_tol"]), 1e-11 * abs(expected)), row


def test_mg1_oracles(shared_data):
    for row in oracle_rows(shared_data, "M/G/1"):
        value = qu.mg1_queue_wait(float(row["rho"]), 1.0, service_time_cv=math.sqrt(float(row["cv2"])))
        assert abs(value - float(row["value"])) <= float(row["abs_tol"]), row


def test_exact_markov_table(shared_data):
    """Exact M/M/c rows (12 printed digits): probability of waiting, mean and four percentiles."""
    with (shared_data / "theory" / "mgc_exact_table.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["dist"] == "M"]
    assert len(rows) > 20
    c, rho = (np.array([float(row[key]) for row in rows]) for key in ("c", "rho"))

    def column(key):
        return np.array([float(row[key]) for row in rows])

    np.testing.assert_allclose(qu.erlang_c_wait_probability(c * rho, 1.0, servers=c), column("PW"), rtol=1e-10)
    np.testing.assert_allclose(qu.mmc_avg_queue_wait(c * rho, 1.0, servers=c), column("EW"), rtol=1e-10)
    for key, q in (("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999)):
        quantile = qu.mmc_wait_quantile(q, c * rho, 1.0, servers=c)
        np.testing.assert_allclose(quantile, column(key), rtol=1e-10, atol=1e-10)


def test_kimura_is_exact_for_one_server_in_the_mean():
    """At c = 1 the mean C / rate of Kimura's tail is the Pollaczek-Khinchine wait."""
    for cv2 in (0.0, 0.5, 4.0):
        tail = qu.kimura_wait_tail(1.0, 1.0, 0.8, 1.0, service_time_cv2=cv2)
        rate = -np.log(tail / 0.8)
        np.testing.assert_allclose(0.8 / rate, qu.mg1_queue_wait(0.8, 1.0, service_time_cv=math.sqrt(cv2)), rtol=1e-14)


# text, call: one row for every way to say no
REFUSED = [
    ("arrival_rate must be >= 0 and finite, got -1.0", lambda: qu.little_law_concurrency(-1.0, 1.0)),
    ("avg_latency must be >= 0 and finite, got -2.0", lambda: qu.little_law_concurrency(1.0, -2.0)),
    ("avg_latency must be >= 0 and finite, got inf", lambda: qu.little_law_concurrency(1.0, math.inf)),
    ("arrival_rate must be >= 0 and finite, got nan", lambda: qu.utilization(math.nan, 1.0)),
    ("service_rate must be > 0 and finite, got 0.0; it is the rate of one", lambda: qu.utilization(1.0, 0.0)),
    ("servers must be > 0 and finite, got 0; did you pass GPUs", lambda: qu.utilization(1.0, 1.0, servers=0)),
    ("utilization must be < 1, got 1.0; the queue grows", lambda: qu.mm1_stats(2.0, 2.0)),
    ("utilization must be < 1, got 1.5", lambda: qu.mm1_stats(np.array([1.0, 3.0]), 2.0)),
    ("arrival_rate must be >= 0 and finite, got -1", lambda: qu.mm1_stats(-1, 2)),
    ("arrival_rate must be >= 0", lambda: qu.required_mm1_service_rate(-1.0, 1.0)),
    ("target_response_time must be > 0 and finite, got 0.0", lambda: qu.required_mm1_service_rate(1.0, 0.0)),
    ("num_servers must be > 0 and finite, got -3.0; did you pass GPUs", lambda: qu.erlang_b(-3.0, 1.0)),
    ("offered_load must be >= 0 and finite, got -1.0; it is arrival_rate", lambda: qu.erlang_b(3.0, -1.0)),
    ("num_servers must be > 0 and finite, got 0", lambda: qu.erlang_c(0, 1.0)),
    ("num_servers must be > 0 and finite, got nan", lambda: qu.log_erlang_c(math.nan, 1.0)),
    ("offered_load must be >= 0 and finite, got inf", lambda: qu.log_erlang_c(2.0, math.inf)),
    ("utilization must be < 1, got 1.25", lambda: qu.erlang_c_wait_probability(5.0, 2.0, servers=2)),
    ("servers must be > 0", lambda: qu.erlang_c_wait_probability(5.0, 2.0, servers=-2)),
    ("utilization must be < 1, got 1.0", lambda: qu.mmc_avg_queue_wait(4.0, 2.0, servers=2)),
    ("utilization must be < 1, got 2.0", lambda: qu.mmc_wait_quantile(0.9, 8.0, 2.0, servers=2)),
    ("q must be in (0, 1), got 1.0; the 99th", lambda: qu.mmc_wait_quantile(1.0, 1.0, 2.0, servers=2)),
    ("utilization must be < 1, got 1.0", lambda: qu.mg1_queue_wait(2.0, 0.5)),
    ("arrival_rate must be >= 0", lambda: qu.mg1_queue_wait(-2.0, 0.5)),
    (
        "mean_service_time must be > 0 and finite, got 0.0; it is a time",
        lambda: qu.mg1_response_time(2.0, 0.0),
    ),
    ("service_time_cv must be >= 0", lambda: qu.mg1_queue_wait(1.0, 0.5, service_time_cv=-1.0)),
    ("t must be >= 0", lambda: qu.kimura_wait_tail(-1.0, 2.0, 1.0, 1.0, service_time_cv2=1.0)),
    ("num_servers must be > 0", lambda: qu.kimura_wait_tail(1.0, 0.0, 1.0, 1.0, service_time_cv2=1.0)),
    (
        "service_time_cv2 must be >= 0 and finite, got -1.0; it is the squared",
        lambda: qu.kimura_wait_tail(1.0, 2.0, 1.0, 1.0, service_time_cv2=-1.0),
    ),
    (
        "q must be in (0, 1), got 0.0",
        lambda: qu.kimura_wait_quantile(0.0, 2.0, 1.0, 1.0, service_time_cv2=1.0),
    ),
    (
        "q must be in (0, 1), got nan",
        lambda: qu.kimura_wait_quantile(math.nan, 2.0, 1.0, 1.0, service_time_cv2=1.0),
    ),
    ("service_rate must be > 0", lambda: qu.kimura_wait_quantile(0.9, 2.0, 1.0, -1.0, service_time_cv2=1.0)),
    ("wait_slo_s must be >= 0", lambda: qu.min_servers(1.0, 1.0, service_time_cv2=1.0, wait_slo_s=-1.0)),
    ("q must be in (0, 1)", lambda: qu.min_servers(1.0, 1.0, service_time_cv2=1.0, wait_slo_s=1.0, q=99.0)),
    (
        "max_utilization must be in (0, 1], got 1.5",
        lambda: qu.min_servers(1.0, 1.0, service_time_cv2=1.0, wait_slo_s=1.0, max_utilization=1.5),
    ),
]


@pytest.mark.parametrize(("text", "call"), REFUSED, ids=[f"{i}" for i in range(len(REFUSED))])
def test_refusal(text, call):
    with pytest.raises(ValueError) as error:
        call()
    assert text in str(error.value)


# name, function of (arrival rate, service rate, servers), value in overload
WAITS = {
    "mm1": (lambda a, s, c: qu.mm1_stats(a, c * s).avg_in_system, np.inf),
    "probability": (lambda a, s, c: qu.erlang_c_wait_probability(a, s, servers=c), 1.0),
    "mean": (lambda a, s, c: qu.mmc_avg_queue_wait(a, s, servers=c), np.inf),
    "quantile": (lambda a, s, c: qu.mmc_wait_quantile(0.99, a, s, servers=c), np.inf),
    "mg1": (lambda a, s, c: qu.mg1_queue_wait(a, 1.0 / (s * c)), np.inf),
    "mg1_deterministic": (
        lambda a, s, c: qu.mg1_response_time(a, 1.0 / (s * c), service_time_cv=0.0),
        np.inf,
    ),
    "tail": (lambda a, s, c: qu.kimura_wait_tail(0.1, c, a, s, service_time_cv2=2.0), 1.0),
    "tail_at_zero": (lambda a, s, c: qu.kimura_wait_tail(0.0, c, a, s, service_time_cv2=0.0), 1.0),
    "kimura": (lambda a, s, c: qu.kimura_wait_quantile(0.99, c, a, s, service_time_cv2=0.0), np.inf),
}
EDGE_SERVERS, EDGE_FRACTIONS = (
    grid.ravel()
    for grid in np.meshgrid([1e-3, 0.4, 1.0, 2.0, 16.0, 1e6], [0.0, 1e-12, 0.5, 1.0 - 1e-12, 1.0, 2.0, 1e9])
)


@pytest.mark.parametrize("name", WAITS)
def test_traced_edges_and_overload(name):
    """Traced: no NaN in value or gradient; from utilisation 1 on the limit value with gradient 0."""
    function, in_overload = WAITS[name]
    service = jnp.full_like(EDGE_SERVERS, 3.0)
    inputs = (jnp.asarray(EDGE_FRACTIONS * EDGE_SERVERS * 3.0), service, jnp.asarray(EDGE_SERVERS))
    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(function, argnums=(0, 1, 2))))(*inputs)
    overload = EDGE_FRACTIONS >= 1.0
    assert not np.isnan(values).any()
    assert not np.isnan(slopes).any()
    assert (np.asarray(values)[overload] == in_overload).all()
    assert np.isfinite(np.asarray(values)[~overload]).all()
    assert (np.asarray(slopes)[:, overload] == 0.0).all()


def test_kimura_reports_concrete_overload_as_data():
    assert qu.kimura_wait_quantile(0.99, 2.0, 5.0, 1.0, service_time_cv2=1.0) == np.inf
    assert qu.kimura_wait_tail(3.0, 2.0, 5.0, 1.0, service_time_cv2=1.0) == 1.0


def test_gradient_at_no_load_is_the_limit():
    """M/M/1: Wq = lambda / (mu (mu - lambda)), so dWq/dlambda = 1/mu^2 at 0."""
    slope = jax.grad(lambda a: qu.mmc_avg_queue_wait(a, 2.0, servers=1.0))(0.0)
    np.testing.assert_allclose(slope, 0.25, rtol=1e-12)


def test_zero_wait_has_zero_gradient():
    slopes = jax.grad(lambda a, s: qu.mmc_wait_quantile(0.5, a, s, servers=10), argnums=(0, 1))(1.0, 1.0)
    assert qu.mmc_wait_quantile(0.5, 1.0, 1.0, servers=10) == 0.0
    assert [float(slope) for slope in slopes] == [0.0, 0.0]


positive = st.floats(1e-3, 1e3)


@given(
    servers=st.floats(0.1, 1e5),
    service=positive,
    rho=st.floats(1e-3, 0.999),
    cv2=st.floats(0.0, 30.0),
    q=st.floats(1e-3, 0.9999),
)
@settings(max_examples=60, deadline=None)
def test_quantile_inverts_the_tail(servers, service, rho, cv2, q):
    queue = (servers, rho * servers * service, service)
    wait = qu.kimura_wait_quantile(q, *queue, service_time_cv2=cv2)
    tail = float(qu.kimura_wait_tail(wait, *queue, service_time_cv2=cv2))
    if wait > 0:
        assert tail == pytest.approx(1 - q, rel=1e-10)
    else:
        assert tail <= (1 - q) * (1 + 1e-12)


@given(
    servers=st.floats(0.1, 1e5),
    rho=st.floats(0.0, 0.999),
    cv2=st.floats(0.0, 30.0),
    growth=st.floats(1.0, 3.0),
    t=st.floats(0.0, 10.0),
)
@settings(max_examples=60, deadline=None)
def test_monotone(servers, rho, cv2, growth, t):
    """Less load, more servers or less variance never wait longer; a longer time is never more likely."""
    arrival = rho * servers

    def pair(t, servers, arrival, cv2):
        queue = (servers, arrival, 1.0)
        quantile = qu.kimura_wait_quantile(0.99, *queue, service_time_cv2=cv2)
        return np.array([quantile, qu.kimura_wait_tail(t, *queue, service_time_cv2=cv2)])

    here = pair(t, servers, arrival, cv2)
    rounding = 1e-9 * (1.0 + here)
    assert (pair(t, servers, arrival / growth, cv2) <= here + rounding).all()
    assert (pair(t, servers * growth, arrival, cv2) <= here + rounding).all()
    assert (pair(t, servers, arrival, cv2 * growth) >= here - rounding).all()
    assert (pair(t * growth, servers, arrival, cv2) <= here + rounding).all()


@given(arrival=positive, service=positive)
@settings(max_examples=40, deadline=None)
def test_mm1_obeys_little_and_equals_mmc_and_mg1(arrival, service):
    if arrival >= 0.999 * service:
        return
    stats = qu.mm1_stats(arrival, service)
    same = {"rtol": 1e-11}
    np.testing.assert_allclose(stats.avg_in_system, arrival * stats.avg_response_time, **same)
    np.testing.assert_allclose(stats.avg_response_time, stats.avg_queue_wait + 1 / service, **same)
    np.testing.assert_allclose(qu.mmc_avg_queue_wait(arrival, service, servers=1), stats.avg_queue_wait, **same)
    np.testing.assert_allclose(qu.mg1_queue_wait(arrival, 1 / service), stats.avg_queue_wait, **same)
    rate = qu.required_mm1_service_rate(arrival, stats.avg_response_time)
    np.testing.assert_allclose(rate, service, **same)


@given(
    load=st.one_of(st.just(0.0), st.floats(1e-3, 1e6)),
    cv2=st.floats(0.0, 20.0),
    slo=st.floats(0.0, 5.0),
    q=st.sampled_from([0.5, 0.95, 0.99, 0.999]),
    cap=st.sampled_from([0.3, 0.85, 1.0]),
)
@settings(max_examples=60, deadline=None)
def test_min_servers_is_the_fewest(load, cv2, slo, q, cap):
    fewest = qu.min_servers(load, 1.0, service_time_cv2=cv2, wait_slo_s=slo, q=q, max_utilization=cap)
    assert fewest.dtype == jnp.int64

    def meets(c):
        wait = qu.kimura_wait_quantile(q, c, load, 1.0, service_time_cv2=cv2)
        return bool(wait <= slo) and bool(qu.utilization(load, 1.0, servers=c) <= cap)

    assert fewest >= 1
    assert meets(fewest)
    assert fewest == 1 or not meets(fewest - 1)


def test_min_servers_against_counting_up():
    for load, slo in ((0.2, 1.0), (3.0, 0.5), (17.0, 0.01), (60.0, 0.0)):
        counted = next(
            c
            for c in range(1, 200)
            if load < c and qu.kimura_wait_quantile(0.99, c, load, 1.0, service_time_cv2=4.0) <= slo
        )
        assert qu.min_servers(load, 1.0, service_time_cv2=4.0, wait_slo_s=slo) == counted


def test_min_servers_in_batches_and_traced():
    rates = jnp.asarray([0.0, 1e-6, 5.0, 1e5])
    fewest = qu.min_servers(rates, 1.0, service_time_cv2=1.0, wait_slo_s=0.1, max_utilization=0.85)
    assert fewest[0] == fewest[1] == 1
    traced = jax.jit(
        jax.vmap(lambda a: qu.min_servers(a, 1.0, service_time_cv2=1.0, wait_slo_s=0.1, max_utilization=0.85))
    )
    assert (traced(rates) == fewest).all()
    assert traced(jnp.asarray([jnp.nan]))[0] == -1
    assert int(qu.min_servers(3e15, 1.0, service_time_cv2=1.0, wait_slo_s=0.1)) > 3 * 10**15
    assert qu.min_servers(1e17, 1.0, service_time_cv2=1.0, wait_slo_s=0.1) == -1


def test_exports():
    public = {name for name in vars(qu) if name in qu.__all__}
    assert public == set(qu.__all__)
    assert sorted(qu.__all__) == qu.__all__
