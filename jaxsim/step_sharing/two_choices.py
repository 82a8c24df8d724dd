r"""Engines behind a dispatcher that draws two of them for each request and takes the less loaded one.

The engines of a pool share what arrives nearly as evenly as behind the least loaded one, but not quite. Around their
mean load x (running + queued, per engine) their loads are spread by a few requests whatever their number of slots: with
arrivals and departures alike, the share of engines with n or more obeys $s_{n+1} = s_n^2$ where there are many
(Mitzenmacher 2001), hence $s_n = e^{-w}$, $w \propto 2^{n - x}$. For few engines, whose loads are not independent and
which may be drawn twice, $s_n = (1 + b w)^{-1/b}$ with another growth of w; the two constants of each were fitted to
simulated random walks of 2 to 128 engines, whose tails above 0.001 they give within 25 %, most within 10 %.
The engine that a request joins has n or more with the probability with which another state of the same engines does,
one request later, for the engine that is left next: n + 1 or more around x + 1/G.

The mean load itself moves as in a pool with one queue at the same number of *running* requests: what queues at one
engine while another has a free slot adds to the load and serves nobody. So its law is that of one queue with its
argument stretched, and behind it an arrival waits if the engine it joins is full, for as many of its departures as it
finds requests queued there and one more.

Between those two laws two things are rules of thumb: how far service that grows with the load narrows the spread
(`_PULL`, from the slopes of both at the mean), and by how much `EVENNESS` falls.

Sources: Mitzenmacher 2001, "The power of two choices in randomized load balancing"; Vvedenskaya, Dobrushin, Karpelevich
1996. ``benchmarks/power_of_two.py`` measures the errors against the simulator (`jaxsim.engine.latency` states them).
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma
from jaxtyping import Array, Float

from jaxsim.step_sharing.fluctuations import Fluctuations
from jaxsim.step_sharing.full import TINY
from jaxsim.step_sharing.waiting import QueueWait

Scalar = Float[Array, ""]

EVENNESS = 0.5
"""How evenly requests come to one engine, over how evenly they come behind the least loaded one.

