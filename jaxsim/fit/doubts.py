"""What is to be doubted in a fit, in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np

from jaxsim.fit.law import Stages
from jaxsim.fit.table import Rows, StepTable, step_seconds
from jaxsim.physics import StepLaw

LARGEST_CONDITION = 100.0
"""Condition number of the scaled Jacobian above which an error of 1 % in the times can be one of 100 % in a
coefficient."""

LARGEST_STANDARD_ERROR = 0.25
ROWS_PER_COEFFICIENT = 3
OUTLIER_SCALES = 4.0
LEAST_OUTLIER = 0.05
"""Relative error that is worth a look, however well the other rows agree."""


class Doubt(Enum):
    """What can be wrong with a fit; the values say it in short."""

    ONE_CONTEXT = "the batch was swept at one context only"
    ONE_BATCH = "the context was swept at one batch only"
    ONE_POINT = "one batch at one context only"
    COLLINEAR = "batch and context changed together"
    NO_DECODES = "no step only decodes"
    NO_PROMPTS = "no step computes prompt tokens"
    ONE_PROMPT_CONTEXT = "all prompts end at one context"
    ONE_PROMPT_LENGTH = "all prompts are of one length"
    NO_LONG_PROMPT = "no prompt is long enough to be bound by compute"
    NO_SHORT_PROMPT = "no prompt is short enough to be bound by memory"
    ILL_CONDITIONED = "the settings hardly tell the coefficients apart"
    AT_BOUND = "a coefficient is at its lower bound"
    UNCERTAIN = "a coefficient is known badly"
    FEW_ROWS = "few rows"
    NOT_HELD_OUT = "too few rows to hold some out"
    OUTLIERS = "some rows are far off"
    NOT_CONVERGED = "the search did not end at a minimum"


@dataclass(frozen=True)
class Warned:
    """One doubt, with its figures."""

    kind: Doubt
    text: str


def step_doubts(
    table: StepTable,
    law: StepLaw,
    stages: Stages,
    *,
    standard_errors: StepLaw,
    at_bound: tuple[str, ...],
    scales: dict[str, float],
    converged: bool,
) -> Iterator[Warned]:
    """What is to be doubted in a law fitted to steps."""
    yield from common_doubts(law, stages.fitted, standard_errors, at_bound, converged)
    for kind, names, chosen in (
        ("decode", stages.decode, ~table.has_prompt),
        ("prompt", stages.prompt, table.has_prompt),
    ):
        rows = table.rows_of(chosen)
        if rows is not None and names:
            free = tuple(name for name in names if name not in at_bound)
            text = {"decode": "rows that only decode", "prompt": "rows with a prompt"}[kind]
            yield from ill_conditioned(jacobian(rows, law, free), free)
            yield from few(len(rows.time_s), text, len(names))
            yield from far_off(step_seconds(law, rows) / rows.time_s - 1.0, text, scales[kind])
    yield from _prompt_range(table, law, stages)


def common_doubts(
    law: StepLaw, fitted: tuple[str, ...], standard_errors: StepLaw, at_bound: tuple[str, ...], converged: bool
) -> Iterator[Warned]:
    """What the fit says of itself, whatever it was fitted to."""
    if not converged:
        yield Warned(Doubt.NOT_CONVERGED, "the search did not end at a minimum: take the coefficients as a guess")
    for name in at_bound:
        yield Warned(
            Doubt.AT_BOUND,
            f"{name} is at its lower bound ({getattr(law, name):.3g}): the rows would have it lower; it has no "
            "standard error",
        )
    for name in fitted:
        value, error = getattr(law, name), getattr(standard_errors, name)
        if error > LARGEST_STANDARD_ERROR * value:
            yield Warned(
                Doubt.UNCERTAIN,
                f"{name} is known to {error / value:.0%} only ({value:.3g}, standard error {error:.2g})",
            )


def ill_conditioned(columns: list[np.ndarray], names: tuple[str, ...]) -> Iterator[Warned]:
    """Whether the columns of a Jacobian are nearly dependent."""
    condition = condition_number(columns)
    if condition > LARGEST_CONDITION:
        yield Warned(
            Doubt.ILL_CONDITIONED,
            f"the settings hardly tell {listed(list(names))} apart (condition number {condition:,.0f}): spread "
            "batches and contexts wider",
        )


def condition_number(columns: list[np.ndarray]) -> float:
    """Of columns scaled to length 1; 1 is best."""
    sizes = [np.linalg.norm(column) for column in columns]
    scaled = [column / size for column, size in zip(columns, sizes, strict=True) if size > 0]
    return float(np.linalg.cond(np.stack(scaled, axis=1))) if scaled else 1.0


def jacobian(rows: Rows, law: StepLaw, names: tuple[str, ...]) -> list[np.ndarray]:
    """Columns of the law's Jacobian over the time."""
    columns = []
    for name in names:
        value = float(getattr(law, name))
        step = 1e-6 * value if value > 0 else 1e-12
        moved = law._replace(**{name: value + step})
        columns.append((step_seconds(moved, rows) - step_seconds(law, rows)) / step / rows.time_s)
    return columns


def few(count: int, kind: str, num_coefficients: int) -> Iterator[Warned]:
    """Whether there is little to go by."""
    if count < ROWS_PER_COEFFICIENT * num_coefficients:
        yield Warned(
            Doubt.FEW_ROWS,
            f"{count} {kind} for {num_coefficients} coefficients: "
            + ("standard errors are unknown" if count <= num_coefficients else "standard errors are rough"),
        )


def far_off(errors: np.ndarray, kind: str, scale: float) -> Iterator[Warned]:
    """Whether some rows are much farther off than the rest."""
    sizes = np.abs(errors)
    limit = max(OUTLIER_SCALES * scale, LEAST_OUTLIER)
    far = int((sizes > limit).sum())
    if far:
        yield Warned(
            Doubt.OUTLIERS,
            f"{far} of {len(sizes)} {kind} are more than {limit:.0%} off, the worst "
            f"{sizes.max():.0%}: they weigh little in the fit; look at them",
        )


def _prompt_range(table: StepTable, law: StepLaw, stages: Stages) -> Iterator[Warned]:
    if "prefill_per_token_s" not in stages.prompt:
        return
    tokens = table.prompt_tokens[table.has_prompt]
    shares = law.prefill_per_token_s * tokens / law.base_s
    if shares.max() < 1.0:
        yield Warned(
            Doubt.NO_LONG_PROMPT,
            f"no step is bound by compute (the most prompt tokens, {tokens.max():,g}, take {shares.max():.2f} of "
            "base_s): prefill_per_token_s rests on the shape of the law",
        )
    if "base_s" in stages.prompt and shares.min() > 1.0:
        yield Warned(
            Doubt.NO_SHORT_PROMPT,
            f"no step is bound by memory (the fewest prompt tokens, {tokens.min():,g}, take {shares.min():.2f} of "
            "base_s): base_s rests on the shape of the law",
        )


def listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def are(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"
