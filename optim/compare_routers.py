"""Routers side by side: one fleet, the same requests at the same instants, and what not knowing their length costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import des
from des import Estimate, SimulationResult
from des.stats import half_width
from optim.build import FleetRequest
from optim.config import ConfigError, Settings
from optim.inputs import Inputs
from optim.problem import SLO
from optim.rule_tables import router_of, slack_of
from optim.verify import judge

BY_LENGTH = {
    "length": ("length", "total", "input + output, an oracle"),
    "input-plus-max": ("length", "input-plus-max", "input + max_tokens"),
    "input": ("length", "input", "the input alone"),
    "predicted": ("length", "predicted", "a predicted length"),
    "spillover": ("spillover", "total", "oracle; spills over"),
    "compress": ("compress", "total", "oracle; compresses"),
}
"""Routers by length: kind, knowledge and label of each. The first is what the next three are held against."""

ANYWHERE = {
    "least-loaded": "any pool, least loaded",
    "random": "any pool, at random",
    "round-robin": "any pool, in turn",
    "power-of-two": "any pool, better of two",
    "prefix-affinity": "any pool, by prefix",
}
"""Dispatches over all pools that can hold a request, with their labels."""

NAMES = (*BY_LENGTH, *ANYWHERE)
ORACLE = "length"
UNKNOWING = ("input-plus-max", "input", "predicted")


@dataclass(frozen=True)
class Contender:
    """A router to compare, by the name that a command line gives it and a label for people."""

    name: str
    label: str
    router: des.Router


@dataclass(frozen=True)
class Price:
    """What a router's ignorance costs against the oracle, on the same requests: differences, below 0 where it gains.

    Attributes:
        ttft_p99_s: of the P99 TTFT of accepted requests; the interval is that of the paired differences of the
            replications. Growing without end where either is overloaded.
        rejected_share: of the share of requests rejected, likewise.
        attainment: of the share that met every objective, rejected ones counted as misses; None without objective.
    """

    ttft_p99_s: Estimate
    rejected_share: Estimate
    attainment: float | None


@dataclass(frozen=True)
class Standing:
    """One router's results; `slo_met` and `attainment` are None without an objective, `price` for all that know."""

    contender: Contender
    result: SimulationResult
    slo_met: bool | None
    attainment: float | None
    price: Price | None

    @property
    def rejected_share(self) -> float:
        """Share of requests that no pool took."""
        return self.result.rejected / max(self.result.requests, 1)


@dataclass(frozen=True)
class Comparison:
    """All standings, in the order asked for."""

    standings: tuple[Standing, ...]
    slo: SLO | None

    @property
    def best(self) -> Standing | None:
        """The highest attainment, then the lowest P99 TTFT; without objective the least rejected, then the P99.

        One that compresses is not in the running, since it changes what is served. None where every router overloads
        a pool.
        """
        kept = [s for s in self.standings if s.result.ttft.n and not (s.result.overloaded or s.result.compressed)]
        return min(kept, key=_rank, default=None)

    @property
    def any_met(self) -> bool:
        """Whether some router meets the objectives."""
        return any(s.slo_met for s in self.standings)


def _rank(standing: Standing) -> tuple[float, float]:
    lost = standing.rejected_share if standing.attainment is None else 1.0 - standing.attainment
    return round(lost, 5), standing.result.ttft.quantile(0.99).value


def contenders(
    settings: Settings, request: FleetRequest, names: Sequence[str] | None, inputs: Inputs
) -> tuple[tuple[Contender, ...], tuple[str, ...]]:
    """The routers asked for, and notes on what was left out; their parameters are written down in `inputs`.

    Args:
        names: of `NAMES`; None for all that the fleet and workload allow.

    Raises:
        ConfigError: a router that was asked for and cannot be had.
    """
    notes, made = [], []
    for name in NAMES if names is None else names:
        missing = _missing(request, name)
        if missing and names is not None:
            raise ConfigError(f"--routers {name}: {missing}")
        if missing:
            notes.append(f"{name} was left out: {missing}")
            continue
        made.append(_contender(settings, request, name, inputs))
    return tuple(made), tuple(notes)


