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


def latency(mix: Mix, profile: Profile, *, arrival_rate: Scalar, replicas: Scalar) -> tuple[StepLatency, Scalar]:
    """The latency law of one pool, and the running requests that one engine admits.

    Args:
        mix: the pool's requests.
        profile: one profile.
        arrival_rate: requests per second to the pool.
        replicas: engines, real > 0.
    """
    limit, by_tokens = admitted(mix.moments, jnp.asarray(profile.kv_tokens), jnp.asarray(profile.max_num_seqs))
    load = Load.of(arrival_rate, jnp.asarray(profile.step_base_s), limit, replicas=replicas, by_tokens=by_tokens)
    return StepLatency.of(state(mix.moments, load), mix.groups), limit