Half-way to Poisson: of 0, 1/2 and 1 the best on the first 48 points of the benchmark, of which those that are mostly
prefill show the difference.
"""

_GROWTH, _GROWTH_POWER = 1.15, 1.08
_BEND, _BEND_POWER = 1.62, 0.8
_PULL = 1.7
"""By how much service that grows with the load narrows its spread; the ratio of both pulls at one request."""

_NUM_LOADS = 96
_ABOVE = 6.0
"""Requests per engine beyond the limit, or beyond where one queue hardly comes, up to which loads are looked at."""

_QUEUED = np.arange(16.0)


class Joined(NamedTuple):
    """What a request finds at the engine that it joins.

    Attributes:
        wait: probability that all slots of that engine are taken.
        ahead: mean number of departures that it waits for, of those who wait.
        running: mean number running at an engine.
        loads, chances: of the pool per engine, and their probabilities.
    """

    wait: Scalar
    ahead: Scalar
    running: Scalar
    loads: Float[Array, " loads"]
    chances: Float[Array, " loads"]


class Spread(NamedTuple):
    """How loads of engines spread around their mean.

    Attributes:
        growth: ln of what w grows by from one request to the next.
        bend: b of the module's formula.
        deficit: requests by which the engine that is joined has fewer than the mean.
        service: running requests at which half of a step is work: less, and service grows with the load.
    """

    growth: Scalar
    bend: Scalar
    deficit: Scalar
    service: Scalar

    @classmethod
    def of(cls, engines: Scalar, service: Scalar) -> Spread:
        """Of that many engines, at least two."""
        others = jnp.maximum(engines, 2.0) - 1.0
        return cls(
            growth=jnp.log(2.0) + _GROWTH / others**_GROWTH_POWER,
            bend=_BEND / others**_BEND_POWER,
            deficit=others / (others + 1.0),
            service=service,
        )

    def tail(self, number: Array, load: Array) -> Array:
        """Share of engines with `number` requests or more where their mean is `load`."""
        load = jnp.maximum(load, 1e-6)
        width = jnp.sqrt(load / (load + _PULL * self.service / (self.service + load)))
        centre = -np.euler_gamma - digamma(1.0 / self.bend) - jnp.log(self.bend)
        w = jnp.exp(jnp.minimum(centre + self.growth * (number - load - 0.5) / width, 60.0))
        return jnp.exp(-jnp.log1p(self.bend * w) / self.bend)

    def joined(self, number: Array, load: Array) -> Array:
        """Probability that the engine that a request joins has `number` or more."""
        return self.tail(number + self.deficit * load / (load + 1.0), load)


def joined(
    f: Fluctuations,
    spread: Spread,
    *,
    engines: Scalar,
    base_s: Scalar,
    limit: Scalar,
    queued_ratio: Scalar,
    pooled_wait: Scalar,
) -> Joined:
    """What an arrival finds.

    Args:
        f: of one engine without a limit.
        spread: of the pool's engines.
        engines: real, >= 2.
        base_s: W, seconds of a step whatever the batch.
        limit: slots of an engine.
        queued_ratio: of the geometric law of how many queue in one shared queue.
        pooled_wait: probability that all slots are taken behind one shared queue, which the law below it and the law
            beyond it are weighed by.
    """
    step = base_s + f.work_s
    mean, variance = engines * f.running, engines * f.running_variance
    success = jnp.clip(1.0 - mean / variance, TINY, 1.0 - TINY)
    order = mean * (1.0 - success) / success
    offset = jnp.maximum(step * f.running_variance / f.covariance_s * engines - mean, 1e-9)
    centre, deviation = f.running + f.covariance_s / step / engines, jnp.sqrt(variance) / engines
    high = jnp.minimum(limit, centre + _ABOVE * deviation) + _ABOVE
    low = jnp.clip(jnp.minimum(centre, limit) - _ABOVE * deviation, 0.0, 0.9 * high)
    width = (high - low) / _NUM_LOADS
    loads = low + width * jnp.arange(0.5, _NUM_LOADS)
    over = limit + jnp.asarray(_QUEUED)
    queued = spread.tail(over[:, None] + 1.0, loads[None]).sum(0)
    running = jnp.clip(loads - queued, 1e-9, limit)
    busy = jnp.stack([running, jnp.minimum(loads, limit)])
    full = jnp.stack([spread.tail(limit, loads), jnp.clip((loads - limit) / width + 0.5, 0.0, 1.0)])
    x = engines * busy
    free = jnp.log((order + x - 0.5 + 0.5 * jnp.exp(-order)) / (x + 0.5) * success) + 1.0 / (offset + x)
    slope = engines * ((1.0 - full) * free + full * jnp.log(queued_ratio))
    log_mass = width * (jnp.cumsum(slope, axis=1) - 0.5 * slope)
    fall = width * engines * -jnp.log(queued_ratio)
    pooled = jnp.exp(log_mass[1] - log_mass[1].max())
    below, above = ((1.0 - full[1]) * pooled).sum(), (full[1] * pooled).sum() + pooled[-1] / fall
    odds = jnp.log(pooled_wait / (1.0 - pooled_wait)) - jnp.log(jnp.maximum(above, 1e-300) / below)
    log_mass = log_mass[0] + odds * full[0]
    mass = jnp.exp(log_mass - log_mass.max())
    beyond = mass[-1] / fall
    total = mass.sum() + beyond
    chances = mass / total
    longer = spread.joined(over[:, None], loads[None])
    wait = (chances * longer[0]).sum() + beyond / total
    rest = high - limit + 1.0 / (engines * -jnp.log(queued_ratio))
    ahead = (chances * longer.sum(0)).sum() + beyond / total * rest
    return Joined(
        wait=jnp.clip(wait, 0.0, 1.0),
        ahead=ahead / jnp.maximum(wait, TINY),
        running=(chances * running).sum() + beyond / total * limit,
        loads=loads,
        chances=chances,
    )


def counts(
    found: Joined, spread: Spread, limit: Scalar, nodes: np.ndarray, widths: np.ndarray
) -> tuple[Float[Array, " counts"], Float[Array, " counts"]]:
    """Numbers running at the engine that is joined, given a free slot there, and their probabilities.

    None, and nodes of a half-integer window for the whole numbers from 1 up, as for one queue.
    """
    mean = (found.chances * found.loads).sum() / jnp.maximum(found.chances.sum(), TINY)
    deviation = jnp.sqrt((found.chances * (found.loads - mean) ** 2).sum() + 4.0)
    high = jnp.maximum(jnp.minimum(mean + 6.0 * deviation + 3.0, limit - 0.5), 0.5 + 1e-6)
    low = jnp.minimum(jnp.maximum(mean - 5.0 * deviation, 0.5), 0.5 + 0.8 * (high - 0.5))
    n = low + (high - low) * jnp.asarray(nodes)
    edges = jnp.stack([n - 0.5, n + 0.5])
    either = spread.joined(edges[..., None] + 0.5, found.loads[None, None])
    whole = (found.chances[None] * (either[0] - either[1])).sum(-1)
    none = (found.chances * (1.0 - spread.joined(jnp.ones_like(found.loads), found.loads))).sum()
    mass = jnp.concatenate([none[None], (high - low) * jnp.asarray(widths) * whole])
    return jnp.concatenate([jnp.zeros(1), n]), mass / jnp.maximum(mass.sum(), TINY)


class Found(NamedTuple):
    """What an arrival finds behind a dispatcher.

    Attributes:
        wait: probability that all slots are taken that it could have.
        queue: law of the queue wait of those who find them taken.
        running: mean number running at an engine.
        numbers, chances: numbers running at the engine that is joined, given a free slot, and their probabilities.
    """

    wait: Scalar
    queue: QueueWait
    running: Scalar
    numbers: Float[Array, " counts"]
    chances: Float[Array, " counts"]


def found(
    f: Fluctuations,
    pooled: Found,
    engines: Scalar,
    *,
    base_s: Scalar,
    limit: Scalar,
    step_work_s: Scalar,
    nodes: tuple[np.ndarray, np.ndarray],
) -> Found:
    """What it finds behind this one, from what it finds behind the least loaded engine; one engine is one queue.

    Args:
        f: of one engine without a limit.
        pooled: behind the least loaded engine.
        engines: real, > 0. Between one and two, in proportion.
        base_s, limit: W of a step, and slots of an engine.
        step_work_s: mean work of a running request in a step.
        nodes: of the unit interval for the numbers running, and their weights.
    """
    scale, several = pooled.queue.scale, jnp.clip(engines - 1.0, 0.0, 1.0)
    ratio = 1.0 - scale.slot_s / (jnp.maximum(engines, 1.0) * scale.pooled_s(jnp.ones(())))
    spread = Spread.of(engines, base_s / step_work_s)
    met = joined(
        f,
        spread,
        engines=jnp.maximum(engines, 2.0),
        base_s=base_s,
        limit=limit,
        queued_ratio=jnp.clip(ratio, 1e-6, 1.0 - 1e-9),
        pooled_wait=jnp.clip(pooled.wait, TINY, 1.0 - TINY),
    )
    over = met.ahead * scale.slot_s / pooled.queue.mean_s
    longer = 1.0 + several * (jnp.maximum(over, 1.0) - 1.0)
    queue = eqx.tree_at(
        lambda q: (q.share, q.waits_s, q.scales_s),
        pooled.queue,
        (
            pooled.queue.share + several * (jnp.minimum(over, 1.0) - pooled.queue.share),
            pooled.queue.waits_s * longer,
            pooled.queue.scales_s * longer,
        ),
    )
    numbers, chances = counts(met, spread, limit, *nodes)
    return Found(
        wait=pooled.wait + several * (met.wait - pooled.wait),
        queue=queue,
        running=pooled.running + several * (met.running - pooled.running),
        numbers=pooled.numbers + several * (numbers - pooled.numbers),
        chances=pooled.chances + several * (chances - pooled.chances),
    )
