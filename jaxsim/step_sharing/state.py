r"""The state that an arrival finds: how many run, and how long the step in progress is.

Poisson arrivals see time averages, and a step is found in proportion to its length. Below full slots the number
running is negative binomial with the mean and variance of `fluctuations`, weighted by the step time that belongs to
it and cut off at the limit; the work present given the number is its regression on it plus the noise of the mix. At
full slots N requests run, and only the mix varies.

A pool is one engine with the slots of all its engines and each request's work divided among them: behind a dispatcher
to the least loaded they fill alike. The mix is each engine's own.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsim.step_sharing import full, two_choices
from jaxsim.step_sharing.fluctuations import Fluctuations, count_ratio, fluctuations, held_ratio
from jaxsim.step_sharing.moments import Moments
from jaxsim.step_sharing.noise import Noise
from jaxsim.step_sharing.waiting import QueueWait, WaitScale

Scalar = Float[Array, ""]

SAFE_UTILIZATION = 0.9999
"""An overloaded pool has no stationary law; its formulas are evaluated here and its tails replaced by 1."""

_COUNT_X, _COUNT_W = (v / 2.0 for v in np.polynomial.legendre.leggauss(16))
_COUNT_X = _COUNT_X + 0.5

_MERGED = 2
"""Neighbouring numbers running that share a node of the step in progress; the law of the number itself has them all."""

_BELOW, _ABOVE = 5.0, 6.0
"""Standard deviations of the number running that its nodes cover below and above its mean."""

FULL = -1
"""The last situation of `State`: all slots taken."""

_NUM_COUNTS = len(_COUNT_X) // _MERGED
_BUSY = np.array([0.0] + [1.0] * (_NUM_COUNTS + 1))
TAKEN = np.array([False] * (_NUM_COUNTS + 1) + [True])
"""Whether all slots are taken, of each situation."""

_IDLE_STEP_SHARE = 0.02
"""An arrival at an idle engine starts at once; a small share of a step keeps the tail continuous."""

_STEEPEST = 1.5
_LEAST_NOISE = 0.3
_WORK_FLOOR = 0.02
_LEAST_WIDTH = 1e-6


class Load(eqx.Module):
    """What the engines of a pool are asked to do.

    Attributes:
        rate: requests per second to the pool, >= 0.
        replicas: engines, real > 0, behind a dispatcher to the fewest active + queued.
        base_s: W, seconds of a step whatever the batch.
        limit: running requests that one engine admits, real > 0.
        by_tokens: 1 where the limit comes from KV tokens, which fluctuate more than requests; else 0.
        dispersion: index of dispersion of the arrivals; 1 for Poisson.
        two_choices: whether the dispatcher takes the less loaded of two engines drawn at random.
    """

    rate: Scalar
    replicas: Scalar
    base_s: Scalar
    limit: Scalar
    by_tokens: Scalar
    dispersion: Scalar
    two_choices: bool = eqx.field(static=True, default=False, kw_only=True)

    @classmethod
    def of(
        cls,
        rate: Scalar | float,
        base_s: Scalar | float,
        limit: Scalar | float,
        *,
        replicas: Scalar | float = 1.0,
        by_tokens: Scalar | float = 0.0,
        dispersion: Scalar | float = 1.0,
        two_choices: bool = False,
    ) -> Load:
        """A load from numbers; see the attributes."""
        values = (rate, replicas, base_s, limit, by_tokens, dispersion)
        return cls(*(jnp.asarray(v, dtype=float) for v in values), two_choices=two_choices)


class State(eqx.Module):
    """The stationary state of one engine of a pool, as an arrival finds it.

    It finds one of some situations, which are the rows of the arrays below: first an idle engine, where it starts at
    once; then numbers running with a free slot; last (`FULL`) all slots of the pool taken.

    Attributes:
        utilization: offered load over capacity at full batch; >= 1 is overload.
        wait_probability: that all slots of the pool are taken.
        queue: law of the queue wait of those who find them taken.
        running: running requests, time average.
        weight: probability of each node, (situations, mixes); sums to 1.
        work_s: work in the step in progress that goes with the number running.
        mix_s, chunk_s: what the mix of those running, and the prompt chunks in the step, add to it at each node.
        mix_variance_s2, chunk_variance_s2: variances of the two; the latter before `evenness`.
        arrivals: at one engine during a mean step.
        even: how evenly they come, from 0 (Poisson, or in bursts) to 1 (in turn); see `evenness`.
        counted_variance_s2: variance of the work found at a free slot that comes from how many run.
        met_excess_s: work found by arrivals above that of an average step, because of how many run.
        fluctuations: without a limit.
        base_s, limit, engines, two_choices: of the load.
    """

    utilization: Scalar
    wait_probability: Scalar
    queue: QueueWait
    running: Scalar
    weight: Float[Array, "situations mixes"]
    work_s: Float[Array, " situations"]
    mix_s: Float[Array, "situations mixes"]
    chunk_s: Float[Array, "situations mixes"]
    mix_variance_s2: Float[Array, " situations"]
    chunk_variance_s2: Float[Array, " situations"]
    arrivals: Scalar
    even: Scalar
    met_excess_s: Scalar
    counted_variance_s2: Scalar
    fluctuations: Fluctuations
    base_s: Scalar
    limit: Scalar
    engines: Scalar
    two_choices: bool = eqx.field(static=True, default=False)

    def evenness(self, steps: Float[Array, " windows"]) -> Float[Array, " windows"]:
        """Index of dispersion of the arrivals at one engine over that many steps.

        1 for Poisson arrivals. An engine that gets every so many-th arrival of a pool gets none or one in a short
        window, and over a long one as many as its share, but for the dispersion of a round robin.
        """
        return 1.0 - self.even + self.even / (1.0 + self.arrivals * steps)

    @property
    def mean_step_s(self) -> Scalar:
        """Mean step time of an engine without a limit."""
        return self.base_s + self.fluctuations.work_s

    @property
    def full_step_s(self) -> Scalar:
        """Mean step time of a full batch."""
        return self.base_s + self.work_s[FULL]

    @property
    def steps_s(self) -> Float[Array, "situations mixes"]:
        """Rest of the step in progress at the most, at each node: its length, or next to nothing at an idle engine."""
        length = self.base_s + self.work_s[:, None] + self.mix_s + self.chunk_s
        busy = jnp.asarray(_BUSY)[:, None]
        return length * busy + _IDLE_STEP_SHARE * self.base_s * (1.0 - busy)

    @property
    def stay_work_s(self) -> Float[Array, " situations"]:
        """Work of the others as it was on arrival; who queues replaces one of a full batch."""
        replaced = self.work_s * jnp.maximum(self.limit - 1.0, 0.0) / self.limit
        return jnp.where(jnp.asarray(TAKEN), replaced, self.work_s)

    @property
    def others_s(self) -> Scalar:
        """Mean work of the others in a request's own steps, as it was on arrival."""
        if self.two_choices:  # numbers found are those of the engine that is joined
            return (self.weight.sum(1) * self.stay_work_s).sum()
        later = 0.5 * _level(self.engines) * self.work_s[FULL] / self.limit
        work = jnp.where(jnp.asarray(TAKEN), self.stay_work_s, jnp.maximum(self.work_s - later, 0.0))
        return (self.weight.sum(1) * work).sum()


