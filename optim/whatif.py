"""whatif: many problems at once, each with its own optimal thresholds and sizes, in one compiled program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxsim._checks import require_positive, require_x64
from optim._compile import program
from optim.cases import Case, cases
from optim.problem import PlanProblem
from optim.relax import descend, smooth
from optim.sizing import CEIL_TOLERANCE, Targets
from optim.transforms import start_coordinates

NUM_STARTS = 6
CHUNK = 64
"""Problems solved at once; a fixed number, so that one program serves any grid."""


@dataclass(frozen=True)
class WhatIf:
    """Answers for each element of the broadcast inputs; where infeasible, costs are inf and sizes NaN.

    Sizes are exact whole numbers at the relaxed optimum's thresholds (on token boundaries), by the model, not
    verified; `relaxed_usd_per_hour` is the cost of real-valued sizes, smooth in every input.
    """

    rate: np.ndarray
    ttft_p99_s: np.ndarray
    tpot_p99_s: np.ndarray
    usd_per_hour: np.ndarray
    relaxed_usd_per_hour: np.ndarray
    feasible: np.ndarray
    replicas: np.ndarray
    upper_tokens: np.ndarray
    profile: np.ndarray


def whatif(
    problem: PlanProblem,
    *,
    rate: Any = None,
    ttft_p99_s: Any = None,
    tpot_p99_s: Any = None,
    progress: Callable[[str], None] = lambda _: None,
) -> WhatIf:
    """The least-cost fleet for every combination of the inputs that broadcasting gives.

    Args:
        problem: everything that is not varied.
        rate, ttft_p99_s, tpot_p99_s: arrays that broadcast; left out, the problem's own value. inf as a TPOT
            objective is none.
        progress: told what is being done.

    Returns:
        WhatIf, arrays of the broadcast shape; `replicas`, `upper_tokens` and `profile` (names) with a last pool axis.

    Raises:
        ValueError: a rate or objective that is not > 0.
    """
    require_x64()
    slo = problem.slo
    own_tpot = np.inf if slo.tpot_p99_s is None else slo.tpot_p99_s
    given = (
        problem.rate if rate is None else rate,
        slo.ttft_p99_s if ttft_p99_s is None else ttft_p99_s,
        own_tpot if tpot_p99_s is None else tpot_p99_s,
    )
    grid = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in given))
    require_positive("rate", grid[0])
    require_positive("ttft_p99_s", grid[1])
    require_positive("tpot_p99_s", np.where(np.isinf(grid[2]), 1.0, grid[2]))
    shape, flat = grid[0].shape, np.stack([g.reshape(-1) for g in grid], axis=1)

    pools = problem.max_pools
    best = _nothing(len(flat), pools)
    for profiles, case in cases(problem, num_pools=pools):
        names = np.array([str(p.name) for p in profiles])
        smoothed = smooth(case)
        for first in range(0, len(flat), CHUNK):
            progress(f"{' + '.join(names)}: {first} of {len(flat)}")
            rows = flat[first : first + CHUNK]
            padded = np.concatenate([rows, np.repeat(rows[-1:], CHUNK - len(rows), axis=0)])
            answer = [np.asarray(v)[: len(rows)] for v in _solve(case, smoothed, jnp.asarray(padded), problem.model)]
            _keep_cheaper(best, answer, names, slice(first, first + len(rows)))
    return WhatIf(
        *grid,
        usd_per_hour=best["usd_per_hour"].reshape(shape),
        relaxed_usd_per_hour=best["relaxed_usd_per_hour"].reshape(shape),
        feasible=np.isfinite(best["usd_per_hour"]).reshape(shape),
        replicas=best["replicas"].reshape(*shape, pools),
        upper_tokens=best["upper_tokens"].reshape(*shape, pools),
        profile=best["profile"].reshape(*shape, pools),
    )


@program(fast=False)
def _solve(case: Case, smoothed: Case, rows: jax.Array, model: str) -> tuple[jax.Array, ...]:
    """Whole cost, relaxed cost, replicas and thresholds of each row (rate, TTFT, TPOT); inf where infeasible."""
    starts = jnp.asarray(start_coordinates(NUM_STARTS, case.num_pools))
    longest = jnp.full(case.num_pools, 1.0) * case.longest

    def one(row: jax.Array) -> tuple[jax.Array, ...]:
        targets = Targets(jnp.full(case.num_pools, row[1]), jnp.full(case.num_pools, row[2]))
        here, there = (eqx.tree_at(lambda c: (c.rate, c.targets), c, (row[0], targets)) for c in (case, smoothed))
        _, upper = descend(starts, there, model)
        upper = jnp.concatenate([longest[None], jnp.maximum(jnp.floor(upper), 1.0)])
        size = jax.vmap(lambda u: here.sizes(u, model=model, relaxed=False))(upper)
        replicas = jnp.ceil(size.replicas * (1.0 - CEIL_TOLERANCE))
        whole = (replicas * jnp.asarray(case.profile.usd_per_hour)[None]).sum(1)
        whole = jnp.where(size.feasible.all(1), whole, jnp.inf)
        at = jnp.argmin(whole)
        relaxed = jax.vmap(here.relaxed_usd_per_hour)(size)
        return whole[at], jnp.where(jnp.isfinite(whole[at]), relaxed[at], jnp.inf), replicas[at], upper[at]

    return jax.vmap(one)(rows)


def _nothing(count: int, pools: int) -> dict[str, np.ndarray]:
    return {
        "usd_per_hour": np.full(count, np.inf),
        "relaxed_usd_per_hour": np.full(count, np.inf),
        "replicas": np.full((count, pools), np.nan),
        "upper_tokens": np.full((count, pools), np.nan),
        "profile": np.full((count, pools), "", dtype=object),
    }


def _keep_cheaper(best: dict[str, np.ndarray], answer: list[np.ndarray], names: np.ndarray, rows: slice) -> None:
    cheaper = answer[0] < best["usd_per_hour"][rows] - 1e-9
    for key, values in zip(("usd_per_hour", "relaxed_usd_per_hour", "replicas", "upper_tokens"), answer, strict=True):
        best[key][rows][cheaper] = values[cheaper]
    best["profile"][rows][cheaper] = names
