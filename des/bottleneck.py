r"""What keeps a pool from serving more: its limit of sequences, its KV memory, or the rate of its steps.

Requests queue where admission refuses them, but what refuses them need not be what binds. A replica with n sequences
in its batch and steps of :math:`\tau = b + w n` serves :math:`n / \tau` of them, so one percent more sequences serve
:math:`b / \tau` percent more requests. Where a step is mostly its fixed part b, room for more sequences is what is
lacking: KV memory or the limit of sequences, whichever is used more. Where it is mostly work, more room would only
make steps longer: prompts and tokens come faster than they are computed, however empty the KV cache is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

import numpy as np

from jaxsim._checks import require

FULL = 0.85
"""Mean use from which on a limit counts as reached by many sequences; by few, it is where one more would not fit."""

WORTH_IT = 0.5
"""Gain in requests over gain in sequences from which on room for more sequences is worth having."""

KV_TRIGGER = 0.7
"""KV use at which autoscalers commonly add replicas."""


class Bottleneck(Enum):
    """What binds. The values are the sentences."""

    NONE = "nothing binds: the pool keeps up with its load"
    SEQUENCES = "the limit of running sequences"
    KV_MEMORY = "KV memory"
    RATE = "prefill/token throughput (rate)"


@runtime_checkable
class PoolFigures(Protocol):
    """What is read of a `des.results.PoolResult`."""

    @property
    def replicas(self) -> int: ...
    @property
    def load(self) -> float: ...
    @property
    def overloaded(self) -> bool: ...
    @property
    def mean_active(self) -> float: ...
    @property
    def kv_utilization(self) -> float: ...
    @property
    def sequence_utilization(self) -> float: ...
    @property
    def step_time_s(self) -> float: ...


@dataclass(frozen=True)
class Finding:
    """What binds, as a sentence with its figures."""

    kind: Bottleneck
    text: str


def pool_bottleneck(pool: PoolFigures, *, step_base_s: float) -> Finding:
    """What binds a simulated pool.

    Args:
        pool: its figures. Its utilisations are of all its replicas, so all must have been up.
        step_base_s: fixed part of its steps (`Profile.step_base_s`), seconds.
    """
    use = _use(pool.kv_utilization, pool.sequence_utilization)
    if np.isnan(pool.load):
        return Finding(Bottleneck.NONE, f"{Bottleneck.NONE.value}: no request waited for room; {use}")
    if not pool.overloaded:
        return Finding(Bottleneck.NONE, f"{Bottleneck.NONE.value}, {pool.load:.3g} of its capacity; {use}")
    found = bottleneck(
        queueing=True,
        kv_utilization=pool.kv_utilization,
        sequence_utilization=pool.sequence_utilization,
        fixed_share=min(step_base_s / pool.step_time_s, 1.0),
        running=pool.mean_active / pool.replicas,
    )
    return Finding(found.kind, f"offered {pool.load:.3g} times the capacity: {found.text}")


def bottleneck(
    *,
    queueing: bool,
    kv_utilization: float,
    sequence_utilization: float,
    fixed_share: float | None = None,
    running: float | None = None,
) -> Finding:
    """What binds a pool, simulated or measured.

    Args:
        queueing: whether requests pile up or are turned away.
        kv_utilization: mean share of the KV blocks in use, 0 to 1.
        sequence_utilization: mean running sequences over the limit (`max_num_seqs`), 0 to 1.
        fixed_share: fixed part of a step over its mean duration while requests wait, 0 to 1: what one percent more
            sequences would gain, in percent. None where it is not known: a limit that is reached then counts as what
            binds.
        running: mean running sequences of a replica; None where it is not known: then they are taken for many.
    """
    for name, value in (("kv_utilization", kv_utilization), ("sequence_utilization", sequence_utilization)):
        require(0.0 <= value <= 1.0 + 1e-9, name, value, "a share from 0 to 1")
    if fixed_share is not None:
        require(0.0 <= fixed_share <= 1.0 + 1e-9, "fixed_share", fixed_share, "a share from 0 to 1")
    use = _use(kv_utilization, sequence_utilization)
    if not queueing:
        return Finding(Bottleneck.NONE, f"{Bottleneck.NONE.value}; {use}")
    used = max(kv_utilization, sequence_utilization)
    reached = used >= FULL or (running is not None and used * (running + 1.0) >= running)
    if not reached:
        return _rate(f"{use}, neither at its limit", kv_utilization)
    if fixed_share is not None and fixed_share < WORTH_IT:
        gain = f"1 % more sequences would serve only {fixed_share:.2g} % more requests"
        return _rate(f"{use}; {gain}", kv_utilization)
    gain = "" if fixed_share is None else f"; 1 % more sequences serve {fixed_share:.2g} % more requests"
    if kv_utilization >= sequence_utilization:
        cure = "give a replica more KV memory (more GPUs, a smaller KV type) or add replicas"
        return Finding(Bottleneck.KV_MEMORY, f"{Bottleneck.KV_MEMORY.value} binds; {use}{gain}; {cure}")
    return Finding(
        Bottleneck.SEQUENCES, f"{Bottleneck.SEQUENCES.value} binds; {use}{gain}; raise max_num_seqs or add replicas"
    )


def _use(kv_utilization: float, sequence_utilization: float) -> str:
    return f"KV memory {kv_utilization:.1%} used, sequences {sequence_utilization:.1%} of their limit"


def _rate(use: str, kv_utilization: float) -> Finding:
    never = "; a trigger on KV use of 70 to 80 % never fires" if kv_utilization < KV_TRIGGER else ""
    cure = "add replicas or faster ones, and scale on queue wait or token rate"
    return Finding(Bottleneck.RATE, f"{Bottleneck.RATE.value} binds; {use}; {cure}{never}")
