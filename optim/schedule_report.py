"""A day's schedule as a page: the verdict, what it costs, each interval, what may wait, and the notes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from jaxsim.units import MS_PER_S, SECONDS_PER_HOUR
from optim.inputs import Inputs
from optim.plan import Plan
from optim.report import bullets, inputs_table, sources, table, verdict
from optim.schedule import DaySchedule, ScheduleStatus, Shift
from optim.schedule_cost import DayCost, usd_by_interval
from optim.schedule_day import Outcome
from optim.schedule_document import assumed, stretch_words, warnings_of
from optim.schedule_play import IntervalFigures, Verdict
from optim.schedule_power import DayEnergy
from optim.words import compact, given, interval, ms, number, percent, usd

MOST_ROWS = 48
_SAID = {Verdict.MET: "met", Verdict.COIN_FLIP: "coin flip", Verdict.MISSED: "MISSED", Verdict.EMPTY: "empty"}


def schedule_report(found: DaySchedule | None, planned: Plan | None, notes: Sequence[str], inputs: Inputs) -> Group:
    """A day as a page; `found` is None where the plan at the highest rate came to nothing."""
    if found is None:
        assert planned is not None  # a fleet that is spelled out always has a day
        return Group(verdict(planned), "", inputs_table(inputs), "", *bullets("Notes", list(notes)))
    parts: list[RenderableType] = [schedule_verdict(found), ""]
    if found.outcome is not None:
        parts += [_costs(found), *_reservations(found.outcome.cost, found), ""]
    if found.shift is not None:
        parts += [_shifted(found.shift), ""]
    parts += [_intervals(found), *_intervals_notes(found), ""]
    parts += [inputs_table(inputs), "", *sources(found.problem.profiles)]
    parts += bullets("Taken for granted", assumed(found))
    parts += bullets("Notes", warnings_of(found, planned, notes))
    return Group(*parts)


def schedule_verdict(found: DaySchedule) -> Text:
    """The answer in a sentence or two."""
    outcome = found.outcome
    if outcome is None:
        return Text("\n".join(f"INFEASIBLE: {reason}." for reason in found.reasons), style="bold red")
    cost, names = outcome.cost, [str(name) for name in found.design.profile.name]
    day = f"per {given(round(cost.hours, 6))} h"
    saved = percent(cost.saved_usd / cost.static.usd)
    what = (
        f"{_between(names, outcome)}: {usd(cost.scheduled.usd)} {day} on demand against {usd(cost.static.usd)} for the "
        f"static fleet ({saved} saved)."
    )
    if cost.split_usd is not None:
        name, least_usd = cost.cheapest
        what += f" Cheapest: {name}, {usd(least_usd)}."
    if found.status is ScheduleStatus.UNVERIFIED:
        return Text(f"{what} NOT verified by the simulator.", style="bold yellow")
    said, style = _simulated(found)
    return Text(f"{what} {said}", style=style)


def _between(names: Sequence[str], outcome: Outcome) -> str:
    """The fewest and the most replicas: 1 to 5 x h100-80gb."""
    least, most = outcome.needed.min(axis=0).tolist(), outcome.needed.max(axis=0).tolist()
    if len(set(names)) == 1:
        return f"{_plus(least)} to {compact(names, most)}"
    return f"{compact(names, least)} to {compact(names, most)}"


def _plus(counts: Sequence[int]) -> str:
    return " + ".join(map(str, counts))


def _simulated(found: DaySchedule) -> tuple[str, str]:
    """What the simulator says, and how to colour it."""
    played = found.played
    assert played is not None  # checked by the caller
    judged = [one for one in played.intervals if one.verdict is not Verdict.EMPTY]
    missed, flips = played.of(Verdict.MISSED), found.coin_flips
    met = len(judged) - len(missed) - len(flips)
    what = f"Simulated ({stretch_words(found)}): {met} of {len(judged)} intervals met"
    if flips:
        what += (
            f", {len(flips)} {'is a coin flip' if len(flips) == 1 else 'are coin flips'} ({found.demand.named(flips)})"
        )
    added = int(found.rounds[-1].added.sum())
    if added:
        what += f", after {added} replica-interval{'' if added == 1 else 's'} more than the model asks for"
    if found.status is ScheduleStatus.REFUSED:
        return f"REFUSED. {what}; MISSED: {found.demand.named(missed)}.", "bold red"
    return f"{what}, none missed.", "bold yellow" if flips else "bold green"


def _costs(found: DaySchedule) -> RenderableType:
    outcome = found.outcome
    assert outcome is not None  # checked by the caller
    cost = outcome.cost
    made = table("a day", "static fleet", "schedule", left=("a day",))
    least, most = outcome.needed.min(axis=0).tolist(), outcome.needed.max(axis=0).tolist()
    made.add_row("replicas", _plus(most), f"{_plus(least)} to {_plus(most)}")
    both = (cost.static, cost.scheduled)
    made.add_row("GPU-hours", *(number(sum(one.gpu_hours), 4) for one in both))
    made.add_row("  of these in cold starts", *(number(sum(one.starting_gpu_hours), 3) for one in both))
    made.add_row("cold starts", *(str(sum(one.starts)) for one in both))
    made.add_row("on demand", *(usd(one.usd) for one in both))
    if cost.static_reserved_usd is not None and cost.split_usd is not None:
        made.add_row("reserved / best split", usd(cost.static_reserved_usd), usd(cost.split_usd))
    energies = (outcome.static_energy, outcome.scheduled_energy)
    for title, values in _energy_rows(energies).items():
        made.add_row(title, *values)
    return made


def _energy_rows(energies: tuple[DayEnergy | None, ...]) -> dict[str, list[str]]:
    used = [one for one in energies if one is not None]
    if not used:
        return {}
    rows = {"electricity, kWh": [number(one.total_kwh, 4) for one in used]}
    if used[0].total_usd is not None:
        rows["electricity, $"] = [usd(one.total_usd) for one in used]
    if used[0].total_kg_co2 is not None:
        rows["kg CO2"] = [number(one.total_kg_co2, 4) for one in used]
    return rows


def _reservations(cost: DayCost, found: DaySchedule) -> list[RenderableType]:
    if cost.reserved is None or cost.breakeven is None or found.outcome is None:
        return []
    lines = []
    for p, (one, share) in enumerate(zip(cost.reserved, cost.breakeven, strict=True)):
        most = found.outcome.scheduled.most[p]
        where = f"pool {p}: " if len(cost.reserved) > 1 else ""
        lines.append(
            f"{where}reserve {one.replicas} of {most}; a replica is worth its reservation from {percent(share)} of the "
            f"time on, and the {most} are there for {_shares(found, p)}"
        )
    return list(bullets("Reservations (every number priced)", lines))


def _shares(found: DaySchedule, pool: int) -> str:
    assert found.outcome is not None  # checked by the caller
    staffed = found.outcome.scheduled
    shares = staffed.billed_s(pool) / staffed.paid_s
    if len(shares) > 8:
        return f"{percent(shares[0])} down to {percent(shares[-1])}"
    return ", ".join(percent(share) for share in shares)


def _shifted(shift: Shift) -> RenderableType:
    asked = shift.deferrable
    unit = (lambda v: f"{number(v, 4)} kg CO2") if asked.minimize == "carbon" else usd
    moved, wait_h = percent(shift.moved.moved_share), number(shift.moved.mean_wait_s / SECONDS_PER_HOUR)
    allowed = f"allowed: {percent(asked.share)}, {given(asked.max_wait_s / SECONDS_PER_HOUR)} h"
    before, after = (unit(value) for value in shift.objective)
    what = (
        f"Deferred: {moved} of the requests would be moved, by {wait_h} h in the mean ({allowed}). Exact, by the "
        f"model: {before} before, {after} after"
    )
    return Text(f"{what}: {'moved' if shift.taken else 'not worth it, nothing is moved'}.")


def _shown(found: DaySchedule) -> list[int]:
    """Intervals to print: all, or where there are many, those at which something changes or is amiss."""
    count = found.demand.num_intervals
    if count <= MOST_ROWS or found.outcome is None:
        return list(range(min(count, MOST_ROWS)))
    needed = found.outcome.needed
    changed = np.any(needed != np.roll(needed, 1, axis=0), axis=1)
    amiss = set() if found.played is None else set(found.played.of(Verdict.MISSED, Verdict.COIN_FLIP))
    return [k for k in range(count) if k == 0 or changed[k] or k in amiss][:MOST_ROWS]


def _intervals(found: DaySchedule) -> RenderableType:
    outcome, demand, slo = found.outcome, found.demand, found.problem.slo
    played = {} if found.played is None else {one.interval: one for one in found.played.intervals}
    fixed = {} if found.static is None else {one.interval: one for one in found.static.intervals}
    columns = ["from", "req/s", "replicas"]
    if outcome is not None:
        columns += ["$"]
    if played:
        columns += ["TTFT P99, ms", "static", "TPOT P99, ms", "SLO"]
    tpot = "" if slo.tpot_p99_s is None else f", TPOT {given(round(slo.tpot_p99_s * MS_PER_S, 9))} ms"
    title = f"Intervals (SLO: P99 TTFT {given(round(slo.ttft_p99_s * MS_PER_S, 9))} ms{tpot})"
    made = table(*columns, title=title, left=("from", "SLO"))
    gpus = np.asarray(found.design.profile.gpus_per_replica).tolist()
    if outcome is not None:
        money = usd_by_interval(outcome.scheduled, demand.edges_s, gpus, found.prices.on_demand)
    for k in _shown(found):
        counts = found.modelled.replicas[k] if outcome is None else outcome.needed[k]
        row = [demand.clock(k), number(demand.rate[k]), _plus([int(n) for n in counts])]
        style = ""
        if outcome is not None:
            row.append(f"{money[k]:,.2f}")
        elif not found.modelled.feasible[k].all():
            row[2], style = "infeasible", "red"
        if played:
            row += _figures(played.get(k), fixed.get(k))
            style = {"MISSED": "bold red", "coin flip": "yellow"}.get(row[-1], "dim" if k not in played else "")
        made.add_row(*row, style=style)
    return made


def _figures(one: IntervalFigures | None, static: IntervalFigures | None) -> list[str]:
    if one is None or static is None:
        return ["not played", "", "", ""]
    fixed = static.fleet.ttft_p99_s
    of_static = "none" if fixed is None else ms(fixed.value)
    return [interval(one.fleet.ttft_p99_s), of_static, interval(one.fleet.tpot_p99_s), _SAID[one.verdict]]


def _intervals_notes(found: DaySchedule) -> list[RenderableType]:
    lines = []
    hidden = found.demand.num_intervals - len(_shown(found))
    if hidden > 0:
        lines.append(
            f"{hidden} intervals are not shown, those in which nothing changes first; --json and --out have all"
        )
    if found.static is not None and (late := found.static.of(Verdict.MISSED)):
        lines.append(f"the static fleet misses too: {found.demand.named(late)}")
    pools = [] if found.played is None else [one for one in found.played.intervals if one.short]
    for one in pools[:6]:
        lines.append(f"{found.demand.clock(one.interval)}: short in {', '.join(f'pool {p}' for p in one.short)}")
    return list(bullets("Of the intervals", lines))
