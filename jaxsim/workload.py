"""Workload: a weighted joint sample of (input, output) tokens, its arrivals where known, and the one split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Integer

from jaxsim._checks import invalid, require, unknown
from jaxsim.lengths import cut_tokens, found_tokens, hit_rate_of

MAX_TOKENS = 16_777_216
"""Longest total accepted, 2**24 tokens: above it a length is a unit mistake, not a prompt."""

LONG_REQUESTS = ("reject", "truncate")
"""What happens to requests above the fleet's max_context; counted either way."""

Array = np.ndarray | jax.Array


class LengthTable(eqx.Module):
    """Weighted sums of statistics over all requests up to a total length, piecewise linear in that length.

    `Workload.tabulate` puts two knots at every length that occurs, so a sum is exact at every integer
    threshold and linear within the token where it jumps: value and gradient exist everywhere, and no threshold
    is special. `coarsened` keeps fewer knots, whose gradient is the density over a wider range.
    """

    knots: Float[Array, " knots"]
    sums: Float[Array, "knots statistics"]

    def up_to(self, tokens: Float[Array, ""]) -> Float[Array, " statistics"]:
        """Sums over the requests with total tokens <= `tokens`; 0 below the first knot, all above the last.

        The gradient at a knot is that to its right, at the last that to its left.
        """
        knots, sums = jnp.asarray(self.knots), jnp.asarray(self.sums)
        right = jnp.clip(jnp.searchsorted(knots, tokens, side="right"), 1, knots.shape[0] - 1)
        left = right - 1
        low, high = knots[left], knots[right]
        part = (tokens - low) / (high - low)
        part = jnp.where(part < 0.0, 0.0, jnp.where(part > 1.0, 1.0, part))  # clip would halve the slope at a knot
        return sums[left] + part * (sums[right] - sums[left])

    def between(self, lower: Float[Array, ""], upper: Float[Array, ""]) -> Float[Array, " statistics"]:
        """Sums over lower < total <= upper; 0 where upper <= lower."""
        return self.up_to(jnp.maximum(lower, upper)) - self.up_to(lower)

    def split(self, thresholds: Float[Array, " pools"]) -> Float[Array, "pools statistics"]:
        """Sums of each pool's requests, `thresholds` ascending. The only split there is."""
        cumulative = jax.vmap(self.up_to)(jax.lax.cummax(jnp.asarray(thresholds)))
        return jnp.diff(cumulative, axis=0, prepend=jnp.zeros_like(cumulative[:1]))

    def coarsened(self, num_knots: int) -> LengthTable:
        """The same sums at `num_knots` lengths spaced evenly in log tokens: exact there, smoother in between."""
        knots = jnp.asarray(self.knots)
        first, last = knots[0], knots[-1]
        positions = jnp.exp(jnp.linspace(jnp.log(first + 1.0), jnp.log(last), num_knots - 1))
        positions = jnp.concatenate([first[None], positions.at[-1].set(last)])
        return LengthTable(knots=positions, sums=jax.vmap(self.up_to)(positions))


class PoolShares(eqx.Module):
    """What a split gives each pool: its share of requests and its mean lengths (0 for an empty pool)."""

    share: Float[Array, " pools"]
    mean_input_tokens: Float[Array, " pools"]
    mean_output_tokens: Float[Array, " pools"]


class PrefixBlocks(eqx.Module):
    """Blocks of each row's prompt, as whole numbers from 0: row ``i`` has ``ids[first[i]:first[i + 1]]``.

    Equal numbers are equal contents after equal beginnings, which a prefix cache can share.

    Attributes:
        ids: block numbers, row after row.
        first: where each row's begin, and the end of the last.
        tokens: tokens of a block; the last of a prompt may hold fewer.
    """

    ids: Integer[np.ndarray, " blocks"]
    first: Integer[np.ndarray, " rows_and_end"]
    tokens: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        require(self.tokens >= 1, "tokens of a block", self.tokens, ">= 1")
        require(np.all(self.ids >= 0), "ids", self.ids, ">= 0")
        good = len(self.first) > 0 and self.first[0] == 0 and np.all(np.diff(self.first) >= 0)
        if not good or self.first[-1] != len(self.ids):
            raise ValueError(f"first must ascend from 0 to the number of ids ({len(self.ids)}), got {self.first}")

    @property
    def num_rows(self) -> int:
        """Rows, those without blocks included."""
        return len(self.first) - 1

    @property
    def num_ids(self) -> int:
        """Different blocks, counted from the greatest number."""
        return int(self.ids.max()) + 1 if len(self.ids) else 0

    @property
    def seen_before(self) -> float:
        """Share of blocks that an earlier row, or the same, has too: the hits of an infinite prefix cache."""
        return 1.0 - len(np.unique(self.ids)) / len(self.ids) if len(self.ids) else 0.0

    def of_rows(self, rows: Integer[np.ndarray, " chosen"], most: Any = None) -> PrefixBlocks:
        """The blocks of some rows, in their order; `most` keeps so many of each at most, its leading ones."""
        counts = np.diff(self.first)[rows]
        counts = counts if most is None else np.minimum(counts, np.asarray(most, dtype=np.int64))
        first = np.concatenate([[0], np.cumsum(counts)])
        at = np.repeat(self.first[:-1][rows] - first[:-1], counts) + np.arange(first[-1])
        return PrefixBlocks(self.ids[at], first, self.tokens)


