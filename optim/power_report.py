"""Grid flexibility and tokens per watt as pages for people."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from des import Estimate
from jaxsim.energy import Electricity, Energy
from jaxsim.profiles import Profile
from optim.energy_entries import bill_of
from optim.inputs import Inputs
from optim.plan import PlanStatus
from optim.power_flex import Flexibility, Level, SafeLevel
from optim.power_terms import Prices
from optim.power_tokens import Ranked, Ranking
from optim.report import bullets, inputs_table, sources, table
from optim.words import fleet, given, interval, ms, number, percent, usd

_LONG_S = 10.0

LEVER = {
    "cap": "every engine runs fewer requests at a time",
    "off": "replicas are switched off",
}


def flex_report(found: Flexibility, prices: Prices, inputs: Inputs, warnings: Sequence[str]) -> Group:
    """The levels as a page."""
    parts: list[RenderableType] = [flex_verdict(found), "", _now(found, prices), ""]
    parts += [*_levels(found), "", *_explained(found), "", inputs_table(inputs), ""]
    profiles = {str(p.name): p for p in (found.design.profile.at(k) for k in range(found.design.num_pools))}
    return Group(*parts, *sources(list(profiles.values())), *bullets("Notes", list(warnings)))


def flex_verdict(found: Flexibility) -> Text:
    """What the fleet can give, in a sentence or two."""
    what = f"{fleet(found.design)} draws {_kw(found.now.watts)} at {number(found.rate)} req/s; {LEVER[found.lever]}."
    sentences = [what]
    event = f"an event of {_minutes(found.event.length_s)}"
    if found.slo is None:
        sentences.append("No SLO was given, so no level is called safe.")
    for level, long, who in (
        (found.sustained_safe, "sustained", "model"),
        (found.event_safe, f"for {event}", "simulated"),
    ):
        if level is not None:
            sentences.append(_safe_sentence(level, long, who))
    safe = [level.safe for level in (found.sustained_safe, found.event_safe) if level is not None]
    return Text(" ".join(sentences), style="bold green" if safe and max(safe) > 0 else "bold yellow")


def _safe_sentence(level: SafeLevel, long: str, who: str) -> str:
    if level.setting is None:
        return f"Not even as it is does it keep the SLO {long} ({who})."
    setting = level.setting
    held = "" if setting.caps is None else f", at a batch of {_plus(setting.caps)}"
    on = f", with {_plus(setting.replicas)} replica{'' if sum(setting.replicas) == 1 else 's'} on"
    if level.unsafe >= 1.0:
        return f"As deep as the lever goes, {percent(level.safe)}, the SLO is kept {long} ({who}{held or on})."
    if level.safe <= 0.0:
        return f"No level is safe {long} ({who}): at {percent(level.unsafe)} the SLO is missed already."
    return f"Safe {long}: {percent(level.safe)} ({who}{held or on}); at {percent(level.unsafe)} the SLO is missed."


def _plus(values: Sequence[float]) -> str:
    return " + ".join(f"{value:g}" for value in values)


def _kw(watts: object) -> str:
    return f"{number(float(np.asarray(watts)) / 1e3)} kW"


def _minutes(seconds: float) -> str:
    return f"{given(round(seconds / 60.0, 6))} min"


def _now(found: Flexibility, prices: Prices) -> RenderableType:
    used = found.now
    made = table("as it is", "value", left=("as it is",))
    pools = used.pools
    for p in range(found.design.num_pools):
        many = f", pool {p}" if found.design.num_pools > 1 else ""
        made.add_row(f"running requests of an engine{many}", number(pools.active[p]))
        made.add_row(f"W of a GPU{many}", number(pools.watts_per_gpu[p], 4))
    figures = found.figures
    made.add_row("utilisation at full batch", f"{float(figures.utilization):.3f}")
    made.add_row("TTFT P99, model, ms", ms(figures.ttft_p99_s))
    made.add_row("TPOT P99, model, ms", ms(figures.tpot_p99_s))
    for name, value in _bill(used, bill_of(used, prices), prices.pue).items():
        made.add_row(name, value)
    return made


def _bill(used: Energy, bill: Electricity, pue: float) -> dict[str, str]:
    rows = {"output tokens/J (tokens/s per W), GPUs": number(used.tokens_per_joule)}
    at = "GPUs alone" if pue == 1.0 else f"PUE {given(pue)}"
    rows[f"kW, {at}"] = number(bill.kilowatts, 4)
    rows[f"kWh/million output tokens, {at}"] = number(bill.kwh_per_million_tokens)
    if bill.usd_per_hour is not None and bill.usd_per_million_tokens is not None:
        rows["electricity, $/h"] = usd(bill.usd_per_hour)
        rows["electricity, $/million output tokens"] = usd(bill.usd_per_million_tokens)
    if bill.kg_co2_per_hour is not None and bill.kg_co2_per_million_tokens is not None:
        rows["kg CO2/h"] = number(bill.kg_co2_per_hour)
        rows["kg CO2/million output tokens"] = number(bill.kg_co2_per_million_tokens)
    return rows


def _levels(found: Flexibility) -> list[RenderableType]:
    """What each level holds the fleet to and delivers, and what it costs."""
    simulated = found.undisturbed is not None
    held = ("batch cap, exact", "whole") if found.lever == "cap" else ("replicas on",)
    power = table(
        "asked", *held, "load at full batch", "delivered, model", *(["delivered, simulated"] if simulated else [])
    )
    columns = ["TTFT sustained", "TPOT sustained", "TTFT, event, model"]
    columns += ["TTFT, event, simulated", "TPOT, event, simulated"] if simulated else []
    p99 = table("asked", *columns, title="P99, ms (or s, where it says so)")
    for made in (power, p99):
        for column in made.columns:
            column.overflow = "fold"
    for level in found.levels:
        style = "" if level.reachable else "dim"
        power.add_row(percent(level.share), *_held(found, level), *_delivered(found, level), style=style)
        row = [_time(level.ttft_p99_s), _time(level.tpot_p99_s), _time(level.event_ttft_p99_s)]
        if level.event is not None:
            row += [_time_interval(level.event.ttft_p99_s), _time_interval(level.event.tpot_p99_s)]
        p99.add_row(percent(level.share), *row, style=style)
    return [power, p99]


def _held(found: Flexibility, level: Level) -> list[str]:
    if found.lever == "off":
        return [_plus(level.setting.replicas)]
    if level.setting.caps is None or level.real_caps is None:
        return ["none", "none"]
    return [" + ".join(number(cap, 4) for cap in level.real_caps), _plus(level.setting.caps)]


def _delivered(found: Flexibility, level: Level) -> list[str]:
    row = [f"{level.utilization:.3f}", f"{'' if level.reachable else 'at most '}{percent(level.delivered)}"]
    if level.event is not None and found.undisturbed is not None:
        row.append(percent(1.0 - level.event.watts / found.undisturbed.watts))
    return row


def _time(seconds: float) -> str:
    """Milliseconds, or seconds where there are ten and more."""
    if not np.isfinite(seconds):
        return "overload"
    return ms(seconds) if seconds < _LONG_S else f"{number(seconds)} s"


def _time_interval(estimate: Estimate | None) -> str:
    if estimate is None:
        return "none"
    if estimate.value < _LONG_S:
        return interval(estimate)
    return f"{number(estimate.value)} [{number(estimate.low)}, {number(estimate.high)}] s"


def _explained(found: Flexibility) -> list[RenderableType]:
    lines = []
    if found.lever == "cap":
        lines.append(
            f"a cap takes away {percent(found.most)} at most: at a batch of 1 the GPUs still draw their idle power"
        )
    overloaded = [level for level in found.levels if level.utilization >= 1.0]
    if overloaded:
        lines.append(
            f"from {percent(overloaded[0].share)} on, less is served than arrives: sustained, the queue grows; "
            f"in {_minutes(found.event.length_s)} it grows to what the event's P99 says, and drains afterwards"
        )
    return list(bullets("Reading the table", lines))


def tokens_report(found: Ranking, prices: Prices, inputs: Inputs, warnings: Sequence[str]) -> Group:
    """The ranking as a page."""
    parts: list[RenderableType] = [tokens_verdict(found), "", _ranking_table(found, prices), ""]
    parts += [_curves(found), "", inputs_table(inputs), ""]
    return Group(*parts, *sources(list(found.problem.profiles)), *bullets("Notes", list(warnings)))


def tokens_verdict(found: Ranking) -> Text:
    """The best GPU in a sentence, and whether they may be compared."""
    best = found.ranked[0]
    said = f"{found.model_text[0].upper()}{found.model_text[1:]}."
    if best.energy is None:
        return Text(f"INFEASIBLE: no profile meets the objectives. {said}", style="bold red")
    what = (
        f"Most output tokens per joule at {given(found.problem.rate)} req/s: {best.profile.name}, "
        f"{number(best.energy.tokens_per_joule)} ({_how(best)})."
    )
    return Text(f"{what} {said}", style="bold green" if found.same_model else "bold yellow")


def _how(one: Ranked) -> str:
    known = {
        PlanStatus.VERIFIED: "SLO verified by the simulator",
        PlanStatus.UNVERIFIED: "SLO by the model, not simulated",
        PlanStatus.REFUSED: "the simulator refused it",
    }
    return known.get(one.plan.status, one.plan.status.value)


def _ranking_table(found: Ranking, prices: Prices) -> RenderableType:
    names = [str(one.profile.name) for one in found.ranked]
    made = table("at equal SLO", *names, left=("at equal SLO",))
    for column in made.columns[1:]:
        column.overflow = "fold"
    rows: dict[str, list[str]] = {}
    keys: list[str] = []
    columns = [_ranked_column(one, prices) for one in found.ranked]
    for one in columns:
        keys += [key for key in one if key not in keys]
    for key in keys:
        rows[key] = [one.get(key, "") for one in columns]
        made.add_row(key, *rows[key])
    return made


def _ranked_column(one: Ranked, prices: Prices) -> dict[str, str]:
    made = one.plan
    if one.energy is None or one.bill is None or made.design is None or made.analytic is None:
        return {"fleet": "; ".join(reason.text for reason in made.reasons)}
    pools = one.energy.pools
    checked = made.verification
    return {
        "fleet": f"{float(made.design.replicas[0]):.0f} replicas",
        "GPUs": f"{float(pools.gpus[0]):.0f}",
        "utilisation at full batch": f"{float(made.analytic.utilization):.3f}",
        "TTFT P99, ms": ms(made.analytic.ttft_p99_s) if checked is None else interval(checked.ttft_p99_s),
        "TPOT P99, ms": ms(made.analytic.tpot_p99_s) if checked is None else interval(checked.tpot_p99_s),
        "SLO": _how(one),
        "running requests of an engine": number(pools.active[0]),
        "W of a GPU": number(pools.watts_per_gpu[0], 4),
        **_bill(one.energy, one.bill, prices.pue),
        **_prices(float(made.analytic.usd_per_million_output_tokens), one.bill),
    }


def _prices(fleet_usd: float, bill: Electricity) -> dict[str, str]:
    rows = {"fleet, $/million output tokens": usd(fleet_usd)}
    if bill.usd_per_million_tokens is not None:
        rows["both, $/million output tokens"] = usd(fleet_usd + float(bill.usd_per_million_tokens))
    return rows


def _curves(found: Ranking) -> RenderableType:
    with_curve = [one for one in found.ranked if one.curve]
    names = [str(one.profile.name) for one in with_curve]
    title = "Output tokens/J of the same fleets over utilisation (model, uncorrected; * it misses the SLO there)"
    made = table("utilisation", *names, title=title)
    for column in made.columns[1:]:
        column.overflow = "fold"
    for k in range(len(with_curve[0].curve) if with_curve else 0):
        points = [one.curve[k] for one in with_curve]
        cells = [f"{number(point.tokens_per_joule)}{'' if point.slo_met else ' *'}" for point in points]
        made.add_row(f"{points[0].utilization:.2f}", *cells)
    return made


def profile_notes(profiles: Sequence[Profile]) -> list[str]:
    """Where the model of power is known to be rough."""
    many = [str(p.name) for p in profiles if float(p.gpus_per_replica) > 1]
    notes = ["power of a GPU follows from how many requests run, as the law says: prompts add nothing to it"]
    if many:
        notes.append(f"{', '.join(many)}: every GPU of a replica is taken to draw what one does at the replica's batch")
    return notes
