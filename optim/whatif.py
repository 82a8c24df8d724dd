"""whatif: many problems at once, each with its own optimal thresholds and sizes, in one compiled program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from des.execution import HERE, Execution
from des.parts import whole_file
from jaxsim._checks import require_positive, require_x64
from jaxsim.units import MS_PER_S
from optim.problem import PlanProblem
from optim.whatif_rows import Answers, RowSolver, few_rows, nothing, rows_at_once
from optim.workers import Programs, require_cpu_workers


@dataclass(frozen=True)
class Grid:
    """Inputs that broadcast, not laid out: any number of rows in the memory of its axes.

    Attributes:
        rate, ttft_p99_s, tpot_p99_s: views of the broadcast shape; inf as a TPOT objective is none.
    """

    rate: np.ndarray
    ttft_p99_s: np.ndarray
    tpot_p99_s: np.ndarray

    @classmethod
    def of(cls, problem: PlanProblem, *, rate: Any = None, ttft_p99_s: Any = None, tpot_p99_s: Any = None) -> Grid:
        """Every combination; what is left out is the problem's own.

        Raises:
            ValueError: a rate or objective that is not > 0, or shapes that do not broadcast.
        """
        slo = problem.slo
        own_tpot = np.inf if slo.tpot_p99_s is None else slo.tpot_p99_s
        given = (
            problem.rate if rate is None else rate,
            slo.ttft_p99_s if ttft_p99_s is None else ttft_p99_s,
            own_tpot if tpot_p99_s is None else tpot_p99_s,
        )
        axes = [np.asarray(v, dtype=np.float64) for v in given]
        whole = np.broadcast_arrays(*axes)
        require_positive("rate", axes[0])
        require_positive("ttft_p99_s", axes[1])
        require_positive("tpot_p99_s", np.where(np.isinf(axes[2]), 1.0, axes[2]))
        return cls(*whole)

    @property
    def shape(self) -> tuple[int, ...]:
        """That the inputs broadcast to."""
        return self.rate.shape

    def __len__(self) -> int:
        """Rows, in C order."""
        return int(self.rate.size)

    @property
    def axes(self) -> tuple[np.ndarray, ...]:
        """The inputs as small as they broadcast from."""
        whole = (self.rate, self.ttft_p99_s, self.tpot_p99_s)
        return tuple(v[tuple(slice(0, 1) if step == 0 else slice(None) for step in v.strides)] for v in whole)

    def rows_of(self, place: int, size: int) -> range:
        """The rows of a share of `size`, by its place; the last may be shorter."""
        return range(place * size, min((place + 1) * size, len(self)))

    def rows(self, first: int, last: int) -> np.ndarray:
        """Rows `first` to before `last` as (rate, TTFT, TPOT)."""
        at = np.unravel_index(np.arange(first, last), self.shape or (1,))
        whole = (self.rate, self.ttft_p99_s, self.tpot_p99_s)
        return np.stack([(v if self.shape else v[None])[at] for v in whole], axis=1)

    def answered(self, answers: Answers) -> WhatIf:
        """With answers of all its rows."""
        costs = answers["usd_per_hour"]
        by_pool = {name: answers[name] for name in ("replicas", "upper_tokens", "profile")}
        return WhatIf(
            self.rate,
            self.ttft_p99_s,
            self.tpot_p99_s,
            usd_per_hour=costs.reshape(self.shape),
            relaxed_usd_per_hour=answers["relaxed_usd_per_hour"].reshape(self.shape),
            feasible=np.isfinite(costs).reshape(self.shape),
            **{name: values.reshape(*self.shape, values.shape[-1]) for name, values in by_pool.items()},
        )


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
        with whole_file(path) as beside:
            self.table().write_parquet(beside)


def _or_null(values: np.ndarray, known: np.ndarray) -> pl.Series:
    """Values, null where they are not known."""
    return pl.select(pl.when(pl.Series(known)).then(pl.Series(values))).to_series()


def whatif(
    problem: PlanProblem,
    *,
    rate: Any = None,
    ttft_p99_s: Any = None,
    tpot_p99_s: Any = None,
    execution: Execution = HERE,
    progress: Callable[[str], None] = lambda _: None,
) -> WhatIf:
    """The least-cost fleet for every combination of the inputs that broadcasting gives, on every device JAX has.

    Args:
        problem: everything that is not varied.
        rate, ttft_p99_s, tpot_p99_s: arrays that broadcast; left out, the problem's own value. inf as a TPOT
            objective is none.
        execution: who computes; left out, this process. Its folder is not used: see `optim.sweep`.
        progress: told what is being done.

    Returns:
        WhatIf, arrays of the broadcast shape; `replicas`, `upper_tokens` and `profile` (names) with a last pool axis.

    Raises:
        ValueError: a rate or objective that is not > 0, or workers where JAX computes on accelerators.
    """
    require_x64()
    grid = Grid.of(problem, rate=rate, ttft_p99_s=ttft_p99_s, tpot_p99_s=tpot_p99_s)
    require_cpu_workers(execution)
    found = nothing(len(grid), problem.max_pools)
    size = rows_at_once(len(grid), alone=execution.alone)
    shares = [grid.rows_of(k, size) for k in range(-(-len(grid) // size))]
    tell = Teller(progress, len(grid))
    tell(0)
    for place, answers in execution.map(
        RowSolver(problem, Programs.here(), few_rows(len(grid))), [grid.rows(s.start, s.stop) for s in shares]
    ):
        for name, values in answers.items():
            found[name][shares[place].start : shares[place].stop] = values
        tell(len(shares[place]))
    return grid.answered(found)


class Teller:
    """Says how many of so many rows are answered."""

    def __init__(self, progress: Callable[[str], None], count: int) -> None:
        self._progress, self._count, self._done = progress, count, 0

    def __call__(self, more: int) -> None:
        """So many more are."""
        self._done += more
        self._progress(f"{self._done:,} of {self._count:,} what-ifs")
