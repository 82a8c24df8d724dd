r"""The `kimura` model: slots, service and waits of the published fleet simulator, to the letter.

Source: vLLM Semantic Router fleet simulator, model reference, sections 1 to 3 and 5; Kimura 1983 (M/G/c).
It assumes: one pooled M/G/c of ``replicas * num_slots`` servers; every request served at the full batch, all of
whose members have its own length; P99 TTFT as P99 wait plus mean prefill at batch 1; a two-moment tail.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsim.physics import kimura_work, num_slots, num_slots_relaxed, prefill_steps, total_steps
from jaxsim.profiles import Profile
from jaxsim.queueing import kimura_wait_quantile, log_erlang_c, utilization
from jaxsim.workload import LengthTable, Workload

Scalar = Float[Array, ""]

MAX_UTILIZATION = 0.85
"""Utilisation cap of the reference model's sizing."""

MIN_SERVICE_CV2 = 0.01
"""Floor of the squared coefficient of variation of service in the reference model."""


def tabulate(workload: Workload, profile: Profile) -> LengthTable:
    """Sums that the model needs: requests, output, T, chunks, K, K T, K^2, K^2 T, K^2 T^2 (T total, K steps)."""
    inputs, outputs = jnp.asarray(workload.input_tokens), jnp.asarray(workload.output_tokens)
    work = kimura_work(profile.law, profile.chunk_tokens, inputs, outputs)
    total, steps = inputs + outputs, total_steps(work)
    columns = [
        jnp.ones_like(total),
        outputs,
        total,
        prefill_steps(work),
        steps,
        steps * total,
        steps**2,
        steps**2 * total,
        steps**2 * total**2,
    ]
    return workload.tabulate(jnp.stack(columns, axis=1))


class ReferenceLatency(eqx.Module):
    """TTFT and TPOT laws of one pool. Times in seconds; overload has tails of 1 and infinite quantiles."""

    arrival_rate: Scalar
    num_servers: Scalar
    service_s: Scalar
    service_cv2: Scalar
    prefill_s: Scalar
    step_s: Scalar

    @property
    def utilization(self) -> Scalar:
        """Offered load over servers."""
        return utilization(self.arrival_rate, 1.0 / self.service_s, servers=self.num_servers)

    @property
    def overloaded(self) -> Array:
        """Utilisation >= 1."""
        return self.utilization >= 1.0

    def log_wait_tail(self, t: Any) -> Scalar:
        """ln P(wait > t), the tail that the reference sizing constrains."""
        slack = self.num_servers / self.service_s - self.arrival_rate
        return log_erlang_c(self.num_servers, self.arrival_rate * self.service_s) - 2.0 * jax.nn.relu(slack) * t / (
            1.0 + self.service_cv2
        )

    def wait_quantile(self, q: float) -> Scalar:
        """The q-quantile of the wait; 0 where fewer than 1 - q wait."""
        return kimura_wait_quantile(
            q, self.num_servers, self.arrival_rate, 1.0 / self.service_s, service_time_cv2=self.service_cv2
        )

    def mean_wait(self) -> Scalar:
        """P(wait) times the mean of the exponential tail."""
        slack = self.num_servers / self.service_s - self.arrival_rate
        safe = jnp.where(self.overloaded, 1.0, slack)
        mean = jnp.exp(self.log_wait_tail(0.0)) * (1.0 + self.service_cv2) / (2.0 * safe)
        return jnp.where(self.overloaded, jnp.inf, mean)

    def ttft_quantile(self, q: float) -> Scalar:
        """Quantile of the wait plus mean prefill at batch 1."""
        return self.wait_quantile(q) + self.prefill_s

    def ttft_tail(self, t: Scalar) -> Scalar:
        """P(TTFT > t); 1 below the prefill."""
        after = jnp.maximum(t - self.prefill_s, 0.0)
        return jnp.where(t < self.prefill_s, 1.0, jnp.exp(self.log_wait_tail(after)))

    def tpot_quantile(self, q: float) -> Scalar:
        """The full batch's step time, for every q."""
        del q
        return jnp.where(self.overloaded, jnp.inf, self.step_s)

    def tpot_tail(self, t: Scalar) -> Scalar:
        """1 below the full batch's step time, 0 from it on."""
        return jnp.where((t < self.step_s) | self.overloaded, 1.0, 0.0)

    def mean_tpot(self) -> Scalar:
        """The full batch's step time."""
        return jnp.where(self.overloaded, jnp.inf, self.step_s)


def latency(
    means: Float[Array, " statistics"],
    profile: Profile,
    *,
    arrival_rate: Scalar,
    replicas: Scalar,
    max_context: Scalar,
    relaxed: bool,
) -> tuple[ReferenceLatency, Scalar]:
    """The latency law of one pool, and its slots per replica.

    Args:
        means: per-request means of the columns of `tabulate`.
        profile: one profile.
        arrival_rate: requests per second to the pool.
        replicas: engines, real > 0.
        max_context: tokens for which slots are sized.
        relaxed: real-valued slots, with a gradient in `max_context`; else the exact integer.
    """
    _, _, total, chunks, steps, steps_total, steps2, steps2_total, steps2_total2 = means
    slots_of = num_slots_relaxed if relaxed else num_slots
    slots = slots_of(
        profile.kv_blocks,
        profile.block_tokens,
        profile.max_num_seqs,
        profile.calibration_context,
        max_context,
    )
    slots = jnp.maximum(slots, 1e-9)
    fixed = profile.step_base_s + profile.per_sequence_s * slots
    growing = profile.per_token_s * slots
    step = fixed + growing * total
    compute = profile.prefill_per_token_s * profile.chunk_tokens
    mean = fixed * steps + growing * steps_total + chunks * jax.nn.relu(compute - step)
    second = fixed**2 * steps2 + 2.0 * fixed * growing * steps2_total + growing**2 * steps2_total2
    base_mean = fixed * steps + growing * steps_total
    alone = profile.step_base_s + profile.per_sequence_s + profile.per_token_s * profile.calibration_context
    law = ReferenceLatency(
        arrival_rate=arrival_rate,
        num_servers=replicas * slots,
        service_s=mean,
        service_cv2=jnp.maximum(second / base_mean**2 - 1.0, MIN_SERVICE_CV2),
        prefill_s=chunks * jnp.maximum(alone, compute),
        step_s=step,
    )
    return law, slots
