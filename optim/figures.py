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
from optim.rules import Rules

Array = np.ndarray | jax.Array


@program
def _figures(design: FleetDesign, workload: Workload, rate: jax.Array, *, model: str) -> Metrics:
    return metrics(pool_laws(design, tabulate(workload, design.profile, model=model), rate, model=model))


@program
def _tails(design: FleetDesign, workload: Workload, rate: jax.Array, times: jax.Array, *, model: str) -> jax.Array:
    laws = pool_laws(design, tabulate(workload, design.profile, model=model), rate, model=model)
    share = laws.share / laws.share.sum()
    return jax.vmap(lambda t: (share * laws.ttft_tail(t)).sum())(times)


def figures(design: FleetDesign, workload: Workload, rate: float, *, model: str) -> Metrics:
    """`jaxsim.evaluate` for a single use."""
    return _figures(design, lengths_alone(workload), jnp.asarray(rate, dtype=float), model=model)


def model_figures(design: FleetDesign, workload: Workload, rate: float, rules: Rules, *, model: str) -> Metrics | None:
    """`figures` of a fleet under a router; None where the load does not split by length, or its rate is not finite."""
    anywhere = isinstance(rules.router, AnyRouter) and design.num_pools > 1
    if rules.transfer is not None or anywhere or not np.isfinite(rate):
        return None
    return figures(design, rules.router.expected_workload(workload, design), rate, model=model)


def ttft_tail(
    design: FleetDesign, workload: Workload, rate: float, times_s: Float[np.ndarray, " times"], *, model: str
) -> Float[np.ndarray, " times"]:
    """P(TTFT > t) over the accepted requests of all pools."""
    tails = _tails(design, lengths_alone(workload), jnp.asarray(rate, dtype=float), jnp.asarray(times_s), model=model)
    return np.asarray(tails)


def lengths_alone(workload: Workload) -> Workload:
    """Without what the model does not look at, so that equal shapes share one program."""
    return Workload(
        workload.input_tokens, workload.output_tokens, workload.weight, workload.knots, workload.rows_to_knot
    )
