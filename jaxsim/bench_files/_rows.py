"""What the rows of a run say of its figures."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from jaxsim.benchmark_run import RequestTable

HELD_SHARE = 0.8
"""Share of the time with one number of requests in flight from which on it was the clients' number that held it."""


def mean_of(table: RequestTable, name: str) -> float | None:
    """Mean of a column over the rows that count; None where it is not known in all of them.

    A TPOT counts where there is a second token.
    """
    chosen = table.counted
    if name == "tpot_s":
        chosen = chosen & (table.output_tokens > 1)
    column = getattr(table, name)[chosen]
    return float(column.mean()) if len(column) and not np.isnan(column).any() else None


def per_token_gap(table: RequestTable) -> float | None:
    """Mean time per token after the first, over tokens and not over gaps; None where the gaps are not known."""
    counted = table.counted & (table.output_tokens > 1) & (table.num_gaps > 0)
    tokens = (table.output_tokens - 1.0)[counted].sum()
    return float((table.itl_s * table.num_gaps)[counted].sum() / tokens) if tokens > 0 else None


def is_bundled(table: RequestTable) -> bool:
    """Whether some rows have fewer gaps than tokens after the first: several tokens came at a time."""
    known = table.counted & ~np.isnan(table.num_gaps) & ~np.isnan(table.output_tokens)
    return bool((table.num_gaps[known] < table.output_tokens[known] - 1.0).any())


def held_concurrency(start_s: Float[np.ndarray, " rows"], end_s: Float[np.ndarray, " rows"]) -> int | None:
    """Requests in flight, where their number stayed the same nearly all the time: clients in a closed loop.

    The time is that from when so many were first in flight to the last start. None for a number that varies.
    """
    if len(start_s) < 2 or np.isnan(start_s).any() or np.isnan(end_s).any():
        return None
    times = np.concatenate([start_s, end_s])
    change = np.repeat([1, -1], len(start_s))
    order = np.lexsort((change, times))  # an end before a start at the same instant
    times, flying = times[order], np.maximum(np.cumsum(change[order]), 0)
    lasting = np.bincount(flying[:-1], weights=np.diff(times))
    level = int(np.argmax(lasting))
    first, last = times[int(np.argmax(flying >= level))], start_s.max()
    inside = (times[:-1] >= first) & (times[1:] <= last)
    spent = np.diff(times)[inside]
    held = spent[flying[:-1][inside] == level].sum()
    return level if level and held > 0 and held >= HELD_SHARE * spent.sum() else None
