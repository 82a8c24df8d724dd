"""What `fleetgrad sensitivity` looks at: the pools that a file spells out, or the best plan of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from jaxsim.fleet import FleetDesign
from jaxsim.profiles import Profile
from optim.build import FleetRequest, fleet_request, is_given, plan_request
from optim.config import FLAGS, ConfigError, Settings
from optim.inputs import Inputs
from optim.plan import PRECISION, Plan, PlanStatus, plan
from optim.plan_file import SIMULATOR
from optim.problem import PlanProblem
from optim.sensitivity import Study, study
from optim.verify import Correction


@dataclass(frozen=True)
class SensitivityRequest:
    """A problem, and the fleet to look at where the file spells it out.

    Attributes:
        problem: load, objectives, model, hardware.
        design: None where it is to be planned.
    """

    problem: PlanProblem
    design: FleetDesign | None
    inputs: Inputs
    notes: tuple[str, ...] = ()


def sensitivity_request(settings: Settings) -> SensitivityRequest:
    """From a plan file and flags; pools that are spelled out go before hardware to choose from.

    Raises:
        ConfigError: something required is missing, or a value is out of its domain.
    """
    if settings.tables.fleet.pools is None:
        asked = plan_request(settings)
        return SensitivityRequest(asked.problem, None, asked.inputs, asked.notes)
    given = fleet_request(settings)
    if given.slo is None:
        hint = f"{FLAGS['slo.ttft_p99_ms']}: sizes and prices are for objectives"
        raise ConfigError(f"{settings.where('slo.ttft_p99_ms')} is required to price a fleet; give {hint}")
    if given.rate is None or not np.isfinite(given.rate):
        raise ConfigError(f"{settings.where('workload.rate')} is required to price a fleet, requests per second")
    if settings.tables.transfer is not None:
        raise settings.error(
            "transfer", "is for prefill and decode pools, whose sizes `fleetgrad disagg` finds; leave it out here"
        )
    return SensitivityRequest(_problem(given), given.design, given.inputs, (*given.notes, *_notes(settings)))


def _problem(given: FleetRequest) -> PlanProblem:
    assert given.slo is not None  # checked by the caller
    assert given.rate is not None
    design = given.design
    profiles: list[Profile] = []
    for p in range(design.num_pools):
        one = design.profile.at(p)
        if one.name not in [kept.name for kept in profiles]:
            profiles.append(one)
    return PlanProblem(
        workload=given.workload,
        rate=given.rate,
        profiles=tuple(profiles),
        slo=given.slo,
        max_pools=design.num_pools,
        max_context=float(np.asarray(design.upper_tokens)[-1]),
        model=given.model,
    )


def _notes(settings: Settings) -> tuple[str, ...]:
    """What the simulator's rules would change and the model does not know."""
    rules = [f"[{name}]" for name in SIMULATOR if is_given(settings, name)]
    if not rules:
        return ()
    return (f"{', '.join(rules)}: rules of the simulator, which the model does not know; not used",)


def study_fleet(
    request: SensitivityRequest,
    *,
    seed: int = 0,
    precision: float = PRECISION,
    simulate: bool = True,
    by: str = "ttft",
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[Study | None, Plan | None]:
    """The study, and the plan where there was one to make; no study where the plan is infeasible or refused."""
    if request.design is not None:
        progress("taking derivatives")
        return study(request.problem, request.design, by=by), None
    found = plan(request.problem, seed=seed, precision=precision, simulate=simulate, progress=progress)
    if found.design is None or found.status is PlanStatus.REFUSED:
        return None, found
    progress("taking derivatives")
    return study(request.problem, found.design, correction=correction_of(found), by=by), found


def correction_of(found: Plan) -> Correction:
    """What the simulator had taught when the plan's design was proposed, of the pools with requests."""
    for each in found.rounds:
        if each.proposal.design is found.design:
            at, used = list(each.proposal.pools), each.correction
            return Correction(used.ttft[at], used.tpot[at], used.ttft_floor_s[at], used.tpot_floor_s[at])
    raise ValueError("the plan has no design: nothing was corrected")
