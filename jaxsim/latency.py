"""The latency law of a pool of the `step` model, its quantiles, and tails in logarithms.

Tails are what the optimizer constrains (in log form, smooth where a wait is zero); quantiles are their roots.
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsim._roots import decreasing_root
from jaxsim.step_sharing import response
from jaxsim.step_sharing.response import Groups
from jaxsim.step_sharing.state import State

Scalar = Float[Array, ""]

MIN_TAIL = 1e-30
"""Floor of a tail inside a logarithm: its log and gradient stay finite."""


class StepLatency(eqx.Module):
    """TTFT and TPOT laws of one pool of step-exact engines.

    All times in seconds. An overloaded pool has tails of 1 and infinite quantiles.
    """

    state: State
    groups: Groups
    ttft: response.TtftLaw
    tpot: response.TpotLaw

    @classmethod
    def of(cls, state: State, groups: Groups) -> StepLatency:
        """The law of a pool's requests in that state."""
        return cls(state, groups, response.ttft_law(state, groups), response.tpot_law(state, groups))

    @property
    def utilization(self) -> Scalar:
        """Offered load over capacity at full batch."""
        return self.state.utilization

    @property
    def overloaded(self) -> Array:
        """Utilisation >= 1."""
        return self.utilization >= 1.0

    def wait_tail(self, t: Scalar) -> Scalar:
        """P(admission - arrival > t)."""
        return jnp.where(self.overloaded, 1.0, response.wait_tail(self.state, t))

    def ttft_tail(self, t: Scalar) -> Scalar:
        """P(TTFT > t)."""
        return jnp.where(self.overloaded, 1.0, self.ttft.tail(t))

    def tpot_tail(self, t: Scalar) -> Scalar:
        """P(TPOT > t) among the requests with more than one output token."""
        return jnp.where(self.overloaded, 1.0, self.tpot.tail(t))

    def mean_wait(self) -> Scalar:
        """Mean of admission - arrival."""
        return jnp.where(self.overloaded, jnp.inf, response.mean_wait_s(self.state))

    def mean_tpot(self) -> Scalar:
        """Mean over the requests with more than one output token."""
        return jnp.where(self.overloaded, jnp.inf, response.mean_tpot_s(self.state, self.groups))

    def longest_s(self, q: Scalar | float) -> Scalar:
        """An upper end for the search of the q-quantiles: above every group's prefill and the wait tail."""
        s, g = self.state, self.groups
        step = s.steps_s.max()
        most = g.prefill_steps + 2.0 * g.prefill_steps_spread + 2.0
        prefill = jnp.where(
            g.prefill_share > 0, most * step + g.prefill_work_s + 2.0 * g.prefill_work_spread_s, 0.0
        ).max()
        own = g.decode_work_s + 8.0 * jnp.sqrt(g.decode_work_variance_s2)
        wait = s.queue.scales_s.max() * (1.0 - jnp.log1p(-q))
        return 2.0 * (prefill + step + own.max() + wait)


def log_tail(tail: Scalar) -> Scalar:
    """ln of a tail with a floor, so that value and gradient are finite."""
    return jnp.log(jnp.maximum(tail, MIN_TAIL))


def quantile(law: StepLatency, tail: Callable[[StepLatency, Scalar], Scalar], q: Scalar | float) -> Scalar:
    """The t at which ``tail(law, t)`` is 1 - q, with its implicit gradient in the law; inf in overload.

    0 where the tail starts below 1 - q.
    """

    def excess(t: Scalar, inner: tuple[StepLatency, Scalar]) -> Scalar:
        return tail(inner[0], t) - (1.0 - inner[1])

    level = jnp.asarray(q)
    root = decreasing_root(excess, (law, level), jnp.zeros(()), law.longest_s(level))
    return jnp.where(law.overloaded, jnp.inf, root)
