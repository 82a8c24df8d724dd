r"""Erlang B and C for a real number of servers: values and gradients, no public names.

With offered load a (Erlang), c servers and utilisation :math:`\rho = a/c`, everything follows from

.. math::
    r = 1/B = \int_0^\infty e^{-y} (1 + y/a)^c \, dy = M - U, \qquad
    M = \Gamma(c+1)\, e^a a^{-c}, \qquad U = \sum_{i \ge 1} \frac{a^i}{(c+1) \cdots (c+i)}

and :math:`1/C = \rho + (1-\rho) r`. Up to :math:`\rho = 1` the difference M - U amplifies a rounding error
by at most 2 for c >= 1 (M -> 2U at many servers), and by about 1/c below one server.

* M comes from the Binet function J, :math:`\Gamma(c+1) = \sqrt{2\pi c}\,(c/e)^c e^{J(c)}`.
* U, for c >= 16, from Temme's uniform expansion of the incomplete gamma function with
  :math:`\eta^2/2 = \rho - 1 - \ln\rho` and :math:`x = -\eta\sqrt{c/2}`:
  :math:`U + 1 = e^{J} [\sqrt{\pi c/2}\, e^{x^2}\mathrm{erfc}(x) - \sum_k C_k(\eta) c^{-k}]`.
* For c < 16 from U at c + 16 by :math:`U(c-1) = (a/c)(1 + U(c))`: all terms positive, so stepping down
  is stable, where stepping 1/B down is not. One evaluation serves every c; no lane computes two methods.
* Overload of Erlang B (a > c) by Gauss-Legendre quadrature of the integral.

Gradients are these formulas differentiated by hand. For the load that is :math:`dr/da = -1/(\rho C)`.

Sources: A. K. Erlang 1917; D. L. Jagerman, Bell Syst. Tech. J. 53 (1974) 525; N. M. Temme, SIAM J. Math.
Anal. 10 (1979) 757 and "Special Functions" (1996) ch. 11; M. M. Shepherd and J. G. Laframboise, Math. Comp.
36 (1981) 249.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from ._temme import BINET, ERFCX, NODES, TEMME, WEIGHTS

NUM_STEPS = 16  # Temme's expansion starts at this many servers; fewer are reached by as many steps down
SERIES_MARGIN = 6.0  # under 16 servers M - U stays well conditioned this far into overload
SMALLEST_LOAD = 1e-200  # gradients at load 0 are those at this load: finite or huge, never NaN
LARGEST_LOG = 600.0  # beyond exp(600) the reciprocal of C is kept as a logarithm
ATANH_SERIES = tuple(1.0 / (2 * n + 3) for n in range(11))


class ErlangParts(NamedTuple):
    """The pieces of 1/B = M - U and their derivatives by the number of servers."""

    log_m: jax.Array
    log_m_dc: jax.Array
    u: jax.Array
    u_dc: jax.Array


def _horner(coefficients: Sequence[float], x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A polynomial and its derivative; under `jit` the derivative costs nothing where it is not used."""
    value, slope = jnp.full_like(x, coefficients[-1]), jnp.zeros_like(x)
    for coefficient in coefficients[-2::-1]:
        slope = slope * x + value
        value = value * x + coefficient
    return value, slope


def _binet(c: jax.Array) -> tuple[jax.Array, jax.Array]:
    """J(c) = ln Gamma(c+1) - (c + 1/2) ln c + c - ln(2 pi)/2 and J'(c), for c >= 1."""
    t = 1.0 / (c + 0.5)
    p, p_slope = _horner(BINET, 3.0 * t - 1.0)
    return t * p, -t * t * (p + 3.0 * t * p_slope)


def _scaled_erfc(x: jax.Array) -> jax.Array:
    """exp(x^2) erfc(x) for x >= 0."""
    return _horner(ERFCX, (x - 3.0) / (x + 3.0))[0] / (1.0 + 2.0 * x)


def _log_ratio(ratio: jax.Array, z: jax.Array) -> tuple[jax.Array, jax.Array]:
    """h = (z - ln(1+z)) / z^2 and ln(1+z), for z = ratio - 1 computed without rounding by the caller.

    Near z = 0 from ln(1+z) = 2 artanh(s), s = z/(2+z), which leaves no cancellation: h(0) = 1/2.
    """
    near = jnp.abs(z) < 0.3
    z_near = jnp.where(near, z, 0.0)
    s = z_near / (2.0 + z_near)
    h_near = (1.0 - 2.0 * s / (2.0 + z_near) * _horner(ATANH_SERIES, s * s)[0]) / (2.0 + z_near)
    log_far = jnp.log(jnp.where(near, 2.0, ratio))
    z_far = jnp.where(near, 1.0, z)
    h = jnp.where(near, h_near, (z_far - log_far) / (z_far * z_far))
    return h, jnp.where(near, z_near - z_near * z_near * h_near, log_far)


