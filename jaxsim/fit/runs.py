"""`fit_runs`: a step law from the means of benchmark runs, where no step was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxsim._checks import require_non_negative, require_positive, require_x64
from jaxsim.fit._solve import LEAST_START, robust_least_squares
from jaxsim.fit._uncertainty import carried_covariance
from jaxsim.fit.closed_loop import Runs, closed_loop
from jaxsim.fit.doubts import Doubt, Warned, common_doubts, far_off, few, ill_conditioned, listed
from jaxsim.fit.folds import FOLDS, folds_of, with_folds
from jaxsim.fit.identify import check_fitted, independent_columns
from jaxsim.fit.law import COEFFICIENTS, LEAST_BASE, LawFit, law_of
from jaxsim.fit.report import Errors, StepFit, by_label, errors_by, names_at_bound, standard_errors_of
from jaxsim.fit.run_table import RUN_OF_PADDING, RunTable
from jaxsim.fit.table import padded
from jaxsim.physics import StepLaw

TOLD_APART = 0.02
"""Part of a coefficient's column that others do not explain below which runs cannot tell it from them: their means
are a few percent off."""

PRECEDENCE = ("base_s", "prefill_per_token_s", "per_token_s", "per_sequence_s", "prefill_per_token2_s")
"""Of two coefficients that the runs cannot tell apart, the later one is left at 0."""

FIGURES = ("ttft", "tpot")


def fit_runs(
    table: RunTable,
    *,
    fitted: tuple[str, ...] = COEFFICIENTS,
    scale: float | None = None,
    overhead_s: float = 0.0,
    hold_out: str = "settings",
    seed: int = 0,
) -> StepFit:
    """Fit the step law to mean TTFT and mean TPOT at fixed concurrencies, through the model of `closed_loop`.

    Least squares in relative error of both figures of every run at once, robust to those that are far off.
    Coefficients are >= 0 and can be 0; one that the runs cannot tell from others is left at 0, with a warning: sweep
    the concurrency at two prompt lengths or more. Errors of the result are also by figure, "ttft" and "tpot"; of a
    group, both figures count.

    Args:
        table: the runs, steady and without failures (see `jaxsim.benchmark_doctor`).
        fitted, scale, overhead_s, hold_out, seed: as in `fit_steps`.

    Measured accuracy (``benchmarks/physics.py``), of 116 sweeps of real engines: mean absolute error of TPOT 6.6 % in
    the median sweep, 9 % held out; of TTFT 44 %, most of which is the start of a run and the client's own time.
    """
    require_x64()
    require_non_negative("overhead_s", overhead_s)
    if scale is not None:
        require_positive("scale", scale, "a relative error: 5 % is 0.05")
    check_fitted(fitted)
    nominal, longer = _nominal(table), padded(table.runs, RUN_OF_PADDING)
    columns = _measured(np.asarray(_jacobian(nominal, longer)), table)
    order = [COEFFICIENTS.index(name) for name in PRECEDENCE if name in fitted]
    kept = {order[k] for k in independent_columns([columns[:, k] for k in order], TOLD_APART)}
    told = tuple(name for k, name in enumerate(COEFFICIENTS) if k in kept)
    free = np.array([name in told for name in COEFFICIENTS])
    folds = folds_of(table.points(), table.groups, hold_out, seed)
    held_out = 2 * min(len(np.unique(table.points()[folds != fold])) for fold in range(FOLDS)) > len(told)
    settings = tuple(np.asarray(value, dtype=np.float64) for value in (np.nan if scale is None else scale, overhead_s))
    found = jax.device_get(_fits(with_folds(longer, folds), free, nominal, *settings))
    whole: LawFit = jax.tree.map(lambda leaf: leaf[0], found)
    law, at_bound = StepLaw(*map(float, whole.law)), names_at_bound(whole)
    standard_errors = standard_errors_of(whole, told, at_bound)
    errors = _errors(law, table)
    figures = int(np.isfinite(errors).sum())
    laws = [StepLaw(*(leaf[fold + 1] for leaf in found.law)) for fold in range(FOLDS)]
    missed = np.stack([_errors(one, table) for one in laws])[folds, :, np.arange(len(table))].T
    moving = tuple(name for name in told if name not in at_bound)
    warned = [*_missing(fitted, told), *common_doubts(law, told, standard_errors, at_bound, bool(whole.converged))]
    warned += ill_conditioned([columns[:, COEFFICIENTS.index(name)] for name in moving], moving)
    warned += few(figures, "figures", len(told))
    warned += far_off(errors[np.isfinite(errors)], "figures", float(whole.scales))
    if not held_out:
        warned.append(Warned(Doubt.NOT_HELD_OUT, f"too few {hold_out} to hold a fifth of them out"))
    return StepFit(
        law=law,
        standard_errors=standard_errors,
        covariance=np.asarray(whole.covariance),
        degrees_of_freedom=dict.fromkeys(told, figures - len(told)),
        fitted=told,
        at_bound=at_bound,
        errors=_by_figure(errors, table),
        held_out=_by_figure(missed, table) if held_out else {},
        scales={"runs": float(whole.scales)},
        warned=tuple(warned),
        rows=len(table),
        source=table.source,
    )


def fit_runs_law(runs: Runs, free: Any, nominal: Any, *, scale: Any = math.nan, overhead_s: Any = 0.0) -> LawFit:
    """`jaxsim.fit.law.fit_law` for runs: pure, for `jit`, `vmap` and `grad`.

    Args:
        runs: rank 1.
        free: which coefficients are fitted, in the order of `COEFFICIENTS`; the others are 0.
        nominal: coefficients of the right magnitude, all > 0: where the search starts is linear least squares there.
        scale, overhead_s: as in `fit_law`.
    """
    weight = jnp.concatenate([runs.weight * runs.ttft_weight, runs.weight])
    jacobian = jnp.where(free[None, :], _jacobian(nominal, runs), 0.0)
    share = jnp.sum(weight[:, None] * jacobian, axis=0) / jnp.sum(weight)
    unit = 1.0 / jnp.where(share > 0, share, 1.0)
    lower = jnp.where(jnp.arange(len(COEFFICIENTS)) == 0, LEAST_BASE * unit, 0.0)
    root = jnp.sqrt(weight)
    none = _ratios(law_of(0.0 * nominal + LEAST_BASE * nominal, overhead_s), runs)  # what the overhead makes up
    linear = jnp.linalg.lstsq(root[:, None] * jacobian * unit[None, :], root * (1.0 - none))[0] * unit
    start = lower + jnp.maximum(linear, LEAST_START * unit)

    def errors(values: Any, runs: Runs = runs) -> Any:
        return _ratios(law_of(values, overhead_s), runs) - 1.0

    def residuals(sought: Any, runs: Runs) -> Any:
        return errors(jnp.where(free, sought, 0.0), runs)

    found = robust_least_squares(residuals, start, runs, weight, free=free, lower=lower, unit=unit, scale=scale)
    values = jnp.where(free, found.value, 0.0)
    spread = carried_covariance(
        jnp.zeros((len(COEFFICIENTS), len(COEFFICIENTS))),
        errors,
        values,
        weight=weight,
        free=free & ~found.at_bound,
        scale=found.scale,
    )
    return LawFit(law_of(values, overhead_s), spread, found.at_bound, found.scale, found.converged)


@eqx.filter_jit
def _fits(tables: Runs, free: Any, nominal: Any, scale: Any, overhead_s: Any) -> LawFit:
    """A fit of each table of a stack, one after another."""
    return jax.lax.map(lambda runs: fit_runs_law(runs, free, nominal, scale=scale, overhead_s=overhead_s), tables)


@eqx.filter_jit
def _jacobian(values: Any, runs: Runs) -> Any:
    return jax.jacfwd(lambda values: _ratios(law_of(values, 0.0), runs))(values)


def _ratios(law: StepLaw, runs: Runs) -> Any:
    """Modelled over measured: every TTFT, then every TPOT."""
    ttft, tpot = closed_loop(law, runs)
    return jnp.concatenate([ttft / runs.ttft_s, tpot / runs.tpot_s])


def _errors(law: StepLaw, table: RunTable) -> np.ndarray:
    """Signed relative errors, one row a figure."""
    ttft, tpot = closed_loop(law, table.runs)
    return np.stack([ttft / table.ttft_s, tpot / table.tpot_s]) - 1.0  # NaN without a TTFT


def _measured(columns: np.ndarray, table: RunTable) -> np.ndarray:
    """The rows of the figures that were measured."""
    number, half = len(table), len(columns) // 2
    both = np.concatenate([columns[:number], columns[half : half + number]])
    return both[~np.isnan(_both(table))]


def _both(table: RunTable) -> np.ndarray:
    """Every measured TTFT, then every TPOT."""
    return np.concatenate([table.ttft_s, table.tpot_s])


def _nominal(table: RunTable) -> np.ndarray:
    """Coefficients of the right magnitude: the shortest TPOT and TTFT all base and prompt, the rest a tenth of it."""
    base = 0.5 * float(table.tpot_s.min())
    prompt = 0.5 * float(np.nanmin(table.ttft_s / table.input_tokens))
    most, longest = float(table.concurrency.max()), float((table.input_tokens + table.output_tokens).max())
    return np.array([base, 0.1 * base / most, 0.1 * base / most / longest, prompt, 0.1 * prompt / longest])


def _missing(fitted: tuple[str, ...], told: tuple[str, ...]) -> Iterator[Warned]:
    names = [name for name in COEFFICIENTS if name in fitted and name not in told]
    if names:
        yield Warned(
            Doubt.COLLINEAR,
            f"these runs cannot tell {listed(names)} from the rest: left at 0; sweep the concurrency at two prompt "
            "lengths or more",
        )


def _by_figure(errors: np.ndarray, table: RunTable) -> dict[str, Errors]:
    known = np.isfinite(errors.ravel())
    ttft = np.repeat([True, False], len(table))
    labels = {name: np.tile(rows, 2)[known] for name, rows in by_label(table.groups).items()}
    return errors_by(errors.ravel()[known], {"ttft": ttft[known], "tpot": ~ttft[known], **labels})
