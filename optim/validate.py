"""validate: whether the profile of a plan still holds, by what a running pool or a benchmark of it shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial

import jax.numpy as jnp
import numpy as np

from jaxsim.fit.rescale import scaled
from jaxsim.observed import Observed
from jaxsim.profiles import Profile
from optim.export_plan import ExportFleet
from optim.figures import lengths_alone
from optim.headroom import Headroom, headroom
from optim.problem import SLO, PlanProblem
from optim.sizing import Targets
from optim.slopes import Point
from optim.validate_compare import Part, Row, Tolerances, compare, decisive, of_part
from optim.validate_load import Load
from optim.validate_predict import Predicted, modelled, simulated
from optim.validate_refit import Refit, all_off, refit
from optim.verdict import Verdict, verdict_of
from optim.words import number


class ValidationStatus(Enum):
    """The answer. The values are its words."""

    HOLDS = "the profile holds"
    TAILS_OFF = "the profile's step times hold, the tails do not"
    DOES_NOT_HOLD = "the profile does not hold"
    NOT_JUDGED = "the profile cannot be judged"


@dataclass(frozen=True)
class Objective:
    """A P99 against its objective, now: `verdict` is None where it was not measured."""

    figure: str
    limit_s: float
    low_s: float
    high_s: float
    verdict: Verdict | None


@dataclass(frozen=True)
class Validation:
    """What was found.

    Attributes:
        fleet, load, seen: the plan, the pool at the measured load, and the measurement.
        status: the answer.
        reason: why, in a sentence.
        model, simulated: the plan's profile at that load; None where it was not asked, or cannot be.
        rows: measured latencies beside it; () where the load was not steady.
        objectives: the plan's SLOs, now.
        refit: the profile that shows what was measured; None where the plan's does, or where there is none.
        no_refit: why there is none.
        due: when the next replica is due, by the model with the refitted profile, else the plan's; None without an SLO
            or where it is out of reach.
        tolerances: that were allowed.
        seed: of the simulations.
    """

    fleet: ExportFleet
    load: Load
    seen: Observed
    status: ValidationStatus
    reason: str
    model: Predicted | None
    simulated: Predicted | None
    rows: tuple[Row, ...]
    objectives: tuple[Objective, ...]
    refit: Refit | None
    no_refit: str
    due: Headroom | None
    tolerances: Tolerances
    seed: int

    @property
    def holds(self) -> bool:
        """Whether everything that was measured agrees with the plan's profile."""
        return self.status is ValidationStatus.HOLDS


