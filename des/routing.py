"""Length routing: which pool a request goes to, or why none takes it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from jaxsim.fleet import FleetDesign
from jaxsim.physics import kv_blocks
from jaxsim.workload import Workload

REASONS = (
    "longer than the last threshold",
    "longer than max_context",
    "larger than the KV cache",
    "empty pool",
)
"""Why a request is rejected, in the order in which the reasons are tested; the index is `Routing.reason`."""


class Routing(NamedTuple):
    """Per workload row: its pool, -1 where it is rejected; the pool it was meant for, -1 where there is none;
    and the index in `REASONS`, -1 where it is accepted."""

    pool: Int[np.ndarray, " rows"]
    meant: Int[np.ndarray, " rows"]
    reason: Int[np.ndarray, " rows"]


def route_by_length(
    design: FleetDesign,
    workload: Workload,
    *,
    max_active: Int[np.ndarray, " pools"],
    free_blocks: Int[np.ndarray, " pools"],
) -> Routing:
    """Each row goes to the first pool whose `upper_tokens` is at least its total, if that pool can run it.

    Args:
        max_active: running requests that a replica of each pool admits; where it is 0 the pool runs nothing
            (in the reference model a `max_context` beyond the KV cache has no slot).
        free_blocks: KV blocks of an empty replica.
    """
    total = np.asarray(workload.total_tokens)
    upper = np.asarray(design.upper_tokens)
    pool = np.searchsorted(upper, total, side="left").astype(np.int16)
    beyond = pool == len(upper)
    at = np.where(beyond, 0, pool)
    blocks = kv_blocks(total, np.asarray(design.profile.block_tokens)[at])
    tests = (
        beyond,
        total > np.asarray(design.max_context)[at],
        (blocks > free_blocks[at]) | (max_active[at] < 1),
        np.asarray(design.replicas)[at] < 1,
    )
    rejected = np.any(tests, axis=0)
    reason = np.where(rejected, np.argmax(tests, axis=0), -1).astype(np.int16)
    nowhere = np.int16(-1)
    return Routing(np.where(rejected, nowhere, pool), np.where(beyond, nowhere, pool), reason)
