"""The `step` model: from the lengths of a pool's requests to the latency law of its engines."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsim import physics
from jaxsim.latency import LengthGroups, StepLatency
from jaxsim.occupancy import PoolLoad, occupancy
from jaxsim.profiles import Profile
from jaxsim.workload import LengthTable, Workload

Scalar = Float[Array, ""]

_EXACT_GROUPS = 8
_COARSE_GROUPS = 24
_DECODE_BINS = 16
_MOMENTS = 11


class StepTable(eqx.Module):
    """Length statistics of a workload on a profile: sums by total length, and what each length group stands for."""

    table: LengthTable
    prefill_low: Float[Array, " groups"]
    prefill_high: Float[Array, " groups"]
    prefill_work_s: Float[Array, " groups"]
    decode_steps: Float[Array, " bins"]
    decode_work_s: Float[Array, " bins"]


def tabulate(workload: Workload, profile: Profile) -> StepTable:
    """Tabulate one profile. Differentiable in the profile's coefficients."""
    inputs, outputs = jnp.asarray(workload.input_tokens), jnp.asarray(workload.output_tokens)
    weight = jnp.asarray(workload.weight)
    work = physics.step_work(profile.law, profile.chunk_tokens, inputs, outputs)
    steps = physics.total_steps(work)
    prefill, decode = physics.prefill_work(work), physics.decode_work(work)
    total = prefill + decode
    held = physics.kv_blocks(inputs + outputs, profile.block_tokens) * profile.block_tokens
    moments = [
        jnp.ones_like(steps),
        outputs,
        steps,
        steps**2,
        total,
        total**2,
        steps * total,
        physics.work_of_squares(work),
        held,
        held**2,
        held * steps,
    ]
    group, low, high = _prefill_groups(physics.prefill_steps(work))
    bins = _decode_bins(work.decode_steps)
    per_step = decode / jnp.maximum(work.decode_steps, 1.0)
    columns = jnp.concatenate([jnp.stack(moments, axis=1), group, bins], axis=1)
    return StepTable(
        table=workload.tabulate(columns),
        prefill_low=low,
        prefill_high=high,
        prefill_work_s=_group_mean(group, weight, prefill),
        decode_steps=_group_mean(bins, weight, work.decode_steps),
        decode_work_s=_group_mean(bins, weight, per_step),
    )


def length_groups(means: Float[Array, " statistics"], table: StepTable) -> LengthGroups:
    """The requests of a pool by their steps, from per-request means of the columns of `tabulate`."""
    split = _MOMENTS + _EXACT_GROUPS + _COARSE_GROUPS
    decode = means[split:]
    return LengthGroups(
        prefill_share=means[_MOMENTS:split],
        prefill_low=table.prefill_low,
        prefill_high=table.prefill_high,
        prefill_work_s=table.prefill_work_s,
        decode_share=decode / jnp.maximum(decode.sum(), 1e-12),
        decode_steps=table.decode_steps,
        decode_work_s=table.decode_work_s,
    )


def latency(
    means: Float[Array, " statistics"],
    groups: LengthGroups,
    profile: Profile,
    *,
    arrival_rate: Scalar,
    replicas: Scalar,
) -> tuple[StepLatency, Scalar]:
    """The latency law of one pool, and the running requests that one engine admits.

    Args:
        means: per-request means of the columns of `tabulate`.
        groups: the pool's requests by their steps.
        profile: one profile.
        arrival_rate: requests per second to the pool.
        replicas: engines, real > 0.
    """
    _, _, steps, steps2, work, work2, steps_work, squares, held, held2, held_steps = means[:_MOMENTS]
    base = jnp.asarray(profile.step_base_s)
    limit = _concurrency_limit(profile, held, held2, held_steps / steps)
    load = PoolLoad(
        arrival_rate=arrival_rate,
        replicas=replicas,
        base_s=base,
        limit=limit,
        steps=steps,
        steps2=steps2,
        work_s=work,
        work2_s2=work2,
        steps_work_s=steps_work,
        squares_s2=squares,
    )
    return StepLatency(occupancy(load), groups, base_s=base, limit=limit), limit


def _concurrency_limit(profile: Profile, held: Scalar, held2: Scalar, held_in_time: Scalar) -> Scalar:
    """Running requests by sequences and by reserved KV blocks.

    Blocks: the cache less what first come, first served leaves idle in front of the next request (half a
    size-biased request), over the blocks a running request holds on average in time. At least one.
    """
    by_blocks = (profile.kv_tokens - held2 / (2.0 * held)) / held_in_time
    return jnp.clip(by_blocks, 1.0, profile.max_num_seqs)


def _prefill_groups(
    steps: Float[Array, " rows"],
) -> tuple[Float[Array, "rows groups"], Float[Array, " groups"], Float[Array, " groups"]]:
    """Membership and step range of the prefill groups: one per number of steps up to 8, then geometric."""
    longest = jnp.maximum(steps.max(), _EXACT_GROUPS + 1.0) + 0.5
    start = _EXACT_GROUPS + 0.5
    position = jnp.log(jnp.maximum(steps, start) / start) / jnp.log(longest / start)
    coarse = _EXACT_GROUPS + jnp.floor(_COARSE_GROUPS * position)
    index = jnp.where(steps <= _EXACT_GROUPS, steps - 1.0, coarse).astype(int)
    edges = start * (longest / start) ** (jnp.arange(_COARSE_GROUPS + 1.0) / _COARSE_GROUPS)
    exact = jnp.arange(1.0, _EXACT_GROUPS + 1.0)
    low = jnp.ceil(edges[:-1])
    high = jnp.maximum(jnp.ceil(edges[1:]) - 1.0, low)
    member = jax.nn.one_hot(index, _EXACT_GROUPS + _COARSE_GROUPS, dtype=steps.dtype)
    return member, jnp.concatenate([exact, low]), jnp.concatenate([exact, high])


def _decode_bins(steps: Float[Array, " rows"]) -> Float[Array, "rows bins"]:
    """Membership of the decode bins, one per power of two; none for requests without a decode step."""
    index = jnp.clip(jnp.floor(jnp.log2(jnp.maximum(steps, 1.0))), 0, _DECODE_BINS - 1).astype(int)
    member = jax.nn.one_hot(index, _DECODE_BINS, dtype=steps.dtype)
    return member * (steps >= 1.0).astype(steps.dtype)[:, None]


def _group_mean(
    member: Float[Array, "rows groups"], weight: Float[Array, " rows"], values: Float[Array, " rows"]
) -> Float[Array, " groups"]:
    """Weighted mean of `values` in each group; 1e-12 scaled to nothing where a group is empty."""
    mass = weight @ member
    return jnp.where(mass > 0, (weight * values) @ member / jnp.where(mass > 0, mass, 1.0), 0.0)
