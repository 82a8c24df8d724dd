"""Knobs: what one turn of each buys, by the model, ranked by milliseconds of P99 for a dollar."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxsim.evaluate import Metrics, metrics, pool_demands, pool_laws, tabulate
from jaxsim.fleet import FleetDesign
from jaxsim.profiles import Profile
from jaxsim.workload import Workload
from optim._compile import program
from optim.sizing import Targets, excess

THRESHOLD_STEP = 0.05
"""Share by which a threshold is moved."""
FASTER = 0.1
"""Share by which a coefficient is made faster."""
NOISE_MS = 1e-5
"""Change of a P99 below which it is the rounding of its root."""
_SPEEDS = ("base_s", "per_sequence_s", "per_token_s", "prefill_per_token_s", "prefill_per_token2_s", "overhead_s")


class KnobKind(Enum):
    """What is turned. The values are the words for it."""

    REPLICAS = "replicas"
    THRESHOLD = "threshold"
    MAX_NUM_SEQS = "max_num_seqs"
    CHUNK = "prefill chunk"
    COEFFICIENT = "coefficient of the profile"


@dataclass(frozen=True)
class Knob:
    """One turn and what the model says it does, everything else as it is.

    Attributes:
        kind, pool: what is turned, and where (for a threshold the pool below it).
        words: the turn in words.
        usd_per_hour: what it costs.
        ttft_p99_ms, tpot_p99_ms: change of the fleet's P99s; below 0 is better.
        pool_ttft_p99_ms, pool_tpot_p99_ms: change of each pool's.
        slo_met: whether every pool meets its targets afterwards, by the model.
        overloaded: whether a pool cannot keep up with its load afterwards.
    """

    kind: KnobKind
    pool: int
    words: str
    usd_per_hour: float
    ttft_p99_ms: float
    tpot_p99_ms: float
    pool_ttft_p99_ms: tuple[float, ...]
    pool_tpot_p99_ms: tuple[float, ...]
    slo_met: bool
    overloaded: bool

    @property
    def for_sale(self) -> bool:
        """Whether it can be had by turning something; a faster coefficient cannot."""
        return self.kind is not KnobKind.COEFFICIENT

    @property
    def ttft_p99_ms_per_usd(self) -> float:
        """Milliseconds of P99 TTFT that a dollar per hour buys; free, inf where it is better and -inf where worse."""
        return _per_dollar(-self.ttft_p99_ms, self.usd_per_hour)

    @property
    def tpot_p99_ms_per_usd(self) -> float:
        """The same of P99 TPOT."""
        return _per_dollar(-self.tpot_p99_ms, self.usd_per_hour)


def _per_dollar(bought: float, usd: float) -> float:
    if abs(bought) < NOISE_MS:
        return 0.0
    return bought / usd if usd > 0 else math.copysign(math.inf, bought)


class _Turn(NamedTuple):
    kind: KnobKind
    pool: int
    words: str
    design: FleetDesign


Figures = Callable[[FleetDesign], tuple[Metrics, np.ndarray]]
"""The model's figures of a design, and whether each pool meets its targets."""


def knobs(
    design: FleetDesign,
    workload: Workload,
    rate: float,
    targets: Targets,
    *,
    model: str,
    by: str = "ttft",
    kinds: Collection[KnobKind] = tuple(KnobKind),
    figures: Figures | None = None,
) -> tuple[Knob, ...]:
    """Every knob of a fleet, the best first: free ones by what they bring, then by P99 for a dollar.

    Args:
        design: whole replicas.
        workload: joint lengths, as the fleet accepts them.
        rate: requests per second.
        targets: of each pool.
        model: "step" or "kimura".
        by: "ttft" or "tpot", whose P99 ranks them.
        kinds: of the knobs that are turned.
        figures: how a design under this load is evaluated, where something has the programs for it already.
    """

    def evaluated(of: FleetDesign) -> tuple[Metrics, np.ndarray]:
        if figures is not None:
            return figures(of)
        unnamed = _with(of, profile=of.profile.unnamed())
        found, met = _figures(unnamed, workload, jnp.asarray(rate, dtype=float), targets, model=model)
        return found, np.asarray(met)

    before, _ = evaluated(design)
    base = float(design.usd_per_hour)
    found = [_knob(turn, before, *evaluated(turn.design), base) for turn in _turns(design) if turn.kind in kinds]
    return ranked(found, by=by)


@program
def _figures(
    design: FleetDesign, workload: Workload, rate: jax.Array, targets: Targets, *, model: str
) -> tuple[Metrics, jax.Array]:
    """Figures of a design, and whether each pool meets what the sizing asks of it."""
    tables = tabulate(workload, design.profile, model=model)
    demands = pool_demands(design, tables, rate, model=model)
    over = jax.vmap(lambda d, n, t: excess(d, n, t, relaxed=False))(demands, jnp.asarray(design.replicas), targets)
    laws = pool_laws(design, tables, rate, model=model)
    return metrics(laws), (over.max(axis=1) <= 0) | laws.empty


