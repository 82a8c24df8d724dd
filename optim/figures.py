"""The model's figures of a given design, compiled fast: what simulation and plots are held against."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from des import AnyRouter
from jaxsim.evaluate import Metrics, metrics, pool_laws, tabulate
from jaxsim.fleet import FleetDesign
from jaxsim.workload import Workload
from optim._compile import program
from optim.rules import Rules, known_arrivals

Array = np.ndarray | jax.Array


@program
def _figures(
    design: FleetDesign, workload: Workload, rate: jax.Array, dispersion: jax.Array, *, model: str, dispatch: str
) -> Metrics:
    tables = tabulate(workload, design.profile, model=model)
    return metrics(pool_laws(design, tables, rate, model=model, dispatch=dispatch, dispersion=dispersion))


@program
def _tails(
    design: FleetDesign,
    workload: Workload,
    rate: jax.Array,
    dispersion: jax.Array,
    ttft: jax.Array,
    tpot: jax.Array,
    *,
    model: str,
    dispatch: str,
) -> tuple[jax.Array, jax.Array]:
    tables = tabulate(workload, design.profile, model=model)
    laws = pool_laws(design, tables, rate, model=model, dispatch=dispatch, dispersion=dispersion)
    share = laws.share / laws.share.sum()
    of_ttft = jax.vmap(lambda t: (share * laws.ttft_tail(t)).sum())(ttft)
    of_tpot = jax.vmap(lambda t: (share * laws.tpot_tail(t)).sum())(tpot)
    return of_ttft, of_tpot


def figures(
    design: FleetDesign,
    workload: Workload,
    rate: float,
    *,
    model: str,
    dispatch: str = "least-loaded",
    dispersion: float = 1.0,
) -> Metrics:
    """`jaxsim.evaluate` for a single use."""
    load = (jnp.asarray(value, dtype=float) for value in (rate, dispersion))
    return _figures(design, lengths_alone(workload), *load, model=model, dispatch=dispatch)


def model_figures(design: FleetDesign, workload: Workload, rate: float, rules: Rules, *, model: str) -> Metrics | None:
    """`figures` of a fleet under a router; None where the load does not split by length, or its rate is not finite.

    What the model does not know of the rules is left out (`optim.rules.beyond_model` names it).
    """
    anywhere = isinstance(rules.router, AnyRouter) and design.num_pools > 1
    if rules.transfer is not None or anywhere or not np.isfinite(rate):
        return None
    expected = rules.router.expected_workload(workload, design)
    dispatch, dispersion = known_arrivals(rules, model=model)
    return figures(design, expected, rate, model=model, dispatch=dispatch, dispersion=dispersion)


def latency_tails(
    design: FleetDesign,
    workload: Workload,
    rate: float,
    ttft_s: Float[np.ndarray, " times"],
    tpot_s: Float[np.ndarray, " others"],
    *,
    model: str,
    rules: Rules | None = None,
) -> tuple[Float[np.ndarray, " times"], Float[np.ndarray, " others"]]:
    """P(TTFT > t) and P(TPOT > t) over the accepted requests of all pools; under the rules, as `model_figures` takes
    them.

    Args:
        ttft_s, tpot_s: times, seconds, ascending; each its own. Of TPOT, requests with one output token left out.
    """
    dispatch, dispersion = ("least-loaded", 1.0) if rules is None else known_arrivals(rules, model=model)
    expected = workload if rules is None else rules.router.expected_workload(workload, design)
    load = (jnp.asarray(value, dtype=float) for value in (rate, dispersion))
    times = (jnp.asarray(value, dtype=float) for value in (ttft_s, tpot_s))
    tails = _tails(design, lengths_alone(expected), *load, *times, model=model, dispatch=dispatch)
    ttft, tpot = (np.asarray(tail) for tail in tails)
    return ttft, tpot


def lengths_alone(workload: Workload) -> Workload:
    """Without what the model does not look at, so that equal shapes share one program."""
    return Workload(
        workload.input_tokens,
        workload.output_tokens,
        workload.weight,
        workload.knots,
        workload.rows_to_knot,
        prefix_cache_hit_rate=workload.prefix_cache_hit_rate,
    )
