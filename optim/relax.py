"""The relaxation: thresholds by gradient, replicas as real numbers from the implicit solve, many starts at once."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from optim._compile import program
from optim.cases import Case
from optim.transforms import start_coordinates, thresholds

Scalar = Float[Array, ""]

NUM_STARTS = 8
NUM_STEPS = 48
LEARNING_RATE = 0.1
KNOTS = 192
"""Lengths at which the relaxed length law bends: its density, averaged over 5 % of length, drives the gradient."""

_INFEASIBLE_WEIGHT = 10.0


def _objective(coordinates: Float[Array, " cuts"], case: Case, model: str) -> tuple[Scalar, Array]:
    upper = thresholds(coordinates, case.shortest, case.longest)
    size = case.sizes(upper, model=model, relaxed=True)
    out_of_reach = jnp.where(size.excess > 0, size.excess, 0.0).sum()
    return jnp.log(case.relaxed_usd_per_hour(size) + 1e-9) + _INFEASIBLE_WEIGHT * out_of_reach, upper


@program
def smooth(case: Case) -> Case:
    """The case with coarse tables, whose shape no longer depends on the trace."""
    return eqx.tree_at(lambda c: c.tables, case, case.tables.coarsened(KNOTS))


def descend(starts: Float[Array, "starts cuts"], case: Case, model: str) -> tuple[Array, Array]:
    """Objective and thresholds that Adam reaches from each start; traceable. `case` should be smooth."""
    optimizer = optax.adam(optax.cosine_decay_schedule(LEARNING_RATE, NUM_STEPS))
    slope = jax.value_and_grad(_objective, has_aux=True)

    def run(start: Array) -> tuple[Array, Array]:
        def step(carry: Any, _: None) -> tuple[Any, None]:
            point, state, best, best_upper = carry
            (value, upper), gradient = slope(point, case, model)
            with jax.numpy_dtype_promotion("standard"):  # optax mixes float and int
                updates, state = optimizer.update(jnp.nan_to_num(gradient), state)
            better = value < best
            kept = jnp.where(better, value, best), jnp.where(better, upper, best_upper)
            return (optax.apply_updates(point, updates), state, *kept), None

        first = thresholds(start, case.shortest, case.longest)
        carry = (start, optimizer.init(start), jnp.asarray(jnp.inf), first)
        (_, _, best, upper), _ = jax.lax.scan(step, carry, length=NUM_STEPS)
        return best, upper

    return jax.vmap(run)(starts)


_descend = program(descend)


def relax(case: Case, *, model: str) -> tuple[Float[np.ndarray, " starts"], Float[np.ndarray, "starts pools"]]:
    """Descend from many starts.

    Returns:
        Objective (log dollars per hour, plus a penalty where a constraint is out of reach of any number of
        replicas) and thresholds of each start, best first.
    """
    if case.num_pools == 1:
        return np.zeros(1), np.array([[float(case.longest)]])
    starts = jnp.asarray(start_coordinates(NUM_STARTS, case.num_pools))
    values, upper = (np.asarray(v) for v in _descend(starts, smooth(case), model))
    order = np.argsort(values, kind="stable")
    return values[order], upper[order]
