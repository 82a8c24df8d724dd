r"""Disaggregated serving: a pool computes prompts, another generates, and KV caches go over a link between them.

Two models of the same fleet:

- **step** (default): each pool is a fleet of its own, with its queue and its occupancy (`jaxsim.evaluate`). The
  prefill pool serves every prompt for one token; its TTFT and then the transfer are the TTFT. The decode pool serves
  the remaining tokens of the requests that have any, without prompt work: a request's wait for it is part of its
  TPOT. The link is an M/G/1 queue.
- **kimura**: the published reference, whose pools have rates and nothing else,
  $r = \min(n_{pre}\, r_{pre}, n_{dec}\, r_{dec})$, derated by 0.90 and 0.92, with TTFT 1.80 times that of a prompt
  in a full batch. Source: vLLM Semantic Router fleet simulator, model reference, section 8.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxsim import physics
from jaxsim._checks import require, require_non_negative, require_positive, require_x64
from jaxsim.evaluate import PoolDemand, pool_demands, pool_law, pool_p99s, tabulate
from jaxsim.fleet import FleetDesign
from jaxsim.kv_transfer import KvTransfer
from jaxsim.profiles import Profile
from jaxsim.queueing import mg1_queue_wait
from jaxsim.workload import MAX_TOKENS, Workload

Scalar = Float[Array, ""]

RULE_OF_THUMB_RPS = (50.0, 100.0)
"""Request rates below which disaggregation is seldom worth its operation, and from which on it often is; the model
reference, section 8."""


class Factors(NamedTuple):
    """Constants of the reference model, section 8: share of the rate that is reached, and TTFT for that of a prompt."""

    prefill: Any = 0.90
    decode: Any = 0.92
    ttft: Any = 1.80


class PhaseRates(NamedTuple):
    """What one worker does in the reference model: requests per second, and TTFT or TPOT in seconds."""

    rate: Scalar
    latency_s: Scalar


def reference_prefill(
    profile: Profile, input_tokens: Any, *, max_context: Any, factors: Factors = Factors()
) -> PhaseRates:
    r"""A prefill worker of the reference model: rate, and TTFT.

    $r = \alpha\, n / S$ with $n$ slots and $S$ the service of the prompt and one token in a full batch at its own
    length; TTFT is $\beta$ times the chunks of the prompt at the step time of a full batch of calibrated length.

    Args:
        profile: one profile.
        input_tokens: prompt, tokens.
        max_context: tokens for which slots are sized.
        factors: $\alpha$ and $\beta$; a KV transfer is in $\beta$.
    """
    slots = _slots(profile, max_context)
    work = physics.kimura_work(profile.law, profile.chunk_tokens, jnp.asarray(input_tokens, dtype=float), 1.0)
    service = physics.total_steps(work) * _step_s(profile, slots, input_tokens + 1.0)
    alone = physics.prefill_steps(work) * _step_s(profile, slots, profile.calibration_context)
    return PhaseRates(factors.prefill * slots / service, factors.ttft * alone)


def reference_decode(
    profile: Profile, output_tokens: Any, *, max_context: Any, factors: Factors = Factors()
) -> PhaseRates:
    r"""A decode worker of the reference model: rate, and TPOT.

    $r = \alpha\, n / S$ with $S$ the service of a prompt of one token and `output_tokens` tokens in a full batch at
    its own length; TPOT is the step time of a full batch of calibrated length.

    Args:
        profile: one profile.
        output_tokens: tokens.
        max_context: tokens for which slots are sized.
        factors: $\alpha$.
    """
    slots = _slots(profile, max_context)
    work = physics.kimura_work(profile.law, profile.chunk_tokens, 1.0, jnp.asarray(output_tokens, dtype=float))
    service = physics.total_steps(work) * _step_s(profile, slots, 1.0 + output_tokens)
    return PhaseRates(factors.decode * slots / service, _step_s(profile, slots, profile.calibration_context))


def system_rate(prefill_replicas: Any, prefill_rate: Any, decode_replicas: Any, decode_rate: Any) -> Any:
    """Requests per second that both pools sustain: the smaller of theirs. Gradient: of the one that binds."""
    return jnp.minimum(prefill_replicas * prefill_rate, decode_replicas * decode_rate)


def _slots(profile: Profile, max_context: Any) -> Any:
    return physics.num_slots(
        profile.kv_blocks, profile.block_tokens, profile.max_num_seqs, profile.calibration_context, max_context
    )


def _step_s(profile: Profile, slots: Any, total: Any) -> Any:
    """Step time of a full batch whose members all hold `total` tokens."""
    return profile.step_base_s + slots * physics.held_work(profile.law, total)


class Phases(eqx.Module):
    """The requests of both pools before it is decided how many engines serve them; see `phases`.

    Attributes:
        prefill, decode: what each pool serves.
        transfer_p99_s: of the prompts that are handed over, wait for the link included; inf where the link cannot
            keep up.
        transfer_mean_s: the same, mean.
        link_load: share of the time that the link is busy.
    """

    prefill: PoolDemand
    decode: PoolDemand
    transfer_p99_s: Scalar
    transfer_mean_s: Scalar
    link_load: Scalar


class DisaggMetrics(eqx.Module):
    """Figures of a disaggregated fleet. Seconds, dollars per hour; overload is infinite latency.

    Attributes:
        ttft_p99_s: P99 of the prefill pool plus P99 of the transfer: an upper bound, near where transfers are short.
        tpot_p99_s: of the decode pool, its wait included.
        prefill_utilization, decode_utilization, link_load: of each part.
        overloaded: one of the parts cannot keep up.
    """

    ttft_p99_s: Scalar
    tpot_p99_s: Scalar
    prefill_utilization: Scalar
    decode_utilization: Scalar
    link_load: Scalar
    transfer_mean_s: Scalar
    usd_per_hour: Scalar
    overloaded: Bool[Array, ""]


def prefill_workload(workload: Workload) -> Workload:
    """What the prefill pool serves: every prompt, for its first token."""
    return Workload.from_lengths(
        np.asarray(workload.input_tokens),
        np.ones(len(workload.weight)),
        weight=np.asarray(workload.weight),
        prefix_cache_hit_rate=workload.prefix_cache_hit_rate,
        name=f"{workload.name}, prompts",
        source=workload.source,
    )


def decode_workload(workload: Workload) -> tuple[Workload, float]:
    """What the decode pool serves: the tokens after the first; and the share of requests that have any.

    Raises:
        ValueError: no request has a second token.
    """
    outputs, weight = np.asarray(workload.output_tokens), np.asarray(workload.weight)
    more = outputs > 1
    require(more.any(), "output_tokens", outputs.max(), "> 1 for some request", "without it nothing is decoded")
    rest = Workload.from_lengths(
        np.asarray(workload.input_tokens)[more],
        outputs[more] - 1.0,
        weight=weight[more],
        name=f"{workload.name}, decoding",
        source=workload.source,
    )
    return rest, float(weight[more].sum())


def decode_profile(profile: Profile) -> Profile:
    """An engine that is handed prompts: they take one step, like a token, and no compute."""
    nothing = np.zeros_like(np.asarray(profile.base_s))
    return replace(
        profile, prefill_per_token_s=nothing, prefill_per_token2_s=nothing, chunk_tokens=nothing + MAX_TOKENS
    )


def phases(prefill: Profile, decode: Profile, workload: Workload, rate: Any, link: KvTransfer) -> Phases:
    """The requests of the prefill pool and of the decode pool, and what the link makes of them.

    Args:
        prefill, decode: one profile each.
        workload: joint lengths of whole requests.
        rate: requests per second, >= 0.
        link: what the KV caches go over.

    Raises:
        ValueError: a profile whose KV cache cannot hold the longest request; a negative rate.
    """
    require_x64()
    require_non_negative("rate", rate)
    longest = float(np.max(workload.total_tokens))
    for profile in (prefill, decode):
        require_positive("profile kv_tokens", profile.kv_tokens)
        hint = f"a request of the workload is that long; {profile.name} cannot hold it"
        require(np.asarray(profile.kv_tokens) >= longest, "kv_tokens", profile.kv_tokens, f">= {longest:g}", hint)
    rest, decoding = decode_workload(workload)
    arrivals = decoding * jnp.asarray(rate, dtype=float)
    wait, load = _link(rest, arrivals, link)
    return Phases(
        prefill=_demand(prefill, prefill_workload(workload), rate),
        decode=_demand(decode_profile(decode), rest, arrivals),
        transfer_p99_s=wait[0],
        transfer_mean_s=wait[1],
        link_load=load,
    )


def _link(rest: Workload, arrivals: Scalar, link: KvTransfer) -> tuple[tuple[Scalar, Scalar], Scalar]:
    r"""P99 and mean of a transfer with its wait, and the load.

    Mean wait by Pollaczek and Khinchine; its tail taken for $\rho e^{-\rho t / \bar{w}}$. The P99 is that of the
    wait plus that of the transfer.
    """
    moved, weight = link.latency_s + link.s_per_token * np.asarray(rest.input_tokens), np.asarray(rest.weight)
    mean = float(weight @ moved)
    if mean == 0.0:
        return (jnp.zeros(()), jnp.zeros(())), jnp.zeros(())
    variance = max(float(weight @ moved**2) - mean**2, 0.0)
    cv = float(np.sqrt(variance)) / mean
    load = arrivals * mean
    stable = load < 1.0
    wait = mg1_queue_wait(jnp.where(stable, arrivals, 0.0), mean, service_time_cv=cv)
    busy = jnp.where(stable & (load > 0.0), load, 1.0)
    late = wait / busy * jnp.maximum(jnp.log(busy / _LATE), 0.0)
    order = np.argsort(moved)
    at = min(int(np.searchsorted(np.cumsum(weight[order]), 1.0 - _LATE)), len(order) - 1)
    longest = float(moved[order][at])
    return (jnp.where(stable, late + longest, jnp.inf), jnp.where(stable, wait + mean, jnp.inf)), load


_LATE = 0.01
"""Share of the requests beyond a P99."""


def _demand(profile: Profile, workload: Workload, rate: Any) -> PoolDemand:
    """One pool that takes every request of a workload."""
    design = FleetDesign.of(profile, [1.0], [float(np.max(workload.total_tokens))])
    anonymous = eqx.tree_at(lambda d: d.profile, design, design.profile.unnamed())
    return _only_demand(anonymous, workload, jnp.asarray(rate, dtype=float))


@eqx.filter_jit
def _only_demand(design: FleetDesign, workload: Workload, rate: Any) -> PoolDemand:
    demands = pool_demands(design, tabulate(workload, design.profile), rate)
    return jax.tree.map(lambda leaf: leaf[0], demands)


@eqx.filter_jit
def disagg_metrics(found: Phases, prefill_replicas: Any, decode_replicas: Any) -> DisaggMetrics:
    """Figures with so many engines in each pool; differentiable in both, and in what `found` was made from."""
    (ttft, before), (tpot, after) = (
        _p99s(demand, replicas, figure)
        for demand, replicas, figure in ((found.prefill, prefill_replicas, 0), (found.decode, decode_replicas, 1))
    )
    usd = prefill_replicas * found.prefill.profile.usd_per_hour + decode_replicas * found.decode.profile.usd_per_hour
    return DisaggMetrics(
        ttft_p99_s=ttft + found.transfer_p99_s,
        tpot_p99_s=tpot,
        prefill_utilization=before,
        decode_utilization=after,
        link_load=found.link_load,
        transfer_mean_s=found.transfer_mean_s,
        usd_per_hour=jnp.asarray(usd, dtype=float),
        overloaded=(before >= 1.0) | (after >= 1.0) | (found.link_load >= 1.0),
    )


def _p99s(demand: PoolDemand, replicas: Any, figure: int) -> tuple[Scalar, Scalar]:
    law = pool_law(demand, jnp.asarray(replicas, dtype=float))
    stacked = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], law)
    return pool_p99s(stacked)[figure][0], law.utilization
