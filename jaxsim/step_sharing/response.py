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

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.special import erfc
from jaxtyping import Array, Float

from jaxsim.step_sharing.fluctuations import Fluctuations
from jaxsim.step_sharing.full import TINY
from jaxsim.step_sharing.state import State
from jaxsim.step_sharing.waiting import QueueWait

Scalar = Float[Array, ""]

_EDGE_WIDTH = 0.002
"""Least standard deviation of a TPOT, as a share of it: keeps the tail smooth where all requests are alike."""

_IDLE_STEP_SHARE = 0.02
"""An arrival at an idle engine starts at once; a small share of a step keeps the tail continuous."""


class Groups(eqx.Module):
    """Requests of a pool grouped by their prefill and by their decode; shares sum to 1 within each (0 if empty).

    Attributes:
        prefill_share, prefill_low, prefill_high: share of each group and its range of prefill steps.
        prefill_work_s: mean work of its prefill, seconds.
        decode_share, decode_steps: share among requests with a TPOT and mean decode steps.
        decode_work_s, decode_work_variance_s2: own work per decode step, mean and variance within the group.
    """

    prefill_share: Float[Array, " groups"]
    prefill_low: Float[Array, " groups"]
    prefill_high: Float[Array, " groups"]
    prefill_work_s: Float[Array, " groups"]
    decode_share: Float[Array, " bins"]
    decode_steps: Float[Array, " bins"]
    decode_work_s: Float[Array, " bins"]
    decode_work_variance_s2: Float[Array, " bins"]


def averaging(steps_over_correlation: Float[Array, ...]) -> Float[Array, ...]:
    """Standard deviation of a window average over that of one step; 1 at 0, falls as 1/sqrt; smooth."""
    y = jnp.maximum(steps_over_correlation, 1e-3)
    exact = jnp.sqrt(2.0 * (y + jnp.expm1(-y))) / y
    return jnp.where(steps_over_correlation < 1e-3, 1.0 - steps_over_correlation / 6.0, exact)


def residual_tail(t: Array, width: Array) -> Array:
    """P(U width > t) for a uniform U."""
    return jnp.clip(1.0 - t / width, 0.0, 1.0)


def queued_tail(t: Array, width: Array, scale: Array) -> Array:
    """P(U width + Exp(mean scale) > t)."""
    inside = jnp.clip(t, 0.0, width)
    uniform = 1.0 - inside / width - scale / width * jnp.expm1(-inside / scale)
    past = jnp.maximum(t - width, 0.0)
    beyond = jnp.exp(-past / scale) * scale / width * -jnp.expm1(-width / scale)
    return jnp.where(t < width, uniform, beyond)


def wait_tail(state: State, t: Scalar) -> Scalar:
    """P(admission - arrival > t)."""
    met = residual_tail(t, state.steps_s)
    idle = residual_tail(t, _IDLE_STEP_SHARE * state.base_s)
    full = state.full_steps_s
    behind = queued_tail(t, full, state.queue.scale_s(t))
    queued = state.queued_share * behind + (1.0 - state.queued_share) * residual_tail(t, full)
    return (state.weight * met).sum() + state.idle * idle + (state.full_weight * queued).sum()


def mean_wait_s(state: State) -> Scalar:
    """Mean of admission - arrival."""
    met = (state.weight * state.steps_s).sum()
    full = (state.full_weight * state.full_steps_s).sum()
    return (met + full) / 2.0 + state.wait_probability * state.queued_share * state.queue_mean_s


class _Windows(NamedTuple):
    """Mean step times over each group's prefill, without its own work, by what it met; and of the idle engine."""

    free: Float[Array, "groups counts mixes"]
    full: Float[Array, "groups mixes"]
    idle: Float[Array, " groups"]


def _shrinkages(f: Fluctuations, steps: Array) -> tuple[Array, Array, Array]:
    """What is left over that many steps of fluctuations of the number running, of the mix and of the prefill."""
    lengths = (f.correlation_steps, f.composition_steps, f.prefill_correlation_steps)
    slow, mixed, chunked = (averaging(steps / length) for length in lengths)
    return slow, mixed, chunked


