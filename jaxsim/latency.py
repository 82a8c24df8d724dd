r"""Tails and quantiles of TTFT and TPOT, given the occupancy that a request meets.

TTFT = rest of the step in progress + queue wait + prefill steps at the step times of the batch + own prefill
work. It is a mixture over the requests' prefill lengths, the work present at arrival and whether a slot is
free. TPOT = mean step time over the decode steps; over a long answer the batch's fluctuation averages out, by
the factor $\mathrm{sh}(y) = \sqrt{2(y - 1 + e^{-y})}/y$ with y the decode steps in correlation times.

Tails are what the optimizer constrains (in log form, smooth where a wait is zero); quantiles are their roots.
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from jaxsim._roots import decreasing_root
from jaxsim.occupancy import NODE_WEIGHT, Occupancy
from jaxsim.step_sharing.response import averaging, queued_tail, residual_tail

Scalar = Float[Array, ""]

MIN_TAIL = 1e-30
"""Floor of a tail inside a logarithm: its log and gradient stay finite."""

_IDLE_STEP_SHARE = 0.02
"""An arrival at an idle engine starts at once; a small share of a step keeps the tail continuous."""

_EDGE_WIDTH = 0.002
"""Width of the edge of the TPOT tail at a lone request's own step time, as a share of it; keeps it smooth."""


class LengthGroups(eqx.Module):
    """Requests of a pool grouped by prefill and by decode steps; shares sum to 1 within each (0 if empty).

    Attributes:
        prefill_share, prefill_low, prefill_high: share of each group and its range of prefill steps.
        prefill_work_s: mean work of its prefill, seconds.
        decode_share, decode_steps, decode_work_s: share among requests with a TPOT, mean decode steps, and mean
            own work per decode step.
    """

    prefill_share: Float[Array, " groups"]
    prefill_low: Float[Array, " groups"]
    prefill_high: Float[Array, " groups"]
    prefill_work_s: Float[Array, " groups"]
    decode_share: Float[Array, " bins"]
    decode_steps: Float[Array, " bins"]
    decode_work_s: Float[Array, " bins"]