class Workload(eqx.Module):
    """Joint law of input and output tokens, as weighted requests in order of total tokens.

    Attributes:
        input_tokens, output_tokens: whole numbers >= 1, as floats.
        weight: share of each row; sums to 1.
        knots, rows_to_knot: where sums by total length bend, and how many rows lie up to each (`tabulate`).
        arrival_s: arrival times of the trace, from 0, ascending; None where it has none.
        arrival_row: row of each arrival.
        prefix_blocks: prompt blocks of each row, where the trace lists their hashes; None elsewhere.
        prefix_cache_hit_rate: share of each prompt that a prefix cache holds (`with_prefix_cache`); None for no cache.
        name, source: what it is and where it is from.
        notes: what the reader counted (failed rows, repaired order, ...), for people to see.
        rate: the trace's own mean rate, requests per second; None where no arrival times were known.
        breakpoints: total tokens at which a CDF was given; () for a sample. No computation depends on them.
    """

    input_tokens: Float[Array, " rows"]
    output_tokens: Float[Array, " rows"]
    weight: Float[Array, " rows"]
    knots: Float[Array, " knots"]
    rows_to_knot: Int[Array, " knots"]
    arrival_s: Float[np.ndarray, " arrivals"] | None = None
    arrival_row: Int[np.ndarray, " arrivals"] | None = None
    prefix_blocks: PrefixBlocks | None = None
    prefix_cache_hit_rate: Float[Array, ""] | None = None
    name: str = eqx.field(static=True, default="given")
    source: str = eqx.field(static=True, default="given")
    notes: tuple[str, ...] = eqx.field(static=True, default=())
    rate: float | None = eqx.field(static=True, default=None)
    breakpoints: tuple[float, ...] = eqx.field(static=True, default=())

    @classmethod
    def from_lengths(
        cls,
        input_tokens: Any,
        output_tokens: Any,
        *,
        weight: Any = None,
        arrival_s: Any = None,
        prefix_blocks: PrefixBlocks | None = None,
        prefix_cache_hit_rate: Any = None,
        rate: float | None = None,
        name: str = "given",
        source: str = "given",
        notes: Sequence[str] = (),
        breakpoints: Sequence[float] = (),
    ) -> Workload:
        """A workload from arrays, one entry per request.

        Requests of equal lengths become one row with their weight, unless they have prompt blocks of their own.

        Args:
            input_tokens, output_tokens: whole numbers from 1, their sum up to `MAX_TOKENS`.
            weight: relative frequency of each request, >= 0; left out, all equal.
            arrival_s: arrival instants in seconds, in any order and from any origin; left out, none.
            prefix_blocks: prompt blocks of each request; left out, none.
            prefix_cache_hit_rate: as of `with_prefix_cache`; left out, none.
            rate: mean rate of the source, requests per second; left out, that of `arrival_s`.
            breakpoints: total tokens at which a CDF was given, natural thresholds to show; () for a sample.

        Raises:
            ValueError: no request, unequal lengths, or a value outside the domain.
        """
        columns = {"input_tokens": input_tokens, "output_tokens": output_tokens}
        lengths = {n: _whole_tokens(n, np.asarray(v, dtype=np.float64)) for n, v in columns.items()}
        inputs, outputs = lengths["input_tokens"], lengths["output_tokens"]
        if inputs.shape != outputs.shape or inputs.ndim != 1:
            raise ValueError(
                f"input_tokens and output_tokens must be two columns of one length, got shapes "
                f"{inputs.shape} and {outputs.shape}"
            )
        if np.max(inputs + outputs) > MAX_TOKENS:
            raise invalid(
                "input_tokens + output_tokens",
                float(np.max(inputs + outputs)),
                f"<= {MAX_TOKENS}",
                "is a column in another unit?",
            )
        weights = np.ones_like(inputs) if weight is None else np.asarray(weight, dtype=np.float64)
        if weights.shape != inputs.shape or not np.all(weights >= 0) or not 0 < weights.sum() < np.inf:
            raise ValueError("weight must be one finite number >= 0 per request with a positive sum")
        keys = ((inputs + outputs) * MAX_TOKENS + inputs).astype(np.int64)  # by total, then by input
        if prefix_blocks is None:
            _, first, row = np.unique(keys, return_index=True, return_inverse=True)
        else:
            first, row = _rows_apart(keys, prefix_blocks)
        times, rows = _sorted_arrivals(arrival_s, row, inputs.shape[0])
        if rate is None and times is not None and times[-1] > 0:
            rate = len(times) / float(times[-1])
        knots, rows_to_knot = _knots((inputs + outputs)[first])
        return cls(
            input_tokens=inputs[first],
            output_tokens=outputs[first],
            weight=np.bincount(row, weights, minlength=len(first)) / weights.sum(),
            knots=knots,
            rows_to_knot=rows_to_knot,
            arrival_s=times,
            arrival_row=rows,
            prefix_blocks=None if prefix_blocks is None else prefix_blocks.of_rows(first),
            prefix_cache_hit_rate=hit_rate_of(prefix_cache_hit_rate),
            name=name,
            source=source,
            notes=tuple(notes),
            rate=rate,
            breakpoints=tuple(float(b) for b in breakpoints),
        )

    @classmethod
    def from_trace(
        cls,
        path: str | Path,
        *,
        columns: Mapping[str, str] | None = None,
        time_unit: str | None = None,
        failed: str = "drop",
    ) -> Workload:
        """A workload from a request trace file; see `jaxsim.traces.read_trace` for formats and arguments."""
        from jaxsim.traces import read_trace

        trace = read_trace(path, columns=columns, time_unit=time_unit, failed=failed)
        return cls.from_lengths(
            trace.input_tokens,
            trace.output_tokens,
            arrival_s=trace.arrival_s,
            prefix_blocks=trace.prefix_blocks,
            name=Path(path).name,
            source=f"trace file {Path(path).name}",
            notes=trace.notes,
        )

    @classmethod
    def from_cdf(
        cls,
        points: str | Path | Sequence[Sequence[float]],
        *,
        output_share: float,
        name: str = "cdf",
        source: str | None = None,
        notes: Sequence[str] = (),
    ) -> Workload:
        """A workload from the CDF of total tokens; see `jaxsim.cdf.cdf_lengths`.

        Args:
            points: pairs (total tokens, cumulative share), or the path of a JSON file with them.
            output_share: share of a request's total that is output, in (0, 1). A CDF of totals does not know it;
                it must be given.
        """
        from jaxsim.cdf import cdf_breakpoints, cdf_lengths

        inputs, outputs, weight = cdf_lengths(points, output_share=output_share)
        return cls.from_lengths(
            inputs,
            outputs,
            weight=weight,
            name=name,
            source=f"CDF of total tokens, output share {output_share:g}" if source is None else source,
            notes=notes,
            breakpoints=cdf_breakpoints(points),
        )

    @property
    def total_tokens(self) -> Float[Array, " rows"]:
        """Input + output, ascending."""
        return self.input_tokens + self.output_tokens

    def mean(self, values: Float[Array, " rows"]) -> Float[Array, ""]:
        """Weighted mean of one value per row."""
        return jnp.sum(jnp.asarray(self.weight) * values)

    def with_prefix_cache(self, hit_rate: Any) -> Workload:
        """The same requests where a prefix cache holds the share `hit_rate` in [0, 1] of each prompt; 0 is no cache.

        What it holds is not computed, but attended to, and takes its room in the KV cache; of every prompt one token is
        computed at the least, as vLLM does. For the `step` model, and for the simulator under its convention.
        """
        return replace(self, prefix_cache_hit_rate=hit_rate_of(hit_rate))

    def cached_tokens(self, input_tokens: Float[Array, " rows"]) -> Float[Array, " rows"] | float:
        """Of prompts of these lengths, the tokens that the prefix cache holds; real numbers."""
        rate = self.prefix_cache_hit_rate
        return 0.0 if rate is None else found_tokens(input_tokens, rate)

    def tabulate(self, statistics: Float[Array, "rows statistics"]) -> LengthTable:
        """Cumulative weighted sums of `statistics` by total tokens."""
        cumulative = jnp.cumsum(jnp.asarray(self.weight)[:, None] * statistics, axis=0)
        padded = jnp.concatenate([jnp.zeros_like(cumulative[:1]), cumulative])
        return LengthTable(knots=jnp.asarray(self.knots), sums=padded[jnp.asarray(self.rows_to_knot)])

    def split(self, thresholds: Float[Array, " pools"]) -> PoolShares:
        """Share and mean lengths of the requests in each pool.

        Pool p has ``thresholds[p-1] < total <= thresholds[p]``. Exact at every whole number of tokens and
        differentiable in between (see `LengthTable`).
        """
        statistics = jnp.stack([jnp.ones_like(self.weight), self.input_tokens, self.output_tokens], axis=1)
        sums = self.tabulate(statistics).split(jnp.asarray(thresholds, dtype=float))
        share = sums[:, 0]
        safe = jnp.where(share > 0, share, 1.0)
        return PoolShares(
            share, jnp.where(share > 0, sums[:, 1] / safe, 0.0), jnp.where(share > 0, sums[:, 2] / safe, 0.0)
        )

    def share_above(self, tokens: float) -> float:
        """Share of requests with more than `tokens` tokens in all."""
        return float(np.sum(self.weight[np.asarray(self.total_tokens) > tokens]))

    def truncated(self, max_context: float) -> Workload:
        """Prompts shortened so that no total exceeds `max_context` (at least one input token is kept)."""
        inputs, outputs = cut_tokens(np.asarray(self.input_tokens), np.asarray(self.output_tokens), max_context)
        rows = np.arange(len(self.weight)) if self.arrival_row is None else self.arrival_row
        weight = self.weight if self.arrival_row is None else None
        share = self.share_above(max_context)
        blocks = self.prefix_blocks
        if blocks is not None:  # a block that is cut is another block
            kept = np.where(inputs < self.input_tokens, np.floor(inputs / blocks.tokens), np.inf)
            blocks = blocks.of_rows(rows, np.minimum(kept, MAX_TOKENS)[rows])
        return Workload.from_lengths(
            inputs[rows],
            outputs[rows],
            weight=weight,
            arrival_s=self.arrival_s,
            prefix_blocks=blocks,
            prefix_cache_hit_rate=self.prefix_cache_hit_rate,
            rate=self.rate,
            breakpoints=self.breakpoints,
            name=self.name,
            source=self.source,
            notes=(*self.notes, f"{share:.4%} of requests truncated to {max_context:g} tokens"),
        )

    def limited(self, max_context: float, long_requests: str) -> Workload:
        """The workload under a policy for requests above `max_context`.

        ``"reject"`` leaves them in: routing finds no pool for them and counts them as rejected.
        ``"truncate"`` shortens their prompts.
        """
        if long_requests not in LONG_REQUESTS:
            raise unknown("long_requests policy", long_requests, LONG_REQUESTS)
        return self.truncated(max_context) if long_requests == "truncate" else self


