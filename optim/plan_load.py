"""A plan at other loads and with its knobs turned, by the model: only programs that the search has compiled already.

`optim.sensitivity.study` says more of a fleet (derivatives, prices of every input) and takes programs of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from jaxsim.evaluate import Metrics
from jaxsim.fleet import FleetDesign
from jaxsim.profiles import Profile
from optim.cases import Case, case_metrics, margins, sized_designs, without_empty_pools
from optim.headroom import Headroom
from optim.knobs import Knob, KnobKind, knobs
from optim.plan import Plan
from optim.sizing import whole_replicas

SHARES = (*np.arange(1, 18) / 20, *np.arange(43, 48) / 50, *np.arange(189, 200) / 200, 1.01, 1.1)
"""Loads looked at, as shares of the rate at which the first pool is full; beyond 1 is overload."""
_BELOW_ALL = 0.5
"""Tokens that every request exceeds."""
KINDS = (KnobKind.REPLICAS, KnobKind.THRESHOLD, KnobKind.MAX_NUM_SEQS)
_PASSES = 40
_PRECISION = 1e-5
_REACH = 1e4
_KNEE = 0.01


@dataclass(frozen=True)
class Load:
    """The model's figures of a plan's fleet over the rate, replicas and thresholds as they are.

    Attributes:
        rates: requests per second of the whole fleet, ascending; the plan's own is one of them.
        figures: at each rate; infinite latencies in overload.
        overload_rate: from which some pool cannot keep up.
        knee_rate: at which 1 % of the requests wait for a slot: beyond it the queue is in P99 TTFT.
        headroom: until when the replicas suffice, under the objectives as the simulator corrected them; None where
            those of some pool are out of reach at any rate.
    """

    rates: Float[np.ndarray, " rates"]
    figures: tuple[Metrics, ...]
    overload_rate: float
    knee_rate: float
    headroom: Headroom | None


@dataclass(frozen=True)
class _Fleet:
    """Hardware and targets as they were searched, in which the pools with requests have their places."""

    case: Case
    profiles: tuple[Profile, ...]
    pools: tuple[int, ...]
    model: str

    def padded(self, design: FleetDesign) -> tuple[np.ndarray, np.ndarray]:
        """Replicas and thresholds with the empty pools, to which no length is routed."""
        replicas, upper = np.zeros(self.case.num_pools), np.zeros(self.case.num_pools)
        replicas[list(self.pools)], upper[list(self.pools)] = design.replicas, design.upper_tokens
        return replicas, np.maximum.accumulate(np.maximum(upper, _BELOW_ALL))

    def at(self, design: FleetDesign, rate: float) -> Case:
        """The case at a rate, with the design's limits of sequences, on which its tables do not depend."""
        limits = np.array(self.case.profile.max_num_seqs)
        limits[list(self.pools)] = design.profile.max_num_seqs
        changed = (jnp.asarray(rate, dtype=float), jnp.asarray(limits))
        return eqx.tree_at(lambda c: (c.rate, c.profile.max_num_seqs), self.case, changed)

    def figures(self, design: FleetDesign, rate: float) -> Metrics:
        """`jaxsim.evaluate` of the pools with requests."""
        replicas, upper = self.padded(design)
        found = case_metrics(self.at(design, rate), jnp.asarray(replicas), jnp.asarray(upper), model=self.model)
        return without_empty_pools(self.profiles, replicas, upper, found)[1]

    def met(self, design: FleetDesign, rate: float) -> Bool[np.ndarray, " pools"]:
        """Whether each pool meets what the sizing asks of it."""
        replicas, upper = self.padded(design)
        over = margins(self.at(design, rate), upper[None], replicas[None], model=self.model).excess[0]
        return over.max(axis=1)[list(self.pools)] <= 0.0


def plan_load(found: Plan) -> Load:
    """The curve, the knee and the headroom of a plan that has a design."""
    fleet, design = _fleet_of(found)
    rate = float(found.problem.rate)
    full = _overload_rate(fleet, design, rate)
    knee = _highest(lambda r: _waiting(fleet.figures(design, r)) <= _KNEE, rate)
    room = _headroom(fleet, design, rate)
    marks = (rate, knee, *(() if room is None else room.due_rate))
    marked = [r for r in marks if 0 < r < 1.1 * full and np.isfinite(r)]
    rates = np.unique([*(share * full for share in SHARES if np.isfinite(full)), *marked])
    return Load(rates, tuple(fleet.figures(design, r) for r in rates), full, knee, room)


def _waiting(figures: Metrics) -> float:
    """Share of the accepted requests that wait for a slot."""
    pools = figures.pools
    share = np.asarray(pools.share)
    return float((share * np.asarray(pools.wait_probability)).sum() / share.sum())


def _highest(holds: Callable[[float], bool], rate: float) -> float:
    """The highest rate at which something holds that does not hold again above; 0 or inf beyond `_REACH` times."""
    low, high = rate / _REACH, rate * _REACH
    if not holds(low):
        return 0.0
    if holds(high):
        return np.inf
    while high > low * (1.0 + _PRECISION):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def plan_knobs(found: Plan, *, by: str = "ttft") -> tuple[Knob, ...]:
    """The knobs of a plan that has a design, as `optim.knobs.knobs` ranks them; those that change no engine's law."""
    fleet, design = _fleet_of(found)
    problem = found.problem

    def turned(to: FleetDesign) -> tuple[Metrics, np.ndarray]:
        return fleet.figures(to, problem.rate), fleet.met(to, problem.rate)

    asked = (problem.limited, problem.rate, fleet.case.targets)
    return knobs(design, *asked, model=problem.model, by=by, kinds=KINDS, figures=turned)


def _fleet_of(found: Plan) -> tuple[_Fleet, FleetDesign]:
    design = found.design
    assert design is not None  # the callers' condition
    proposal = next(each.proposal for each in found.rounds if each.proposal.design is design)
    return _Fleet(proposal.case, proposal.profiles, proposal.pools, found.problem.model), design


def _overload_rate(fleet: _Fleet, design: FleetDesign, rate: float) -> float:
    """Where the most utilised pool is full; utilisation is in proportion to the rate, or nearly."""
    for _ in range(_PASSES):
        load = float(fleet.figures(design, rate).utilization)
        if load <= 0.0 or not np.isfinite(load):
            return np.inf
        if abs(load - 1.0) < _PRECISION:
            break
        rate /= load
    return rate


def _headroom(fleet: _Fleet, design: FleetDesign, rate: float) -> Headroom | None:
    """`optim.headroom.headroom`, by bisection on whether a pool meets its targets."""
    upper = fleet.padded(design)[1][None]
    sized = sized_designs(fleet.at(design, rate), upper, model=fleet.model)
    if not sized.feasible[0]:
        return None

    required = whole_replicas(sized.replicas)[0][list(fleet.pools)]
    return Headroom(
        rate=rate,
        due_rate=tuple(_highest(lambda r, p=p: bool(fleet.met(design, r)[p]), rate) for p in range(design.num_pools)),
        required=tuple(int(n) for n in required),
        usd_per_hour=tuple(np.asarray(design.profile.usd_per_hour, dtype=float).tolist()),
    )
