"""Where the linear law ends: a diagnostic, not a law."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxsim._checks import invalid, require_x64
from jaxsim.fit._solve import robust_least_squares, soft_l1
from jaxsim.fit.law import columns_of
from jaxsim.fit.table import STEP_OF_PADDING, Rows, StepTable, padded

DECODE = ("base_s", "per_sequence_s", "per_token_s")
MOST_KNEES = 32
LEAST_ROWS = 8
EXACT = 1e-6
"""Relative error that is none."""

LEAST_GAIN = 0.05
"""Share of the loss that a kink must remove: one more coefficient always removes some."""


class Knee(NamedTuple):
    """A kink of the step time in the batch.

    Attributes:
        num_active: n*, the batch above which steps take longer than the line from below says; inf for none.
        excess_s: seconds that each sequence above n* adds beyond those below.
        mean_error: mean absolute relative error of the linear law.
        mean_error_with_knee: the same with the kink.
        gain: share of the robust loss that the kink removes; 0, the linear law holds over all batches.
    """

    num_active: float
    excess_s: float
    mean_error: float
    mean_error_with_knee: float
    gain: float


def knee(table: StepTable) -> Knee:
    r"""Fit $t = \text{base} + a\,n + b\,n\,\text{context} + e \max(n - n^*, 0)$ to the steps that only decode.

    n* is the batch of the table at which the loss is least. A law that is to be used above n* should be fitted
    there, or to shorter batches only.
    """
    require_x64()
    rows = table.rows_of(~table.has_prompt)
    batches = np.unique(rows.num_active) if rows is not None else np.empty(0)
    if rows is None or len(batches) < 4 or len(rows.time_s) < LEAST_ROWS:
        raise invalid("steps that only decode", f"{len(batches)} batches", f"4 batches or more in {LEAST_ROWS} rows")
    inner = batches[1:-1]
    inner = inner[np.unique(np.linspace(0, len(inner) - 1, MOST_KNEES).round().astype(int))]
    nowhere = np.full(MOST_KNEES + 1 - len(inner), batches[-1])
    knees, padded_rows = np.concatenate([nowhere, inner]), padded(rows, STEP_OF_PADDING)
    scale = _at_each(padded_rows, np.full_like(knees, batches[-1]), np.asarray(np.nan))[3][0]
    losses, excesses, errors, _ = jax.device_get(_at_each(padded_rows, knees, np.asarray(scale)))
    best = int(np.argmin(losses))
    nothing = EXACT**2 * len(rows.time_s)
    gain = 1.0 - (float(losses[best]) + nothing) / (float(losses[0]) + nothing)  # the first one's kink is nowhere
    found = gain > LEAST_GAIN
    return Knee(
        num_active=float(knees[best]) if found else np.inf,
        excess_s=float(excesses[best]) if found else 0.0,
        mean_error=float(errors[0]),
        mean_error_with_knee=float(errors[best if found else 0]),
        gain=gain if found else 0.0,
    )


@eqx.filter_jit
def _at_each(rows: Rows, knees: Any, scale: Any) -> tuple[Any, Any, Any, Any]:
    """Loss, excess, mean error and scale with the kink at each batch."""
    linear = jnp.stack([columns_of(rows)[name] for name in DECODE], axis=1)
    total = jnp.sum(rows.weight)

    def fit(knee: Any) -> tuple[Any, Any, Any, Any]:
        above = jnp.maximum(rows.num_active - knee, 0.0)
        columns = jnp.concatenate([linear, above[:, None]], axis=1) / rows.time_s[:, None]
        mean = jnp.sum(rows.weight[:, None] * columns, axis=0) / total
        unit = 1.0 / jnp.where(mean > 0, mean, 1.0)
        found = robust_least_squares(
            _relative,
            0.25 * unit,
            columns,
            rows.weight,
            free=jnp.ones(4, dtype=bool),
            lower=jnp.zeros(4),
            unit=unit,
            scale=scale,
        )
        residual = _relative(found.value, columns)
        loss = 0.5 * jnp.sum(rows.weight * soft_l1(residual, found.scale) ** 2)
        error = jnp.sum(rows.weight * jnp.abs(residual)) / total
        return loss, found.value[3], error, found.scale

    return jax.lax.map(fit, knees)


def _relative(values: Any, columns: Any) -> Any:
    return columns @ values - 1.0
