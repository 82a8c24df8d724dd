"""whatif: many problems at once, each with its own optimal thresholds and sizes, in one compiled program.

A chunk of problems is solved at a time. With several devices each takes one such chunk, by a mesh over the batch axis:
every device runs the program that a single one would, so the answers do not depend on their number.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxsim._checks import require_positive, require_x64
from jaxsim.units import MS_PER_S
from optim._compile import program
from optim.cases import Case, cases
from optim.problem import PlanProblem
from optim.relax import descend, smooth
from optim.sizing import CEIL_TOLERANCE, Targets
from optim.transforms import start_coordinates

NUM_STARTS = 6
CHUNK = 64
"""Problems solved at once by a device; a fixed number, so that one program serves any grid."""

Solver = Callable[[Case, Case, jax.Array], tuple[jax.Array, ...]]


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

    def table(self) -> pl.DataFrame:
        """A row for each element, in C order: inputs, costs, feasibility, and each pool; null where there is none."""
        unbounded, feasible = np.isinf(self.tpot_p99_s).ravel(), self.feasible.ravel()
        pools = self.replicas.shape[-1]
        columns: dict[str, pl.Series] = {
            "rate_rps": pl.Series(self.rate.ravel()),
            "slo_ttft_p99_ms": pl.Series(self.ttft_p99_s.ravel() * MS_PER_S),
            "slo_tpot_p99_ms": _or_null(self.tpot_p99_s.ravel() * MS_PER_S, ~unbounded),
            "feasible": pl.Series(feasible),
            "cost_usd_per_hour": _or_null(self.usd_per_hour.ravel(), feasible),
            "relaxed_cost_usd_per_hour": _or_null(self.relaxed_usd_per_hour.ravel(), feasible),
        }
        for p in range(pools):
            replicas = self.replicas[..., p].ravel()
            used = feasible & (replicas > 0)
            columns[f"pool{p}_profile"] = _or_null(self.profile[..., p].ravel().astype(str), used)
            columns[f"pool{p}_replicas"] = _or_null(np.where(used, replicas, 0.0), feasible).cast(pl.Int64)
            columns[f"pool{p}_upper_tokens"] = _or_null(self.upper_tokens[..., p].ravel(), used)
        return pl.DataFrame(columns)

    def write(self, path: Path) -> None:
        """`table` as a parquet file, whole or not at all."""
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".parquet", delete=False) as file:
            whole = Path(file.name)
        try:
            self.table().write_parquet(whole)
            whole.chmod(0o644)
            os.replace(whole, path)
        except BaseException:
            whole.unlink(missing_ok=True)
            raise


def _or_null(values: np.ndarray, known: np.ndarray) -> pl.Series:
    return pl.Series([value if there else None for value, there in zip(values.tolist(), known, strict=True)])


def whatif(
    problem: PlanProblem,
    *,
    rate: Any = None,
    ttft_p99_s: Any = None,
    tpot_p99_s: Any = None,
    progress: Callable[[str], None] = lambda _: None,
) -> WhatIf:
    """The least-cost fleet for every combination of the inputs that broadcasting gives, on every device JAX has.

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
    devices = min(jax.device_count(), -(-len(flat) // CHUNK))
    solve, chunk = _solver(devices, problem.model), CHUNK * devices
    on = f" on {devices} devices" if devices > 1 else ""
    for profiles, case in cases(problem, num_pools=pools):
        names = np.array([str(p.name) for p in profiles])
        smoothed = smooth(case)
        for first in range(0, len(flat), chunk):
            progress(f"{' + '.join(names)}: {first:,} of {len(flat):,}{on}")
            rows = flat[first : first + chunk]
            padded = np.concatenate([rows, np.repeat(rows[-1:], chunk - len(rows), axis=0)])
            answer = [np.asarray(v)[: len(rows)] for v in solve(case, smoothed, jnp.asarray(padded))]
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


def _solver(devices: int, model: str) -> Solver:
    """Solves rows that are a multiple of the devices."""
    if devices == 1:
        return lambda case, smoothed, rows: _solve(case, smoothed, rows, model)
    shared, split = (NamedSharding(_mesh(devices), spec) for spec in (PartitionSpec(), PartitionSpec(_AXIS)))

    def solve(case: Case, smoothed: Case, rows: jax.Array) -> tuple[jax.Array, ...]:
        here, there = jax.device_put((case, smoothed), shared)
        return _sharded(devices, model)(here, there, jax.device_put(rows, split))

    return solve


_AXIS = "what_ifs"


@cache
def _mesh(devices: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:devices]), (_AXIS,))


@cache
def _sharded(devices: int, model: str) -> Solver:
    """`_solve` on each device's own rows: nothing crosses between them."""
    alone = _solve.__wrapped__

    def local(case: Case, smoothed: Case, rows: jax.Array) -> tuple[jax.Array, ...]:
        found: tuple[jax.Array, ...] = alone(case, smoothed, rows, model)
        return found

    specs = (PartitionSpec(), PartitionSpec(), PartitionSpec(_AXIS))
    mapped = jax.shard_map(local, mesh=_mesh(devices), in_specs=specs, out_specs=PartitionSpec(_AXIS), check_vma=False)
    return jax.jit(mapped)


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
