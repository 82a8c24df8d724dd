"""Loads at which the SLO is just met, pool by pool and number of replicas by number: when to scale, by the model."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxsim._checks import invalid
from jaxsim.fleet import FleetDesign
from jaxsim.profiles import Profile
from jaxsim.units import MS_PER_S
from jaxsim.workload import Workload
from optim.cases import IDLE_RATE
from optim.documents import plain
from optim.export_kubernetes import object_name
from optim.export_options import ExportOptions
from optim.export_plan import ExportFleet
from optim.export_text import ExportFile, provenance
from optim.figures import figures, lengths_alone
from optim.headroom import due_rates
from optim.problem import PlanProblem
from optim.sizing import Targets
from optim.slopes import Point
from optim.verify import corrected_target, excess_factor

AUTOSCALING_VERSION = 1
HEADROOM = 0.1
"""Share of the load at which the SLO is just met that is kept free, unless told otherwise."""

_MOST_LEVELS = 8
_SAME_SHARE = 1e-6
_SAME_UTILIZATION = 0.02
"""How near a pool's share and utilisation must be to the plan's for the workload to be the plan's."""


MODEL_RULES = {
    "arrivals": "poisson",
    "router": "length",
    "knows": "total",
    "dispatch": "least-loaded",
    "scheduling": "independent",
    "kv": "reserve",
}
"""Rules of a simulated fleet that the model knows: those of a plan."""


@dataclass(frozen=True)
class Load:
    """Of one pool.

    Attributes:
        rate: requests per second of the pool.
        rate_per_replica: of one replica.
        running: requests that run in a replica, mean.
        utilization: offered load over capacity at full batch.
    """

    rate: float
    rate_per_replica: float
    running: float
    utilization: float


@dataclass(frozen=True)
class Level:
    """A pool with some number of replicas.

    Attributes:
        just_met: the highest load at which the SLO is met; None where it is met at none, or at any that was tried.
        scale_out: the load at which to order the next replica: `just_met` less the headroom.
        most_requests: that run in the pool at `scale_out`; 0 or inf where the SLO is met at no load or at any.
    """

    replicas: int
    just_met: Load | None
    scale_out: Load | None
    most_requests: float


class ScaleRule(NamedTuple):
    """replicas = ceil((requests in the pool + `offset`) / `per_replica`): enough at every level, as few as a line can.

    Attributes:
        offset, per_replica: requests.
        spare_replicas: by which it is at most above what the levels ask for, before it is rounded up.
    """

    offset: float
    per_replica: float
    spare_replicas: float


def scale_rule(most_requests: dict[int, float]) -> ScaleRule | None:
    r"""The line under the levels that asks for the fewest replicas more than they do.

    With $k$ replicas a pool may hold $T_k$ requests. A rule $\lceil (x + o)/s \rceil$ asks for more than $k$ from
    $T_k$ on where $s \le (T_k + o)/k$; the largest such $s$ is taken, and of the offsets at which two levels bind (and
    0) that whose greatest $(T_k + o)/s - k$ is least. Numbers of replicas between two levels count as the lower one,
    replica for replica.

    Args:
        most_requests: $T_k$ by $k$; inf is no bound.
    """
    levels = sorted(most_requests)
    bounds = {
        k: most_requests[n] / n * k
        for n, after in zip(levels, [*levels[1:], levels[-1] + 1], strict=True)
        for k in {n, after - 1}
        if math.isfinite(most_requests[n])
    }
    if not bounds:
        return None
    offsets = {0.0} | {(i * bounds[j] - j * bounds[i]) / (j - i) for i in bounds for j in bounds if i < j}
    rules = []
    for offset in sorted(o for o in offsets if o >= 0):
        per_replica = min((most + offset) / k for k, most in bounds.items())
        if per_replica > 0:
            rules.append(ScaleRule(offset, per_replica, max((t + offset) / per_replica - k for k, t in bounds.items())))
    return min(rules, key=lambda rule: rule.spare_replicas) if rules else None


