"""From checked settings to what the library takes: PlanProblem, FleetDesign, Workload, each input with its source."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import des
from jaxsim.fleet import FleetDesign
from jaxsim.profiles import Profile
from jaxsim.workload import Workload
from optim.config import ConfigError, Settings
from optim.inputs import Input, Inputs
from optim.plan_file import OWN, SIMULATOR, PoolTable
from optim.power_settings import power_terms
from optim.problem import SLO, PlanProblem
from optim.profile_file import find_profile
from optim.rule_tables import transfer_link
from optim.rules import Rules, own_rate, simulator_rules
from optim.table_types import Table
from optim.workload_settings import load_inputs, rate_of, workload_of

MAX_POOLS = 2
LONG_REQUESTS = "reject"
MODEL = "step"


@dataclass(frozen=True)
class PlanRequest:
    """What a plan file asks for. `notes` are about what it says and this command does not use."""

    problem: PlanProblem
    inputs: Inputs
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FleetRequest:
    """A fleet to simulate.

    Attributes:
        rate: requests per second; None for clients of a closed loop that send as fast as they can.
        slo: None where the file sets no objective.
        rules: of the simulator.
    """

    design: FleetDesign
    workload: Workload
    rate: float | None
    slo: SLO | None
    model: str
    rules: Rules
    inputs: Inputs
    notes: tuple[str, ...] = ()


def plan_request(settings: Settings, *, used: tuple[str, ...] = (), power: bool = False) -> PlanRequest:
    """The problem that a plan file and flags describe.

    Args:
        settings: the file with the flags laid over it.
        used: tables that the caller reads itself, so that no note calls them unused.
        power: whether the table of power is part of the problem.

    Raises:
        ConfigError: something required is missing, or a value is out of its domain.
    """
    slo, fleet = settings.tables.slo, settings.tables.fleet
    if slo.ttft_p99_ms is None:
        raise settings.missing("slo.ttft_p99_ms", "it has no default: what P99 do your users need?")
    if fleet.profiles is None:
        raise settings.missing("fleet.profiles", 'hardware to choose from, such as ["h100-80gb"]')
    workload = workload_of(settings)
    rate = rate_of(settings, workload)
    profiles = tuple(_profile(settings, "fleet.profiles", name) for name in fleet.profiles)
    of_power: Inputs = {}
    terms, notes = power_terms(settings, profiles, fleet.model or MODEL, of_power) if power else (None, ())
    with settings.naming("workload", "slo", "fleet"):
        problem = PlanProblem(
            workload=workload,
            rate=rate,
            profiles=profiles,
            slo=_slo(settings),
            max_pools=MAX_POOLS if fleet.max_pools is None else fleet.max_pools,
            max_context=fleet.max_context,
            long_requests=fleet.long_requests or LONG_REQUESTS,
            model=fleet.model or MODEL,
            max_gpus=fleet.max_gpus,
            power=terms,
        )
    inputs = {
        **load_inputs(settings, workload, rate),
        **_slo_inputs(settings),
        "profiles": Input([p.name for p in profiles], settings.source("fleet.profiles")),
        "max_pools": Input(problem.max_pools, settings.source("fleet.max_pools")),
        "max_context_tokens": Input(
            problem.context, settings.source("fleet.max_context", "default: the longest request of the workload")
        ),
        "long_requests": Input(problem.long_requests, settings.source("fleet.long_requests")),
        "model": Input(problem.model, settings.source("fleet.model")),
        "max_gpus": Input(problem.max_gpus, settings.source("fleet.max_gpus", "default: no cap")),
        **of_power,
    }
    return PlanRequest(problem, inputs, (*_unused_to_plan(settings, (*used, "power") if power else used), *notes))


@dataclass(frozen=True)
class DisaggRequest:
    """What a plan file with a link asks for."""

    problem: PlanProblem
    link: des.KvTransfer
    inputs: Inputs
    notes: tuple[str, ...] = ()


def disagg_request(settings: Settings) -> DisaggRequest:
    """The problem and the link that a plan file and flags describe.

    Raises:
        ConfigError: something required is missing, or a value is out of its domain.
    """
    asked = plan_request(settings)
    if asked.problem.slo.tpot_p99_s is None:
        hint = "without it nothing sizes the pool that generates"
        raise settings.missing("slo.tpot_p99_ms", hint)
    inputs = {**asked.inputs}
    names = [str(profile.name) for profile in asked.problem.profiles]
    with settings.naming("transfer"):
        link = transfer_link(settings, names, inputs)
    if link is None:
        hint = "the link that KV caches go over, such as 50 for 400 Gbit/s"
        raise settings.missing("transfer.gb_per_s", hint)
    return DisaggRequest(asked.problem, link, inputs, _unused_to_plan(settings, used=("transfer",)))


def _unused_to_plan(settings: Settings, used: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Notes on what only the simulator of a fleet that is spelled out uses."""
    unused = ["fleet.pools"] if settings.tables.fleet.pools is not None else []
    unused += [table for table in SIMULATOR if table not in used and is_given(settings, table)]
    notes = _unused_own(settings, used)
    if unused:
        was = "it was not used" if len(unused) == 1 else "they were not used"
        notes = (f"{', '.join(unused)}: for `fleetgrad simulate` and `compare-routers`; {was}", *notes)
    return notes