def _missing(request: FleetRequest, name: str) -> str:
    """What stands in the way of a router; empty where nothing does."""
    if name != "prefix-affinity" or request.rules.serving.prefix_cache_blocks:
        return ""
    if request.workload.prefix_blocks is None:
        return f"workload {request.workload.name!r} lists no block hashes (hash_ids, as Mooncake's traces do)"
    return "it needs a prefix cache: serving.prefix_cache_tokens"


def _contender(settings: Settings, request: FleetRequest, name: str, inputs: Inputs) -> Contender:
    if name in ANYWHERE:
        slack = slack_of(settings, inputs) if name == "prefix-affinity" else None
        return Contender(name, ANYWHERE[name], des.AnyRouter(dispatch=name, affinity_slack=slack))
    kind, knows, label = BY_LENGTH[name]
    with settings.naming("router"):
        return Contender(name, label, router_of(settings, request.workload, inputs, kind, knows))


def compare(
    request: FleetRequest,
    routers: Sequence[Contender],
    *,
    progress: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> Comparison:
    """Simulate a fleet under each router, with common random numbers.

    Args:
        request: fleet, workload, rate and the rules beside the router.
        routers: what to compare; `ORACLE` among them gives the prices.
        progress: told which router is on.
        options: further arguments of `des.simulate`, the same for all, such as `num_requests` and `seed`.
    """
    results = {}
    for k, contender in enumerate(routers):
        progress(f"router {k + 1} of {len(routers)}: {contender.name}")
        results[contender.name] = des.simulate(
            request.design,
            request.workload,
            rate=request.rate,
            convention=request.model,
            **(request.rules.arguments | {"router": contender.router}),
            **options,
        )
    oracle = results.get(ORACLE)
    return Comparison(tuple(_standing(c, results[c.name], oracle, request.slo) for c in routers), request.slo)


def _standing(
    contender: Contender, result: SimulationResult, oracle: SimulationResult | None, slo: SLO | None
) -> Standing:
    found = None if slo is None else judge(result, slo)
    priced = oracle is not None and contender.name in UNKNOWING
    return Standing(
        contender,
        result,
        None if found is None else found.slo_met,
        None if found is None else found.attainment,
        price(result, oracle, slo) if oracle is not None and priced else None,
    )


def price(result: SimulationResult, oracle: SimulationResult, slo: SLO | None) -> Price:
    """Differences of two results of the same requests, with intervals over the paired replications."""
    unbounded = result.overloaded or oracle.overloaded
    attainment = None
    if slo is not None:
        limits = {"ttft_s": slo.ttft_p99_s, "tpot_s": slo.tpot_p99_s}
        attainment = result.attainment(**limits) - oracle.attainment(**limits)
    return Price(
        _difference(_p99s(result), _p99s(oracle), result.ttft.n, unbounded=unbounded),
        _difference(_rejected(result), _rejected(oracle), result.requests, unbounded=False),
        attainment,
    )


def _p99s(result: SimulationResult) -> np.ndarray:
    """P99 TTFT of all requests together, then of each replication."""
    runs = [run.latencies("ttft_s") for run in result.replications]
    return np.array([float(np.quantile(each, 0.99)) if len(each) else np.nan for each in (np.concatenate(runs), *runs)])


def _rejected(result: SimulationResult) -> np.ndarray:
    """Share rejected of all requests together, then of each replication."""
    lost = np.array([float(run.rejected.sum()) for run in result.replications])
    offered = np.array([float(run.offered) for run in result.replications])
    return np.append(lost.sum() / max(offered.sum(), 1.0), lost / np.maximum(offered, 1.0))


def _difference(ours: np.ndarray, theirs: np.ndarray, number: int, *, unbounded: bool) -> Estimate:
    gap = ours - theirs
    half = half_width(gap[1:], 0.95)
    return Estimate(float(gap[0]), float(gap[0] - half), np.inf if unbounded else float(gap[0] + half), number)
