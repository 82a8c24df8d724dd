"""FleetDesign: the pools and routing thresholds that a planner decides on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from jaxsim._checks import invalid, is_concrete, require, require_positive
from jaxsim.profiles import Profile, _float

PerPool = Float[np.ndarray | jax.Array, " pools"]


class FleetDesign(eqx.Module):
    """Length-routed pools in order of length. The pool axis leads every array.

    A request goes to the first pool whose `upper_tokens` is at least its total (input + output) tokens. A request
    that is longer than that pool's `max_context`, than its KV cache, or than the last `upper_tokens` is rejected
    and counted.

    Attributes:
        profile: profiles stacked along the pool axis.
        replicas: engines of each pool; real while a design is relaxed, integers in a plan. 0 is an empty pool.
        upper_tokens: routing thresholds, ascending; the last is the fleet's own limit.
        max_context: tokens above which a pool accepts nothing.
    """

    profile: Profile
    replicas: PerPool = eqx.field(converter=_float)
    upper_tokens: PerPool = eqx.field(converter=_float)
    max_context: PerPool = eqx.field(converter=_float)

    def __check_init__(self) -> None:
        require(
            (np.asarray(self.replicas) >= 0) if is_concrete(self.replicas) else True,
            "replicas",
            self.replicas,
            ">= 0",
        )
        require_positive("max_context", self.max_context)
        if is_concrete(self.upper_tokens):
            upper = np.asarray(self.upper_tokens)
            if np.any(np.diff(upper) < 0) or not np.all(upper > 0):
                raise invalid("upper_tokens", upper.tolist(), "positive and ascending")

    @classmethod
    def of(
        cls,
        profiles: Profile | Sequence[Profile],
        replicas: Sequence[Any],
        upper_tokens: Sequence[Any],
        *,
        max_context: Sequence[Any] | None = None,
    ) -> FleetDesign:
        """A design from one entry per pool.

        Args:
            profiles: one profile for all pools, or one per pool.
            replicas: engines of each pool.
            upper_tokens: thresholds of each pool, ascending; the last is the longest request accepted.
            max_context: each pool's own limit; left out, a pool's `upper_tokens`.
        """
        if isinstance(profiles, Profile):
            profiles = [profiles] * len(replicas)
        if not len(profiles) == len(replicas) == len(upper_tokens):
            sizes = f"{len(profiles)}, {len(replicas)}, {len(upper_tokens)}"
            raise ValueError(f"profiles, replicas and upper_tokens must have one entry per pool, got {sizes}")
        context = upper_tokens if max_context is None else max_context
        return cls(Profile.stack(list(profiles)), np.asarray(replicas), np.asarray(upper_tokens), np.asarray(context))

    @property
    def num_pools(self) -> int:
        """Pools, a static number."""
        return int(self.replicas.shape[-1])

    @property
    def usd_per_hour(self) -> Float[np.ndarray | jax.Array, ""]:
        """Price of all replicas of all pools."""
        return _float((self.replicas * self.profile.usd_per_hour).sum(-1))
