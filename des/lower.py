"""The boundary: profile, design and workload become plain numbers for the event loop.

Here alone JAX types turn into NumPy arrays and named tuples. The loop knows pools by the coefficients of their step
time, admission limits and replica counts, and requests by kind (one kind for each pool and workload row), whose work
comes from the laws of `jaxsim.physics` in one vectorised call.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from des import _state
from des.serving import Serving
from jaxsim._checks import invalid, require, unknown
from jaxsim.fleet import FleetDesign
from jaxsim.physics import RequestWork, StepLaw, kimura_work, kv_blocks, num_slots, step_work

CONVENTIONS = ("step", "kimura")
NO_BLOCK_LIMIT = 2**30
"""Blocks of a pool that does not look at them."""


class Fleet(NamedTuple):
    """What the loop knows of the pools, one entry per pool.

    `law` holds the coefficients of the step time, `max_active` the running requests that a replica admits, `kv_blocks`
    the blocks it has, `block_tokens` their size, `chunk_tokens` what a prompt that chunks by itself computes in a step,
    `replicas` the number of replicas, and `role` whether the pool serves whole requests, or only prompts or only what
    follows them.
    """

    law: StepLaw
    chunk_tokens: np.ndarray
    block_tokens: np.ndarray
    max_active: np.ndarray
    kv_blocks: np.ndarray
    replicas: np.ndarray
    role: np.ndarray
    kimura: bool = False


def whole(name: str, values: Any, least: int) -> np.ndarray:
    """`values` as integers; relaxed designs must be rounded before they are simulated."""
    values = np.asarray(values, dtype=np.float64)
    good = (values >= least) & (values == np.floor(values))
    require(good, name, values, f"whole numbers >= {least}", "round a relaxed design first")
    return values.astype(np.int64)


def _check_rules(convention: str, serving: Serving, seqs: np.ndarray) -> None:
    if convention not in CONVENTIONS:
        raise unknown("convention", convention, CONVENTIONS)
    if convention == "kimura" and (serving.budgeted or serving.kv == "grow"):
        raise ValueError(
            f"convention='kimura' has constant work: it takes scheduling='independent' and kv='reserve' or 'overflow', "
            f"got {serving.scheduling!r} and {serving.kv!r}; use convention='step'"
        )
    budget = serving.max_num_batched_tokens
    if budget is not None and budget < seqs.max():
        raise invalid(
            "max_num_batched_tokens", budget, f">= max_num_seqs ({seqs.max()})", "each decoding request takes one token"
        )


def lower_fleet(design: FleetDesign, convention: str, serving: Serving, *, disaggregated: bool = False) -> Fleet:
    """The pools' laws and admission limits.

    ``step``: `max_num_seqs` sequences, and KV blocks. ``kimura``: the slots of the pool's `max_context`, and blocks
    only under the overflow rule.
    """
    profile = design.profile
    seqs = whole("max_num_seqs", profile.max_num_seqs, 1)
    blocks = whole("kv_blocks", profile.kv_blocks, 1)
    size = whole("block_tokens", profile.block_tokens, 1)
    _check_rules(convention, serving, seqs)
    if convention == "kimura":
        total, cap, context = (
            np.asarray(profile.kv_blocks),
            np.asarray(profile.max_num_seqs),
            np.asarray(design.max_context),
        )
        seqs = num_slots(total, size, cap, np.asarray(profile.calibration_context), context).astype(np.int64)
        if serving.kv == "reserve":
            blocks = np.full_like(blocks, NO_BLOCK_LIMIT)
    role = np.full(len(seqs), _state.SERVES)
    if disaggregated:
        role = np.array([_state.PREFILLS, _state.DECODES])
    law = StepLaw(*(np.asarray(v, dtype=np.float64) for v in profile.law))
    chunk = np.asarray(profile.chunk_tokens, dtype=np.float64)
    return Fleet(law, chunk, size, seqs, blocks, whole("replicas", design.replicas, 0), role, convention == "kimura")


def lower_kinds(
    fleet: Fleet,
    inputs: Float[np.ndarray, " rows"],
    outputs: Float[np.ndarray, " rows"],
    can_hold: Bool[np.ndarray, "pools rows"],
    serving: Serving,
    cached: Float[np.ndarray, " rows"] | float = 0.0,
) -> np.ndarray:
    """The kinds table, pools x rows: the work and blocks of each row's tokens under each pool's profile.

    `cached` of each prompt's tokens, a real number below its length, are held from the start and not computed.
    """
    work_of = kimura_work if fleet.kimura else step_work
    table = np.empty((len(fleet.replicas), len(inputs)), dtype=_state.KIND)
    for pool in range(len(table)):
        law = StepLaw(*(v[pool] for v in fleet.law))
        held = inputs if fleet.role[pool] == _state.PREFILLS else inputs + outputs
        blocks = kv_blocks(held, fleet.block_tokens[pool])
        if fleet.kimura and serving.kv == "reserve":
            blocks = 0.0
        work = work_of(law, fleet.chunk_tokens[pool], inputs, outputs, cached)
        table[pool] = kinds_table(work, blocks, inputs, outputs, can_hold[pool], cached)
    return table


def kinds_table(
    work: RequestWork, blocks: Any, inputs: Any, outputs: Any, can_hold: Any = True, cached: Any = 0.0
) -> np.ndarray:
    """The loop's record of each kind of request: its work, the blocks it reserves, its lengths.

    `cached` counts as whole tokens where prompts are computed piece by piece, or again.
    """
    table = np.empty(np.shape(work.last_s), dtype=_state.KIND)
    for name, values in work._asdict().items():
        table[name] = values
    table["blocks"] = blocks
    table["input"] = inputs
    table["output"] = outputs
    table["can_hold"] = can_hold
    table["cached"] = np.floor(cached)
    return table