def state(moments: Moments, load: Load) -> State:
    """The stationary state of a pool. Overload keeps its utilisation; see `SAFE_UTILIZATION`.

    Gradients exist everywhere with rate >= 0, replicas > 0; at no load they are those of the limit.
    """
    m, engines = moments, load.replicas
    engine_rate = load.rate / engines
    slot_s, slot_cv2 = full.slot_time(m, load.base_s, load.limit)
    utilization = engine_rate * slot_s
    rho = jnp.clip(utilization, full.TINY, SAFE_UTILIZATION)
    rate = jnp.maximum(engine_rate * rho / jnp.maximum(utilization, full.TINY), full.TINY)

    f = fluctuations(m, rate, load.base_s, dispersion=load.dispersion)
    slots = engines * load.limit
    intensity = engines * load.base_s / m.step_work_s
    ratio = count_ratio(m, f.branching / jnp.sqrt(rho), load.dispersion)
    tokens = held_ratio(m, f.branching) * m.held2_steps * m.steps / (m.held_steps**2 * f.count_ratio)
    ratio = ratio * (1.0 + load.by_tokens * (tokens - 1.0))
    taken = full.full_probability(slots, f.branching, intensity, rho, ratio)
    wait = jnp.clip(taken * full.variability(taken, slot_cv2, slots, rho), 0.0, 1.0)
    queue = QueueWait.of(WaitScale(m, slots, engines, 1.0 - rho, slot_s, slot_cv2, load.dispersion))

    count, chance = _counts(f, load, slots)
    weight = chance * (1.0 - wait)
    running = (weight * count).sum() + wait * load.limit
    if load.two_choices:
        pooled = two_choices.Found(wait, queue, running, count, chance)
        wait, queue, running, count, chance = two_choices.found(
            f,
            pooled,
            engines,
            base_s=load.base_s,
            limit=load.limit,
            step_work_s=m.step_work_s,
            nodes=(_COUNT_X, _COUNT_W),
        )
        weight = chance * (1.0 - wait)
    spread = (chance * count**2).sum() - (chance * count).sum() ** 2
    busy = weight[1:] * _busy(count[1:], jnp.ones(()) if load.two_choices else engines)
    weight = busy.reshape(-1, _MERGED).sum(1)
    count = (busy * count[1:]).reshape(-1, _MERGED).sum(1) / jnp.maximum(weight, 1e-30)
    work, noise, mix_variance, chunk_variance = _works(m, f, load, count)
    slope = _work_slope(m, f)
    chances = jnp.concatenate([(1.0 - wait - weight.sum())[None], weight, wait[None]])
    return State(
        utilization=utilization,
        wait_probability=wait,
        queue=queue,
        running=running,
        weight=chances[:, None] * _met(load, work, noise),
        work_s=work,
        mix_s=noise.mix,
        chunk_s=noise.chunk,
        mix_variance_s2=mix_variance,
        chunk_variance_s2=chunk_variance,
        arrivals=rate * (load.base_s + f.work_s),
        even=_even(load),
        met_excess_s=slope * f.covariance_s / (load.base_s + f.work_s),
        counted_variance_s2=slope**2 * spread,
        fluctuations=f,
        base_s=load.base_s,
        limit=load.limit,
        engines=engines,
        two_choices=load.two_choices,
    )