@dataclass(frozen=True)
class PoolLevels:
    """When to scale a pool.

    Attributes:
        planned: the load that the plan is for.
        levels: by number of replicas, up to the plan's.
        just_met_uncorrected: highest rate of the pool with the plan's replicas by the model as it is.
        ttft_factor, tpot_factor: simulated over modelled excess of the P99s at the plan; 1 where it was not simulated.
    """

    planned: Load
    levels: tuple[Level, ...]
    just_met_uncorrected: float
    ttft_factor: float
    tpot_factor: float

    @property
    def rule(self) -> ScaleRule | None:
        """Replicas by the requests in the pool; None where the levels set no bound on them."""
        return scale_rule({level.replicas: level.most_requests for level in self.levels})


def pool_levels(fleet: ExportFleet, workload: Workload, *, headroom: float = HEADROOM) -> tuple[PoolLevels, ...]:
    """The loads at which each pool of a fleet just meets its SLO; thresholds and mix of lengths stay as they are.

    A plan that was simulated corrects the model: its P99s' excess above those of an idle pool is multiplied by what the
    simulator found of it at the plan (`optim.verify.Correction`).

    Args:
        fleet: routed by length.
        workload: the plan's, whole.
        headroom: share of the load kept free, in [0, 1).

    Raises:
        ValueError: a disaggregated fleet, no SLO or rate, a simulation under other rules than the model's, or a
            workload that is not the plan's.
    """
    if not 0 <= headroom < 1:
        raise invalid("headroom", headroom, "in [0, 1)", "10 % is 0.1")
    if fleet.disaggregated:
        raise ValueError(
            f"{fleet.file} must be of a fleet that serves whole requests, got prefill and decode pools; how far they "
            "are from their SLO depends on the link between them, for which no thresholds are computed"
        )
    if fleet.slo is None or fleet.rate is None:
        raise ValueError(f"{fleet.file} must have slo.ttft_p99_ms and a finite rate, got none: nothing to scale for")
    _check_rules(fleet)
    problem = _problem(fleet, workload)
    lengths, design = lengths_alone(problem.limited), _design(fleet)
    now = figures(design, lengths, fleet.rate, model=fleet.model)
    _check_same(fleet, np.asarray(now.pools.share), np.asarray(now.pools.utilization))
    idle = figures(design, lengths, IDLE_RATE, model=fleet.model).pools
    factors = _factors(fleet, np.asarray(idle.ttft_p99_s), np.asarray(idle.tpot_p99_s))
    slo = (fleet.slo.ttft_p99_s, np.inf if fleet.slo.tpot_p99_s is None else fleet.slo.tpot_p99_s)
    floors = np.stack([np.asarray(idle.ttft_p99_s), np.asarray(idle.tpot_p99_s)])
    plain_targets = [np.full(len(fleet.pools), limit) for limit in slo]
    corrected = [
        corrected_target(limit, floor, factor) for limit, floor, factor in zip(slo, floors, factors, strict=True)
    ]
    counts = [_counts(pool.replicas) for pool in fleet.pools]
    asked = sorted({n for each in counts for n in each})
    due = due_rates(_point(design, problem, corrected), lengths, asked, model=fleet.model)
    own = sorted({pool.replicas for pool in fleet.pools})
    raw = due_rates(_point(design, problem, plain_targets), lengths, own, model=fleet.model)

    def load(p: int, replicas: int, rate: float) -> Load:
        with_them = FleetDesign(
            design.profile,
            np.where(np.arange(design.num_pools) == p, float(replicas), np.asarray(design.replicas)),
            design.upper_tokens,
            design.max_context,
        )
        at = figures(with_them, lengths, rate, model=fleet.model).pools
        each = (float(np.asarray(value)[p]) for value in (at.rate, at.active_batch, at.utilization))
        arriving, running, used = each
        return Load(arriving, arriving / replicas, running, used)

    def level(p: int, replicas: int) -> Level:
        rate = float(due[asked.index(replicas), p])
        if not 0 < rate < math.inf:
            return Level(replicas, None, None, rate)
        out = load(p, replicas, (1.0 - headroom) * rate)
        return Level(replicas, load(p, replicas, rate), out, out.running * replicas)

    return tuple(
        PoolLevels(
            planned=load(p, pool.replicas, fleet.rate),
            levels=tuple(level(p, n) for n in counts[p]),
            just_met_uncorrected=float(raw[own.index(pool.replicas), p]) * float(np.asarray(now.pools.share)[p]),
            ttft_factor=float(factors[0][p]),
            tpot_factor=float(factors[1][p]),
        )
        for p, pool in enumerate(fleet.pools)
    )


