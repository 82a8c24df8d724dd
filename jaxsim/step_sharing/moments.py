"""Moments of one request of a mix: all that the fluctuations of an engine depend on.

Symbols of the theory: K steps, V work, w(u) work in step u, E a mean over the requests. Every figure here is
invariant under splitting a request in equal shares, and those without a unit under the unit of time.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsim.step_sharing.requests import PairSums, Requests, exact_pair_sums

Scalar = Float[Array, ""]
PerRow = Float[Array, " rows"]


class Moments(eqx.Module):
    """Moments of a mix of requests.

    Attributes:
        steps, steps2: E[K], E[K^2].
        work_s, work2_s2: E[V], E[V^2].
        steps_work_s: E[K V].
        squares_s2: E of the sum over steps of squared work.
        mean_age: mean number of the step (from 1) in which a unit of work is done.
        prefill_steps, prefill_work_s, prefill_work2_s2, prefill_squares_s2, prefill_age: the same of the steps until
            the first token.
        count_slope, cross_slope, work_slope: growth with the branching ratio a, at a = 0, of the variance of the
            number running, of its covariance with the work present, and of the variance of the work; each over its
            value at a = 0 (q2 = 2q, qc, qs of the theory).
        count_limit, work_limit: their limits over 1/(1 - a) as a goes to 1 (B for the first two, and Bs).
        overlap, work_overlap: share of a request's steps that another spends with it, and the same of work.
        held_tokens, held2_tokens2: KV tokens that a request reserves, E[T], E[T^2].
        held_steps, held2_steps: E[T K], E[T^2 K].
        held_work: E[T V].
        held_slope, held_limit: as `count_slope` and `count_limit`, of the tokens reserved.
        held_cross_slope, held_cross_limit: of their covariance with the work present.
        nodes, shares: the law of K, as shares (some may be negative, see `tables`) at numbers of steps.
    """

    steps: Scalar
    steps2: Scalar
    work_s: Scalar
    work2_s2: Scalar
    steps_work_s: Scalar
    squares_s2: Scalar
    mean_age: Scalar
    prefill_steps: Scalar
    prefill_work_s: Scalar
    prefill_work2_s2: Scalar
    prefill_squares_s2: Scalar
    prefill_age: Scalar
    count_slope: Scalar
    cross_slope: Scalar
    work_slope: Scalar
    count_limit: Scalar
    work_limit: Scalar
    overlap: Scalar
    work_overlap: Scalar
    held_tokens: Scalar
    held2_tokens2: Scalar
    held_steps: Scalar
    held2_steps: Scalar
    held_work: Scalar
    held_slope: Scalar
    held_limit: Scalar
    held_cross_slope: Scalar
    held_cross_limit: Scalar
    nodes: Float[Array, " nodes"]
    shares: Float[Array, " nodes"]

    @property
    def step_work_s(self) -> Scalar:
        """Mean work of a running request in a step, E[V]/E[K]."""
        return self.work_s / self.steps

    @property
    def steps_cv2(self) -> Scalar:
        """Squared coefficient of variation of K."""
        return jnp.maximum(self.steps2 / self.steps**2 - 1.0, 0.0)

    @property
    def composition_s2(self) -> Scalar:
        """Variance of the work that one running request, taken at random, adds to a step."""
        return jnp.maximum(self.squares_s2 / self.steps - self.step_work_s**2, 1e-30)

    def laplace(self, scale: Scalar) -> Scalar:
        """E exp(-scale K/E[K])."""
        return jnp.clip((self.shares * jnp.exp(-scale * self.nodes / self.steps)).sum(), 0.0, 1.0 - 1e-15)


SINGLE = (
    "steps", "steps2", "work_s", "work2_s2", "steps_work_s", "squares_s2", "ages_s",
    "prefill_steps", "prefill_work_s", "prefill_work2_s2", "prefill_squares_s2", "prefill_ages_s",
    "held_tokens", "held2_tokens2", "held_steps", "held2_steps", "held_work",
)  # fmt: skip
"""Sums over single requests that `assemble` needs, in the order of `single_columns`."""


def single_columns(requests: Requests, held_tokens: PerRow) -> list[PerRow]:
    """One column for each of `SINGLE`."""
    k, v, t = requests.steps, requests.work_s, held_tokens
    prefill = requests.prefill_steps * requests.prefill_step_s
    columns = [k, k**2, v, v**2, k * v, requests.squares_s2, requests.ages_s]
    columns += [requests.prefill_steps, prefill, prefill**2, requests.prefill_squares_s2, requests.prefill_ages_s]
    return [*columns, t, t**2, t * k, t**2 * k, t * v]


def assemble(
    single: dict[str, Scalar], pairs: PairSums, nodes: Float[Array, " nodes"], shares: Float[Array, " nodes"]
) -> Moments:
    """Moments from the means of `SINGLE` and the pair sums of one mix."""
    k, v = single["steps"], single["work_s"]
    v2, squares = single["work2_s2"], single["squares_s2"]
    age = single["ages_s"] / v
    tk, t2k, tv = single["held_steps"], single["held2_steps"], single["held_work"]
    spread = v2 / v**2 / (2.0 * age)
    return Moments(
        **{name: single[name] for name in SINGLE if not name.endswith("ages_s")},
        mean_age=age,
        prefill_age=single["prefill_ages_s"] / single["prefill_work_s"],
        count_slope=2.0 * pairs.pushed_running / (v * k),
        cross_slope=(pairs.pushed_working + pairs.both_running) / v**2,
        work_slope=2.0 * pairs.both_working / (v * squares),
        count_limit=spread * k,
        work_limit=spread * v**2 / squares,
        overlap=pairs.together / k,
        work_overlap=pairs.working_together / squares,
        held_slope=2.0 * pairs.held_pushed_held / (v * t2k),
        held_limit=spread * tk**2 / t2k,
        held_cross_slope=(pairs.held_pushed_working + pairs.both_held) / (v * tv),
        held_cross_limit=spread * tk * v / tv,
        nodes=nodes,
        shares=shares,
    )


def exact_moments(requests: Requests, weight: PerRow, *, held_tokens: PerRow | None = None) -> Moments:
    """Moments of weighted requests, by sorting; the slow and exact way.

    Args:
        requests: rows.
        weight: share of each, any positive scale.
        held_tokens: KV tokens that each reserves; left out, 1 each.
    """
    share = weight / weight.sum()
    held = jnp.ones_like(share) if held_tokens is None else held_tokens
    columns = single_columns(requests, held)
    single = {name: (share * column).sum() for name, column in zip(SINGLE, columns, strict=True)}
    return assemble(single, exact_pair_sums(requests, share, held), requests.steps, share)
