"""The `step` model: from the requests of a pool to the latency law of its engines."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsim.latency import StepLatency
from jaxsim.profiles import Profile
from jaxsim.step_sharing.state import Load, state
from jaxsim.step_sharing.tables import Mix
from jaxsim.step_sharing.tokens import admitted

Scalar = Float[Array, ""]


DISPATCHES = ("least-loaded", "random", "round-robin", "power-of-two")
"""How requests are spread over the engines of a pool, as far as the model knows it."""


def latency(
    mix: Mix,
    profile: Profile,
    *,
    arrival_rate: Scalar,
    replicas: Scalar,
    dispatch: str = "least-loaded",
    dispersion: Scalar | float = 1.0,
) -> tuple[StepLatency, Scalar]:
    """The latency law of one pool, and the running requests that one engine admits.

    Args:
        mix: the pool's requests.
        profile: one profile.
        arrival_rate: requests per second to the pool.
        replicas: engines, real > 0.
        dispatch: one of `DISPATCHES`. Behind ``"power-of-two"`` (`step_sharing.two_choices`) the P99 TTFT is off by 3 %
            at the median and 19 % at the 90th percentile of 48 fleets: 2 to 32 engines of 8 to 256 slots, utilisation
            0.5 to 0.95 (``benchmarks/power_of_two.py``); by 6 % and 38 % of 16 more that nothing was chosen on. Worst
            where hardly more than 1 % wait and, as in a single engine, where nearly all work is prefill.
        dispersion: index of dispersion of the pool's arrivals; 1 for Poisson, the squared coefficient of variation of
            the gaps for a renewal process.
    """
    limit, by_tokens = admitted(mix.moments, jnp.asarray(profile.kv_tokens), jnp.asarray(profile.max_num_seqs))
    rate, engines, burst = _at_an_engine(dispatch, arrival_rate, replicas, jnp.asarray(dispersion, dtype=float))
    load = Load.of(
        rate,
        jnp.asarray(profile.step_base_s),
        limit,
        replicas=engines,
        by_tokens=by_tokens,
        dispersion=burst,
        two_choices=dispatch == "power-of-two",
    )
    return StepLatency.of(state(mix.moments, load), mix.groups), limit


def _at_an_engine(dispatch: str, rate: Scalar, replicas: Scalar, dispersion: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """Rate, engines and index of dispersion of the queue that an arrival joins.

    The least loaded engine, or that of two, is one of a pool with one queue as far as the state of the pool goes.
    Engines chosen without a look at their load have each a queue of its own: chosen at random, a thinned stream, which
    is nearer to Poisson the more engines there are; in turn, one arrival of every so many, whose gaps are sums and as
    much more even.
    """
    if dispatch in ("least-loaded", "power-of-two"):
        return rate, replicas, dispersion
    burst = dispersion / replicas if dispatch == "round-robin" else 1.0 + (dispersion - 1.0) / replicas
    return rate / replicas, jnp.ones_like(replicas), burst