def _check_rules(fleet: ExportFleet) -> None:
    """A simulated fleet under other rules than the model's: what it found does not correct the model."""
    for key, usual in MODEL_RULES.items():
        if (value := fleet.input(key)) not in (None, usual):
            raise ValueError(
                f"{fleet.file} must be of a fleet with {key} {usual!r} to find the loads it meets its SLO at, got "
                f"{value!r}: the model that finds them knows no other"
            )


def _problem(fleet: ExportFleet, workload: Workload) -> PlanProblem:
    profiles: dict[str, Profile] = {str(pool.profile.name): pool.profile for pool in fleet.pools}
    assert fleet.slo is not None  # checked by the caller
    assert fleet.rate is not None
    context = fleet.input("max_context_tokens")
    return PlanProblem(
        workload=workload,
        rate=fleet.rate,
        profiles=tuple(profiles.values()),
        slo=fleet.slo,
        max_pools=len(fleet.pools),
        max_context=None if context is None else float(context),
        long_requests=str(fleet.input("long_requests")),
        model=fleet.model,
    )


def _design(fleet: ExportFleet) -> FleetDesign:
    return FleetDesign.of(
        [pool.profile for pool in fleet.pools],
        [float(pool.replicas) for pool in fleet.pools],
        [float(pool.upper_tokens) for pool in fleet.pools],
        max_context=[float(pool.max_context) for pool in fleet.pools],
    )


def _point(design: FleetDesign, problem: PlanProblem, targets: list[np.ndarray]) -> Point:
    return Point.of(design, problem, Targets(*(jnp.asarray(each, dtype=float) for each in targets)))


def _check_same(fleet: ExportFleet, share: np.ndarray, utilization: np.ndarray) -> None:
    """The workload at hand loads the pools as the plan's did."""
    for p, entry in enumerate((fleet.document.get("analytic") or {}).get("pools", [])):
        for what, ours, theirs, near in (
            ("share", float(share[p]), float(entry["share"]), _SAME_SHARE),
            ("utilization", float(utilization[p]), float(entry["utilization"]), _SAME_UTILIZATION),
        ):
            if not math.isclose(ours, theirs, rel_tol=near, abs_tol=near):
                raise ValueError(
                    f"the workload must be the one that {fleet.file} was made for, got one that gives "
                    f"{fleet.pools[p].label} a {what} of {ours:.6g} where the plan has {theirs:.6g}; give the plan's "
                    "own with --plan-file, --trace or --cdf"
                )