def _windows(state: State, steps: Float[Array, " groups"]) -> _Windows:
    f, mean = state.fluctuations, state.others_s
    slow, mixed, chunked = _shrinkages(f, steps)
    others = state.full_work_s * jnp.maximum(state.limit - 1.0, 0.0) / state.limit
    free = (state.work_s - mean)[None, :] * slow[:, None]
    noise = state.mix_s[None] * mixed[:, None, None] + state.chunk_s[None] * chunked[:, None, None]
    full_noise = state.full_mix_s[None, :] * mixed[:, None] + state.full_chunk_s[None, :] * chunked[:, None]
    return _Windows(
        free=jnp.maximum(state.base_s + mean + free[:, :, None] + noise, state.base_s),
        full=jnp.maximum(state.base_s + mean + ((others - mean) * slow)[:, None] + full_noise, state.base_s),
        idle=state.base_s + mean * (1.0 - slow),
    )


class TtftLaw(eqx.Module):
    """P(TTFT > t) of a pool, as a mixture of uniform times that begin somewhere, some with a queue wait before them.

    Attributes:
        weight, begin_s, width_s: of requests that meet a free slot, (groups, nodes).
        full_weight, full_begin_s, full_width_s: of those that meet full slots.
    """

    weight: Float[Array, "groups nodes"]
    begin_s: Float[Array, "groups nodes"]
    width_s: Float[Array, "groups nodes"]
    full_weight: Float[Array, "groups mixes"]
    full_begin_s: Float[Array, "groups mixes"]
    full_width_s: Float[Array, "groups mixes"]
    queue: QueueWait
    queued_share: Scalar

    def tail(self, t: Scalar) -> Scalar:
        """P(TTFT > t)."""
        met = self.weight * residual_tail(t - self.begin_s, self.width_s)
        rest = t - self.full_begin_s
        behind = queued_tail(rest, self.full_width_s, self.queue.scale_s(jnp.maximum(rest, 0.0)))
        at_once = residual_tail(rest, self.full_width_s)
        full = self.queued_share * behind + (1.0 - self.queued_share) * at_once
        return met.sum() + (self.full_weight * full).sum()


def ttft_law(state: State, groups: Groups) -> TtftLaw:
    """The law of TTFT of a pool's requests: the rest of a step, and the prefill at the step times of the batch."""
    low, spread = groups.prefill_low[:, None], (groups.prefill_high - groups.prefill_low)[:, None]
    window = _windows(state, (groups.prefill_low + groups.prefill_high) / 2.0)
    number = groups.prefill_share.shape[0]
    free = jnp.concatenate([window.idle[:, None], window.free.reshape(number, -1)], axis=1)
    step = jnp.concatenate([(_IDLE_STEP_SHARE * state.base_s)[None], state.steps_s.reshape(-1)])
    weight = jnp.concatenate([state.idle[None], state.weight.reshape(-1)])
    own = groups.prefill_work_s[:, None]
    return TtftLaw(
        weight=groups.prefill_share[:, None] * weight[None, :],
        begin_s=own + low * free,
        width_s=step[None, :] + spread * free,
        full_weight=groups.prefill_share[:, None] * state.full_weight[None, :],
        full_begin_s=own + low * window.full,
        full_width_s=state.full_steps_s[None, :] + spread * window.full,
        queue=state.queue,
        queued_share=state.queued_share,
    )


def ttft_tail(state: State, groups: Groups, t: Scalar) -> Scalar:
    """P(TTFT > t)."""
    return ttft_law(state, groups).tail(t)


