r"""Queueing formulas, differentiable and for a real number of servers.

Rates are in 1/s, times in s, ``service_rate`` is the rate of ONE server. Every function broadcasts its
arguments, works under `jax.jit`, `jax.vmap` and `jax.grad`, and computes in float64.

Two ways to say no. Concrete bad input raises `ValueError`, and so does overload where the formula itself
demands utilisation < 1 (M/M/1, M/M/c, M/G/1). Under tracing nothing can be raised: overload then gives an
infinite wait or probability 1, with gradient 0. No gradient is NaN anywhere in the domain, edges included.
Erlang's and Kimura's functions treat overload as data in both cases.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from jaxsim import _erlang
from jaxsim._checks import require, require_non_negative, require_positive, require_x64

__all__ = [
    "MM1Stats",
    "erlang_b",
    "erlang_c",
    "erlang_c_wait_probability",
    "kimura_wait_quantile",
    "kimura_wait_tail",
    "little_law_concurrency",
    "log_erlang_c",
    "mg1_queue_wait",
    "mg1_response_time",
    "min_servers",
    "mm1_stats",
    "mmc_avg_queue_wait",
    "mmc_wait_quantile",
    "required_mm1_service_rate",
    "utilization",
]

Real = Float[Array, "..."]
Whole = Int[Array, "..."]

_SERVERS_HINT = "did you pass GPUs instead of KV slots?"
_OVERLOAD_HINT = "the queue grows without bound; add servers, or serve faster"
_MAX_DOUBLINGS = 52  # integers stay exact in float64


class MM1Stats(NamedTuple):
    """Steady state of an M/M/1 queue: times in s, numbers of requests."""

    utilization: Real
    avg_response_time: Real
    avg_queue_wait: Real
    avg_in_system: Real
    avg_queue_length: Real


class _WaitLaw(NamedTuple):
    """Kimura's wait: P(W > t) = C(num_servers, load) exp(-rate t) where `stable`."""

    num_servers: Real
    load: Real
    rate: Real
    stable: Array


def _floats(*values: ArrayLike) -> list[Array]:
    require_x64()
    return jnp.broadcast_arrays(*(jnp.asarray(value, jnp.float64) for value in values))


def _check_queue(arrival_rate: ArrayLike, service_rate: ArrayLike, num_servers: ArrayLike, name: str) -> None:
    require_non_negative("arrival_rate", arrival_rate)
    require_positive("service_rate", service_rate, "it is the rate of one server, in 1/s")
    require_positive(name, num_servers, _SERVERS_HINT)


def _check_stable(utilization: Array) -> None:
    require(utilization < 1.0, "utilization", utilization, "< 1", _OVERLOAD_HINT)


def _check_probability(q: ArrayLike) -> None:
    (level,) = _floats(q)
    require((level > 0.0) & (level < 1.0), "q", q, "in (0, 1)", "the 99th percentile is q = 0.99")


def _infinite_unless(stable: Array, value: Array) -> Array:
    return jnp.where(stable, value, jnp.inf)


def _wait_law(num_servers: Array, arrival_rate: Array, service_rate: Array, cv2: Array) -> _WaitLaw:
    slack = num_servers * service_rate - arrival_rate
    stable = slack > 0.0
    # In overload every quantity is a harmless constant, so that its gradient is 0 and not 0 times inf.
    load = jnp.where(stable, arrival_rate, num_servers) / jnp.where(stable, service_rate, 1.0)
    return _WaitLaw(num_servers, load, 2.0 * jnp.where(stable, slack, 1.0) / (1.0 + cv2), stable)


def _wait_quantile(q: Array, law: _WaitLaw) -> Array:
    excess = _erlang.log_erlang_c(law.num_servers, law.load) - jnp.log1p(-q)
    return _infinite_unless(law.stable, jnp.maximum(excess, 0.0) / law.rate)


def little_law_concurrency(arrival_rate: ArrayLike, avg_latency: ArrayLike) -> Real:
    r"""Average number of requests in a system, :math:`L = \lambda W` (Little 1961).

    Args:
        arrival_rate: requests per second, >= 0.
        avg_latency: average time in the system in s, >= 0.

    Raises:
        ValueError: an argument is negative or not finite.
    """
    require_non_negative("arrival_rate", arrival_rate)
    require_non_negative("avg_latency", avg_latency)
    rate, latency = _floats(arrival_rate, avg_latency)
    return rate * latency


