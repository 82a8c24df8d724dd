"""schedule: a day's demand served by replicas that come and go, against a static fleet, checked by the simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np
from jaxtyping import Int

from jaxsim._checks import require, require_x64
from jaxsim.fleet import FleetDesign
from optim.defer import Deferrable, Moved, move
from optim.demand import RateProfile
from optim.problem import PlanProblem
from optim.rate_sizes import RateSizes
from optim.schedule_cost import GpuPrices
from optim.schedule_day import Day, Electric, Outcome, Scaling, replace_replicas
from optim.schedule_play import Played, Verdict, Window, hardest_stretch
from optim.verify import Correction

ROUNDS = 3

Progress = Callable[[str], None]


class ScheduleStatus(Enum):
    """How it ended. The values are the sentences."""

    VERIFIED = "schedule found; the simulator finds no interval above the objectives"
    UNVERIFIED = "schedule found; the simulator was not asked"
    INFEASIBLE = "some interval cannot be served within the objectives"
    REFUSED = "the simulator finds intervals above the objectives, after every correction"


@dataclass(frozen=True)
class Shift:
    """Requests that may wait, moved.

    Attributes:
        moved: by the linear program.
        before, after: exact, with the sizes of the model.
        taken: whether the exact result is better, so that the schedule is the moved one.
        objective: before and after, in dollars or kilograms of CO2 of the scheduled fleet.
    """

    deferrable: Deferrable
    moved: Moved
    before: Outcome
    after: Outcome
    objective: tuple[float, float]

    @property
    def taken(self) -> bool:
        """Whether moving pays, exactly."""
        return self.objective[1] < self.objective[0]


@dataclass(frozen=True)
class Round:
    """One play of the schedule: how many replicas had been added to what the model asks for, and what came of it."""

    added: Int[np.ndarray, "intervals pools"]
    played: Played


@dataclass(frozen=True)
class DaySchedule:
    """The answer.

    Attributes:
        problem: load, objectives and model; its rate is the highest of the demand.
        design: hardware and thresholds; its replicas are those of the static fleet.
        demand: as it is served, after what may wait has been moved.
        asked: as it arrives.
        modelled: what each interval needs by the model, and whether that can be had.
        reasons: why there is no schedule.
        outcome: with what the simulator added; None where `status` is INFEASIBLE.
        shift: None where nothing may wait.
        window: what was played; None where the simulator was not asked.
        static: the static fleet in the simulator.
        rounds: plays of the schedule, the last one first of all what counts.
    """

    status: ScheduleStatus
    problem: PlanProblem
    design: FleetDesign
    demand: RateProfile
    asked: RateProfile
    scaling: Scaling
    prices: GpuPrices
    modelled: RateSizes
    seed: int
    reasons: tuple[str, ...] = ()
    outcome: Outcome | None = None
    shift: Shift | None = None
    window: Window | None = None
    static: Played | None = None
    rounds: tuple[Round, ...] = field(default=(), repr=False)

    @property
    def played(self) -> Played | None:
        """The schedule in the simulator, as it is now."""
        return self.rounds[-1].played if self.rounds else None

    @property
    def coin_flips(self) -> tuple[int, ...]:
        """Intervals that the simulator can neither pass nor fail."""
        return () if self.played is None else self.played.of(Verdict.COIN_FLIP)


def schedule(
    problem: PlanProblem,
    design: FleetDesign,
    demand: RateProfile,
    *,
    scaling: Scaling | None = None,
    prices: GpuPrices | None = None,
    correction: Correction | None = None,
    electric: Electric | None = None,
    deferrable: Deferrable | None = None,
    verify: bool = True,
    rounds: int = ROUNDS,
    play_s: float | None = None,
    seed: int = 0,
    progress: Progress = lambda _: None,
) -> DaySchedule:
    """Replicas over a day, what they cost beside a static fleet, and what the simulator says of both.

    Args:
        problem: lengths, objectives and model; the rate is taken from the demand.
        design: hardware and thresholds; its own replicas do not matter.
        demand: requests per second over the day.
        scaling: cold start, hold and spare; left out, `Scaling()`.
        prices: of a GPU-hour of each pool; left out, the profiles' on demand.
        correction: of the model, one entry per pool; left out, none.
        electric: power and grid; left out, no energy is reckoned. `step` model only.
        deferrable: requests that may wait; left out, none.
        verify: whether the simulator is asked.
        rounds: times that intervals which miss get a replica more and the day is played again.
        play_s: longest stretch to play, seconds; left out, the day, or as much of it as `MOST_REQUESTS` allows.
        seed: of the simulator.
        progress: told what is being done.

    Returns:
        DaySchedule; an interval that cannot be served and the simulator's refusal are statuses, not exceptions.

    Raises:
        ValueError: an argument out of its domain, or nothing that makes one hour better than another to defer to.
    """
    require_x64()
    require(rounds >= 0, "rounds", rounds, ">= 0")
    if electric is not None and problem.model != "step":
        raise ValueError("electricity is reckoned from the occupancy of the step model; got model 'kimura'")
    problem = problem.with_rate(float(demand.rates.max()))
    correction = Correction.none(design.num_pools) if correction is None else correction
    scaling = Scaling() if scaling is None else scaling
    usd = tuple(float(v) for v in np.asarray(design.profile.usd_per_gpu_hour))
    prices = GpuPrices(usd) if prices is None else prices
    day = Day(problem, design, correction, scaling, prices, electric)
    progress("sizing every interval")
    modelled = day.sizes(demand.rates)
    made = DaySchedule(ScheduleStatus.INFEASIBLE, problem, design, demand, demand, scaling, prices, modelled, seed)
    if reasons := _reasons(day, demand, modelled):
        return replace(made, reasons=reasons)
    outcome = day.outcome(demand, modelled.replicas.astype(np.int64))
    if deferrable is not None:
        progress("moving what may wait")
        shift = _shifted(day, demand, deferrable, outcome)
        made = replace(made, shift=shift)
        if shift.taken:
            outcome = shift.after
            made = replace(made, demand=shift.moved.demand, modelled=day.sizes(shift.moved.demand.rates))
    if verify:
        made, outcome = _verified(day, made, outcome, rounds, play_s, progress)
    else:
        made = replace(made, status=ScheduleStatus.UNVERIFIED)
    return replace(made, outcome=outcome, design=replace_replicas(design, outcome.static.most))


def _reasons(day: Day, demand: RateProfile, modelled: RateSizes) -> tuple[str, ...]:
    """Intervals that no number of replicas serves, and those above the cap on GPUs."""
    said = []
    for pool in np.flatnonzero(~modelled.feasible.all(axis=0)).tolist():
        which = demand.named(np.flatnonzero(~modelled.feasible[:, pool]))
        said.append(f"no number of replicas meets the objectives in pool {pool} in {which}")
    cap, gpus = day.problem.max_gpus, modelled.replicas @ np.array(day.gpus)
    if cap is not None and not said and (over := np.flatnonzero(gpus > cap)).size:
        said.append(f"more than the cap of {cap} GPUs, up to {gpus.max():.0f}, are needed in {demand.named(over)}")
    return tuple(said)


def _shifted(day: Day, demand: RateProfile, deferrable: Deferrable, before: Outcome) -> Shift:
    grid = None if day.electric is None else day.electric.grid
    of = None if grid is None else grid.usd_per_kwh if deferrable.minimize == "usd" else grid.kg_co2_per_kwh
    if of is None and (deferrable.minimize == "carbon" or day.prices.reserved is None):
        what = "a carbon intensity" if deferrable.minimize == "carbon" else "an electricity price or a reserved price"
        raise ValueError(f"deferrable requests need {what}: without one, no hour is better than another")
    moved = move(demand, deferrable, day.request_costs(demand, deferrable.minimize))
    sized = day.sizes(moved.demand.rates)
    after = day.outcome(moved.demand, sized.replicas.astype(np.int64))
    objective = (day.objective(before, deferrable.minimize), day.objective(after, deferrable.minimize))
    return Shift(deferrable, moved, before, after, objective)


def _verified(
    day: Day, made: DaySchedule, outcome: Outcome, rounds: int, play_s: float | None, progress: Progress
) -> tuple[DaySchedule, Outcome]:
    """Play, add a replica where an interval misses, and play again."""
    demand, modelled = made.demand, outcome.needed
    window = hardest_stretch(demand, modelled, lead_s=day.lead_s(modelled), most_s=play_s)
    added = np.zeros_like(modelled)
    tries: list[Round] = []
    while True:
        progress(f"playing the schedule, try {len(tries) + 1}")
        played = day.play(outcome.scheduled, demand, window, made.seed)
        tries.append(Round(added, played))
        missed = [found for found in played.intervals if found.verdict is Verdict.MISSED]
        if not missed or len(tries) > rounds:
            break
        added = added.copy()
        for found in missed:
            added[found.interval, list(found.short)] += 1
        added = _as_many(demand, modelled, added, window)
        outcome = day.outcome(demand, modelled + added)
    progress("playing the static fleet")
    static = day.play(outcome.static, demand, window, made.seed)
    status = ScheduleStatus.REFUSED if missed else ScheduleStatus.VERIFIED
    return replace(made, status=status, window=window, static=static, rounds=tuple(tries)), outcome


def _as_many(
    demand: RateProfile,
    modelled: Int[np.ndarray, "intervals pools"],
    added: Int[np.ndarray, "intervals pools"],
    window: Window,
) -> Int[np.ndarray, "intervals pools"]:
    """Intervals that were not played get no fewer than a played one of no higher rate."""
    played = np.array(window.intervals)
    raised = added.copy()
    for k in sorted(set(range(demand.num_intervals)) - set(window.intervals)):
        lower = played[demand.rates[played] <= demand.rates[k]]
        if lower.size:
            raised[k] = np.maximum(added[k], (modelled + added)[lower].max(axis=0) - modelled[k])
    return raised
