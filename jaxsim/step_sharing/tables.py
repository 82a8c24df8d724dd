"""A workload on a profile, tabulated once: moments and groups of any pool's requests, at a cost free of the trace.

Two tables. Sums over single requests are exact at every whole number of tokens (`jaxsim.workload.LengthTable`). Sums
over pairs of requests, with lower < total <= upper on both sides, are no difference of two prefix sums; they are
bilinear forms of prefix sums of masses on a grid of steps (`grid`), and so are the law of the steps and the groups of
the latency mixtures. That table is kept at up to 1024 requests and interpolated in the share of requests up to the
threshold, which the first table knows exactly: smooth, exact at both ends, and in between wrong only by how unlike
the requests of one 1024th are. `tests/test_step_sharing_tables.py` shows the errors against exact pair sums.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsim import physics
from jaxsim.profiles import Profile
from jaxsim.step_sharing import grid, groups
from jaxsim.step_sharing.moments import SINGLE, Moments, assemble, single_columns
from jaxsim.step_sharing.requests import Masses, PairSums, Requests, masses
from jaxsim.step_sharing.response import Groups
from jaxsim.workload import LengthTable, Workload

Scalar = Float[Array, ""]
PerRow = Float[Array, " rows"]

NUM_KNOTS = 1024
_EMPTY = 1e-12

_KINDS = 10
"""Masses of `_with_kernels`."""


class SharingTable(eqx.Module):
    """Length statistics of a workload on a profile.

    Attributes:
        table: sums over single requests by total tokens: share, output tokens, `SINGLE`.
        shares: shares of requests, ascending, at which `masses` has its knots.
        masses: sums up to each: masses on the grid, with the kernels of pair sums applied to them, and of the groups.
        nodes: the grid.
        decode_steps, decode_prefill_steps: mean steps of each bin, in decode and in prefill.
    """

    table: LengthTable
    shares: Float[Array, " knots"]
    masses: Float[Array, "knots columns"]
    nodes: Float[Array, " nodes"]
    decode_steps: Float[Array, " bins"]
    decode_prefill_steps: Float[Array, " bins"]

    def masses_up_to(self, share: Scalar) -> Float[Array, " columns"]:
        """Sums over the shortest requests of that share, linear between knots."""
        right = jnp.clip(jnp.searchsorted(self.shares, share, side="right"), 1, self.shares.shape[0] - 1)
        low, high = self.shares[right - 1], self.shares[right]
        apart = high > low
        part = jnp.where(apart, (share - low) / jnp.where(apart, high - low, 1.0), 1.0)
        below, above = self.masses[right - 1], self.masses[right]
        return below + jnp.clip(part, 0.0, 1.0) * (above - below)

    def coarsened(self, num_knots: int) -> SharingTable:
        """Both tables at `num_knots` lengths; see `LengthTable.coarsened`."""
        table = self.table.coarsened(num_knots)
        shares = jnp.asarray(table.sums)[:, 0]
        masses = jax.vmap(self.masses_up_to)(shares)
        return eqx.tree_at(lambda t: (t.table, t.shares, t.masses), self, (table, shares, masses))


def tabulate(workload: Workload, profile: Profile) -> SharingTable:
    """Tabulate one profile. Differentiable in the profile's coefficients and in the prefix cache's hit rate.

    Chunks are whole: the gradient in the hit rate is that of their work, at the number of them that there is.
    """
    inputs, outputs = jnp.asarray(workload.input_tokens), jnp.asarray(workload.output_tokens)
    weight = jnp.asarray(workload.weight)
    cached = workload.cached_tokens(inputs)
    computed = inputs if workload.prefix_cache_hit_rate is None else inputs - cached
    work = physics.step_work(profile.law, profile.chunk_tokens, inputs, outputs, cached)
    requests = Requests.of(work)
    held = physics.kv_blocks(inputs + outputs, profile.block_tokens) * profile.block_tokens
    single = [jnp.ones_like(outputs), outputs, *single_columns(requests, held)]
    nodes = grid.step_nodes(requests.steps.max())
    prefill = groups.prefill_groups(computed / profile.chunk_tokens)
    decode = groups.decode_bins(requests.decode_steps, inputs + outputs / 2.0, weight)
    ends = requests.ends
    on_grid = grid.spread(nodes, ends.ravel()).reshape((*ends.shape, -1))
    prompt = requests.prefill_steps * requests.prefill_step_s
    columns = jnp.concatenate(
        [
            *(jnp.einsum("re,ren->rn", mass, on_grid) for mass in masses(requests, held)),
            *_share_and_squares(prefill, requests.prefill_steps, prompt),
            *_share_and_squares(decode, requests.decode_step_s, requests.prefill_step_s),
        ],
        axis=1,
    )
    shares, sums = _thinned(weight, requests.work_s, columns)
    binned = jnp.maximum(weight @ decode, _EMPTY)
    return SharingTable(
        table=workload.tabulate(jnp.stack(single, axis=1)),
        shares=shares,
        masses=_with_kernels(nodes, sums),
        nodes=nodes,
        decode_steps=(weight * requests.decode_steps) @ decode / binned,
        decode_prefill_steps=(weight * requests.prefill_steps) @ decode / binned,
    )


def _share_and_squares(member: Array, one: PerRow, other: PerRow) -> list[Float[Array, "rows groups"]]:
    """Of the requests of each group: the share, and the sums of two figures and of their squares."""
    figures = (one[:, None], other[:, None])
    return [member, *(power for x in figures for power in (member * x, member * x**2))]


def _with_kernels(nodes: Float[Array, " nodes"], sums: Float[Array, "knots columns"]) -> Float[Array, "knots more"]:
    """Before the other columns, the masses and what the kernels make of them, `_KINDS` in all."""
    size = len(Masses._fields) * nodes.shape[0]
    parts = Masses(*jnp.moveaxis(sums[:, :size].reshape((sums.shape[0], len(Masses._fields), -1)), 1, 0))
    psi, least = grid.psi_kernel(nodes).T, grid.min_kernel(nodes)
    made = [
        parts.running,
        parts.working,
        parts.pushing,
        parts.both,
        parts.held_pushing,
        *(mass @ psi for mass in (parts.running, parts.working, parts.held_running)),
        *(mass @ least for mass in (parts.running, parts.working)),
    ]
    return jnp.concatenate([*made, sums[:, size:]], axis=1)


def _thinned(
    weight: Float[Array, " rows"], work: Float[Array, " rows"], columns: Float[Array, "rows columns"]
) -> tuple[Float[Array, " knots"], Float[Array, "knots columns"]]:
    """Cumulative sums after chosen rows: all of them, or `NUM_KNOTS` that part both requests and work evenly."""
    sums = jnp.cumsum(weight[:, None] * columns, axis=0)
    share = jnp.cumsum(weight)
    if weight.shape[0] > NUM_KNOTS:
        level = 0.5 * share / share[-1] + 0.5 * jnp.cumsum(weight * work) / (weight * work).sum()
        rows = jnp.searchsorted(level, jnp.linspace(0.0, 1.0, NUM_KNOTS + 1)[1:])
        rows = jnp.clip(rows, 0, weight.shape[0] - 1).at[-1].set(weight.shape[0] - 1)
        sums, share = sums[rows], share[rows]
    return jnp.concatenate([jnp.zeros(1), share]), jnp.concatenate([jnp.zeros_like(sums[:1]), sums])


class Mix(NamedTuple):
    """The requests of a pool, per request.

    Attributes:
        share: of all requests.
        output_tokens: mean.
        moments, groups: what its latencies depend on.
    """

    share: Scalar
    output_tokens: Scalar
    moments: Moments
    groups: Groups


def between(table: SharingTable, lower: Scalar, upper: Scalar, *, empty_share: float = 1e-9) -> Mix:
    """The requests with lower < total tokens <= upper. Where there are hardly any, those of the whole workload."""
    below, above = table.table.up_to(lower), table.table.up_to(jnp.maximum(lower, upper))
    whole = jnp.asarray(table.table.sums)[-1]
    filled = above[0] - below[0] > empty_share
    share = jnp.where(filled, above[0] - below[0], 0.0)
    count = jnp.where(filled, above[0] - below[0], whole[0])
    sums = jnp.where(filled, above - below, whole) / count
    wide = jnp.where(filled, table.masses_up_to(above[0]) - table.masses_up_to(below[0]), jnp.asarray(table.masses)[-1])
    moments, grouped = _of_means(table, sums, wide / count)
    return Mix(share, sums[1], moments, grouped)


def _of_means(
    table: SharingTable, sums: Float[Array, " statistics"], wide: Float[Array, " columns"]
) -> tuple[Moments, Groups]:
    nodes = table.nodes
    size = _KINDS * nodes.shape[0]
    parts = wide[:size].reshape(_KINDS, -1)
    running, working, pushing, both, held_pushing, by_running, by_working, by_held, least_running, least_working = parts
    pairs = PairSums(
        pushed_running=(pushing * by_running).sum(),
        pushed_working=(pushing * by_working).sum(),
        both_running=(both * by_running).sum(),
        both_working=(both * by_working).sum(),
        together=(running * least_running).sum(),
        working_together=(working * least_working).sum(),
        held_pushed_held=(held_pushing * by_held).sum(),
        held_pushed_working=(held_pushing * by_working).sum(),
        both_held=(both * by_held).sum(),
    )
    moments = assemble(dict(zip(SINGLE, sums[2:], strict=True)), pairs, nodes, running)
    prefill, decode = jnp.split(wide[size:], [5 * groups.NUM_PREFILL])
    prompts, steps, steps2, prompt, prompt2 = _share_and_means(prefill)
    number, own, own2, chunk, chunk2 = _share_and_means(decode)
    return moments, Groups(
        prefill_share=prompts,
        prefill_steps=jnp.maximum(steps, 1.0),
        prefill_steps_spread=_deviation(steps, steps2),
        prefill_work_s=prompt,
        prefill_work_spread_s=_deviation(prompt, prompt2),
        decode_share=number / jnp.maximum(number.sum(), _EMPTY),
        decode_steps=table.decode_steps,
        decode_work_s=own,
        decode_work_variance_s2=jnp.maximum(own2 - own**2, 0.0),
        decode_prefill_steps=table.decode_prefill_steps,
        decode_chunk_s=chunk,
        decode_chunk_variance_s2=jnp.maximum(chunk2 - chunk**2, 0.0),
    )


def _share_and_means(columns: Float[Array, " columns"]) -> tuple[Float[Array, " groups"], ...]:
    """The share of each of some groups, and the means over its requests of what the other columns sum."""
    share, *sums = jnp.split(columns, 5)
    return share, *(total / jnp.maximum(share, _EMPTY) for total in sums)


def _deviation(mean: Array, mean_square: Array) -> Array:
    """Standard deviation, at least a ten-thousandth of the mean: with a gradient where all are alike."""
    return jnp.sqrt(jnp.maximum(mean_square - mean**2, 1e-8 * mean**2 + 1e-30))
