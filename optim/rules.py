"""From the simulator's tables of a plan file to the rules that `des.simulate` takes, each input with its source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import des
from jaxsim.engine import DISPATCHES
from jaxsim.units import SECONDS_PER_HOUR
from jaxsim.workload import Workload
from optim.config import Settings
from optim.inputs import Inputs
from optim.plan_file import CHOICES, SIMULATOR
from optim.rule_tables import (
    arrival_process,
    choice_of,
    failure_rules,
    note,
    router_rules,
    schedule_rows,
    serving_rules,
    transfer_link,
)

TIMED = ("trace", "piecewise")
"""Processes with a rate of their own."""


@dataclass(frozen=True)
class Rules:
    """How a fleet is played, beside its design, workload and rate.

    Attributes:
        arrivals_text: the arrivals in words.
        inputs: every rule with its source.
        notes: what a reader must know of them.
    """

    serving: des.Serving
    router: des.Router
    arrivals: des.ArrivalProcess
    concurrency: int | None
    transfer: des.KvTransfer | None
    failures: des.Failures | None
    schedule: des.Schedule | None
    arrivals_text: str
    inputs: Inputs
    notes: tuple[str, ...] = ()

    @property
    def arguments(self) -> dict[str, Any]:
        """For `des.simulate`."""
        names = ("serving", "router", "arrivals", "concurrency", "transfer", "failures", "schedule")
        return {name: getattr(self, name) for name in names}

    @property
    def routed_by_total(self) -> bool:
        """Whether the true total decides the pool, as in the model's split of the load."""
        return isinstance(self.router, des.LengthRouter | des.CompressRouter) and isinstance(
            self.router.knows, des.Total
        )


def simulator_rules(
    settings: Settings, workload: Workload, *, profiles: Sequence[str], model: str, routers: bool = False
) -> Rules:
    """The rules that a plan file and flags give.

    Args:
        profiles: name of each pool's.
        routers: the router is chosen elsewhere, among several (`optim.compare_routers`).

    Raises:
        ConfigError: a key that the choice beside it does not take, one that it needs, or a value out of its domain.
    """
    num_pools = len(profiles)
    _check_choices(settings, leave_out="router." if routers else None)
    if model == "kimura":
        _check_kimura(settings)
    if routers and settings.tables.transfer is not None:
        raise settings.error("transfer", "must be left out: routers choose among pools that serve whole requests")
    inputs: Inputs = {}
    with settings.naming(*SIMULATOR):
        process = arrival_process(settings, workload, inputs)
        serving = serving_rules(settings, workload, inputs)
        router = des.LengthRouter() if routers else router_rules(settings, workload, inputs)
        if settings.tables.transfer is not None and num_pools != 2:
            raise settings.error("transfer", f"is for two pools, prefill and decode; the file has {num_pools}")
        transfer = transfer_link(settings, profiles, inputs)
        failures = failure_rules(settings, inputs)
        schedule = schedule_rows(settings, num_pools, inputs)
    if serving.prefix_cache_blocks == 0 and router.dispatch == "prefix-affinity":
        raise settings.error("router.dispatch", "'prefix-affinity' needs a prefix cache: serving.prefix_cache_tokens")
    if failures is not None and schedule is not None:
        problem = "must be left out beside [[schedule]]: a repair would bring back what the schedule took away"
        raise settings.error("failures", problem)
    concurrency = settings.tables.arrivals.concurrency
    note(settings, inputs, "arrivals.concurrency", default="default: no limit")
    unused = [f"router.{key}" for key in ("kind", "knows") if routers and settings.value(f"router.{key}") is not None]
    notes = [f"{', '.join(unused)}: for `fleetgrad simulate`; all routers are compared"] if unused else []
    if serving.prefix_cache_blocks and process.name != "trace":
        notes.append(
            "requests are drawn from the trace's rows, each many times in a long run, and a prompt that is drawn again "
            'is found in the prefix cache: hits are overstated; process = "trace" plays each once'
        )
    return Rules(
        serving,
        router,
        process,
        concurrency,
        transfer,
        failures,
        schedule,
        _arrivals_text(process, concurrency, settings.tables.arrivals.rate_table, workload),
        inputs,
        tuple(notes),
    )


