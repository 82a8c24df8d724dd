r"""Mean power of single pools in batches, and the whole sizes among which power chooses.

More replicas always cost more dollars; power they mostly cost too, as each idles. But where a GPU idles cheaply and its
power bends upwards in its batch, more replicas may draw less: the batch of all falls, and steps get shorter. Power need
not even fall at once: near full batches it rises first. So sizes are looked at from what the objectives need up to
where idling alone draws as much, densely first. Between two of them, $n_k < n < n_{k+1}$, a GPU draws at least what
one of $n_{k+1}$ draws (its share of the load is no smaller), so the pool draws at least
$(n_k + 1) / n_{k+1}$ of that one's power: which is what a bound may use.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsim.energy import WATTS_PER_KW, mean_watts
from jaxsim.evaluate import pool_demand, pool_law
from jaxsim.power import PowerLaw
from jaxsim.profiles import Profile
from jaxsim.step_sharing.tables import SharingTable
from jaxsim.workload import LengthTable
from optim._compile import program
from optim.cases import Case, in_batches

Rows = Float[np.ndarray, " rows"]

_BATCH = 64


class Hardware(NamedTuple):
    """What one pool of a case is made of; `power` is that of one GPU at the meter."""

    table: LengthTable | SharingTable
    profile: Profile
    power: PowerLaw
    rate: Array


def hardware_of(case: Case, power: PowerLaw | None, pool: int) -> Hardware:
    """Of one pool of a case with the power of its pools."""
    assert power is not None
    table, profile, law = jax.tree.map(lambda leaf: leaf[pool], (case.tables.table, case.profile, power))
    return Hardware(table, profile, law, case.rate)


@program
def _kilowatts(pool: Hardware, lower: Array, upper: Array, replicas: Array) -> tuple[Array]:
    def one(low: Array, high: Array, number: Array) -> Array:
        demand = pool_demand(pool.table, pool.profile, low, high, high, rate=pool.rate)
        gpus = number * jnp.asarray(pool.profile.gpus_per_replica)
        watts = mean_watts(pool.power, pool_law(demand, number))
        return jnp.where(demand.rate > 0, gpus * watts / WATTS_PER_KW, 0.0)

    return (jax.vmap(one)(lower, upper, replicas),)


def kilowatts(pool: Hardware, lower: Rows, upper: Rows, replicas: Rows) -> Rows:
    """Mean power at the meter of pools for lower < total <= upper with that many replicas, > 0; 0 of empty pools."""
    if len(lower) == 0:
        return np.zeros(0)
    (found,) = in_batches(lambda rows: _kilowatts(pool, *rows), lower, upper, replicas, size=_BATCH)
    return found


def fleet_kilowatts(case: Case, power: PowerLaw, upper: np.ndarray, replicas: np.ndarray) -> float:
    """Of one design, all pools; those without replicas draw nothing."""
    lower = np.append(0.0, upper[:-1])
    return float(
        sum(
            kilowatts(hardware_of(case, power, int(p)), *(np.array([v[p]]) for v in (lower, upper, replicas)))[0]
            for p in np.flatnonzero(replicas > 0)
        )
    )


class Options(NamedTuple):
    """Sizes of each row to choose from, ascending along the last axis; the last repeats where there are fewer.

    Attributes:
        replicas: whole, from what the objectives need to where idling alone draws as much.
        kilowatts: at the meter.
    """

    replicas: Float[np.ndarray, "rows options"]
    kilowatts: Float[np.ndarray, "rows options"]


def options(pool: Hardware, lower: Rows, upper: Rows, replicas: Rows, *, most: int) -> Options:
    """The sizes of pools at or above those that their objectives need.

    Args:
        pool: hardware.
        lower, upper: thresholds of each row.
        replicas: that each needs, whole and > 0.
        most: options of a row, 2 or more.
    """
    first = kilowatts(pool, lower, upper, replicas)
    idle = float(pool.power.idle_w) * float(np.asarray(pool.profile.gpus_per_replica)) / WATTS_PER_KW
    sizes = spread(replicas, np.maximum(np.floor(first / idle), replicas), most)
    power = np.repeat(first[:, None], most, axis=1)
    for k in range(1, most):
        more = np.flatnonzero(sizes[:, k] > sizes[:, k - 1])
        power[:, k] = power[:, k - 1]
        power[more, k] = kilowatts(pool, lower[more], upper[more], sizes[more, k])
    return Options(sizes, power)


def spread(low: Rows, high: Rows, most: int) -> Float[np.ndarray, "rows options"]:
    """Whole numbers from low to high, ends included: all where they are few, else ever farther apart."""
    steps, k = (high - low)[:, None], np.arange(float(most))
    apart = np.floor((steps + 1.0) ** (k / (most - 1.0)) - 1.0 + 1e-9)
    return low[:, None] + np.minimum(np.where(steps < most, k, np.maximum(apart, k)), steps)
