r"""Requests as an engine counts them: steps and work in two phases, and the sums over pairs of them.

Two requests slow each other down while both run, so what an engine's fluctuations depend on are sums over pairs of
requests of the steps they could spend together. With $c_j$ any mass on the requests,

$$\psi_c(k) = \sum_j c_j \sum_{i<k} \min(K_j, i)
= \sum_j c_j \Big[\int_0^k \min(K_j, u)\,du - \tfrac12 \min(K_j, k)\Big]$$

(equal for whole k), and every pair sum of the theory is a mean of $\psi$ at the ends of the requests' phases.
`exact_pair_sums` takes them from requests sorted by steps; `jaxsim.step_sharing.tables` tabulates them.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsim import physics

Scalar = Float[Array, ""]
PerRow = Float[Array, " rows"]
PerEnd = Float[Array, "rows ends"]

LEAST_WORK_S = 1e-15
"""Work that every running request adds to a step at the least: without any, the formulas have 0/0 for a limit."""


class Requests(eqx.Module):
    """Requests by their steps and work, one a row. Steps are whole numbers as floats, times in seconds.

    Attributes:
        prefill_steps, decode_steps: steps until the first token, and after it.
        prefill_step_s, decode_step_s: mean work per step of each phase.
        work_s: V, over all steps.
        squares_s2, prefill_squares_s2: sum over the steps, and over those of prefill, of squared work.
        ages_s, prefill_ages_s: sum over those steps of the step's number (from 1) times its work.
    """

    prefill_steps: PerRow
    decode_steps: PerRow
    prefill_step_s: PerRow
    decode_step_s: PerRow
    work_s: PerRow
    squares_s2: PerRow
    prefill_squares_s2: PerRow
    ages_s: PerRow
    prefill_ages_s: PerRow

    @property
    def steps(self) -> PerRow:
        """K, all steps."""
        return self.prefill_steps + self.decode_steps

    @property
    def ends(self) -> PerEnd:
        """Numbers of steps at which something of a request ends: those of prefill, of decode, and all."""
        return jnp.stack([self.prefill_steps, self.decode_steps, self.steps], axis=1)

    @classmethod
    def constant(cls, prefill_steps: PerRow, decode_steps: PerRow, step_work_s: PerRow) -> Requests:
        """Requests that add the same work to each of their steps."""
        steps, w = prefill_steps + decode_steps, step_work_s + LEAST_WORK_S
        return cls(
            prefill_steps=prefill_steps,
            decode_steps=decode_steps,
            prefill_step_s=w,
            decode_step_s=w,
            work_s=w * steps,
            squares_s2=w**2 * steps,
            prefill_squares_s2=w**2 * prefill_steps,
            ages_s=w * steps * (steps + 1.0) / 2.0,
            prefill_ages_s=w * prefill_steps * (prefill_steps + 1.0) / 2.0,
        )

    @classmethod
    def of(cls, work: physics.RequestWork) -> Requests:
        """Requests whose work per step is linear within the phases of `jaxsim.physics`; sums are exact.

        Within a phase, pairs of requests see its mean work per step: growth of the work inside a phase enters the
        sums of one request, and only to second order the sums over pairs.
        """
        tiny = LEAST_WORK_S
        work = work._replace(
            full_first_s=work.full_first_s + tiny,
            last_s=work.last_s + tiny,
            decode_first_s=work.decode_first_s + tiny,
        )
        prefill, decode = physics.prefill_steps(work), work.decode_steps
        prefill_s, decode_s = physics.prefill_work(work), physics.decode_work(work)
        prefill_ages = _work_by_age(0.0, work.full_steps, work.full_first_s, work.full_slope_s) + prefill * work.last_s
        return cls(
            prefill_steps=prefill,
            decode_steps=decode,
            prefill_step_s=prefill_s / prefill,
            decode_step_s=decode_s / jnp.maximum(decode, 1.0),
            work_s=prefill_s + decode_s,
            squares_s2=physics.work_of_squares(work),
            prefill_squares_s2=physics.work_of_squares(work._replace(decode_steps=0.0 * decode)),
            ages_s=prefill_ages + _work_by_age(prefill, decode, work.decode_first_s, work.decode_slope_s),
            prefill_ages_s=prefill_ages,
        )


def _work_by_age(before: PerRow | float, steps: PerRow, first: PerRow, slope: PerRow) -> PerRow:
    """Sum of ``(before + j + 1) * (first + slope * j)`` over ``j = 0 .. steps - 1``."""
    squares = (steps - 1.0) * steps * (steps + 1.0) / 3.0
    return before * physics.series_sum(steps, first, slope) + first * steps * (steps + 1.0) / 2.0 + slope * squares


class Masses(NamedTuple):
    """Masses on the axis of steps, whose pairs the sums are over: of each request, at each of its `Requests.ends`.

    With K all steps, p those of prefill, o those of decode and $w_p, w_o$ the work per step of the phases:

    - running: 1 at K, the requests in an engine; held_running: the same weighted by the tokens held.
    - working: the work they do.
    - pushing: where the work of a request ends that delays others, $w_p$ at K less at o, and $w_o$ at o;
      held_pushing: the same weighted by the tokens held.
    - both: squares, where a request's work meets its own.
    """

    running: PerEnd
    working: PerEnd
    pushing: PerEnd
    both: PerEnd
    held_running: PerEnd
    held_pushing: PerEnd


def masses(requests: Requests, held_tokens: PerRow) -> Masses:
    """The masses of each request; multiply by its weight and sum."""
    wp, wo = requests.prefill_step_s, requests.decode_step_s
    none, held = jnp.zeros_like(wp), held_tokens[:, None]
    running = jnp.stack([none, none, none + 1.0], axis=1)
    pushing = jnp.stack([none, wo - wp, wp], axis=1)
    return Masses(
        running=running,
        working=jnp.stack([wp - wo, none, wo], axis=1),
        pushing=pushing,
        both=jnp.stack([wp * (wp - wo), wo * (wo - wp), wp * wo], axis=1),
        held_running=held * running,
        held_pushing=held * pushing,
    )


class PairSums(NamedTuple):
    r"""Means over pairs of requests, per request.

    Attributes:
        pushed_running: $E[w\,\psi_1(K)]$, steps squared times seconds: others' work on how many run.
        pushed_working: $E[w\,\psi_w(K)]$.
        both_running, both_working: $E[w^2 \psi_1(K)]$, $E[w^2 \psi_w(K)]$.
        together: $E[\min(K, K')]$, steps.
        working_together: $\sum_u E[w(u) 1\{K > u\}]^2$, seconds squared.
        held_pushed_held, held_pushed_working, both_held: as the first three with the tokens held for a mass.
    """

    pushed_running: Scalar
    pushed_working: Scalar
    both_running: Scalar
    both_working: Scalar
    together: Scalar
    working_together: Scalar
    held_pushed_held: Scalar
    held_pushed_working: Scalar
    both_held: Scalar


def exact_pair_sums(requests: Requests, weight: PerRow, held_tokens: PerRow) -> PairSums:
    """The pair sums of weighted requests, by sorting: the order of n log n operations. Gradient in works and weights.

    Args:
        requests: rows.
        weight: share of each; sums to 1.
        held_tokens: KV tokens that each reserves.
    """
    parts = masses(requests, held_tokens)
    ends = requests.ends.ravel()

    def pair(one: PerEnd, other: PerEnd, kernel: str) -> Scalar:
        mass, c = (weight[:, None] * one).ravel(), (weight[:, None] * other).ravel()
        return (mass * _summed(ends, c, ends)[kernel]).sum()

    return PairSums(
        pushed_running=pair(parts.pushing, parts.running, "psi"),
        pushed_working=pair(parts.pushing, parts.working, "psi"),
        both_running=pair(parts.both, parts.running, "psi"),
        both_working=pair(parts.both, parts.working, "psi"),
        together=pair(parts.running, parts.running, "min"),
        working_together=pair(parts.working, parts.working, "min"),
        held_pushed_held=pair(parts.held_pushing, parts.held_running, "psi"),
        held_pushed_working=pair(parts.held_pushing, parts.working, "psi"),
        both_held=pair(parts.both, parts.held_running, "psi"),
    )


def _summed(steps: PerRow, mass: PerRow, at: PerRow) -> dict[str, PerRow]:
    r"""$\psi$ and the sum of $c_j \min(K_j, k)$, of masses `mass` at `steps`, at every k of `at`."""
    order = jnp.argsort(steps)
    sorted_steps, c = steps[order], mass[order]
    sums = [jnp.concatenate([jnp.zeros(1), jnp.cumsum(c * sorted_steps**power)]) for power in (0, 1, 2)]
    index = jnp.searchsorted(sorted_steps, at, side="right")
    above = sums[0][-1] - sums[0][index]
    within = sums[1][index] + at * above
    return {"psi": at * sums[1][index] - 0.5 * sums[2][index] + 0.5 * at**2 * above - 0.5 * within, "min": within}
