"""A step law for each run from datasheets, with a few constants that are the same for all runs, and their fit.

The constants are found on some runs and used on others. All runs are computed at once: `jax.vmap` over machines and
loads, `jax.jacfwd` over the constants.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from _engine_runs import ENGINES, Run
from scipy.optimize import least_squares

from jaxsim.fit.closed_loop import Runs as LoopRuns
from jaxsim.fit.closed_loop import closed_loop
from jaxsim.kv_fit import Layout
from jaxsim.model_spec import kv_bytes, kv_bytes_per_gpu, weight_bytes
from jaxsim.physics import StepLaw
from jaxsim.roofline_laws import Load, Machine, batch_grid, roofline_law
from jaxsim.roofline_load import load_of, machine_of

BLOCK_TOKENS = 16.0
MOST_SEQUENCES = 1024.0
MEAN_GENERATED = 0.5
IN_STEP = 0.1
"""Share of the requests that clients send in step: one in ten (see `jaxsim.fit.closed_loop`)."""

ONE_CHUNK = 1.0


class Constants(NamedTuple):
    """What datasheets do not say. Seconds, or shares of a peak.

    `alpha_bw` of the bandwidth; `alpha_flops` of the rate, `expert_efficiency` of that in the products of experts;
    every step `layer_s` for each layer, `expert_layer_s` more for each with experts, and `sequence_s` for each
    sequence, by engine. To the TTFT `client_s` and `lag_steps` steps: the client's and the server's own time, and the
    steps that are under way when a request comes; by engine for the scripted clients, and once for the others.
    """

    alpha_bw: Any
    alpha_flops: Any
    expert_efficiency: Any
    layer_s: Any
    expert_layer_s: Any
    step_s: Any
    sequence_s: Any
    client_s: Any
    lag_steps: Any


CLIENTS = (*ENGINES, "other_clients")
NO, NO_CLIENT = np.zeros(len(ENGINES)), np.zeros(len(CLIENTS))
DATASHEET = Constants(0.8, 0.8, 1.0, 3e-6, 0.0, 3e-3, NO, NO_CLIENT, NO_CLIENT)
"""Defaults of `jaxsim.roofline`, but one share of the rate for all formats, and experts as efficient as the rest."""

START = Constants(0.8, 0.6, 0.25, 4e-5, 2e-5, 0.0, NO + 1e-5, NO_CLIENT, NO_CLIENT)
LEAST = Constants(0.5, 0.2, 0.05, 0.0, 0.0, 0.0, NO, NO_CLIENT, NO_CLIENT)
MOST = Constants(0.98, 1.0, 1.0, 2e-4, 2e-4, 1e-2, NO + 1e-4, NO_CLIENT, NO_CLIENT)
LAW_CONSTANTS = ("alpha_bw", "alpha_flops", "expert_efficiency", "layer_s", "expert_layer_s", "sequence_s")

ROBUST_TPOT, ROBUST_TTFT = 0.1, 0.2
"""Error in the logarithm above which a run counts linearly."""


class Columns(NamedTuple):
    """Runs as arrays: what the law is made of, and the setting and results of each."""

    machine: Machine
    load: Load
    expert_flops: Any
    expert_layers: Any
    batches: Any
    engine: Any
    client: Any
    clients: Any
    slots: Any
    input_tokens: Any
    output_tokens: Any
    spread: Any
    in_step: Any
    budget: Any
    tpot_s: Any


def kv_blocks(run: Run) -> float:
    """KV blocks of the engine, windows of all sequences set aside; with data-parallel attention GPUs keep their own."""
    shape = run.shape
    held = kv_bytes_per_gpu(shape.model, shape.tp, shape.model.num_layers, kv_bytes(shape.kv_dtype))
    windows = min(run.clients, MOST_SEQUENCES) * held.per_window_token * held.window
    share = run.attention_dp if shape.model.is_latent else 1
    budget = shape.kv_budget_bytes - windows - _replicated_bytes(shape, run.attention_dp)
    longest = run.input_tokens + run.output_tokens
    return float(max(budget / held.per_token * share, longest) // BLOCK_TOKENS + 1)


def _replicated_bytes(shape: Layout, attention_dp: int) -> float:
    """Weights that each GPU holds whole because attention is data-parallel."""
    alone, split = weight_bytes(shape.model, shape.tp // attention_dp, shape.bits), shape.stage_weight_bytes
    return alone.layers + alone.head + alone.embedding + weight_bytes(shape.model, shape.tp, shape.bits).experts - split


def _load(run: Run) -> tuple[Load, float]:
    """A step of the whole engine as one GPU sees it, experts' products as fast as others; and the operations of those.

    With data-parallel attention a GPU reads all weights but the experts', and the cache of its own sequences.
    """
    shape, share = run.shape, run.attention_dp
    load, slower = (load_of(shape, expert_efficiency=value) for value in (1.0, 0.5))
    experts = slower.token_flops - load.token_flops
    if share == 1:
        return load, experts
    held = weight_bytes(shape.model, shape.tp // share, shape.bits)
    cache = kv_bytes_per_gpu(shape.model, shape.tp // share, shape.model.num_layers, kv_bytes(shape.kv_dtype))
    return (
        load._replace(streamed_bytes=held.layers + held.head, kv_bytes_per_token=cache.per_token / share),
        experts,
    )


def _columns_of(run: Run) -> Columns:
    load, experts = _load(run)
    prompt, output = run.mean_lengths
    fitting = kv_blocks(run) * BLOCK_TOKENS / (prompt + MEAN_GENERATED * output)
    slots = float(np.clip(fitting, 1.0, min(run.clients, MOST_SEQUENCES)))
    return Columns(
        machine=machine_of(run.shape),
        load=load,
        expert_flops=experts,
        expert_layers=run.shape.model.num_moe_layers,
        batches=batch_grid(max(0.5 * slots, 0.7), max(slots, 1.4)),
        engine=ENGINES.index(run.engine),
        client=ENGINES.index(run.engine) if run.spread else len(ENGINES),
        clients=run.clients,
        slots=slots,
        input_tokens=prompt,
        output_tokens=output,
        spread=run.spread,
        in_step=IN_STEP,
        budget=run.budget,
        tpot_s=run.tpot_s,
    )


def columns(runs: list[Run]) -> Columns:
    """One row a run in every array."""
    return jax.tree.map(lambda *values: np.array(values, dtype=np.float64), *map(_columns_of, runs))


def _law(constants: Constants, row: Columns) -> StepLaw:
    engine = jnp.asarray(row.engine, int)
    machine = row.machine._replace(
        alpha_bw=constants.alpha_bw, alpha_flops=constants.alpha_flops, layer_overhead_s=constants.layer_s
    )
    more = row.expert_flops * (1.0 / constants.expert_efficiency - 1.0)
    load = row.load._replace(token_flops=row.load.token_flops + more, prompt_flops=row.load.prompt_flops + more)
    law = roofline_law(
        machine,
        load,
        batches=row.batches,
        chunk_tokens=2048.0,
        chunks=ONE_CHUNK,
        overhead_s=constants.step_s + constants.expert_layer_s * row.expert_layers,
    )
    return law._replace(per_sequence_s=law.per_sequence_s + jnp.asarray(constants.sequence_s)[engine])


def through_loop(law: StepLaw, row: Columns) -> tuple[Any, Any]:
    """Mean TTFT, without what the client adds, and mean TPOT of one run by the closed-loop formula."""

    def one(value: Any) -> Any:
        return jnp.asarray(value, float)[None]

    setting = (row.clients, row.input_tokens, row.output_tokens, row.spread, row.in_step, row.budget, row.slots)
    ttft, tpot = closed_loop(law, LoopRuns(*map(one, (*setting, 1.0, 1.0, 1.0, 1.0))))
    return ttft[0], tpot[0]


@jax.jit
def laws(constants: Constants, rows: Columns) -> StepLaw:
    """The law of every run."""
    return jax.vmap(lambda row: _law(constants, row))(rows)


@jax.jit
def loops(constants: Constants, rows: Columns) -> tuple[Any, Any]:
    """Mean TTFT, without what `Constants` adds, and mean TPOT of every run by the closed-loop formula."""
    return jax.vmap(lambda row: through_loop(_law(constants, row), row))(rows)


def _flat(constants: Constants) -> np.ndarray:
    return np.concatenate([np.atleast_1d(getattr(constants, name)) for name in LAW_CONSTANTS]).astype(float)


def _constants(flat: Any) -> Constants:
    sizes = [np.size(getattr(START, name)) for name in LAW_CONSTANTS]
    parts = jnp.split(flat, np.cumsum(sizes)[:-1])
    found = {name: part if size > 1 else part[0] for name, part, size in zip(LAW_CONSTANTS, parts, sizes, strict=True)}
    return START._replace(**found)


def _residuals(scaled: Any, rows: Columns, used: Any) -> Any:
    return used * jnp.log(loops(_constants(scaled * _flat(START)), rows)[1] / rows.tpot_s)


_value = jax.jit(_residuals)
_slope = jax.jit(jax.jacfwd(_residuals))


def fit_law(rows: Columns, used: np.ndarray) -> Constants:
    """The constants of the law with the least robust error in log TPOT over the runs that are `used`."""
    weight, unit = used.astype(float), _flat(START)
    found = least_squares(
        lambda x: np.asarray(_value(x, rows, weight)),
        np.ones_like(unit),
        lambda x: np.asarray(_slope(x, rows, weight)),
        bounds=(_flat(LEAST) / unit, _flat(MOST) / unit),
        loss="soft_l1",
        f_scale=ROBUST_TPOT,
    )
    return jax.tree.map(np.asarray, _constants(found.x * unit))


def fit_client(base_s: np.ndarray, step_s: np.ndarray, ttft_s: np.ndarray) -> tuple[float, float]:
    """`client_s` and `lag_steps` of one engine, from the TTFT of a simulation without them: both >= 0."""
    found = least_squares(
        lambda x: np.log((base_s + x[0] + x[1] * step_s) / ttft_s),
        [0.03, 1.0],
        bounds=([0.0, 0.0], [1.0, 30.0]),
        loss="soft_l1",
        f_scale=ROBUST_TTFT,
    )
    return float(found.x[0]), float(found.x[1])