def _counts(f: Fluctuations, load: Load, slots: Scalar) -> tuple[Float[Array, " counts"], Float[Array, " counts"]]:
    """Numbers running in one engine, given that a slot of the pool is free, and their probabilities.

    None, and Gauss-Legendre nodes of a half-integer window for the whole numbers from 1 up: a sum over whole numbers
    is the integral from half before the first to half after the last.
    """
    engines = load.replicas
    mean, variance = engines * f.running, engines * f.running_variance
    success = jnp.clip(1.0 - mean / variance, full.TINY, 1.0 - full.TINY)
    order = mean * (1.0 - success) / success
    step = (load.base_s + f.work_s) * f.running_variance / f.covariance_s * engines
    offset = jnp.maximum(step - mean, 1e-9)
    centre, deviation = mean + f.covariance_s / (load.base_s + f.work_s), jnp.sqrt(variance)
    high = jnp.maximum(jnp.minimum(centre + _ABOVE * deviation + 3.0, slots - 0.5), 0.5 + _LEAST_WIDTH)
    low = jnp.maximum(centre - _BELOW * deviation, 0.5)
    low = jnp.minimum(low, 0.5 + 0.8 * (high - 0.5))
    n = jnp.concatenate([jnp.zeros(1), low + (high - low) * jnp.asarray(_COUNT_X)])
    width = jnp.concatenate([jnp.ones(1), (high - low) * jnp.asarray(_COUNT_W)])
    ways = _log_gamma(jnp.stack([order + n, n + 1.0]))
    log_mass = ways[0] - ways[1] + n * jnp.log(success) + jnp.log(offset + n)
    mass = width * jnp.exp(log_mass - jax.lax.stop_gradient(log_mass.max()))
    return n / engines, mass / mass.sum()


def _log_gamma(x: Array) -> Array:
    """ln Gamma(x), x > 0, by Stirling's series from x + 5 on: error below 1e-8 and several times faster than exact."""
    y = x + 5.0
    series = (y - 0.5) * jnp.log(y) - y + 1.0 / (12.0 * y) - 1.0 / (360.0 * y**3) + 1.0 / (1260.0 * y**5)
    return series - jnp.log(x * (x + 1.0) * (x + 2.0) * (x + 3.0) * (x + 4.0))


def _level(engines: Scalar) -> Scalar:
    """How many fewer others than the mean number running a request has in its engine, over its stay.

    None in a single engine: arrivals see its average. Of many engines that a dispatcher keeps level, each runs the mean
    number and the request is one of them; on arrival it meets one of those with the fewest, half of that below it.
    """
    return 1.0 - 1.0 / jnp.maximum(engines, 1.0)


