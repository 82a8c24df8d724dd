"""Whole sizes of a fleet's pools at many rates, in one compiled program: thresholds and the mix of lengths stay."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxsim._checks import require_non_negative
from jaxsim.workload import Workload
from optim._compile import program
from optim.cases import in_batches
from optim.sizing import whole_replicas
from optim.slopes import Point, sizes

RATES_AT_ONCE = 64


class RateSizes(NamedTuple):
    """Of each rate and pool.

    Attributes:
        replicas: whole replicas that the pool needs; 0 where nothing arrives; where infeasible, those of the largest
            size looked at.
        feasible: whether some number of replicas meets the pool's objectives.
    """

    replicas: Float[np.ndarray, "rates pools"]
    feasible: Bool[np.ndarray, "rates pools"]


@program
def _sizes_at(point: Point, workload: Workload, rates: Array, *, model: str) -> tuple[Array, Array]:
    tables = point.tables(workload, model=model, coarse=False)

    def one(rate: Array) -> tuple[Array, Array]:
        moved = eqx.tree_at(lambda p: p.rate, point, rate)
        size = sizes(moved, tables, model=model, relaxed=False)[1]
        return size.replicas, size.feasible

    return jax.vmap(one)(rates)


def sizes_at_rates(point: Point, workload: Workload, rates: np.ndarray, *, model: str) -> RateSizes:
    """The whole replicas that each pool needs at each rate; `optim.sizing.required_replicas`, rate by rate.

    Args:
        point: hardware, thresholds and objectives; its own rate does not matter.
        workload: joint lengths alone (`optim.figures.lengths_alone`), so that equal shapes share one program.
        rates: requests per second of the whole fleet, finite and >= 0.
        model: "step" or "kimura".

    Raises:
        ValueError: a negative rate, or one that is not finite.
    """
    require_non_negative("rate", rates)
    wanted = np.asarray(rates, dtype=float)
    replicas, feasible = in_batches(
        lambda rows: _sizes_at(point, workload, rows[0], model=model), wanted, size=RATES_AT_ONCE
    )
    return RateSizes(whole_replicas(replicas), feasible)