def validate(
    fleet: ExportFleet,
    load: Load,
    seen: Observed,
    *,
    simulate: bool = True,
    tolerances: Tolerances = Tolerances(),
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> Validation:
    """Hold a plan's profile against a measurement, at the measured load.

    Args:
        fleet: the plan.
        load: the pool that was measured, as `optim.validate_load.load_of` makes it.
        seen: the measurement.
        simulate: judge by simulation, which knows every figure and its scatter; else by the model.
        tolerances: relative.
        seed: of the simulations.
        progress: told what is being done.

    Raises:
        ValueError: a closed loop without simulation, which the model does not know.
    """
    if load.concurrency is not None and not simulate:
        raise ValueError(
            f"--no-simulate must be left out for a closed loop, got {seen.source} with {seen.concurrency} clients; "
            "the model has arrivals at a rate of their own only"
        )
    profile = load.pool.profile
    progress("evaluating the model at the measured load")
    model = partial(modelled, load)
    at_load = model(profile)

    def result(
        status: ValidationStatus,
        reason: str,
        found: Predicted | None = None,
        rows: tuple[Row, ...] = (),
        made: Refit | None = None,
        no_refit: str = "",
        *,
        due: bool = True,
    ) -> Validation:
        room = _due(load, fleet.slo, profile if made is None else made.profile) if due else None
        said = found if simulate else None
        met = tuple(_objectives(fleet.slo, seen, rows))
        return Validation(
            fleet, load, seen, status, reason, at_load, said, rows, met, made, no_refit, room, tolerances, seed
        )

    if seen.unsteady:
        return result(ValidationStatus.NOT_JUDGED, _unsteady(seen, at_load), due=False)

    def judge(tried: Profile) -> Predicted:
        if simulate:
            return simulated(load, tried, measured=seen.completed, seed=seed)
        found = model(tried)
        assert found is not None  # not a closed loop
        return found

    progress("simulating the measured load" if simulate else "comparing with the model")
    found, rows = compare(seen, profile, judge, at_load, tolerances)
    if not any(row.part for row in rows):
        return result(
            ValidationStatus.NOT_JUDGED, "no TTFT, TPOT or gap between tokens is among the metrics", found, rows
        )
    off = all_off(rows)
    if not off:
        return result(ValidationStatus.HOLDS, _agreement(rows), found, rows)
    if all(row.part is Part.TAIL for row in off):
        return result(ValidationStatus.TAILS_OFF, _tails(off), found, rows, no_refit="step times explain the means")
    progress("refitting the profile")
    made = refit(seen, profile, judge, model, rows, tolerances)
    if isinstance(made, str):
        return result(ValidationStatus.DOES_NOT_HOLD, _disagreement(rows, found), found, rows, no_refit=made)
    return result(ValidationStatus.DOES_NOT_HOLD, _disagreement(rows, found), found, rows, made)


def _unsteady(seen: Observed, model: Predicted | None) -> str:
    """What can be said of a load that was no steady state."""
    if model is None:
        return seen.unsteady
    share = f"by the profile this rate is {model.utilization:.2f} of the pool's capacity"
    if model.overloaded:
        return f"{seen.unsteady}; {share}: it is overloaded"
    return f"{seen.unsteady}; {share}" + (", so it should have kept up" if seen.window else "")


def _name(row: Row) -> str:
    figure, statistic = row.key
    return f"{'mean' if statistic == 'mean' else statistic.upper()} {figure.upper()}"


def _agreement(rows: tuple[Row, ...]) -> str:
    judged = [row for row in rows if row.part is not None]
    main = decisive(rows, Part.DECODE) or decisive(rows, Part.PROMPT) or judged[0]
    missing = [] if decisive(rows, Part.DECODE) else ["; no TPOT was measured, so step times are judged by TTFT alone"]
    return (
        f"{_name(main)} is {number(main.ratio)} times what it predicts at the measured load, and all "
        f"{len(judged)} figures that were judged agree{''.join(missing)}"
    )


def _tails(off: list[Row]) -> str:
    each = ", ".join(f"{_name(row)} is {number(row.ratio)} times" for row in off)
    return (
        f"the means agree and {each} what is predicted: arrivals that come in bursts, another scheduler, or outliers, "
        "not longer steps"
    )


def _disagreement(rows: tuple[Row, ...], found: Predicted) -> str:
    if found.overloaded:
        return "with it the pool would be overloaded at the measured load, and it was not"
    off = [row for part in (Part.DECODE, Part.PROMPT) for row in of_part(rows, part, off=True)]
    each = ", ".join(f"{_name(row)} is {number(row.ratio)} times" for row in off)
    kept = (
        "" if any(row.part is Part.DECODE for row in off) or not decisive(rows, Part.DECODE) else "; step times agree"
    )
    return f"{each} what it predicts at the measured load{kept}"


def _objectives(slo: SLO | None, seen: Observed, rows: tuple[Row, ...]) -> Iterator[Objective]:
    if slo is None:
        return
    known = {row.key: (row.low_s, row.high_s) for row in rows}
    for figure, limit in (("ttft", slo.ttft_p99_s), ("tpot", slo.tpot_p99_s)):
        if limit is None:
            continue
        reading = seen.reading(figure, "p99")
        if reading is None:
            yield Objective(figure, limit, math.nan, math.nan, None)
            continue
        low, high = known.get(reading.key, (reading.low_s, reading.high_s))
        yield Objective(figure, limit, low, high, verdict_of(low, high, limit))


def _due(load: Load, slo: SLO | None, profile: Profile) -> Headroom | None:
    """When the next replica of the pool is due, at the measured lengths; None where the SLO is out of reach."""
    if slo is None:
        return None
    tried = scaled(profile, prompt=load.computed_share)
    problem = PlanProblem(
        workload=load.workload, rate=load.rate, profiles=(tried,), slo=slo, max_context=load.context, model=load.model
    )
    tpot = np.inf if slo.tpot_p99_s is None else slo.tpot_p99_s
    targets = Targets(*(jnp.asarray(np.full(1, value), dtype=float) for value in (slo.ttft_p99_s, tpot)))
    point = Point.of(load.design(tried), problem, targets)
    found = headroom(point, lengths_alone(problem.limited), model=load.model)
    return found if found.fleet_due_rate > 0 else None