def utilization(arrival_rate: ArrayLike, service_rate: ArrayLike, *, servers: ArrayLike = 1) -> Real:
    r"""Offered load over capacity, :math:`\rho = \lambda / (c \mu)`; 1 or more is overload, not an error.

    Args:
        arrival_rate: requests per second, >= 0.
        service_rate: requests per second that one server completes, > 0.
        servers: number of servers c, real, > 0.

    Raises:
        ValueError: an argument is outside its domain.
    """
    _check_queue(arrival_rate, service_rate, servers, "servers")
    arrival, service, c = _floats(arrival_rate, service_rate, servers)
    return arrival / (c * service)


def mm1_stats(arrival_rate: ArrayLike, service_rate: ArrayLike) -> MM1Stats:
    r"""Averages of the M/M/1 queue: :math:`W = 1/(\mu-\lambda)`, :math:`W_q = \rho W`, :math:`L = \lambda W`.

    Traced overload gives inf in every field but the utilisation, with gradient 0.

    Args:
        arrival_rate: requests per second, >= 0.
        service_rate: requests per second that the server completes, > arrival_rate.

    Raises:
        ValueError: an argument is outside its domain, or utilisation >= 1.
    """
    rho = utilization(arrival_rate, service_rate)
    _check_stable(rho)
    arrival, service = _floats(arrival_rate, service_rate)
    stable = arrival < service
    response = 1.0 / jnp.where(stable, service - arrival, 1.0)
    wait = rho * response
    averages = (response, wait, arrival * response, arrival * wait)
    return MM1Stats(rho, *(_infinite_unless(stable, value) for value in averages))


def required_mm1_service_rate(arrival_rate: ArrayLike, target_response_time: ArrayLike) -> Real:
    r"""Service rate at which an M/M/1 queue meets an average response time, :math:`\lambda + 1/W`.

    Args:
        arrival_rate: requests per second, >= 0.
        target_response_time: average time in the system in s, > 0.

    Raises:
        ValueError: an argument is outside its domain.
    """
    require_non_negative("arrival_rate", arrival_rate)
    require_positive("target_response_time", target_response_time)
    arrival, target = _floats(arrival_rate, target_response_time)
    return arrival + 1.0 / target


def _check_erlang(num_servers: ArrayLike, offered_load: ArrayLike) -> list[Array]:
    require_positive("num_servers", num_servers, _SERVERS_HINT)
    require_non_negative("offered_load", offered_load, "it is arrival_rate / service_rate")
    return _floats(num_servers, offered_load)


def erlang_b(num_servers: ArrayLike, offered_load: ArrayLike) -> Real:
    r"""Erlang's loss formula for a real number of servers.

    .. math:: 1/B(c, a) = \int_0^\infty e^{-y} (1 + y/a)^c \, dy

    Edges: 0 at load 0; any overload is in the domain. Gradient :math:`dB/da = B (c/a - 1 + B)`; at load 0
    the gradients are those at a load of 1e-200 (1 for one server, 0 for more).

    Args:
        num_servers: c, real, > 0.
        offered_load: a = arrival rate / service rate, in Erlang, >= 0.

    Raises:
        ValueError: an argument is outside its domain.

    Accuracy against 40-digit references, c from 1 to 1e6 and a/c from 1e-6 to 10, relative:
    5e-15 max(1, |ln B|), both gradients 2e-14 (from 0.001 server on: 2e-14 and 1e-12).

    Source: Erlang 1917; Jagerman 1974 for real c; the method is in `jaxsim._erlang`.
    """
    return _erlang.erlang_b(*_check_erlang(num_servers, offered_load))


