r"""Dollars per million: of tokens, pages or anything else that a bill is divided by. Differentiable, elementwise.

A fleet costs the same whether it works or not, so what it serves is the throughput at saturation times the utilisation:

$$\text{USD per million} = \frac{10^6\, p}{3600\, u\, r}$$

with p the price of all GPUs for an hour, r what is served in a second at saturation and u the utilisation. Every figure
is the *whole* bill over one kind of token; prompts and outputs are paid once, not twice.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsim._checks import require, require_non_negative, require_positive
from jaxsim.units import SECONDS_PER_HOUR, TOKENS_PER_MILLION

__all__ = ["api_usd_per_hour", "break_even_utilization", "per_million", "usd_per_million"]

Number = Float[Array, "*shape"]


def per_million(usd: Any, count: Any) -> Number:
    """Dollars per million of what was counted; inf where nothing was.

    Args:
        usd: the bill, >= 0.
        count: of tokens, pages, requests, >= 0.
    """
    require_non_negative("usd", usd)
    require_non_negative("count", count)
    there = jnp.asarray(count) > 0
    safe = jnp.where(there, count, 1.0)
    return jnp.where(there, usd / safe * TOKENS_PER_MILLION, jnp.inf)


def usd_per_million(usd_per_hour: Any, per_s: Any, *, utilization: Any = 1.0) -> Number:
    """Dollars per million of what a fleet serves at a utilisation.

    Args:
        usd_per_hour: price of all GPUs, >= 0.
        per_s: served a second at saturation, >= 0; of 0 a million costs inf.
        utilization: share of that which is asked for, in (0, 1].
    """
    require_positive("utilization", utilization)
    require(jnp.asarray(utilization) <= 1.0, "utilization", utilization, "in (0, 1]", "10 % is 0.1")
    require_non_negative("per_s", per_s)
    return per_million(usd_per_hour, per_s * utilization * SECONDS_PER_HOUR)


def api_usd_per_hour(per_s: Any, usd_per_million: Any) -> Number:
    """What the same would cost by the million, for an hour of it.

    Args:
        per_s: served a second, >= 0.
        usd_per_million: price of an API, >= 0.
    """
    require_non_negative("per_s", per_s)
    require_non_negative("usd_per_million", usd_per_million)
    return jnp.asarray(per_s) * usd_per_million * SECONDS_PER_HOUR / TOKENS_PER_MILLION


def break_even_utilization(usd_per_hour: Any, api_usd_per_hour: Any) -> Number:
    """Utilisation at which a fleet costs what an API would; above 1 it never does, inf where the API is free.

    Args:
        usd_per_hour: price of the fleet, >= 0.
        api_usd_per_hour: of an API for the fleet's tokens at saturation, >= 0; see `api_usd_per_hour`.
    """
    require_non_negative("usd_per_hour", usd_per_hour)
    require_non_negative("api_usd_per_hour", api_usd_per_hour)
    there = jnp.asarray(api_usd_per_hour) > 0
    return jnp.where(there, usd_per_hour / jnp.where(there, api_usd_per_hour, 1.0), jnp.inf)
