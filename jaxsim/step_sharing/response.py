r"""Tails of the wait, of TTFT and of TPOT, given the state that an arrival finds.

TTFT = rest of the step in progress + queue wait + prefill steps at the step times of the batch + own prefill work: a
mixture over the requests' prefill and the nodes of `State`. Over a window of steps a fluctuation averages out: of its
standard deviation $\mathrm{sh}(y) = \sqrt{2(y - 1 + e^{-y})}/y$ is left, y the window in correlation times. The number
running and the mix have each their own.

TPOT = mean step time over the decode steps. An arrival finds more work than an average step has, since long steps
see more arrivals; over its stay that excess decays while its own work draws others in: for equal requests the two are
equal and cancel.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import erfc
from jaxtyping import Array, Float

from jaxsim.step_sharing.fluctuations import Fluctuations
from jaxsim.step_sharing.full import TINY
from jaxsim.step_sharing.state import FULL, TAKEN, State
from jaxsim.step_sharing.waiting import QueueWait

Scalar = Float[Array, ""]

_LEAST_WIDTH = 1e-3
"""Of the sum of two uniform times, the share that each is given at the least: one that is 0 would divide by it."""

_EDGE_WIDTH = 0.002
"""Least standard deviation of a TPOT, as a share of it: keeps the tail smooth where all requests are alike."""


class Groups(eqx.Module):
    """Requests of a pool grouped by their prefill and by their decode; shares sum to 1 within each (0 if empty).

    Attributes:
        prefill_share: share of each group.
        prefill_steps, prefill_steps_spread: mean and standard deviation of its requests' prefill steps.
        prefill_work_s, prefill_work_spread_s: the same of the work of their prefill, seconds.
        decode_share, decode_steps: share among requests with a TPOT and mean decode steps.
        decode_work_s, decode_work_variance_s2: own work per decode step, mean and variance within the group.
        decode_prefill_steps: mean prefill steps of a bin's requests.
        decode_chunk_s, decode_chunk_variance_s2: own work per prefill step, mean and variance within the bin.
    """

    prefill_share: Float[Array, " groups"]
    prefill_steps: Float[Array, " groups"]
    prefill_steps_spread: Float[Array, " groups"]
    prefill_work_s: Float[Array, " groups"]
    prefill_work_spread_s: Float[Array, " groups"]
    decode_share: Float[Array, " bins"]
    decode_steps: Float[Array, " bins"]
    decode_work_s: Float[Array, " bins"]
    decode_work_variance_s2: Float[Array, " bins"]
    decode_prefill_steps: Float[Array, " bins"]
    decode_chunk_s: Float[Array, " bins"]
    decode_chunk_variance_s2: Float[Array, " bins"]


def averaging(steps_over_correlation: Float[Array, ...]) -> Float[Array, ...]:
    """Standard deviation of a window average over that of one step; 1 at 0, falls as 1/sqrt; smooth."""
    y = jnp.maximum(steps_over_correlation, 1e-3)
    exact = jnp.sqrt(2.0 * (y + jnp.expm1(-y))) / y
    return jnp.where(steps_over_correlation < 1e-3, 1.0 - steps_over_correlation / 6.0, exact)


def residual_tail(t: Array, width: Array) -> Array:
    """P(U width > t) for a uniform U."""
    return jnp.clip(1.0 - t / width, 0.0, 1.0)


def queue_adds(t: Array, width: Array, scale: Array) -> Array:
    """P(U width + Exp(mean scale) > t) - P(U width > t): what a queue wait adds to `residual_tail`."""
    past, since = jnp.maximum(t - width, 0.0), jnp.maximum(t, 0.0)
    return scale / width * (jnp.exp(-past / scale) - jnp.exp(-since / scale))


@jax.custom_jvp
def residuals_tail(t: Array, width: Array, other: Array) -> Array:
    """P(U width + U' other > t) for independent uniforms: smooth, a quadratic between its four kinks."""
    return _residuals(t, width, other)[0]


def _residuals(t: Array, width: Array, other: Array) -> tuple[Array, ...]:
    """The tail; the two widths, both positive; how far t is from the end of both, of one and of the other."""
    least = _LEAST_WIDTH * (width + other)
    a, b = jnp.maximum(width, least), jnp.maximum(other, least)
    left = jnp.clip(a + b - t, 0.0, a + b)
    past, past_other = jnp.maximum(left - a, 0.0), jnp.maximum(left - b, 0.0)
    return (left**2 - past**2 - past_other**2) * (0.5 / (a * b)), a, b, left, past, past_other


@residuals_tail.defjvp
def _residuals_tangent(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    """By hand: half the operations of the derived program, which a latency law spends most of its time in."""
    (_, width, other), (dt, dw, do) = primals, tangents
    value, a, b, left, past, past_other = _residuals(*primals)
    da = jnp.where(a > width, _LEAST_WIDTH * (dw + do), dw + 0.0 * do)
    db = jnp.where(b > other, _LEAST_WIDTH * (dw + do), 0.0 * dw + do)
    unit = 1.0 / (a * b)
    moved = (left - past - past_other) * (da + db - dt) + past * da + past_other * db
    return value, unit * (moved - value * (b * da + a * db))


def wait_tail(state: State, t: Scalar) -> Scalar:
    """P(admission - arrival > t)."""
    steps, queue = state.steps_s, state.queue
    met = (state.weight * residual_tail(t, steps)).sum()
    queued = queue_adds(t, steps[FULL], queue.scale_s(t))
    return met + queue.share * (state.weight[FULL] * queued).sum()


def mean_wait_s(state: State) -> Scalar:
    """Mean of admission - arrival."""
    queue = state.queue
    return (state.weight * state.steps_s).sum() / 2.0 + state.wait_probability * queue.share * queue.mean_s


def _shrinkages(f: Fluctuations, steps: Float[Array, " windows"]) -> Float[Array, "3 windows"]:
    """What is left over that many steps of fluctuations of the number running, of the mix and of the prefill."""
    lengths = jnp.stack([f.correlation_steps, f.composition_steps, f.prefill_correlation_steps])
    return averaging(steps[None] / lengths[:, None])


def _again(f: Fluctuations) -> Scalar:
    """Of an excess of prefill in a step, what is left in the next: the decay of its correlation, taken as geometric."""
    length = 2.0 * f.prefill_correlation_steps
    return jnp.clip((length - 1.0) / (length + 1.0), TINY, 0.999)


def _kept(f: Fluctuations, steps: Float[Array, " groups"]) -> Float[Array, " groups"]:
    """What is left of an excess of prefill on average over that many steps after a step."""
    again = _again(f)
    return again * (1.0 - again**steps) / ((1.0 - again) * steps)


def _beside_the_rest(deviation: Array, kept: Array, steps: Array) -> Array:
    """Deviation of a window, in the one noise that stands for the step in progress and for the window after it.

    Half of that step is waited for, and of its noise the share `kept` goes on: the rest of the window's is independent.
    The two together have the same variance as if all of the window's deviation, smaller by that, were the step's.
    """
    fresh = jnp.maximum(deviation**2 - kept**2, 0.0) * steps**2
    return (jnp.sqrt((0.5 + kept * steps) ** 2 + fresh) - 0.5) / steps


class TtftLaw(eqx.Module):
    """P(TTFT > t) of a pool: a mixture of sums of two uniform times, some with a queue wait before them.

    Attributes:
        share: of the requests, in each group.
        weight: of the nodes of `State`.
        rest_s: width of the first: the rest of the step in progress.
        begin_s, range_s: the least prefill time of a group, and the width of the second: how far it ranges.
        queue: law of the queue wait, before the times of full slots.
        behind_rest_s, behind_s: of those times, the rest of the step, and the prefill by two points with its variance.
    """

    share: Float[Array, " groups"]
    weight: Float[Array, "situations mixes"]
    rest_s: Float[Array, "situations mixes"]
    begin_s: Float[Array, "groups situations mixes"]
    range_s: Float[Array, "groups situations mixes"]
    queue: QueueWait
    behind_rest_s: Scalar
    behind_s: Float[Array, "groups 2"]

    def tail(self, t: Scalar) -> Scalar:
        """P(TTFT > t)."""
        times = jax.lax.optimization_barrier(residuals_tail(t - self.begin_s, self.rest_s[None], self.range_s))
        met = (times * self.weight[None]).sum((1, 2))
        wait = t - self.behind_s
        scale = jax.lax.optimization_barrier(self.queue.scale_s(jnp.maximum(wait, 0.0)))
        queued = queue_adds(wait, self.behind_rest_s, scale).mean(1)
        return (self.share * (met + self.queue.share * self.weight[FULL].sum() * queued)).sum()


def ttft_law(state: State, groups: Groups) -> TtftLaw:
    """The law of TTFT of a pool's requests: the rest of a step, and the prefill at the step times of the batch.

    Of the requests of a group, who takes more steps does more work in them: their times range as one uniform time.
    """
    g, steps = groups, groups.prefill_steps
    slow, mixed, chunked = _shrinkages(state.fluctuations, steps)[..., None, None]
    mean = state.others_s
    excess = (state.weight * state.chunk_s).sum(1, keepdims=True) / jnp.maximum(
        state.weight.sum(1, keepdims=True), TINY
    )
    kept = _kept(state.fluctuations, steps)[:, None, None]
    chunked = _beside_the_rest(chunked, kept, steps[:, None, None])
    drawn = _drawn_while_prefilling_s(state, groups)[:, None]
    # computed once each: XLA would compute them anew for every element of the arrays below
    small = (slow, mixed, chunked, kept, drawn, excess, mean, state)
    slow, mixed, chunked, kept, drawn, excess, mean, state = jax.lax.optimization_barrier(small)
    met = (state.stay_work_s - mean)[None, :, None] * slow + state.mix_s[None] * mixed
    met = met + (state.chunk_s - excess)[None] * chunked + excess[None] * kept
    window = state.base_s + jnp.maximum(mean + met, 0.0)
    drawn = jnp.where(jnp.asarray(TAKEN)[None], 0.0, drawn)
    own = (g.prefill_work_s[:, None] + drawn)[:, :, None] + steps[:, None, None] * window
    spread = g.prefill_work_spread_s[:, None, None] + g.prefill_steps_spread[:, None, None] * window
    ranged = jnp.minimum(12.0**0.5 * spread, 2.0 * own)
    among = state.weight[FULL] + 1e-30
    among = (among / among.sum())[None]
    middle = (own[:, FULL] * among).sum(1, keepdims=True)
    variance = (((own[:, FULL] - middle) ** 2 + ranged[:, FULL] ** 2 / 12.0) * among).sum(1, keepdims=True)
    apart = jnp.sqrt(variance + (_LEAST_WIDTH * middle) ** 2)
    return TtftLaw(
        share=g.prefill_share,
        weight=state.weight,
        rest_s=state.steps_s,
        begin_s=own - 0.5 * ranged,
        range_s=ranged,
        queue=state.queue,
        behind_rest_s=(state.steps_s[FULL] * among[0]).sum(),
        behind_s=middle + apart * jnp.asarray([[-1.0, 1.0]]),
    )


def ttft_tail(state: State, groups: Groups, t: Scalar) -> Scalar:
    """P(TTFT > t)."""
    return ttft_law(state, groups).tail(t)


class TpotLaw(eqx.Module):
    """P(TPOT > t) of a pool's requests with more than one output token: gamma laws above the step's base.

    Attributes:
        share: of the requests, in each bin.
        mean_s, shape: of the laws, for those that met a free slot (row 0) and for those that met full slots (1).
        base_s, wait_probability: of `State`.
    """

    share: Float[Array, " bins"]
    mean_s: Float[Array, "2 bins"]
    shape: Float[Array, "2 bins"]
    base_s: Scalar
    wait_probability: Scalar

    def tail(self, t: Scalar) -> Scalar:
        """P(TPOT > t); the tails of gamma laws by Wilson and Hilferty 1931, 1 up to 0."""
        above = t - self.base_s
        root = jnp.exp(jnp.log(jnp.maximum(above / self.mean_s, TINY)) / 3.0)
        score = (root - 1.0 + 1.0 / (9.0 * self.shape)) * 3.0 * jnp.sqrt(self.shape)
        free, full = jnp.where(above > 0.0, 0.5 * erfc(score * 0.5**0.5), 1.0)
        free = jnp.minimum(free, full)  # a batch with a free slot is no slower than a full one
        wait = self.wait_probability
        return (self.share * ((1.0 - wait) * free + wait * full)).sum()


def tpot_law(state: State, groups: Groups) -> TpotLaw:
    """The law of TPOT, for those that met a free slot and for those that met full slots."""
    g = groups
    slow, mixed, chunked = _shrinkages(state.fluctuations, g.decode_steps)
    mean = state.others_s
    drawn = _drawn_by_prefill(state, g)
    own = g.decode_work_s + drawn_in_s(state, g)
    edge = (_EDGE_WIDTH * (state.base_s + mean + own)) ** 2 + g.decode_work_variance_s2
    edge = edge + drawn**2 * g.decode_chunk_variance_s2
    weight = state.weight[:FULL].sum(1)
    share = weight / jnp.maximum(weight.sum(), TINY)
    met, mix, chunk, counted = (
        jnp.stack([free, taken])[:, None]
        for free, taken in (
            (share @ state.work_s[:FULL], state.stay_work_s[FULL]),
            (share @ state.mix_variance_s2[:FULL], state.mix_variance_s2[FULL]),
            (share @ state.chunk_variance_s2[:FULL], state.chunk_variance_s2[FULL]),
            (state.counted_variance_s2, jnp.zeros(())),
        )
    )
    centre = jnp.maximum(mean + (met - mean) * slow[None] + own[None], TINY)
    more = 1.0 + drawn * g.decode_chunk_s / jnp.maximum(state.fluctuations.prefill_branching * state.mean_step_s, TINY)
    prompts = chunk * (chunked**2 * more * state.evenness(g.decode_steps))[None]
    variance = counted * slow[None] ** 2 + mix * mixed[None] ** 2 + prompts + edge[None]
    return TpotLaw(
        share=g.decode_share,
        mean_s=centre,
        shape=centre**2 / jnp.maximum(variance, 1e-30),
        base_s=state.base_s,
        wait_probability=state.wait_probability,
    )


def tpot_tail(state: State, groups: Groups, t: Scalar) -> Scalar:
    """P(TPOT > t) among the requests with more than one output token."""
    return tpot_law(state, groups).tail(t)


def drawn_in_s(state: State, groups: Groups) -> Float[Array, " bins"]:
    """Work per step that a request draws in over its decode, and what is left then of the excess that it met.

    Arrivals meet longer steps than the average one. What of that comes from how many run is in `State.others_s` and
    decays; what comes from the mix and from prefill is not, and adds what has not decayed.
    """
    f, again, g = state.fluctuations, _again(state.fluctuations), groups
    k = jnp.maximum(g.decode_steps, 1.0)
    decayed = 1.0 - _lasting(k / f.correlation_steps)
    own = g.decode_work_s * f.branching / (1.0 - f.branching)
    slow = (1.0 - state.wait_probability) * (own - state.met_excess_s) / state.engines * decayed
    weight = state.weight[:FULL]
    mix, chunk = (weight * state.mix_s[:FULL]).sum(), (weight * state.chunk_s[:FULL]).sum()
    met = mix * _lasting(k / f.composition_steps) + chunk * again**g.decode_prefill_steps * _kept(f, k)
    return slow + met + _drawn_by_prefill(state, groups) * g.decode_chunk_s


def _lasting(y: Float[Array, " bins"]) -> Float[Array, " bins"]:
    """Mean over a time y of what decays as exp(-t)."""
    y = jnp.maximum(y, 1e-6)
    return -jnp.expm1(-y) / y


def _drawn_by_prefill(state: State, groups: Groups) -> Float[Array, " bins"]:
    r"""Work per decode step that a request's own prefill has drawn in, over its work per prefill step.

    Those who arrive during a step of prefill start in the next, and draw in others: $a_p/(1 - a_p)$ of its work in
    prompts, over the steps that prefill stays alike, and the rest of $a/(1 - a)$ in what they decode, over the steps
    that the work present stays alike.
    """
    f, again = state.fluctuations, _again(state.fluctuations)
    gain = f.prefill_branching / (1.0 - f.prefill_branching)
    k, kp = groups.decode_steps, groups.decode_prefill_steps
    quick = gain * (1.0 - again**kp) * (1.0 - again**k) / (1.0 - again)
    slow = kp * (f.branching / (1.0 - f.branching) - gain) * -jnp.expm1(-k / f.correlation_steps)
    return (1.0 - state.wait_probability) / state.engines * (quick + slow) / jnp.maximum(k, 1.0)


def _drawn_while_prefilling_s(state: State, groups: Groups) -> Float[Array, " groups"]:
    """Prefill work of others that a request's own draws in before its last prefill step."""
    f, again = state.fluctuations, _again(state.fluctuations)
    gain = f.prefill_branching / (1.0 - f.prefill_branching)
    steps = groups.prefill_steps
    later = jnp.maximum(steps - 1.0, 0.0)
    grown = later - again * (1.0 - again**later) / (1.0 - again)
    return groups.prefill_work_s / steps * gain * grown / state.engines


def mean_tpot_s(state: State, groups: Groups) -> Scalar:
    """Mean over the requests with more than one output token."""
    g = groups
    return (g.decode_share * (state.base_s + state.others_s + g.decode_work_s + drawn_in_s(state, g))).sum()