def erlang_c(num_servers: ArrayLike, offered_load: ArrayLike) -> Real:
    r"""Probability that a request has to wait in an M/M/c queue, for a real number of servers.

    .. math:: 1/C(c, a) = \rho + (1 - \rho) / B(c, a), \qquad \rho = a/c

    Edges: 0 at load 0; 1 in overload, where the gradient is 0; at a = c the gradient from below.

    Args:
        num_servers: c, real, > 0.
        offered_load: a = arrival rate / service rate, in Erlang, >= 0.

    Raises:
        ValueError: an argument is outside its domain.

    Accuracy and source as `log_erlang_c`; the relative error grows with the size of the logarithm.
    """
    return _erlang.erlang_c(*_check_erlang(num_servers, offered_load))


def log_erlang_c(num_servers: ArrayLike, offered_load: ArrayLike) -> Real:
    r"""Logarithm of Erlang's delay formula, :math:`\ln C(c, a)`; it does not underflow.

    With r = 1/B: :math:`\ln C = -\ln[1 + (1-\rho)(r - 1)]`, and its gradients are sums of terms of one sign:

    .. math::
        \frac{\partial \ln C}{\partial a} = \frac{C (r-1)}{c} + \frac{c - a}{a}, \qquad
        \frac{\partial \ln C}{\partial c} = -C \left[\frac{\rho (r-1)}{c} + (1-\rho) \frac{dr}{dc}\right].

    Edges: -inf at load 0 (gradients there are those at a load of 1e-200, huge but finite); 0 in overload,
    where the gradient is 0; at a = c the gradient from below.

    Args:
        num_servers: c, real, > 0.
        offered_load: a = arrival rate / service rate, in Erlang, >= 0.

    Raises:
        ValueError: an argument is outside its domain.

    Accuracy against 40-digit references, c from 1 to 1e6 and a/c from 1e-6 to 1 - 1e-9: 2e-15 max(1, |ln C|),
    both gradients 2e-15 relative (from 0.001 server on: 6e-14).

    Source: Erlang 1917; Temme 1979; the method is in `jaxsim._erlang`.
    """
    return _erlang.log_erlang_c(*_check_erlang(num_servers, offered_load))


def erlang_c_wait_probability(arrival_rate: ArrayLike, service_rate: ArrayLike, *, servers: ArrayLike) -> Real:
    r"""Probability of waiting in an M/M/c queue, :math:`C(c, \lambda/\mu)`.

    Traced overload gives 1, with gradient 0.

    Args:
        arrival_rate: requests per second, >= 0.
        service_rate: requests per second that one server completes, > 0.
        servers: number of servers c, real, > 0.

    Raises:
        ValueError: an argument is outside its domain, or utilisation >= 1.
    """
    _check_stable(utilization(arrival_rate, service_rate, servers=servers))
    return kimura_wait_tail(0.0, servers, arrival_rate, service_rate, service_time_cv2=1.0)


def mmc_avg_queue_wait(arrival_rate: ArrayLike, service_rate: ArrayLike, *, servers: ArrayLike) -> Real:
    r"""Average wait in an M/M/c queue in s, :math:`W_q = C(c, \lambda/\mu) / (c\mu - \lambda)`.

    Args and errors as `erlang_c_wait_probability`; traced overload gives inf, with gradient 0.
    """
    _check_stable(utilization(arrival_rate, service_rate, servers=servers))
    arrival, service, c, one = _floats(arrival_rate, service_rate, servers, 1.0)
    law = _wait_law(c, arrival, service, one)
    return _infinite_unless(law.stable, _erlang.erlang_c(law.num_servers, law.load) / law.rate)


def mmc_wait_quantile(q: ArrayLike, arrival_rate: ArrayLike, service_rate: ArrayLike, *, servers: ArrayLike) -> Real:
    r"""Quantile of the wait in an M/M/c queue in s: `kimura_wait_quantile` at cv2 = 1, where it is exact.

    .. math:: W_q = \max\{0, \ln[C / (1 - q)]\} / (c\mu - \lambda)

    Args:
        q: the level, in (0, 1).
        arrival_rate: requests per second, >= 0.
        service_rate: requests per second that one server completes, > 0.
        servers: number of servers c, real, > 0.

    Raises:
        ValueError: an argument is outside its domain, or utilisation >= 1.
    """
    _check_stable(utilization(arrival_rate, service_rate, servers=servers))
    return kimura_wait_quantile(q, servers, arrival_rate, service_rate, service_time_cv2=1.0)


