"""Occupancy and queues over time, from what the event loop added up per stretch of the measured time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class TimeSeries(NamedTuple):
    """Means over consecutive stretches of time.

    Attributes:
        start_s: start of each stretch, seconds from the start of the run.
        width_s: length of a stretch.
        active, queued: running and waiting requests, whole pools.
        blocks: KV blocks in use, whole pools.
        steps_per_s: steps, all replicas of a pool together.
    """

    start_s: Float[np.ndarray, " stretches"]
    width_s: float
    active: Float[np.ndarray, "pools stretches"]
    queued: Float[np.ndarray, "pools stretches"]
    blocks: Float[np.ndarray, "pools stretches"]
    steps_per_s: Float[np.ndarray, "pools stretches"]


def time_series(totals: np.ndarray, start_s: float, window_s: float) -> TimeSeries:
    """The series of the totals (`des._state.TOTAL`, pools x stretches) of a window.

    A queue's length is the sum of its changes, so its integral over a stretch is the length at the start times the
    width, plus each change times what was left of the stretch.
    """
    width = window_s / totals.shape[1]
    edges = start_s + width * np.arange(1, totals.shape[1] + 1)
    length = np.cumsum(totals["queued"], axis=1) - totals["queued"] + totals["before"][:, :1]
    waiting_s = length * width + totals["queued"] * edges - totals["queued_s"]
    scale = 1.0 / width if width else np.nan
    return TimeSeries(
        edges - width,
        width,
        totals["active_s"] * scale,
        np.maximum(waiting_s, 0.0) * scale,
        totals["block_s"] * scale,
        totals["steps"] * scale,
    )
