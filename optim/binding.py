"""What holds a plan where it is: what one replica less in a pool would break."""

from __future__ import annotations

from enum import Enum

import jax
import jax.numpy as jnp
import numpy as np

from jaxsim.evaluate import PoolDemand, pool_demands, pool_law
from jaxsim.fleet import FleetDesign
from optim._compile import program
from optim.cases import Case
from optim.sizing import CONSTRAINTS, Targets, excess


class Binding(Enum):
    """What one replica less would break. The values are the sentences."""

    TTFT_P99 = "P99 TTFT would exceed its objective"
    TPOT_P99 = "P99 TPOT would exceed its objective"
    THROUGHPUT = "the load would exceed the capacity at full batch"
    UTILIZATION_CAP = "utilisation would exceed the reference model's cap of 0.85"
    REFERENCE_MINIMUM = "the reference model keeps one replica more than the load"
    ONE_REPLICA = "one replica is the least there is"


@program
def _with_one_less(case: Case, design: FleetDesign, *, model: str) -> tuple[jax.Array, jax.Array]:
    demands = pool_demands(design, case.tables, case.rate, model=model)
    fewer = jnp.maximum(jnp.asarray(design.replicas) - 1.0, 0.5)

    def pool(demand: PoolDemand, targets: Targets, number: jax.Array) -> tuple[jax.Array, jax.Array]:
        return excess(demand, number, targets, relaxed=False), pool_law(demand, number).utilization

    return jax.vmap(pool)(demands, case.targets, fewer)


def binding(case: Case, design: FleetDesign, *, model: str) -> tuple[Binding, ...]:
    """What keeps each pool from having one replica less."""
    over, utilization = (np.asarray(v) for v in _with_one_less(case, design, model=model))
    return tuple(
        _binding(float(number), over[p], float(utilization[p]), model)
        for p, number in enumerate(np.asarray(design.replicas))
    )


def _binding(replicas: float, over: np.ndarray, utilization: float, model: str) -> Binding:
    if replicas <= 1.0:
        return Binding.ONE_REPLICA
    if utilization >= 1.0 or over.max() <= 0:
        return Binding.THROUGHPUT
    return Binding[CONSTRAINTS[model][int(over.argmax())].upper()]