def _log_m(c: jax.Array, a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """ln M = ln Gamma(c+1) + a - c ln a and its derivative by c; below one server from Gamma(c+2)."""
    below_one = c < 1.0
    k = jnp.where(below_one, c + 1.0, c)
    ratio, z = a / k, (a - k) / k
    h, log_ratio = _log_ratio(ratio, z)
    j, j_slope = _binet(k)
    exponent = jnp.where(below_one, k * z - c * log_ratio, c * (z * z * h))
    log_m = exponent + 0.5 * jnp.log(2.0 * math.pi * k) + j
    slope = 0.5 / k + j_slope - log_ratio - jnp.where(below_one, 1.0 / k, 0.0)
    return log_m, slope


def _temme(c: jax.Array, a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """U and dU/dc for c >= 16, a <= c."""
    z = (a - c) / c
    h, _ = _log_ratio(a / c, z)
    eta_by_z = jnp.sqrt(2.0 * h)
    eta = z * eta_by_z
    root = jnp.sqrt(0.5 * c)
    x = -eta * root
    erfcx = _scaled_erfc(x)
    erfcx_slope = 2.0 * x * erfcx - 2.0 / math.sqrt(math.pi)

    rows = [_horner(row, eta) for row in TEMME]
    u = 1.0 / c
    s, s_eta = rows[-1]
    s_u = jnp.zeros_like(s)
    for value, slope in rows[-2::-1]:
        s_u = s_u * u + s
        s, s_eta = s * u + value, s_eta * u + slope

    half = math.sqrt(math.pi) * root
    w = half * erfcx - s
    w_c = half * (erfcx + x * erfcx_slope) * (0.5 * u) + s_u * u * u
    w_eta = -half * root * erfcx_slope - s_eta
    j, j_slope = _binet(c)
    gamma_star = 1.0 + j * (1.0 + j / 2.0 * (1.0 + j / 3.0 * (1.0 + j / 4.0 * (1.0 + j / 5.0))))
    return gamma_star * w - 1.0, gamma_star * (j_slope * w + w_c - w_eta * u / eta_by_z)


def _parts(c: jax.Array, a: jax.Array) -> ErlangParts:
    """M and U for 0 < a <= c, and for c < 16 up to a < c + 16."""
    few = c < NUM_STEPS
    u, u_dc = _temme(jnp.where(few, c + NUM_STEPS, c), a)
    c_few, a_few = jnp.where(few, c, 1.0), jnp.where(few, a, 1.0)
    # U = top / bottom, so that the steps down need no division.
    top, top_dc, bottom, bottom_dc = u, u_dc, jnp.ones_like(u), jnp.zeros_like(u)
    for step in range(NUM_STEPS, 0, -1):
        k = c_few + step
        top, top_dc = a_few * (top + bottom), a_few * (top_dc + bottom_dc)
        bottom, bottom_dc = k * bottom, bottom + k * bottom_dc
    u_few = top / bottom
    u_dc_few = (top_dc - u_few * bottom_dc) / bottom
    return ErlangParts(*_log_m(c, a), jnp.where(few, u_few, u), jnp.where(few, u_dc_few, u_dc))


def _safe_division(denominator: jax.Array) -> jax.Array:
    return jnp.maximum(denominator, 1e-300)


class _WaitTerms(NamedTuple):
    load: jax.Array  # a, kept inside (0, c]
    slack: jax.Array  # 1 - a/c
    odds: jax.Array  # v = 1/(r - 1) = B/(1 - B), so that C = v / (v + slack)
    log_r_dc: jax.Array  # (dr/dc) / (r - 1)
    log_m: jax.Array


def _wait_terms(c: jax.Array, a: jax.Array) -> _WaitTerms:
    load = jnp.clip(a, SMALLEST_LOAD, c)
    parts = _parts(c, load)
    e = jnp.exp(-parts.log_m)
    rest = _safe_division(1.0 - e * (1.0 + parts.u))
    log_r_dc = (parts.log_m_dc - e * parts.u_dc) / rest
    return _WaitTerms(load, (c - load) / c, e / rest, log_r_dc, parts.log_m)


def _log_c_slopes(c: jax.Array, a: jax.Array, terms: _WaitTerms) -> tuple[jax.Array, jax.Array]:
    """d ln C/dc and d ln C/da: sums of terms of one sign. Zero in overload, from below at a = c."""
    total = terms.odds + terms.slack
    by_c = -(terms.load / (c * c) + terms.slack * terms.log_r_dc) / total
    by_a = 1.0 / (c * total) + (c - terms.load) / terms.load
    return jnp.where(a <= c, by_c, 0.0), jnp.where(a <= c, by_a, 0.0)


def _log_c_value(c: jax.Array, a: jax.Array, terms: _WaitTerms) -> jax.Array:
    big = terms.log_m > LARGEST_LOG
    ratio = terms.slack / jnp.where(big, 1.0, terms.odds)
    value = -jnp.log1p(jnp.where(big, terms.slack - 1.0, ratio)) - jnp.where(big, terms.log_m, 0.0)
    return jnp.where(a > 0.0, jnp.where(a < c, value, 0.0), -jnp.inf)


def _c_value(a: jax.Array, terms: _WaitTerms) -> jax.Array:
    return jnp.where(a > 0.0, jnp.minimum(terms.odds / (terms.odds + terms.slack), 1.0), 0.0)


def _tangent(*pairs: tuple[Callable[[], jax.Array], jax.Array | SymbolicZero], like: jax.Array) -> jax.Array:
    """Sum of slope times tangent over the arguments that are differentiated; other slopes cost nothing."""
    total = jnp.zeros_like(like)
    for slope, tangent in pairs:
        if not isinstance(tangent, SymbolicZero):
            total = total + slope() * tangent
    return total


@jax.custom_jvp
def _log_erlang_c(c: jax.Array, a: jax.Array) -> jax.Array:
    return _log_c_value(c, a, _wait_terms(c, a))


def _log_erlang_c_jvp(primals, tangents):
    c, a = primals
    terms = _wait_terms(c, a)
    value = _log_c_value(c, a, terms)
    by_c, by_a = _log_c_slopes(c, a, terms)
    return value, _tangent((lambda: by_c, tangents[0]), (lambda: by_a, tangents[1]), like=value)


@jax.custom_jvp
def _erlang_c(c: jax.Array, a: jax.Array) -> jax.Array:
    return _c_value(a, _wait_terms(c, a))


def _erlang_c_jvp(primals, tangents):
    c, a = primals
    terms = _wait_terms(c, a)
    value = _c_value(a, terms)
    at_load = terms.odds / (terms.odds + terms.slack)  # not patched at load 0, where dC/da may be 1 (c = 1)
    by_c, by_a = _log_c_slopes(c, a, terms)
    return value, _tangent((lambda: at_load * by_c, tangents[0]), (lambda: at_load * by_a, tangents[1]), like=value)


def _overload(c: jax.Array, a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """r, dr/dc and -dr/da for a > c by quadrature over the part of the integrand above exp(-40)."""
    cut = 40.0
    gaussian = cut + jnp.sqrt(cut * cut + 2.0 * cut * c)
    length = jnp.minimum(gaussian, cut * a / jnp.maximum(a - c, 1e-3 * cut))
    nodes, weights = (jnp.asarray(v, c.dtype).reshape((1,) * c.ndim + (-1,)) for v in (NODES, WEIGHTS))
    c, a, length = c[..., None], a[..., None], length[..., None]
    y = length * nodes
    log_term = jnp.log1p(y / a)
    mass = length * weights * jnp.exp(c * log_term - y)
    r, by_c, by_a = (jnp.sum(mass * factor, axis=-1) for factor in (1.0, log_term, c / a * y / (a + y)))
    return r, by_c, by_a


def _b_terms(c: jax.Array, a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """B and its derivatives; at load 0 those at `SMALLEST_LOAD`."""
    load = jnp.maximum(a, SMALLEST_LOAD)
    series = (load <= c) | ((c < NUM_STEPS) & (load < c + SERIES_MARGIN))
    parts = _parts(c, jnp.where(series, load, c))
    e = jnp.exp(-parts.log_m)
    rest = 1.0 - e * parts.u
    r, r_dc, r_da = _overload(jnp.where(series, 1.0, c), jnp.where(series, 10.0, load))
    value = jnp.where(series, e / rest, 1.0 / r)
    by_c = -value * jnp.where(series, (parts.log_m_dc - e * parts.u_dc) / rest, r_dc / r)
    by_a = value * jnp.where(series, (c - load) / load + value, r_da / r)
    return value, by_c, by_a


@jax.custom_jvp
def _erlang_b(c: jax.Array, a: jax.Array) -> jax.Array:
    return jnp.where(a > 0.0, _b_terms(c, a)[0], 0.0)


def _erlang_b_jvp(primals, tangents):
    c, a = primals
    at_load, by_c, by_a = _b_terms(c, a)
    value = jnp.where(a > 0.0, at_load, 0.0)
    return value, _tangent((lambda: by_c, tangents[0]), (lambda: by_a, tangents[1]), like=value)


_log_erlang_c.defjvp(_log_erlang_c_jvp, symbolic_zeros=True)
_erlang_c.defjvp(_erlang_c_jvp, symbolic_zeros=True)
_erlang_b.defjvp(_erlang_b_jvp, symbolic_zeros=True)

log_erlang_c = jax.jit(_log_erlang_c)
erlang_c = jax.jit(_erlang_c)
erlang_b = jax.jit(_erlang_b)