def own_rate(settings: Settings, rules: Rules, workload: Workload) -> tuple[float | None, str] | None:
    """The rate where the plan file gives none, and its source; None where the workload must have one.

    A trace and a rate table keep their own times. Clients of a closed loop send as fast as they are answered.
    """
    if settings.tables.workload.rate is not None:
        return None
    if rules.arrivals.name in TIMED:
        with settings.naming(*SIMULATOR):
            rate = rules.arrivals.mean_rate(None, workload)
        known = rate if np.isfinite(rate) else None  # all at one instant
        return known, "the trace's own rate" if rules.arrivals.name == "trace" else "the rate table's own mean"
    if rules.concurrency is not None:
        return None, "default: as fast as its clients can"
    return None


def known_arrivals(rules: Rules, *, model: str) -> tuple[str, float]:
    """Dispatch and index of dispersion of the arrivals as the model takes them; the usual ones where it cannot."""
    step = model == "step"
    dispatch = rules.router.dispatch if step and rules.router.dispatch in DISPATCHES else "least-loaded"
    return dispatch, rules.arrivals.cv**2 if step and isinstance(rules.arrivals, des.Renewal) else 1.0


def beyond_model(rules: Rules, num_pools: int, *, model: str) -> list[str]:
    """Rules that the analytical model does not know, as phrases."""
    dispatch, _ = known_arrivals(rules, model=model)
    serving, found = rules.serving, []
    if serving.budgeted:
        found.append(f"{serving.scheduling} scheduling")
    if serving.kv != "reserve":
        found.append(f'KV blocks by the rule "{serving.kv}"')
    if serving.prefix_cache_blocks:
        found.append("the prefix cache")
    if rules.arrivals.name != "poisson" and not (model == "step" and isinstance(rules.arrivals, des.Renewal)):
        found.append(f"{rules.arrivals.name} arrivals")
    if rules.concurrency is not None:
        found.append("the closed loop")
    if num_pools > 1 and not rules.routed_by_total:
        found.append("the router")
    if rules.router.dispatch != dispatch:
        found.append(f"{rules.router.dispatch} dispatch")
    if rules.failures is not None:
        found.append("failures")
    if rules.schedule is not None:
        found.append("the schedule")
    return found


def _arrivals_text(process: des.ArrivalProcess, concurrency: int | None, file: str | None, workload: Workload) -> str:
    text = _process_text(process, "a table" if file is None else Path(file).name, workload)
    return text if concurrency is None else f"{text}; at most {concurrency:,} outstanding (closed loop)"


def _process_text(process: des.ArrivalProcess, file: str, workload: Workload) -> str:
    if isinstance(process, des.Renewal):
        return f"independent {process.law} gaps, cv {process.cv:g}"
    if isinstance(process, des.MarkovModulated):
        pairs = zip(process.rates, process.mean_stay_s, strict=True)
        states = ", ".join(f"{rate:g} for {stay:g} s" for rate, stay in pairs)
        return f"Poisson, at a rate that switches between states (relative rate, mean stay): {states}"
    if isinstance(process, des.PiecewiseRate):
        peak = max(process.rate) / process.mean_rate(None, workload)
        hours = f"{process.end_s / SECONDS_PER_HOUR:.4g} h" + (", over and over" if process.repeat else "")
        return (
            f"Poisson, at the rates of {file}: {len(process.rate)} windows over {hours}, peak {peak:.3g} times the mean"
        )
    return "the trace's own, once" if isinstance(process, des.Trace) else "Poisson"


def _check_choices(settings: Settings, *, leave_out: str | None) -> None:
    """Every key is one that the choice it belongs to takes."""
    for choice, keys in CHOICES.items():
        if leave_out is not None and choice.startswith(leave_out):
            continue
        table, _, chooser = choice.partition(".")
        chosen = choice_of(settings, choice)
        for name, takers in keys.items():
            key = f"{table}.{name}"
            if settings.value(key) is None or chosen in takers:
                continue
            by_default = "" if settings.value(choice) is not None else ", the default"
            allowed = " or ".join(repr(taker) for taker in takers)
            raise settings.error(key, f"is for {chooser} = {allowed}; {chooser} is {chosen!r}{by_default}")


def _check_kimura(settings: Settings) -> None:
    hint = 'the reference model has constant work; use model = "step"'
    for key, allowed in (("serving.scheduling", ("independent",)), ("serving.kv", ("reserve", "overflow"))):
        chosen = choice_of(settings, key)
        if chosen not in allowed:
            known = " or ".join(map(repr, allowed))
            raise settings.error(key, f'must be {known} under model = "kimura", got {chosen!r}; {hint}')
    if settings.tables.transfer is not None:
        raise settings.error("transfer", f'must be left out under model = "kimura"; {hint}')