class _Gamma(eqx.Module):
    """Gamma laws, ready for their tails by Wilson and Hilferty 1931."""

    mean: Float[Array, " bins"]
    shape: Float[Array, " bins"]

    @classmethod
    def of(cls, mean: Array, variance: Array) -> _Gamma:
        mean = jnp.maximum(mean, TINY)
        return cls(mean, mean**2 / jnp.maximum(variance, 1e-30))

    def tail(self, value: Scalar) -> Float[Array, " bins"]:
        """P(gamma > value); 1 up to 0."""
        root = jnp.exp(jnp.log(jnp.maximum(value / self.mean, TINY)) / 3.0)
        score = (root - 1.0 + 1.0 / (9.0 * self.shape)) * 3.0 * jnp.sqrt(self.shape)
        return jnp.where(value > 0.0, 0.5 * erfc(score * 0.5**0.5), 1.0)


class TpotLaw(eqx.Module):
    """P(TPOT > t) of a pool's requests with more than one output token: two gamma laws above the step's base."""

    share: Float[Array, " bins"]
    free: _Gamma
    full: _Gamma
    base_s: Scalar
    wait_probability: Scalar

    def tail(self, t: Scalar) -> Scalar:
        """P(TPOT > t)."""
        full = self.full.tail(t - self.base_s)
        free = jnp.minimum(
            self.free.tail(t - self.base_s), full
        )  # a batch with a free slot is no slower than a full one
        wait = self.wait_probability
        return (self.share * ((1.0 - wait) * free + wait * full)).sum()


def tpot_law(state: State, groups: Groups) -> TpotLaw:
    """The law of TPOT, for those that met a free slot and for those that met full slots."""
    g = groups
    slow, mixed, chunked = _shrinkages(state.fluctuations, g.decode_steps)
    mean = state.others_s
    found = _found(state)
    own = g.decode_work_s + drawn_in_s(state, g)
    edge = (_EDGE_WIDTH * (state.base_s + mean + own)) ** 2 + g.decode_work_variance_s2
    noise = found.mix * mixed**2 + found.chunk * chunked**2
    full_noise = state.full_mix_variance_s2 * mixed**2 + state.full_chunk_variance_s2 * chunked**2
    others = state.full_work_s * jnp.maximum(state.limit - 1.0, 0.0) / state.limit
    return TpotLaw(
        share=g.decode_share,
        free=_Gamma.of(mean + (found.mean - mean) * slow + own, found.counted * slow**2 + noise + edge),
        full=_Gamma.of(mean + (others - mean) * slow + own, full_noise + edge),
        base_s=state.base_s,
        wait_probability=state.wait_probability,
    )


def tpot_tail(state: State, groups: Groups, t: Scalar) -> Scalar:
    """P(TPOT > t) among the requests with more than one output token."""
    return tpot_law(state, groups).tail(t)


class _Found(NamedTuple):
    """Work that an arrival at a free slot finds: mean, and variances from how many run, the mix and the prefill."""

    mean: Scalar
    counted: Scalar
    mix: Scalar
    chunk: Scalar


def _found(state: State) -> _Found:
    weight = state.weight.sum(1)
    total = jnp.maximum(weight.sum() + state.idle, TINY)
    mean = (weight * state.work_s).sum() / total
    return _Found(
        mean=mean,
        counted=state.counted_variance_s2,
        mix=(weight * state.mix_variance_s2).sum() / total,
        chunk=(weight * state.chunk_variance_s2).sum() / total,
    )


def drawn_in_s(state: State, groups: Groups) -> Float[Array, " bins"]:
    """Work per step that a request draws in over its decode, less the excess that it met and that decays."""
    f = state.fluctuations
    y = groups.decode_steps / f.correlation_steps
    decayed = 1.0 + jnp.expm1(-jnp.maximum(y, 1e-6)) / jnp.maximum(y, 1e-6)
    own = groups.decode_work_s * f.branching / (1.0 - f.branching)
    return (1.0 - state.wait_probability) * (own - state.met_excess_s) / state.engines * decayed


def mean_tpot_s(state: State, groups: Groups) -> Scalar:
    """Mean over the requests with more than one output token."""
    g = groups
    return (g.decode_share * (state.base_s + state.others_s + g.decode_work_s + drawn_in_s(state, g))).sum()
