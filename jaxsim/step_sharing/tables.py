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

NUM_KNOTS = 1024
_EMPTY = 1e-12


class SharingTable(eqx.Module):
    """Length statistics of a workload on a profile.

    Attributes:
        table: sums over single requests by total tokens: share, output tokens, `SINGLE`.
        shares: shares of requests, ascending, at which `masses` has its knots.
        masses: sums up to each: masses on the grid, and of the groups.
        nodes: the grid.
        prefill_low, prefill_high: range of prefill steps of each group.
        decode_steps, decode_prefill_steps: mean steps of each bin, in decode and in prefill.
    """

    table: LengthTable
    shares: Float[Array, " knots"]
    masses: Float[Array, "knots columns"]
    nodes: Float[Array, " nodes"]
    prefill_low: Float[Array, " groups"]
    prefill_high: Float[Array, " groups"]
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
    """Tabulate one profile. Differentiable in the profile's coefficients."""
    inputs, outputs = jnp.asarray(workload.input_tokens), jnp.asarray(workload.output_tokens)
    weight = jnp.asarray(workload.weight)
    work = physics.step_work(profile.law, profile.chunk_tokens, inputs, outputs)
    requests = Requests.of(work)
    held = physics.kv_blocks(inputs + outputs, profile.block_tokens) * profile.block_tokens
    single = [jnp.ones_like(outputs), outputs, *single_columns(requests, held)]
    nodes = grid.step_nodes(requests.steps.max())
    prefill, low, high = groups.prefill_groups(inputs / profile.chunk_tokens)
    decode = groups.decode_bins(requests.decode_steps, inputs + outputs / 2.0, weight)
    ends = requests.ends
    on_grid = grid.spread(nodes, ends.ravel()).reshape((*ends.shape, -1))
    own, chunk = requests.decode_step_s[:, None], requests.prefill_step_s[:, None]
    columns = jnp.concatenate(
        [
            *(jnp.einsum("re,ren->rn", mass, on_grid) for mass in masses(requests, held)),
            prefill,
            prefill * (requests.prefill_steps * requests.prefill_step_s)[:, None],
            decode,
            decode * own,
            decode * own**2,
            decode * chunk,
            decode * chunk**2,
        ],
        axis=1,
    )
    shares, sums = _thinned(weight, requests.work_s, columns)
    binned = jnp.maximum(weight @ decode, _EMPTY)
    return SharingTable(
        table=workload.tabulate(jnp.stack(single, axis=1)),
        shares=shares,
        masses=sums,
        nodes=nodes,
        prefill_low=low,
        prefill_high=high,
        decode_steps=(weight * requests.decode_steps) @ decode / binned,
        decode_prefill_steps=(weight * requests.prefill_steps) @ decode / binned,
    )


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
    size = len(Masses._fields) * nodes.shape[0]
    running, working, pushing, both, held_running, held_pushing = wide[:size].reshape(len(Masses._fields), -1)
    psi, least = grid.psi_kernel(nodes), grid.min_kernel(nodes)
    by_running, by_working, by_held = (psi @ jnp.stack([running, working, held_running], axis=1)).T
    pairs = PairSums(
        pushed_running=pushing @ by_running,
        pushed_working=pushing @ by_working,
        both_running=both @ by_running,
        both_working=both @ by_working,
        together=running @ least @ running,
        working_together=working @ least @ working,
        held_pushed_held=held_pushing @ by_held,
        held_pushed_working=held_pushing @ by_working,
        both_held=both @ by_held,
    )
    single = dict(zip(SINGLE, sums[2:], strict=True))
    moments = assemble(single, pairs, nodes, running)
    rest = wide[size:]
    sizes = (groups.NUM_PREFILL, 2 * groups.NUM_PREFILL)
    prefill, prefill_work, decode = rest[: sizes[0]], rest[sizes[0] : sizes[1]], rest[sizes[1] :]
    number, *totals = jnp.split(decode, 5)
    own, own2, chunk, chunk2 = (total / jnp.maximum(number, _EMPTY) for total in totals)
    return moments, Groups(
        prefill_share=prefill,
        prefill_low=table.prefill_low,
        prefill_high=table.prefill_high,
        prefill_work_s=prefill_work / jnp.maximum(prefill, _EMPTY),
        decode_share=number / jnp.maximum(number.sum(), _EMPTY),
        decode_steps=table.decode_steps,
        decode_work_s=own,
        decode_work_variance_s2=jnp.maximum(own2 - own**2, 0.0),
        decode_prefill_steps=table.decode_prefill_steps,
        decode_chunk_s=chunk,
        decode_chunk_variance_s2=jnp.maximum(chunk2 - chunk**2, 0.0),
    )