def _unused_own(settings: Settings, used: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Notes on tables of other commands."""
    return tuple(
        f"{table}: for `fleetgrad {commands}`; it was not used"
        for table, commands in OWN.items()
        if table not in used and is_given(settings, table)
    )


def is_given(settings: Settings, table: str) -> bool:
    """Whether a file or a flag says anything of a table."""
    found = settings.value(table)
    return bool(found.model_fields_set) if isinstance(found, Table) else found is not None


def fleet_request(settings: Settings, *, routers: bool = False) -> FleetRequest:
    """The fleet that a plan file spells out.

    Args:
        routers: the router is chosen elsewhere, among several (`optim.compare_routers`).

    Raises:
        ConfigError: no pools, thresholds that do not ascend, or a value out of its domain.
    """
    fleet = settings.tables.fleet
    if fleet.pools is None:
        raise ConfigError(
            f"{settings.where('fleet.pools')} is required to simulate; spell the pools out: [[fleet.pools]] with "
            "profile, replicas, max_context and, for all but the last, upper_tokens"
        )
    disaggregated = settings.tables.transfer is not None
    contexts, upper = _shared_range(settings, fleet.pools) if disaggregated else _ranges(settings, fleet.pools)
    profiles = [_profile(settings, f"fleet.pools[{k}].profile", pool.profile) for k, pool in enumerate(fleet.pools)]
    with settings.naming("workload", "slo", "fleet"):
        design = FleetDesign.of(profiles, [float(p.replicas) for p in fleet.pools], upper, max_context=contexts)
    whole = workload_of(settings)
    policy = fleet.long_requests or LONG_REQUESTS
    workload = whole.limited(upper[-1], policy)
    model = fleet.model or MODEL
    names = [str(profile.name) for profile in profiles]
    rules = simulator_rules(settings, workload, profiles=names, model=model, routers=routers)
    own = own_rate(settings, rules, whole)
    rate, said = (rate_of(settings, whole), "the workload's own rate") if own is None else own
    inputs = {
        **load_inputs(settings, whole, rate, said),
        **_slo_inputs(settings),
        "pools": Input(len(upper), settings.source("fleet.pools")),
        "max_context_tokens": Input(
            upper[-1], settings.source("fleet.max_context", settings.source("fleet.pools") + " (last pool)")
        ),
        "long_requests": Input(policy, settings.source("fleet.long_requests")),
        "model": Input(model, settings.source("fleet.model")),
        **rules.inputs,
    }
    unused = [f"fleet.{name}" for name in ("profiles", "max_pools", "max_gpus") if getattr(fleet, name) is not None]
    notes = _unused_own(settings)
    if unused:
        notes = (f"{', '.join(unused)}: for `fleetgrad plan`; not used", *notes)
    slo = None if settings.tables.slo.ttft_p99_ms is None else _slo(settings)
    return FleetRequest(design, workload, rate, slo, model, rules, inputs, (*notes, *rules.notes))


def _shared_range(settings: Settings, pools: list[PoolTable]) -> tuple[list[float], list[float]]:
    """max_context and upper_tokens of a prefill and a decode pool, which serve the same requests."""
    for k, pool in enumerate(pools):
        if pool.upper_tokens is not None:
            problem = "must be left out beside [transfer]: every request goes to pool 0, then to pool 1"
            raise settings.error(f"fleet.pools[{k}].upper_tokens", problem)
    contexts = [_context(settings, k, pool) for k, pool in enumerate(pools)]
    return contexts, [min(contexts)] * len(contexts)


def _context(settings: Settings, k: int, pool: PoolTable) -> float:
    context = settings.tables.fleet.max_context if pool.max_context is None else pool.max_context
    if context is None:
        problem = "is required: longest request in tokens, as fleet.max_context"
        raise settings.error(f"fleet.pools[{k}].max_context", problem)
    return context


def _ranges(settings: Settings, pools: list[PoolTable]) -> tuple[list[float], list[float]]:
    """max_context and upper_tokens of each pool."""
    contexts: list[float] = []
    upper: list[float] = []
    for k, pool in enumerate(pools):
        context = _context(settings, k, pool)
        key, last = f"fleet.pools[{k}]", k == len(pools) - 1
        if pool.upper_tokens is None and not last:
            raise settings.error(f"{key}.upper_tokens", "is required for every pool but the last: its threshold")
        threshold = context if pool.upper_tokens is None else pool.upper_tokens
        if threshold > context:
            hint = "the pool would be sent requests that it rejects"
            raise settings.error(
                f"{key}.upper_tokens", f"must be <= the pool's max_context {context:g}, got {threshold:g}; {hint}"
            )
        if upper and threshold <= upper[-1]:
            raise settings.error(
                f"{key}.upper_tokens",
                f"must be > {upper[-1]:g}, the pool before, got {threshold:g}; list short pools first",
            )
        contexts.append(context)
        upper.append(threshold)
    return contexts, upper


def _slo(settings: Settings) -> SLO:
    table = settings.tables.slo
    tpot = None if table.tpot_p99_ms is None else table.tpot_p99_ms / 1e3
    return SLO(ttft_p99_s=float(table.ttft_p99_ms or np.nan) / 1e3, tpot_p99_s=tpot)


def _profile(settings: Settings, key: str, name: str) -> Profile:
    try:
        return find_profile(name, settings.path(key, name))
    except ValueError as error:
        raise settings.error(key, error) from error


def _slo_inputs(settings: Settings) -> Inputs:
    table = settings.tables.slo
    return {
        key: Input(getattr(table, key), settings.source(f"slo.{key}", "default: no objective"))
        for key in ("ttft_p99_ms", "tpot_p99_ms")
    }