def mg1_queue_wait(arrival_rate: ArrayLike, mean_service_time: ArrayLike, *, service_time_cv: ArrayLike = 1.0) -> Real:
    r"""Average wait in an M/G/1 queue in s, from two moments of the service time; exact.

    .. math:: W_q = \lambda (1 + cv^2) E[S]^2 / (2 (1 - \rho)), \qquad \rho = \lambda E[S]

    Traced overload gives inf, with gradient 0.

    Args:
        arrival_rate: requests per second, >= 0.
        mean_service_time: E[S] in s, > 0.
        service_time_cv: standard deviation over mean of the service time (not its square), >= 0.

    Raises:
        ValueError: an argument is outside its domain, or utilisation >= 1.

    Source: Pollaczek 1930, Khinchine 1932.
    """
    require_non_negative("arrival_rate", arrival_rate)
    require_positive("mean_service_time", mean_service_time, "it is a time in s, not a rate")
    require_non_negative("service_time_cv", service_time_cv)
    arrival, service_time, cv = _floats(arrival_rate, mean_service_time, service_time_cv)
    rho = arrival * service_time
    _check_stable(rho)
    stable = rho < 1.0
    second_moment = (1.0 + cv * cv) * (service_time * service_time)
    wait = arrival * second_moment / (2.0 * jnp.where(stable, 1.0 - rho, 1.0))
    return _infinite_unless(stable, wait)


def mg1_response_time(
    arrival_rate: ArrayLike, mean_service_time: ArrayLike, *, service_time_cv: ArrayLike = 1.0
) -> Real:
    """Average time in an M/G/1 system in s: the mean service time plus `mg1_queue_wait`, same arguments."""
    wait = mg1_queue_wait(arrival_rate, mean_service_time, service_time_cv=service_time_cv)
    service_time, wait = _floats(mean_service_time, wait)
    return _infinite_unless(jnp.isfinite(wait), service_time + wait)


def _check_kimura(
    num_servers: ArrayLike, arrival_rate: ArrayLike, service_rate: ArrayLike, service_time_cv2: ArrayLike
) -> None:
    _check_queue(arrival_rate, service_rate, num_servers, "num_servers")
    require_non_negative("service_time_cv2", service_time_cv2, "it is the squared coefficient of variation")


def kimura_wait_tail(
    t: ArrayLike,
    num_servers: ArrayLike,
    arrival_rate: ArrayLike,
    service_rate: ArrayLike,
    *,
    service_time_cv2: ArrayLike,
) -> Real:
    r"""Probability that a wait in an M/G/c queue exceeds t, in Kimura's two-moment approximation.

    .. math:: P(W > t) \approx C(c, \lambda/\mu) \exp\left(-\frac{2 (c\mu - \lambda)\, t}{1 + cv^2}\right)

    Exact at cv2 = 1. In overload, concrete or traced, it is 1 with gradient 0; at load 0 it is 0.

    Args:
        t: time in s, >= 0.
        num_servers: c, real, > 0.
        arrival_rate: requests per second, >= 0.
        service_rate: requests per second that one server completes, > 0.
        service_time_cv2: squared coefficient of variation of the service time, >= 0.

    Raises:
        ValueError: an argument is outside its domain.

    The decay rate is the heavy-traffic one: with many servers and cv2 far from 1 a P99 wait from it can be
    wrong by a factor of several. Source: Kimura 1983, 1994.
    """
    require_non_negative("t", t)
    _check_kimura(num_servers, arrival_rate, service_rate, service_time_cv2)
    time, c, arrival, service, cv2 = _floats(t, num_servers, arrival_rate, service_rate, service_time_cv2)
    law = _wait_law(c, arrival, service, cv2)
    tail = _erlang.erlang_c(law.num_servers, law.load) * jnp.exp(-law.rate * time)
    return jnp.where(law.stable, tail, 1.0)


