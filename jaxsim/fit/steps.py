"""`fit_steps`: a step law from measured steps."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import numpy as np

from jaxsim._checks import require_non_negative, require_positive, require_x64
from jaxsim.fit.doubts import Doubt, Warned, step_doubts
from jaxsim.fit.folds import FOLDS, folds_of, with_folds
from jaxsim.fit.identify import independent, stages_for
from jaxsim.fit.law import COEFFICIENTS, LawFit, Stages, fit_law
from jaxsim.fit.report import StepFit, by_label, errors_by, names_at_bound, standard_errors_of
from jaxsim.fit.table import STEP_OF_PADDING, Rows, StepTable, padded, step_seconds
from jaxsim.physics import StepLaw


def fit_steps(
    table: StepTable,
    *,
    fitted: tuple[str, ...] = COEFFICIENTS,
    scale: float | None = None,
    overhead_s: float = 0.0,
    hold_out: str = "settings",
    seed: int = 0,
) -> StepFit:
    r"""Fit the step law to measured steps: least squares in relative error, robust to rows that are far off.

    Steps that only decode determine base, per sequence and per token; those with a prompt then determine prefill
    (`jaxsim.fit.law`). Coefficients are >= 0 and can be 0; one that the rows cannot tell from others is left at 0,
    with a warning.

    Args:
        table: the steps.
        fitted: coefficients to fit; others are 0. Without "per_sequence_s" it is the ``kimura`` form,
            :math:`W + H\, n\, \text{context} / \text{calibration context}`.
        scale: relative error above which a row counts linearly (soft-L1); None is 1.5 standard deviations of the
            errors, from their median.
        overhead_s: seconds of the engine in every step, known; base is what remains.
        hold_out: "settings" puts rows of the same settings, such as repeats, in one of five folds; "groups" puts rows
            of one group there, and so asks how the law does on a group that it has not seen.
        seed: of the folds.

    Measured accuracy (``benchmarks/physics.py``): on tables of composed kernel times of 45 GPUs, models and
    tensor-parallel degrees, the mean absolute error of a table is 2.6 % in the median and 8.5 % at worst; of 40
    tables of prefill, 4.0 % in the median. A table's mixed steps, with prompts beside sequences that decode: 13 to
    18 %.
    """
    require_x64()
    require_non_negative("overhead_s", overhead_s)
    if scale is not None:
        require_positive("scale", scale, "a relative error: 5 % is 0.05")
    stages, first = stages_for(table, fitted)
    folds = folds_of(table.points(), table.groups, hold_out, seed)
    held_out = _leave_enough(table, folds, stages)
    if not held_out:
        first = (*first, Warned(Doubt.NOT_HELD_OUT, f"too few {hold_out} to hold a fifth of them out"))
    given = np.asarray(np.nan if scale is None else scale, dtype=np.float64)
    stack = with_folds(padded(table.rows, STEP_OF_PADDING), folds)
    found = jax.device_get(_fits(stack, stages.masks, given, np.asarray(overhead_s, dtype=np.float64)))
    whole: LawFit = jax.tree.map(lambda leaf: leaf[0], found)
    law, at_bound = StepLaw(*map(float, whole.law)), names_at_bound(whole)
    standard_errors = standard_errors_of(whole, stages.fitted, at_bound)
    scales = dict(zip(("decode", "prompt"), map(float, whole.scales), strict=True))
    after = step_doubts(
        table, law, stages, standard_errors=standard_errors, at_bound=at_bound, scales=scales,
        converged=bool(whole.converged),
    )  # fmt: skip
    chosen = {"decode": ~table.has_prompt, "prompt": table.has_prompt, **by_label(table.groups)}
    missed = _held_out_seconds(table, found.law, folds) / table.time_s - 1.0
    return StepFit(
        law=law,
        standard_errors=standard_errors,
        covariance=np.asarray(whole.covariance),
        degrees_of_freedom=_degrees(table, stages),
        fitted=stages.fitted,
        at_bound=at_bound,
        errors=errors_by(step_seconds(law, table.rows) / table.time_s - 1.0, chosen),
        held_out=errors_by(missed, chosen) if held_out else {},
        scales=scales,
        warned=(*first, *after),
        rows=len(table),
        source=table.source,
    )


@eqx.filter_jit
def _fits(tables: Rows, masks: Any, scale: Any, overhead_s: Any) -> LawFit:
    """A fit of each table of a stack, one after another: a batch of them takes twice as long to compile."""
    return jax.lax.map(lambda rows: fit_law(rows, masks, scale=scale, overhead_s=overhead_s), tables)


def _leave_enough(table: StepTable, folds: np.ndarray, stages: Stages) -> bool:
    """Whether what is left tells the coefficients, with settings to spare, whatever fold is held out."""
    points = table.points()
    for names, chosen in ((stages.decode, ~table.has_prompt), (stages.prompt, table.has_prompt)):
        for fold in range(FOLDS):
            left = chosen & (folds != fold)
            rows = table.rows_of(left)
            if not names:
                continue
            if rows is None or len(np.unique(points[left])) <= len(names) or len(independent(rows, names)) < len(names):
                return False
    return True


def _held_out_seconds(table: StepTable, laws: StepLaw, folds: np.ndarray) -> np.ndarray:
    """Each row's time by the law that was fitted without its fold."""
    times = [step_seconds(StepLaw(*(leaf[fold + 1] for leaf in laws)), table.rows) for fold in range(FOLDS)]
    return np.stack(times)[folds, np.arange(len(table))]


def _degrees(table: StepTable, stages: Stages) -> dict[str, int]:
    decodes = len(table) - int(table.has_prompt.sum())
    found = {name: decodes - len(stages.decode) for name in stages.decode}
    return found | {name: len(table) - decodes - len(stages.prompt) for name in stages.prompt}