class StepLatency(eqx.Module):
    """TTFT and TPOT laws of one pool of step-exact engines.

    All times in seconds. An overloaded pool has tails of 1 and infinite quantiles.
    """

    occupancy: Occupancy
    groups: LengthGroups
    base_s: Scalar
    limit: Scalar

    @property
    def utilization(self) -> Scalar:
        """Offered load over capacity at full batch."""
        return self.occupancy.utilization

    @property
    def overloaded(self) -> Array:
        """Utilisation >= 1."""
        return self.utilization >= 1.0

    def wait_tail(self, t: Scalar) -> Scalar:
        """P(admission - arrival > t)."""
        o = self.occupancy
        met = residual_tail(t, self._met_step())
        queued = queued_tail(t, o.full_step_s, o.wait_scale_s)
        tail = (1.0 - o.wait_probability) * (jnp.asarray(NODE_WEIGHT) * met).sum() + o.wait_probability * queued
        return jnp.where(self.overloaded, 1.0, tail)

    def ttft_tail(self, t: Scalar) -> Scalar:
        """P(TTFT > t)."""
        o, g = self.occupancy, self.groups
        own_step, own_step_queued = self._prefill_step()
        spread = (g.prefill_high - g.prefill_low)[:, None]
        rest = t - g.prefill_low[:, None] * own_step - g.prefill_work_s[:, None]
        met = residual_tail(rest, self._met_step()[None, :] + spread * own_step)
        rest_queued = t - g.prefill_low * own_step_queued - g.prefill_work_s
        width = o.full_step_s + (g.prefill_high - g.prefill_low) * own_step_queued
        queued = queued_tail(rest_queued, width, o.wait_scale_s)
        free = (met * jnp.asarray(NODE_WEIGHT)[None, :]).sum(1)
        tail = (g.prefill_share * ((1.0 - o.wait_probability) * free + o.wait_probability * queued)).sum()
        return jnp.where(self.overloaded, 1.0, tail)

    def tpot_tail(self, t: Scalar) -> Scalar:
        """P(TPOT > t) among the requests with more than one output token."""
        o, g = self.occupancy, self.groups
        mean_work = o.mean_step_s - self.base_s
        shrink = averaging(g.decode_steps / o.correlation_steps)
        work = mean_work + (t - self.base_s - g.decode_work_s - mean_work) / shrink
        own = self.base_s + g.decode_work_s
        alone = jax.nn.sigmoid((own - t) / (_EDGE_WIDTH * own))  # nobody is faster than alone
        full = self.base_s + mean_work + (o.full_step_s - self.base_s - mean_work) * shrink
        crowded = jax.nn.sigmoid((full - t) / (_EDGE_WIDTH * full))  # nor slower than in a full batch
        free = alone + (1.0 - alone) * norm.sf(o.work_quantile_score(work)) * crowded
        tail = (g.decode_share * ((1.0 - o.wait_probability) * free + o.wait_probability * crowded)).sum()
        return jnp.where(self.overloaded, 1.0, tail)

    def mean_wait(self) -> Scalar:
        """Mean of admission - arrival."""
        o = self.occupancy
        met = (jnp.asarray(NODE_WEIGHT) * self._met_step()).sum() / 2.0
        queued = o.wait_scale_s + o.full_step_s / 2.0
        mean = (1.0 - o.wait_probability) * met + o.wait_probability * queued
        return jnp.where(self.overloaded, jnp.inf, mean)

    def mean_tpot(self) -> Scalar:
        """Mean over the requests with more than one output token."""
        g = self.groups
        mean = (g.decode_share * (self.occupancy.mean_step_s + g.decode_work_s)).sum()
        return jnp.where(self.overloaded, jnp.inf, mean)

    def longest_s(self, q: float) -> Scalar:
        """An upper end for the search of the q-quantiles: above every group's prefill and the wait tail."""
        o, g = self.occupancy, self.groups
        step = jnp.maximum(o.full_step_s, self.base_s + o.work_nodes_s.max())
        prefill = jnp.where(g.prefill_share > 0, (g.prefill_high + 2.0) * step + g.prefill_work_s, 0.0).max()
        return 2.0 * (prefill + step + g.decode_work_s.max() + o.wait_scale_s * (1.0 - jnp.log1p(-q)))

    def _met_step(self) -> Float[Array, " nodes"]:
        o = self.occupancy
        return (self.base_s + o.work_nodes_s) * jnp.maximum(o.busy, _IDLE_STEP_SHARE)

    def _prefill_step(self) -> tuple[Float[Array, "groups nodes"], Float[Array, " groups"]]:
        """Mean step time over the prefill, of requests that met a free slot and of those that queued."""
        o, g = self.occupancy, self.groups
        middle = (g.prefill_low + g.prefill_high) / 2.0
        shrink = averaging(middle / o.correlation_steps)
        mean = o.mean_step_s - self.base_s
        met = self.base_s + mean + (o.work_nodes_s[None, :] - mean) * shrink[:, None]
        full = (o.full_step_s - self.base_s) * jnp.maximum(self.limit - 1.0, 0.0) / self.limit
        return met, self.base_s + mean + (full - mean) * shrink


def log_tail(tail: Scalar) -> Scalar:
    """ln of a tail with a floor, so that value and gradient are finite."""
    return jnp.log(jnp.maximum(tail, MIN_TAIL))


def quantile(law: StepLatency, tail: Callable[[StepLatency, Scalar], Scalar], q: float) -> Scalar:
    """The t at which ``tail(law, t)`` is 1 - q, with its implicit gradient in the law; inf in overload.

    0 where the tail starts below 1 - q.
    """
    root = decreasing_root(lambda t, inner: tail(inner, t) - (1.0 - q), law, jnp.zeros(()), law.longest_s(q))
    return jnp.where(law.overloaded, jnp.inf, root)