def kimura_wait_quantile(
    q: ArrayLike,
    num_servers: ArrayLike,
    arrival_rate: ArrayLike,
    service_rate: ArrayLike,
    *,
    service_time_cv2: ArrayLike,
) -> Real:
    r"""Quantile of the wait in an M/G/c queue in s: the inverse of `kimura_wait_tail`.

    .. math:: W_q = \max\{0, \ln[C(c, \lambda/\mu) / (1 - q)]\} \, (1 + cv^2) / (2 (c\mu - \lambda))

    Zero, with gradient 0, where fewer than 1 - q of the requests wait. In overload, concrete or traced, it is
    inf with gradient 0.

    Args:
        q: the level, in (0, 1).
        num_servers, arrival_rate, service_rate, service_time_cv2: as in `kimura_wait_tail`.

    Raises:
        ValueError: an argument is outside its domain.
    """
    _check_probability(q)
    _check_kimura(num_servers, arrival_rate, service_rate, service_time_cv2)
    level, c, arrival, service, cv2 = _floats(q, num_servers, arrival_rate, service_rate, service_time_cv2)
    return _wait_quantile(level, _wait_law(c, arrival, service, cv2))


def min_servers(
    arrival_rate: ArrayLike,
    service_rate: ArrayLike,
    *,
    service_time_cv2: ArrayLike,
    wait_slo_s: ArrayLike,
    q: ArrayLike = 0.99,
    max_utilization: ArrayLike = 1.0,
) -> Whole:
    r"""Fewest servers whose q-quantile wait meets an SLO: the smallest whole c >= 1 with

    `kimura_wait_quantile(q, c, ...) <= wait_slo_s` and `utilization(...) <= max_utilization`. Both fall as c
    grows, so doubling and bisection over the integers is exact: c passes both tests and c - 1 fails one.
    Stability (utilisation < 1) is always demanded. No gradient: differentiate the quantile instead.

    Args:
        arrival_rate: requests per second, >= 0; 0 needs one server.
        service_rate: requests per second that one server completes, > 0.
        service_time_cv2: squared coefficient of variation of the service time, >= 0.
        wait_slo_s: longest acceptable wait in s, >= 0; 0 asks that at most 1 - q of the requests wait at all.
        q: the level, in (0, 1).
        max_utilization: cap on the utilisation, in (0, 1]; 0.85 is customary with this formula.

    Returns:
        int64 array; -1 for a traced argument outside its domain or an offered load above 2**52.

    Raises:
        ValueError: an argument is outside its domain.
    """
    _check_kimura(1.0, arrival_rate, service_rate, service_time_cv2)
    require_non_negative("wait_slo_s", wait_slo_s)
    _check_probability(q)
    (cap,) = _floats(max_utilization)
    require((cap > 0.0) & (cap <= 1.0), "max_utilization", max_utilization, "in (0, 1]")
    return _min_servers(*_floats(arrival_rate, service_rate, service_time_cv2, wait_slo_s, q, cap))


@jax.jit
def _min_servers(arrival, service, cv2, wait_slo_s, q, cap):
    def meets(c):
        wait = _wait_quantile(q, _wait_law(c, arrival, service, cv2))
        return (wait <= wait_slo_s) & (arrival / (c * service) <= cap)

    def active(state):
        low, high, step, bracketed = state
        return jnp.where(bracketed, high - low > 1.0, step < 2.0**_MAX_DOUBLINGS)

    def advance(state):
        """Double until `high` meets the SLO, then halve the bracket: low fails, high meets."""
        low, high, step, bracketed = state
        tried = jnp.where(bracketed, jnp.floor(0.5 * (low + high)), high)
        met = meets(tried)
        high_next = jnp.where(met, tried, jnp.where(bracketed, high, high + step))
        following = (jnp.where(met, low, tried), high_next, 2.0 * step, bracketed | met)
        return tuple(jnp.where(active(state), new, old) for new, old in zip(following, state, strict=True))

    first = jnp.clip(jnp.ceil(arrival / (service * cap)), 1.0, 2.0**_MAX_DOUBLINGS)
    start = (jnp.zeros_like(first), first, jnp.ones_like(first), jnp.zeros_like(first, dtype=bool))
    _, fewest, _, bracketed = jax.lax.while_loop(lambda state: jnp.any(active(state)), advance, start)
    return jnp.where(bracketed, fewest, -1.0).astype(jnp.int64)
