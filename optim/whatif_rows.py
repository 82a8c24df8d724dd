"""Rows of what-ifs (rate, TTFT, TPOT), solved in one compiled program: what a worker does with its share of a grid.

A chunk of rows is solved at a time. With several devices each takes one such chunk, by a mesh over the batch axis:
every device runs the program that a single one would, so the answers do not depend on their number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from optim._compile import program
from optim.cases import Case, cases
from optim.problem import PlanProblem
from optim.relax import descend, smooth
from optim.sizing import CEIL_TOLERANCE, Targets
from optim.transforms import start_coordinates
from optim.workers import Programs

NUM_STARTS = 6
CHUNK = 64
"""Rows solved at once by a device; a fixed number, so that one program serves any grid of more than a few rows."""
_FEW = 8
"""A grid of at most a chunk over this is solved in one chunk that small: a page of what-ifs should not pay for 64."""

SHARE = 8
"""Chunks of a task for a worker process."""

Solver = Callable[[Case, Case, jax.Array], tuple[jax.Array, ...]]
Answers = dict[str, np.ndarray]
"""``usd_per_hour`` and ``relaxed_usd_per_hour`` of each row, inf where infeasible; ``replicas``, ``upper_tokens`` and
``profile`` (names) of each pool of each row, NaN and empty where infeasible."""


@dataclass(frozen=True)
class RowSolver:
    """Answers rows of one problem.

    Attributes:
        problem: everything that is not varied.
        programs: where traced programs are kept.
        few: whether the whole grid is of a few rows (`few_rows`).
    """

    problem: PlanProblem
    programs: Programs
    few: bool = False

    @cached_property
    def _choices(self) -> list[tuple[np.ndarray, Case, Case]]:
        """Names, exact and smoothed case of each choice of hardware."""
        found = cases(self.problem, num_pools=self.problem.max_pools)
        return [(np.array([str(p.name) for p in profiles]), case, smooth(case)) for profiles, case in found]

    def __call__(self, rows: np.ndarray) -> Answers:
        """Answers of rows (rate per second, TTFT and TPOT in seconds, inf for no TPOT objective)."""
        self.programs.share()
        best = nothing(len(rows), self.problem.max_pools)
        devices = _devices_for(len(rows))
        solve, chunk = _solver(devices, self.problem.model), CHUNK * devices
        chunk = chunk // _FEW if self.few else chunk
        for names, case, smoothed in self._choices:
            for first in range(0, len(rows), chunk):
                some = rows[first : first + chunk]
                padded = np.concatenate([some, np.repeat(some[-1:], chunk - len(some), axis=0)])
                answer = [np.asarray(v)[: len(some)] for v in solve(case, smoothed, jnp.asarray(padded))]
                _keep_cheaper(best, answer, names, slice(first, first + len(some)))
        return best


def few_rows(count: int) -> bool:
    """Whether a grid of so many rows is solved in one small chunk."""
    return count <= CHUNK // _FEW


def rows_at_once(count: int, *, alone: bool) -> int:
    """How many of so many rows make a task: what the devices solve together, or enough for a worker process."""
    return CHUNK * (_devices_for(count) if alone else SHARE)


def _devices_for(count: int) -> int:
    """Devices that share so many rows."""
    return max(min(jax.device_count(), -(-count // CHUNK)), 1)


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
    longest = jnp.full(case.num_pools, 1.0) * case.longest

    def one(row: jax.Array) -> tuple[jax.Array, ...]:
        targets = Targets(jnp.full(case.num_pools, row[1]), jnp.full(case.num_pools, row[2]))
        here, there = (eqx.tree_at(lambda c: (c.rate, c.targets), c, (row[0], targets)) for c in (case, smoothed))
        upper = longest[None]
        if case.num_pools > 1:
            starts = jnp.asarray(start_coordinates(NUM_STARTS, case.num_pools))
            _, found = descend(starts, there, model)
            upper = jnp.concatenate([upper, jnp.maximum(jnp.floor(found), 1.0)])
        size = jax.vmap(lambda u: here.sizes(u, model=model, relaxed=False))(upper)
        replicas = jnp.ceil(size.replicas * (1.0 - CEIL_TOLERANCE))
        whole = (replicas * jnp.asarray(case.profile.usd_per_hour)[None]).sum(1)
        whole = jnp.where(size.feasible.all(1), whole, jnp.inf)
        at = jnp.argmin(whole)
        relaxed = jax.vmap(here.relaxed_usd_per_hour)(size)
        return whole[at], jnp.where(jnp.isfinite(whole[at]), relaxed[at], jnp.inf), replicas[at], upper[at]

    return jax.vmap(one)(rows)


def nothing(count: int, pools: int) -> Answers:
    """No answers yet."""
    return {
        "usd_per_hour": np.full(count, np.inf),
        "relaxed_usd_per_hour": np.full(count, np.inf),
        "replicas": np.full((count, pools), np.nan),
        "upper_tokens": np.full((count, pools), np.nan),
        "profile": np.full((count, pools), "", dtype=object),
    }


def _keep_cheaper(best: Answers, answer: list[np.ndarray], names: np.ndarray, rows: slice) -> None:
    cheaper = answer[0] < best["usd_per_hour"][rows] - 1e-9
    for key, values in zip(("usd_per_hour", "relaxed_usd_per_hour", "replicas", "upper_tokens"), answer, strict=True):
        best[key][rows][cheaper] = values[cheaper]
    best["profile"][rows][cheaper] = names
