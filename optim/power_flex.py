"""Grid flexibility: what a fleet must be held to so that it draws x % less than now, and what that costs.

Two levers. `cap`: every engine runs fewer requests at a time. `off`: some replicas are switched off. Each for as long
as you like (the model), and for an event of given length (the simulator, with the lever pulled and let go).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxsim._checks import require, require_positive, require_x64, unknown
from jaxsim.energy import Energy, cap_of_curtailment, capped, fleet_energy
from jaxsim.evaluate import Metrics, PoolDemand, metrics, pool_demands, pool_law, tabulate
from jaxsim.fleet import FleetDesign
from jaxsim.power import PowerLaw
from jaxsim.workload import Workload
from optim._compile import program
from optim.figures import lengths_alone
from optim.power_event import Event, EventResult, Flow, Setting, fluid_wait, play_event
from optim.problem import SLO

LEVERS = ("cap", "off")
_LEAST_LEAD_S, _RESIDENCES = 60.0, 20.0
"""Lead of an event: a minute and this many mean stays of a request."""

_SHARE_TOLERANCE = 1e-4
_BISECTIONS = 14

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Level:
    """A fleet held to draw a share less than now.

    Attributes:
        share: asked for.
        reachable: whether the lever goes that far; if not, everything below is of the farthest it goes.
        real_caps: running requests of each pool's engines at which exactly `share` is delivered, as real numbers (the
            least a cap can be where out of reach); None for the lever `off`.
        setting: in whole numbers, delivering `share` or more.
        watts, delivered: of the whole setting, by the model.
        utilization: of the most utilised pool under it; 1 or more is overload.
        ttft_p99_s, tpot_p99_s: sustained, by the model; inf in overload.
        event_ttft_p99_s: during an event, by the model: the sustained one, or a fluid that backs up.
        event: what the simulator found of it; None where it was not asked.
    """

    share: float
    reachable: bool
    real_caps: tuple[float, ...] | None
    setting: Setting
    watts: float
    delivered: float
    utilization: float
    ttft_p99_s: float
    tpot_p99_s: float
    event_ttft_p99_s: float
    event: EventResult | None


@dataclass(frozen=True)
class SafeLevel:
    """The deepest level that keeps the SLO: known to be safe up to `safe`, known not to be from `unsafe` on.

    Attributes:
        setting: at `safe`; None where not even no curtailment is safe.
    """

    safe: float
    unsafe: float
    setting: Setting | None


@dataclass(frozen=True)
class Flexibility:
    """What a fleet can give to the grid.

    Attributes:
        now: power as it is.
        figures: latencies as they are, by the model.
        most: largest share that the lever can take away, by the model.
        event: when the simulated curtailment is on.
        undisturbed: the same event without any curtailment.
        levels: in order of `share`.
        sustained_safe, event_safe: None without an SLO; the latter also where the simulator was not asked.
    """

    design: FleetDesign
    workload: Workload
    rate: float
    slo: SLO | None
    lever: str
    startup_s: float
    now: Energy
    figures: Metrics
    most: float
    event: Event
    undisturbed: EventResult | None
    levels: tuple[Level, ...]
    sustained_safe: SafeLevel | None
    event_safe: SafeLevel | None


def _demands(design: FleetDesign, workload: Workload, rate: jax.Array) -> PoolDemand:
    return pool_demands(design, tabulate(workload, design.profile), rate)


@program
def _held(
    design: FleetDesign, workload: Workload, rate: jax.Array, power: PowerLaw, caps: jax.Array
) -> tuple[Energy, Metrics]:
    laws = jax.vmap(pool_law)(jax.vmap(capped)(_demands(design, workload, rate), caps), jnp.asarray(design.replicas))
    return fleet_energy(laws, power, design.profile.gpus_per_replica), metrics(laws)


@program
def _real_caps(
    design: FleetDesign, workload: Workload, rate: jax.Array, power: PowerLaw, shares: jax.Array
) -> tuple[jax.Array, jax.Array]:
    demands, replicas = _demands(design, workload, rate), jnp.asarray(design.replicas)
    of_pools = jax.vmap(cap_of_curtailment, in_axes=(0, 0, 0, None))
    caps, most = jax.vmap(lambda share: of_pools(demands, replicas, power, share))(shares)
    return caps, most[0]


class _Fleet:
    """A fleet under load, and its settings by the share they take away."""

    def __init__(self, design: FleetDesign, workload: Workload, rate: float, power: PowerLaw, lever: str) -> None:
        self.design, self.rate, self.power, self.lever = design, rate, power, lever
        self.workload = workload
        self._anonymous = eqx.tree_at(lambda d: d.profile, design, design.profile.unnamed())
        self._lengths = lengths_alone(workload)
        self.whole = tuple(int(n) for n in np.asarray(design.replicas))
        self.now, self.figures = self.held(Setting(None, self.whole))
        self.limits = np.asarray(self.figures.pools.concurrency_limit)
        if lever == "cap":
            most = np.asarray(_real_caps(*self._given(self._anonymous), jnp.zeros(1))[1])
            watts = np.asarray(self.now.pools.watts)
            self.most = float((most * watts).sum() / watts.sum())
            self.deepest = float(most.min())  # every pool gives the same share
        else:
            self._settings = self._sizes()
            self._delivered = np.array([self.delivered(setting) for setting in self._settings])
            self.most = self.deepest = float(self._delivered.max())

    def _given(self, design: FleetDesign) -> tuple[Any, ...]:
        return design, self._lengths, jnp.asarray(self.rate, dtype=float), self.power

    def held(self, setting: Setting) -> tuple[Energy, Metrics]:
        """Power and latencies by the model."""
        caps = [np.inf] * len(self.whole) if setting.caps is None else setting.caps
        design = eqx.tree_at(lambda d: d.replicas, self._anonymous, jnp.asarray(setting.replicas, dtype=float))
        found = _held(*self._given(design), jnp.asarray(caps, dtype=float))
        return found[0], found[1]

    def delivered(self, setting: Setting) -> float:
        """Share of the power drawn now that a setting takes away, by the model."""
        return 1.0 - float(self.held(setting)[0].watts) / float(self.now.watts)

    def real_caps(self, shares: Sequence[float]) -> np.ndarray:
        """Shares x pools."""
        return np.asarray(_real_caps(*self._given(self._anonymous), jnp.asarray(shares, dtype=float))[0])

    def setting(self, share: float) -> Setting:
        """The whole setting that takes `share` or more, or as much as can be."""
        if share <= 0.0:
            return Setting(None, self.whole)
        if self.lever == "cap":
            return Setting(tuple(np.maximum(np.floor(self.real_caps([share])[0] + 1e-9), 1.0).tolist()), self.whole)
        enough = np.flatnonzero(self._delivered >= share - 1e-12)
        return self._settings[int(enough[0]) if enough.size else int(np.argmax(self._delivered))]

    def _sizes(self) -> list[Setting]:
        """Every pool smaller by nearly the same share, from the whole fleet to one replica a pool."""
        total = sum(self.whole)
        sizes = [tuple(max(round(n * (total - k) / total), 1) for n in self.whole) for k in range(total)]
        return [Setting(None, size) for size in dict.fromkeys(sizes)]

    def flows(self, setting: Setting, held: Metrics) -> list[Flow]:
        """Each pool as a fluid while `setting` holds and afterwards."""
        pools, free = held.pools, self.figures.pools
        found = []
        for p, rate in enumerate(np.asarray(pools.rate).tolist()):
            if rate == 0.0:
                continue
            curtailed = rate / float(pools.utilization[p])
            freed = float(self.limits[p] - pools.concurrency_limit[p]) * self.whole[p]
            if setting.replicas[p] < self.whole[p]:  # who waits stays where it waits, at the replicas that were on
                found.append(Flow(rate, curtailed, curtailed, 0.0))
            else:
                found.append(Flow(rate, curtailed, rate / float(free.utilization[p]), freed))
        return found


def flexibility(
    design: FleetDesign,
    workload: Workload,
    rate: float,
    power: PowerLaw,
    *,
    shares: Sequence[float],
    event_s: float,
    slo: SLO | None = None,
    lever: str = "cap",
    startup_s: float = 0.0,
    simulate: bool = True,
    seed: int = 0,
    progress: Progress = lambda _: None,
) -> Flexibility:
    """What it costs to draw less, level by level, and the deepest level that keeps the SLO.

    Args:
        design: whole numbers of replicas.
        workload: joint lengths.
        rate: requests per second.
        power: of one GPU of each pool, stacked.
        shares: of the power drawn now, in [0, 1).
        event_s: length of the simulated curtailment, seconds.
        slo: objectives; None looks for no safe level.
        lever: "cap" (fewer running requests in every engine, every pool giving the same share) or "off" (fewer
            replicas).
        startup_s: of replicas that are switched on again (`off`).
        simulate: False leaves the simulator out.
        seed: of the simulator.
        progress: told what is being done.

    Raises:
        ValueError: an argument out of its domain, or a fleet that is overloaded as it is.
    """
    require_x64()
    require_positive("event_s", event_s)
    require((np.asarray(shares) >= 0) & (np.asarray(shares) < 1), "shares", list(shares), "in [0, 1)")
    if lever not in LEVERS:
        raise unknown("lever", lever, LEVERS)
    fleet = _Fleet(design, workload, rate, power, lever)
    if bool(fleet.figures.overloaded):
        load = float(fleet.figures.utilization)
        raise ValueError(f"the fleet is overloaded as it is (utilisation {load:.3g}): it has nothing to give")
    stay_s = float((fleet.now.pools.active * jnp.asarray(design.replicas)).sum()) / rate
    event = Event(_LEAST_LEAD_S + _RESIDENCES * stay_s, event_s)

    @cache
    def played(setting: Setting) -> EventResult:
        return play_event(design, workload, rate, event, power, setting, startup_s=startup_s, seed=seed)

    def level(share: float) -> Level:
        progress(f"{100 * share:.3g} % less")
        made = _level(fleet, share, event_s)
        return replace(made, event=played(made.setting)) if simulate else made

    undisturbed = played(Setting(None, fleet.whole)) if simulate else None
    levels = tuple(level(float(share)) for share in sorted(shares))
    sustained = None if slo is None else _sustained_safe(fleet, slo)
    safe = _event_safe(fleet, slo, played, progress) if simulate and slo is not None else None
    return Flexibility(
        design=design,
        workload=workload,
        rate=rate,
        slo=slo,
        lever=lever,
        startup_s=startup_s,
        now=fleet.now,
        figures=fleet.figures,
        most=fleet.most,
        event=event,
        undisturbed=undisturbed,
        levels=levels,
        sustained_safe=sustained,
        event_safe=safe,
    )


def _level(fleet: _Fleet, share: float, event_s: float) -> Level:
    setting = fleet.setting(share)
    drawn, held = fleet.held(setting)
    flows = fleet.flows(setting, held)
    backed_up = any(flow.curtailed_rate < flow.rate for flow in flows)
    waited = fluid_wait(flows, event_s) + float(fleet.figures.ttft_p99_s)
    return Level(
        share=share,
        reachable=share <= fleet.deepest,
        real_caps=tuple(fleet.real_caps([share])[0].tolist()) if fleet.lever == "cap" else None,
        setting=setting,
        watts=float(drawn.watts),
        delivered=fleet.delivered(setting),
        utilization=float(held.utilization),
        ttft_p99_s=float(held.ttft_p99_s),
        tpot_p99_s=float(held.tpot_p99_s),
        event_ttft_p99_s=waited if backed_up else float(held.ttft_p99_s),
        event=None,
    )


def _within(slo: SLO, ttft_s: float, tpot_s: float | None) -> bool:
    return ttft_s <= slo.ttft_p99_s and (slo.tpot_p99_s is None or tpot_s is None or tpot_s <= slo.tpot_p99_s)


def _sustained_safe(fleet: _Fleet, slo: SLO) -> SafeLevel:
    """By the model."""

    def judge(setting: Setting) -> bool:
        _, held = fleet.held(setting)
        return _within(slo, float(held.ttft_p99_s), float(held.tpot_p99_s))

    return _deepest(fleet, judge)


def _event_safe(fleet: _Fleet, slo: SLO, played: Callable[[Setting], EventResult], progress: Progress) -> SafeLevel:
    """By the simulator: safe where the whole interval of the P99 is."""

    def judge(setting: Setting) -> bool:
        progress("the deepest level that is safe for an event")
        found = played(setting)
        return _within(slo, found.ttft_p99_s.high, None if found.tpot_p99_s is None else found.tpot_p99_s.high)

    return _deepest(fleet, judge)


def _deepest(fleet: _Fleet, judge: Callable[[Setting], bool]) -> SafeLevel:
    """Bisect over the share until the next whole setting is the first that fails, or the bracket is narrow."""
    best = fleet.setting(0.0)
    if not judge(best):
        return SafeLevel(0.0, 0.0, None)
    failed = fleet.setting(fleet.deepest)
    if judge(failed):
        return SafeLevel(fleet.delivered(failed), 1.0, failed)
    low, high = 0.0, fleet.deepest
    for _ in range(_BISECTIONS):
        if high - low < _SHARE_TOLERANCE:
            break
        middle = 0.5 * (low + high)
        setting = fleet.setting(middle)
        if setting == failed:
            high = middle
        elif setting == best or judge(setting):
            low, best = middle, setting
        else:
            high, failed = middle, setting
    return SafeLevel(fleet.delivered(best), fleet.delivered(failed), best)