def ranked(found: Sequence[Knob], *, by: str) -> tuple[Knob, ...]:
    """Free knobs that help, those for money by P99 for a dollar, what does not help.

    Those after which a pool misses its targets come after those after which none does, and coefficients, which are not
    for sale, after all others.
    """

    def key(knob: Knob) -> tuple[bool, bool, float, float]:
        change, worth = (
            (knob.ttft_p99_ms, knob.ttft_p99_ms_per_usd)
            if by == "ttft"
            else (knob.tpot_p99_ms, knob.tpot_p99_ms_per_usd)
        )
        return not knob.for_sale, not knob.slo_met, -worth, change

    return tuple(sorted(found, key=key))


def _turns(design: FleetDesign) -> Iterator[_Turn]:
    profile, upper = design.profile, np.asarray(design.upper_tokens)
    for p in range(design.num_pools):
        more = np.asarray(design.replicas) + (np.arange(design.num_pools) == p)
        yield _Turn(KnobKind.REPLICAS, p, "one replica more", _with(design, replicas=more))
    for p in range(design.num_pools - 1):
        for sign in (1.0, -1.0):
            moved = _moved_threshold(upper, p, sign)
            if moved is None:
                continue
            words = f"threshold {upper[p]:,.0f} -> {moved[p]:,.0f} tokens"
            context = np.maximum(np.asarray(design.max_context), moved)
            if design.max_context[p] == upper[p]:
                context[p] = moved[p]
            yield _Turn(KnobKind.THRESHOLD, p, words, _with(design, upper_tokens=moved, max_context=context))
    for kind, field in ((KnobKind.MAX_NUM_SEQS, "max_num_seqs"), (KnobKind.CHUNK, "chunk_tokens")):
        for p in range(design.num_pools):
            for factor in (2.0, 0.5):
                now = float(np.asarray(getattr(profile, field))[p])
                then = max(np.floor(now * factor), 1.0)
                if then != now:
                    words = f"{field} {now:,.0f} -> {then:,.0f}"
                    yield _Turn(kind, p, words, _with(design, profile=_changed(profile, field, p, then)))
    for field in _SPEEDS:
        for p in range(design.num_pools):
            now = float(np.asarray(getattr(profile, field))[p])
            if now > 0:
                faster = _changed(profile, field, p, now * (1.0 - FASTER))
                yield _Turn(KnobKind.COEFFICIENT, p, f"{field} {FASTER:.0%} less", _with(design, profile=faster))


def _moved_threshold(upper: np.ndarray, pool: int, sign: float) -> np.ndarray | None:
    """Thresholds with one moved by `THRESHOLD_STEP`, at least a token; None where it would meet its neighbour."""
    moved = upper.copy()
    moved[pool] = np.floor(upper[pool] + sign * max(THRESHOLD_STEP * upper[pool], 1.0))
    ends = np.concatenate([[0.0], moved])
    return moved if bool(np.all(np.diff(ends) > 0)) else None


def _with(design: FleetDesign, **changes: np.ndarray | Profile) -> FleetDesign:
    return replace(design, **changes)  # type: ignore[arg-type]


def _changed(profile: Profile, field: str, pool: int, value: float) -> Profile:
    values = np.array(getattr(profile, field))
    values[pool] = value
    return eqx.tree_at(lambda p: getattr(p, field), profile, values)


def _knob(turn: _Turn, before: Metrics, after: Metrics, met: np.ndarray, usd_per_hour: float) -> Knob:
    was, now = before.pools, after.pools
    return Knob(
        kind=turn.kind,
        pool=turn.pool,
        words=turn.words,
        usd_per_hour=float(turn.design.usd_per_hour) - usd_per_hour,
        ttft_p99_ms=_change(before.ttft_p99_s, after.ttft_p99_s).item(),
        tpot_p99_ms=_change(before.tpot_p99_s, after.tpot_p99_s).item(),
        pool_ttft_p99_ms=tuple(_change(was.ttft_p99_s, now.ttft_p99_s).tolist()),
        pool_tpot_p99_ms=tuple(_change(was.tpot_p99_s, now.tpot_p99_s).tolist()),
        slo_met=bool(np.all(met)),
        overloaded=bool(after.overloaded),
    )


def _change(before: object, after: object) -> np.ndarray:
    """Milliseconds; -inf out of overload, inf into it, 0 where it lasts."""
    was, now = np.asarray(before, dtype=float), np.asarray(after, dtype=float)
    both = np.isinf(was) & np.isinf(now)
    with np.errstate(invalid="ignore"):
        return np.where(both, 0.0, (now - was) * 1e3)
