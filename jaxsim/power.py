r"""Power of a GPU over the number of running requests: law, exact inverse, published constants, and a fit.

$$P(n) = P_{idle} + \frac{P_{range}}{1 + e^{-k (\log_2 n - x_0)}}
       = P_{idle} + P_{range} \frac{n^a}{n^a + m^a}, \qquad a = k / \ln 2,\; m = 2^{x_0}$$

The second form is the one computed: it is defined at n = 0, an idle engine. Source: vLLM Semantic Router fleet
simulator, power model reference (the first reference document, section 13).
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxsim._checks import invalid, require, require_non_negative, require_positive, require_x64, unknown
from jaxsim.fit._solve import robust_least_squares
from jaxsim.fit._uncertainty import carried_covariance
from jaxsim.fit.report import Errors
from jaxsim.profiles import Profile


class PowerLaw(NamedTuple):
    """Constants of one GPU. Watts; `steepness` is k, per doubling of the batch; `log2_midpoint` is x0."""

    idle_w: Any
    range_w: Any
    steepness: Any
    log2_midpoint: Any

    @property
    def nominal_w(self) -> Any:
        """Power of an endless batch."""
        return self.idle_w + self.range_w


def power_w(law: PowerLaw | Profile, num_active: Any) -> Any:
    """Watts of one GPU, or of one replica of a profile, with `num_active` requests running.

    Args:
        law: of the GPU; of a profile (of one pool) all its GPUs, with the constants published for them.
        num_active: real, >= 0; broadcasts.

    Increasing in `num_active`, from `idle_w` at 0. Differentiable in everything; at 0 the slope is 0 where k > ln 2
    and else infinite (none of the published constants).
    """
    if isinstance(law, Profile):
        return law.gpus_per_replica * power_w(power_law(str(law.gpu)), num_active)
    require_non_negative("num_active", num_active)
    active = jnp.asarray(num_active, dtype=float)
    running = active > 0.0
    doublings = jnp.log2(jnp.where(running, active, 1.0)) - law.log2_midpoint
    share = jnp.where(running, jax.nn.sigmoid(law.steepness * doublings), 0.0)
    return law.idle_w + law.range_w * share


def batch_of_power(law: PowerLaw, watts: Any) -> Any:
    """The number of running requests at which one GPU draws `watts`: the exact inverse of `power_w`.

    0 at or below the idle power, inf from the nominal power on, with gradient 0 there.
    """
    share = (jnp.asarray(watts, dtype=float) - law.idle_w) / law.range_w
    inside = (share > 0.0) & (share < 1.0)
    safe = jnp.where(inside, share, 0.5)
    batch = 2.0 ** (law.log2_midpoint + (jnp.log(safe) - jnp.log1p(-safe)) / law.steepness)
    return jnp.where(inside, batch, jnp.where(share <= 0.0, 0.0, jnp.inf))


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(resources.files("jaxsim").joinpath("data/power.toml").read_text(encoding="utf-8"))


@cache
def _presets() -> dict[str, tuple[PowerLaw, tuple[str, ...]]]:
    return {
        name: (PowerLaw(*(float(table[key]) for key in PowerLaw._fields)), tuple(table["gpus"]))
        for name, table in _tables().items()
        if name != "source"
    }


def power_source() -> str:
    """Where the published constants are from."""
    return str(_tables()["source"])


def power_names() -> tuple[str, ...]:
    """GPUs with published constants, as profiles name them."""
    return tuple(gpu for _, gpus in _presets().values() for gpu in gpus)


def power_law(gpu: str) -> PowerLaw:
    """The published constants of a GPU.

    Args:
        gpu: a preset's name, such as "h100", or a profile's `gpu`.

    Raises:
        ValueError: none are published for it; a GPU's constants never stand for another's.
    """
    for name, (law, gpus) in _presets().items():
        if gpu == name or gpu in gpus:
            return law
    hint = "give constants of your own, or fit them to (batch, watts) points with jaxsim.power.fit_power"
    raise unknown("power law of GPU", gpu, dict.fromkeys((*_presets(), *power_names())), hint)


@dataclass(frozen=True)
class PowerFit:
    """A law fitted to measured points.

    Attributes:
        law: the constants.
        standard_errors: of each; NaN where the points are no more than the constants.
        errors: relative errors on the points.
        warnings: what is to be doubted, in sentences.
    """

    law: PowerLaw
    standard_errors: PowerLaw
    errors: Errors
    warnings: tuple[str, ...]


LEAST_POINTS = 4
_CERTAIN = 0.25
_SPREAD = 2.0
"""Doublings on each side of the midpoint without which the curve's ends rest on its form."""