def _factors(fleet: ExportFleet, ttft_floor_s: np.ndarray, tpot_floor_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Simulated over modelled excess of P99 TTFT and TPOT at the plan; ones where it was not simulated."""
    ttft, tpot = np.ones(len(fleet.pools)), np.ones(len(fleet.pools))
    simulated = (fleet.document.get("verification") or {}).get("pools")
    modelled = (fleet.document.get("analytic") or {}).get("pools")
    if simulated is None or modelled is None:
        return ttft, tpot
    for p, (found, said) in enumerate(zip(simulated, modelled, strict=True)):
        for factors, key, floors in ((ttft, "ttft_p99_ms", ttft_floor_s), (tpot, "tpot_p99_ms", tpot_floor_s)):
            if found[key] is not None and math.isfinite(float(said[key])):
                figures_s = float(found[key]["value"]) / MS_PER_S, float(said[key]) / MS_PER_S
                factors[p] = excess_factor(*figures_s, float(floors[p]))
    return ttft, tpot


def _counts(replicas: int) -> list[int]:
    """1 to `replicas`, all or a few."""
    if replicas <= _MOST_LEVELS:
        return list(range(1, replicas + 1))
    return sorted({round(n) for n in np.geomspace(1, replicas, _MOST_LEVELS)})


def autoscaling_document(
    fleet: ExportFleet, levels: tuple[PoolLevels, ...], options: ExportOptions, *, headroom: float, given: bool
) -> dict[str, Any]:
    """What `pool_levels` found, for programs."""
    simulated = fleet.document.get("verification") is not None
    assert fleet.slo is not None  # `pool_levels` demands it
    tpot = fleet.slo.tpot_p99_s
    return {
        "autoscaling_version": AUTOSCALING_VERSION,
        "written_by": provenance(fleet, options.command),
        "basis": f"analytical, model {fleet.model}: "
        + (
            "corrected by what the simulator found at the plan itself; nothing was simulated at the loads below"
            if simulated
            else "the plan was not simulated, so nothing corrects it; nothing was simulated at the loads below either"
        ),
        "slo": {
            "ttft_p99_ms": fleet.slo.ttft_p99_s * MS_PER_S,
            "tpot_p99_ms": None if tpot is None else tpot * MS_PER_S,
        },
        "slo_source": "inputs.ttft_p99_ms, inputs.tpot_p99_ms",
        "headroom": {"value": headroom, "source": "--headroom" if given else "default"},
        "pools": [
            {
                "pool": pool.label,
                "service": object_name(pool, options),
                "replicas": pool.replicas,
                "replicas_source": f"{pool.place}.replicas",
                "planned": _load_entry(found.planned),
                "spare": None if (met := found.levels[-1].just_met) is None else met.rate / found.planned.rate - 1.0,
                "correction": {"ttft": found.ttft_factor, "tpot": found.tpot_factor},
                "just_met_rate_rps_uncorrected": found.just_met_uncorrected,
                "scale_rule": None
                if (rule := found.rule) is None
                else {
                    "requests_offset": rule.offset,
                    "requests_per_replica": rule.per_replica,
                    "most_spare_replicas": rule.spare_replicas,
                },
                "levels": [
                    {
                        "replicas": each.replicas,
                        "just_met": None if each.just_met is None else _load_entry(each.just_met),
                        "scale_out": None if each.scale_out is None else _load_entry(each.scale_out),
                        "most_requests_in_pool": each.most_requests,
                    }
                    for each in found.levels
                ],
            }
            for pool, found in zip(fleet.pools, levels, strict=True)
        ],
        "notes": [*NOTES, *fleet.warnings],
    }


NOTES = (
    "just_met: the highest load at which the model's P99s meet the SLO with that many replicas; scale_out: that load "
    "less the headroom, where the next replica is to be ordered",
    "scale_rule: replicas = ceil((running + waiting requests of the pool + requests_offset) / requests_per_replica); "
    "it asks for enough at the scale_out of every level, and for at most most_spare_replicas more before rounding up",
    "Poisson arrivals and the plan's mix of lengths are taken; bursts and longer requests meet the SLO at less",
    "a replica that is ordered comes after its cold start: the headroom must cover the growth of the load meanwhile; "
    "`fleetgrad schedule` plays a day with cold starts",
    "null in a level: the SLO is met at no load that was looked at, or at all of them",
)


def _load_entry(load: Load) -> dict[str, float]:
    return {
        "rate_rps": load.rate,
        "rate_rps_per_replica": load.rate_per_replica,
        "running_requests_per_replica": load.running,
        "utilization": load.utilization,
    }


def autoscaling_file(document: dict[str, Any]) -> ExportFile:
    """The document as strict JSON."""
    return ExportFile("autoscaling.json", json.dumps(plain(document), indent=2, ensure_ascii=False) + "\n")