def _whole_tokens(name: str, values: np.ndarray) -> np.ndarray:
    if values.size == 0:
        raise ValueError(f"{name} must be at least one request, got 0 requests")
    bad = ~((values >= 1) & (values <= MAX_TOKENS) & (values == np.floor(values)))
    if np.any(bad):
        at = int(np.flatnonzero(bad)[0])
        raise invalid(f"{name}[{at}]", float(values[at]), f"a whole number from 1 to {MAX_TOKENS}")
    return values


def _rows_apart(keys: np.ndarray, blocks: PrefixBlocks) -> tuple[np.ndarray, np.ndarray]:
    """Requests in order of their keys, each a row of its own, and the row of each."""
    if blocks.num_rows != len(keys):
        raise ValueError(f"prefix_blocks must have one entry per request ({len(keys)}), got {blocks.num_rows}")
    order = np.argsort(keys, kind="stable")
    row = np.empty_like(order)
    row[order] = np.arange(len(order))
    return order, row


def _knots(totals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two knots a length: the token before it, where a sum still is what it was, and the length itself."""
    knots = np.unique(np.concatenate([totals - 1.0, totals]))
    return knots, np.searchsorted(totals, knots, side="right")


def _sorted_arrivals(arrival_s: Any, row: np.ndarray, num_requests: int) -> tuple[np.ndarray | None, np.ndarray | None]:
    if arrival_s is None:
        return None, None
    times = np.asarray(arrival_s, dtype=np.float64)
    if times.shape != (num_requests,) or not np.all(np.isfinite(times)):
        raise ValueError(f"arrival_s must be one finite time per request, got shape {times.shape}")
    order = np.argsort(times, kind="stable")
    return times[order] - times[order[0]], row.reshape(-1)[order]