def fit_power(num_active: Any, watts: Any) -> PowerFit:
    """Fit the law to measured points of one GPU: least squares in relative error, robust to points that are far off.

    Args:
        num_active: running requests of each point, > 0, or 0 for idle.
        watts: of one GPU, > 0.

    Raises:
        ValueError: fewer than 4 points at different batches, or values out of their domain.
    """
    require_x64()
    active, drawn = (np.asarray(column, dtype=np.float64) for column in (num_active, watts))
    require(active.shape == drawn.shape and active.ndim == 1, "points", (active.shape, drawn.shape), "one watt each")
    require_non_negative("num_active", active)
    require_positive("watts", drawn)
    if len(np.unique(active)) < LEAST_POINTS:
        raise invalid("num_active", f"{len(np.unique(active))} batches", f"{LEAST_POINTS} different ones or more")
    values, spread, converged = (np.asarray(part) for part in _fit(active, drawn))
    idle, extent, power, midpoint = values
    errors = np.asarray(power_w(_law(jnp.asarray(values)), active)) / drawn - 1.0
    standard = np.sqrt(np.diag(spread))
    law = PowerLaw(float(idle), float(extent), float(power) * math.log(2.0), float(np.log2(midpoint)))
    uncertain = PowerLaw(
        float(standard[0]),
        float(standard[1]),
        float(standard[2]) * math.log(2.0),
        float(standard[3] / midpoint / math.log(2.0)),
    )
    warned = tuple(_doubts(law, uncertain, active, bool(converged)))
    return PowerFit(law, uncertain, Errors.of(errors), warned)


def _law(values: Any) -> PowerLaw:
    """From what is fitted, all positive: idle, range, a and m."""
    return PowerLaw(values[0], values[1], values[2] * math.log(2.0), jnp.log2(values[3]))


@eqx.filter_jit
def _fit(active: Any, drawn: Any) -> tuple[Any, Any, Any]:
    def errors(values: Any, known: Any = (active, drawn)) -> Any:
        return power_w(_law(values), known[0]) / known[1] - 1.0

    weight, free = jnp.ones_like(drawn), jnp.ones(4, dtype=bool)
    extent = jnp.maximum(drawn.max() - drawn.min(), 0.05 * drawn.max())
    middle = active[jnp.argmin(jnp.abs(drawn - 0.5 * (drawn.max() + drawn.min())))]
    start = jnp.stack([drawn.min(), extent, jnp.asarray(1.0 / math.log(2.0)), jnp.maximum(middle, 1.0)])
    lower = 1e-6 * start
    found = robust_least_squares(
        errors, start, (active, drawn), weight, free=free, lower=lower, unit=start, scale=math.nan
    )
    nothing = jnp.zeros((4, 4))
    spread = carried_covariance(
        nothing, errors, found.value, weight=weight, free=free & ~found.at_bound, scale=found.scale
    )
    return found.value, spread, found.converged


def _doubts(law: PowerLaw, spread: PowerLaw, active: np.ndarray, converged: bool) -> Iterator[str]:
    if not converged:
        yield "the search did not end at a minimum: take the constants as a guess"
    for name, value, error in zip(law._fields, law, spread, strict=True):
        scale = 1.0 if name == "log2_midpoint" else abs(value)
        if not error <= _CERTAIN * scale:
            yield f"{name} is known badly: {value:.4g}, standard error {error:.2g}"
    running = np.log2(active[active > 0])
    if not (running.min() <= law.log2_midpoint - _SPREAD and running.max() >= law.log2_midpoint + _SPREAD):
        yield (
            f"the points reach from batch {2 ** running.min():g} to {2 ** running.max():g}, the middle of the curve is "
            f"at {2**law.log2_midpoint:.3g}: idle or nominal power rests on the form of the law"
        )
