"""Which coefficients the rows can tell apart."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jaxsim._checks import invalid, unknown
from jaxsim.fit.doubts import Doubt, Warned, are, listed
from jaxsim.fit.law import COEFFICIENTS, PREFILL, Stages, columns_of
from jaxsim.fit.table import Rows, StepTable

SAME = 1e-6
"""Relative difference below which settings are one."""


def stages_for(table: StepTable, fitted: tuple[str, ...] = COEFFICIENTS) -> tuple[Stages, tuple[Warned, ...]]:
    """What the rows can tell of the coefficients that are `fitted`, and why not the rest.

    A coefficient that the rows cannot tell from others is left at 0, `per_sequence_s` before `per_token_s` and
    `prefill_per_token2_s` before `prefill_per_token_s`: its part is then in the one it cannot be told from.
    """
    check_fitted(fitted)
    warned: list[Warned] = []
    decodes, prompts = table.rows_of(~table.has_prompt), table.rows_of(table.has_prompt)
    if decodes is None:
        together = bool((table.num_active > 1.0 + SAME).any())
        order = ("base_s", *PREFILL, *(("per_token_s", "per_sequence_s") if together else ()))
        stages = Stages((), independent(table.rows, _wanted(order, fitted)))
    else:
        decode = independent(decodes, _wanted(("base_s", "per_token_s", "per_sequence_s"), fitted))
        stages = Stages(decode, () if prompts is None else independent(prompts, _wanted(PREFILL, fitted)))
        warned += _decode_doubts(decodes, {*fitted} - {*PREFILL} - {*decode})
    missing = [name for name in fitted if name not in stages.fitted]
    held = [name for name in missing if name not in PREFILL]
    if decodes is None and held:
        text = f"no row only decodes: {listed(held)} could not be fitted and {are(held)} 0"
        warned.append(Warned(Doubt.NO_DECODES, text))
    if any(name in PREFILL for name in missing):
        warned.append(_prompt_doubt(prompts, [name for name in missing if name in PREFILL]))
    return stages, tuple(warned)


def _wanted(order: tuple[str, ...], fitted: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in order if name in fitted)


def check_fitted(fitted: tuple[str, ...]) -> None:
    """Refuse what is no coefficient, and a law without a base."""
    for name in fitted:
        if name not in COEFFICIENTS:
            raise unknown("coefficient", name, COEFFICIENTS)
    if "base_s" not in fitted:
        raise invalid("fitted", fitted, "coefficients with 'base_s' among them", "every step takes some time")


def independent(rows: Rows, names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the names, in this order of precedence, whose columns are no combinations of those before."""
    of = columns_of(rows)
    kept = independent_columns([of[name] / rows.time_s for name in names], SAME)
    return tuple(name for name in COEFFICIENTS if name in {names[k] for k in kept})


def independent_columns(columns: list[np.ndarray], tolerance: float) -> list[int]:
    """Those of the columns that those kept before explain to no more than `tolerance` of their length."""
    basis: list[np.ndarray] = []
    kept = []
    for k, column in enumerate(columns):
        size, left = np.linalg.norm(column), column
        for _ in range(2):  # twice is enough (Kahan)
            for direction in basis:
                left = left - direction * (direction @ left)
        if size > 0 and np.linalg.norm(left) > tolerance * size:
            basis.append(left / np.linalg.norm(left))
            kept.append(k)
    return kept


def _decode_doubts(rows: Rows, missing: set[str]) -> Iterator[Warned]:
    if not missing:
        return
    names = [name for name in COEFFICIENTS if name in missing]
    one_batch, one_context = _same(rows.num_active), _same(rows.mean_context)
    batch, context = f"{rows.num_active[0]:,g} sequences", f"{rows.mean_context[0]:,g} tokens"
    if one_batch and one_context:
        yield Warned(
            Doubt.ONE_POINT,
            f"every row that only decodes has {batch} of {context}: {listed(names)} {are(names)} left at 0, and "
            "base_s holds at that batch and context only",
        )
    elif one_context:
        yield Warned(
            Doubt.ONE_CONTEXT,
            f"every row that only decodes has {context} of context a sequence: per_sequence_s and per_token_s cannot "
            "be told apart; per_sequence_s is left at 0, and the law holds at that context only",
        )
    elif one_batch:
        yield Warned(
            Doubt.ONE_BATCH,
            f"every row that only decodes has {batch}: base_s and per_sequence_s cannot be told apart; per_sequence_s "
            "is left at 0, and the law holds at that batch only",
        )
    else:
        yield Warned(
            Doubt.COLLINEAR,
            f"batch and context change together in the rows that only decode: {listed(names)} cannot be told from "
            f"the rest and {are(names)} left at 0; measure one batch at two contexts and one context at two batches",
        )


def _prompt_doubt(rows: Rows | None, missing: list[str]) -> Warned:
    if rows is None:
        return Warned(
            Doubt.NO_PROMPTS,
            f"no row computes prompt tokens: {listed(missing)} {are(missing)} 0, which means that prefill work is "
            "not modelled",
        )
    if "prefill_per_token_s" in missing:
        return Warned(
            Doubt.ONE_PROMPT_LENGTH,
            f"every row with a prompt computes {rows.prompt_tokens[0]:,g} tokens: base_s holds their work, and "
            f"{listed(missing)} {are(missing)} left at 0",
        )
    return Warned(
        Doubt.ONE_PROMPT_CONTEXT,
        f"every piece of prompt ends at a context of {rows.token_contexts[0] / rows.prompt_tokens[0]:,g} tokens: "
        "prefill_per_token_s and prefill_per_token2_s cannot be told apart, and the latter is left at 0",
    )


def _same(values: np.ndarray) -> bool:
    return bool(np.ptp(values) <= SAME * np.abs(values).max())
