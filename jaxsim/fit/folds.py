"""Which rows are held out together."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxsim._checks import invalid, unknown

FOLDS = 5
HOLD_OUT = ("settings", "groups")


def folds_of(points: np.ndarray, groups: tuple[str, ...], hold_out: str, seed: int) -> np.ndarray:
    """The fold of each row, 0 to `FOLDS` - 1; labels are dealt out at random, rows of a label together.

    Args:
        points: a number for each row, the same where the settings are.
        groups: a label for each row, or none at all.
        hold_out: "settings" or "groups": what the label is.
        seed: of the deal.
    """
    if hold_out not in HOLD_OUT:
        raise unknown("hold_out", hold_out, HOLD_OUT)
    if hold_out == "groups" and not groups:
        raise invalid("hold_out", hold_out, "'settings' for a table without groups")
    labels = np.unique(groups, return_inverse=True)[1].ravel() if hold_out == "groups" else points
    order = np.random.default_rng(seed).permutation(labels.max() + 1)
    return order[labels] % FOLDS


def with_folds(columns: Any, folds: np.ndarray) -> Any:
    """Columns `FOLDS` + 1 times: whole, then with weight 0 for each fold. Columns may be longer than `folds`."""
    stack = type(columns)(*(np.tile(column, (FOLDS + 1, 1)) for column in columns))
    stack.weight[1:, : len(folds)] = folds[None, :] != np.arange(FOLDS)[:, None]
    return stack