def _even(load: Load) -> Scalar:
    """How evenly requests arrive at one engine: whether chosen in turn or as the least loaded, it gets every n-th."""
    even = jnp.clip(1.0 - load.dispersion / jnp.maximum(load.replicas, 1.0), 0.0, 1.0)
    return two_choices.EVENNESS * even if load.two_choices else even


def _busy(count: Float[Array, " counts"], engines: Scalar) -> Float[Array, " counts"]:
    """Whether an arrival meets a step in progress: not while one of the engines has nothing to do."""
    return jnp.clip((count - 1.0) * engines + 1.0, 0.0, 1.0)


def _work_slope(m: Moments, f: Fluctuations) -> Scalar:
    """Work present per request running: the regression of one on the other."""
    return jnp.minimum(f.covariance_s / f.running_variance, _STEEPEST * m.step_work_s)


def _works(
    m: Moments, f: Fluctuations, load: Load, count: Float[Array, " counts"]
) -> tuple[Float[Array, " situations"], Noise, Float[Array, " situations"], Float[Array, " situations"]]:
    """Work in a step of each situation, the noise around it, and its variances.

    The variances are from the mix, and from prefill as if arrivals were not spread evenly. Chunks of prompt come as
    requests do: Poisson, or as far as those come evenly, one or none.
    """
    per_request = m.step_work_s
    slope = _work_slope(m, f)
    floor = _WORK_FLOOR * per_request
    level = 0.0 if load.two_choices else _level(load.replicas)
    in_step = f.work_s + slope * (count - 0.5 * level - f.running)
    work = floor * jax.nn.softplus(in_step / floor)
    rate = f.branching / m.work_s
    step = load.base_s + work
    chunk_work = jnp.minimum(f.prefill_branching * step, 0.95 * work)
    chunks = rate * step * m.prefill_steps
    independent = rate * step * m.prefill_squares_s2 * f.prefill_variance_ratio
    even = _even(load)
    chunk_variance = independent * (1.0 - even + even / (1.0 + chunks))
    left = (f.work_variance_s2 - slope**2 * f.running_variance) / f.running
    noise = jnp.maximum(left, _LEAST_NOISE * m.composition_s2)
    decoding = jnp.maximum(m.steps - m.prefill_steps, 1e-3)
    decode_work = (m.work_s - m.prefill_work_s) / decoding
    mix = jnp.maximum((m.squares_s2 - m.prefill_squares_s2) / decoding - decode_work**2, 1e-30)
    mix_variance = jnp.maximum(count * noise - chunk_variance, _LEAST_NOISE * count * mix)
    alike = 1.0 - load.by_tokens  # a full cache holds its tokens, and with them its work, whichever requests run
    in_phase = load.limit / m.steps
    full_chunks = jnp.maximum(in_phase * m.prefill_squares_s2, 1e-30)
    work, chunks, chunk_work, independent, chunk_variance, mix_variance = _situations(
        (work, load.limit * per_request),
        (chunks, in_phase * m.prefill_steps),
        (chunk_work, in_phase * m.prefill_work_s),
        (independent, full_chunks),
        (chunk_variance, full_chunks),
        (mix_variance, jnp.maximum(alike * in_phase * mix * decoding, 1e-30)),
    )
    none = (1.0 - even) * jnp.exp(-chunks) + even * 0.1 * jax.nn.softplus(10.0 * (1.0 - chunks))
    return work, Noise.of(work, none, chunk_work, chunk_variance, mix_variance), mix_variance, independent


def _situations(*pairs: tuple[Float[Array, " counts"], Scalar]) -> Float[Array, "pairs situations"]:
    """Values at the numbers running and at full slots, with 0 for the idle engine before them."""
    free, taken = (jnp.stack(values) for values in zip(*pairs, strict=True))
    return jnp.concatenate([jnp.zeros_like(taken[:, None]), free, taken[:, None]], axis=1)


def _met(load: Load, mean_s: Array, noise: Noise) -> Array:
    """Probabilities of the nodes as arrivals meet them: in a single engine in proportion to the length of the step.

    Of many engines, the one with the longer step frees its slots more slowly and is sent fewer requests.
    """
    step = load.base_s + mean_s[..., None] + (noise.mix + noise.chunk) * (1.0 - _even(load))
    w = noise.weight * jnp.maximum(step, 0.0)
    return w / w.sum(-1, keepdims=True)
