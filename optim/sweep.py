"""sweep: any number of what-ifs in flat memory, written part by part, so that a stopped sweep goes on where it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import jax
import numpy as np
import polars as pl

from des.digest import digest, sources
from des.execution import Execution
from des.parts import Parts, kept
from jaxsim._checks import require, require_x64
from optim.problem import PlanProblem
from optim.whatif import Grid, Teller, WhatIf
from optim.whatif_rows import Answers, RowSolver
from optim.workers import Programs, require_cpu_workers

PART = 8192
"""What-ifs of a part."""


@dataclass(frozen=True)
class Sweep:
    """A finished sweep.

    Attributes:
        grid: its inputs.
        parts: its answers, part ``part-000000`` and so on; each the rows of `WhatIf.table`.
        names: of the parts, in the order of the rows.
        computed: of these, computed by this run; the others were there.
        feasible: what-ifs that have an answer.
        usd_per_hour: least and greatest cost of these; NaN without any.
    """

    grid: Grid
    parts: Parts
    names: tuple[str, ...]
    computed: int
    feasible: int
    usd_per_hour: tuple[float, float]

    def tables(self) -> Iterator[pl.DataFrame]:
        """The answers, part by part."""
        return (self.parts.read(name) for name in self.names)

    def answers(self) -> WhatIf:
        """All of them, as `optim.whatif` gives them but for pools without replicas: NaN tokens and no profile."""
        return self.grid.answered(_answers(pl.concat(self.tables())))


def sweep(
    problem: PlanProblem,
    *,
    rate: Any = None,
    ttft_p99_s: Any = None,
    tpot_p99_s: Any = None,
    execution: Execution,
    part: int = PART,
    progress: Callable[[str], None] = lambda _: None,
) -> Sweep:
    """Like `optim.whatif`, with the answers in files of the execution's folder instead of in memory.

    A part that is there from a run of the same request, code and size of parts is not computed again.

    Args:
        problem, rate, ttft_p99_s, tpot_p99_s, progress: see `optim.whatif`.
        execution: who computes, and where the parts go.
        part: what-ifs of a part, >= 1.

    Raises:
        ValueError: no folder, one with the parts of another request, a rate or objective that is not > 0, or workers
            where JAX computes on accelerators.
    """
    require_x64()
    if execution.folder is None:
        raise ValueError("a sweep needs Execution(folder=...), where its parts go, got none; optim.whatif needs none")
    require(part >= 1, "part", part, ">= 1")
    grid = Grid.of(problem, rate=rate, ttft_p99_s=ttft_p99_s, tpot_p99_s=tpot_p99_s)
    require_cpu_workers(execution)
    names = tuple(f"part-{k:06d}" for k in range(-(-len(grid) // part)))
    with kept(execution.folder, lambda: _request(problem, grid, part)) as parts:
        missing = [k for k, name in enumerate(names) if not parts.has(name)]
        tell = Teller(progress, len(grid))
        tell(len(grid) - sum(len(grid.rows_of(k, part)) for k in missing))
        solver = RowSolver(problem, Programs.here())
        for place, answers in execution.map(solver, _Rows(grid, part, missing)):
            rows = grid.rows_of(missing[place], part)
            parts.write(names[missing[place]], _table(grid.rows(rows.start, rows.stop), answers))
            tell(len(rows))
        parts.finish()
        return Sweep(grid, parts, names, len(missing), *_summary(parts, names))


@dataclass(frozen=True)
class _Rows(Sequence[np.ndarray]):
    """Rows of some parts, laid out when they are asked for."""

    grid: Grid
    part: int
    places: list[int]

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, at: int) -> np.ndarray: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[np.ndarray]: ...

    def __getitem__(self, at: int | slice) -> np.ndarray | Sequence[np.ndarray]:
        if isinstance(at, slice):
            return _Rows(self.grid, self.part, self.places[at])
        rows = self.grid.rows_of(self.places[at], self.part)
        return self.grid.rows(rows.start, rows.stop)


def _request(problem: PlanProblem, grid: Grid, part: int) -> dict[str, Any]:
    return {
        "kind": "what-ifs",
        "inputs": digest([problem, grid.shape, *grid.axes]),
        "what_ifs": len(grid),
        "what_ifs_of_a_part": part,
        "backend": jax.default_backend(),
        "code": sources("jaxsim", "des", "optim"),
        "versions": {library.__name__: library.__version__ for library in (jax, np, pl)},
    }


def _table(rows: np.ndarray, answers: Answers) -> pl.DataFrame:
    return Grid(*rows.T).answered(answers).table()


def _answers(table: pl.DataFrame) -> Answers:
    """What `WhatIf.table` was made of."""
    pools = sum(name.endswith("_replicas") for name in table.columns)

    def of_pools(name: str, missing: Any) -> np.ndarray:
        columns = [table[f"pool{p}_{name}"].fill_null(missing).to_numpy() for p in range(pools)]
        return np.stack(columns, axis=1)

    return {
        "usd_per_hour": table["cost_usd_per_hour"].fill_null(np.inf).to_numpy(),
        "relaxed_usd_per_hour": table["relaxed_cost_usd_per_hour"].fill_null(np.inf).to_numpy(),
        "replicas": np.stack([table[f"pool{p}_replicas"].cast(pl.Float64).to_numpy() for p in range(pools)], axis=1),
        "upper_tokens": of_pools("upper_tokens", np.nan),
        "profile": of_pools("profile", "").astype(object),
    }


def _summary(parts: Parts, names: Sequence[str]) -> tuple[int, tuple[float, float]]:
    """How many what-ifs are feasible, and their least and greatest cost."""
    feasible, least, greatest = 0, np.inf, -np.inf
    for name in names:
        costs = parts.read(name, columns=["cost_usd_per_hour"]).to_series().drop_nulls().to_numpy()
        if len(costs):
            feasible += len(costs)
            least, greatest = min(least, float(costs.min())), max(greatest, float(costs.max()))
    return feasible, (least, greatest) if feasible else (np.nan, np.nan)
