"""What people read of a plan: the verdict first, then the pools, the proof, the knobs, the inputs and the notes.

Everything here returns rich renderables; the command line prints them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from des import Estimate, PoolResult, Sample
from jaxsim.evaluate import Metrics
from jaxsim.fleet import FleetDesign
from jaxsim.profiles import Profile
from optim.binding import Binding
from optim.build import PlanRequest
from optim.documents import plan_warnings
from optim.energy_entries import certificate_entry, plan_power_entry
from optim.inputs import Inputs
from optim.plan import Plan, PlanStatus
from optim.plan_power import PlanPower
from optim.plan_power_report import certificate_sentence, kw, power_sentences
from optim.problem import SLO
from optim.verdict import Verdict
from optim.verify import Verification
from optim.words import fleet, given, interval, ms, number, percent, ranges, usd, whole

UNMEASURED = "published, not measured"


def table(*columns: str, title: str | None = None, left: Sequence[str] = ()) -> Table:
    """A plain table; columns are right-aligned unless named in `left`, and what is too long is folded, not cut."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        made.add_column(column, justify="left" if column in left else "right", overflow="fold")
    return made


def plan_report(plan: Plan, request: PlanRequest, inputs: Inputs) -> Group:
    """A plan as a page."""
    parts: list[RenderableType] = [verdict(plan), ""]
    if plan.design is not None and plan.analytic is not None:
        results = None if plan.verification is None else plan.verification.result.pools
        parts += [pools_table(plan.design, plan.analytic, results), ""]
        parts += [*_power(plan), *_proof(plan), *_binding(plan), "", *_sensitivities(plan), ""]
    if len(plan.rounds) > 1 or plan.status is PlanStatus.REFUSED:
        parts += [_rounds(plan), ""]
    parts += [inputs_table(inputs), ""]
    profiles = plan.problem.profiles
    notes = [*request.notes, *plan_warnings(plan), *_workload_notes(plan)]
    parts += [*sources(profiles), *bullets("Notes", notes)]
    return Group(*parts)


def verdict(plan: Plan) -> Text:
    """The answer in a sentence."""
    slo = plan.problem.slo
    if plan.design is None or plan.analytic is None or plan.usd_per_hour is None:
        lines = [f"INFEASIBLE: {reason.text}." for reason in plan.reasons]
        return Text("\n".join(lines), style="bold red")
    power = "" if plan.power is None else f", {kw(plan.power.bill.kilowatts)}"
    what = f"{fleet(plan.design)}: {usd(plan.usd_per_hour)}/h{power}."
    if plan.verification is None:
        figures = slo_sentence("Model's", ms(plan.analytic.ttft_p99_s), ms(plan.analytic.tpot_p99_s), slo)
        return Text(f"{what} {figures}; NOT verified by the simulator.", style="bold yellow")
    found = plan.verification
    figures = slo_sentence("Simulated", interval(found.ttft_p99_s), interval(found.tpot_p99_s), slo)
    if plan.status is PlanStatus.VERIFIED:
        flips = [f"pool {p}" for p, pool in enumerate(found.pools) if pool.verdict(slo) is not Verdict.MET]
        but = f"; {Verdict.COIN_FLIP.value} in {', '.join(flips)}, whose own interval crosses it" if flips else ""
        return Text(f"{what} {figures}: met{but}.", style="bold yellow" if flips else "bold green")
    why = verdict_words(found) if plan.power is None or not found.slo_met else _over_budget(plan.power)
    return Text(f"REFUSED: the simulator said no to every candidate. The last, {what} {figures}: {why}.", "bold red")


def _over_budget(power: PlanPower) -> str:
    return f"met, but {kw(power.simulated_kilowatts)} simulated are above the budget of {kw(power.budget_kw)}"


def verdict_words(found: Verification) -> str:
    """What the simulator said, in a few words."""
    if found.overloaded:
        return "overloaded"
    return "a coin flip (an interval crosses its SLO)" if found.verdict is Verdict.COIN_FLIP else found.verdict.value


def slo_sentence(who: str, ttft: str, tpot: str, slo: SLO | None) -> str:
    """Both P99s beside their objectives."""
    ttft_slo = "no objective" if slo is None else f"SLO {given(slo.ttft_p99_s * 1e3)} ms"
    tpot_slo = (
        "no objective" if slo is None or slo.tpot_p99_s is None else f"SLO {given(round(slo.tpot_p99_s * 1e3, 9))} ms"
    )
    return f"{who} P99 TTFT {ttft} ms ({ttft_slo}), P99 TPOT {tpot} ms ({tpot_slo})"


def pools_table(design: FleetDesign, metrics: Metrics, results: Sequence[PoolResult] | None) -> Table:
    """Figures down, pools across."""
    pools, count = metrics.pools, design.num_pools
    made = table("", *(f"pool {p}" for p in range(count)), "fleet", left=("",))

    def row(title: str, values: Iterable[str], whole_fleet: str = "") -> None:
        made.add_row(title, *values, whole_fleet)

    def each(values: Any) -> list[float]:
        return [float(v) for v in np.asarray(values)]

    row("profile", design.profile.name)
    replicas, gpus = np.asarray(design.replicas), np.asarray(design.replicas * design.profile.gpus_per_replica)
    row(
        "replicas (GPUs)",
        [f"{n:.0f} ({g:.0f})" for n, g in zip(replicas, gpus, strict=True)],
        f"{replicas.sum():.0f} ({gpus.sum():.0f})",
    )
    row("total tokens of a request", ranges(design))
    row("share of requests", map(percent, each(pools.share)), percent(1.0 - float(metrics.rejected_share)))
    row("rate, req/s", map(number, each(pools.rate)), number(metrics.rate))
    row("utilisation at full batch", [f"{u:.3f}" for u in each(pools.utilization)], f"{float(metrics.utilization):.3f}")
    active = zip(each(pools.active_batch), each(pools.concurrency_limit), strict=True)
    row("active batch of limit, a replica", [f"{number(a)} of {whole(limit)}" for a, limit in active])
    quantiles = zip(each(pools.ttft_p50_s), each(pools.ttft_p95_s), each(pools.ttft_p99_s), strict=True)
    row(
        "TTFT P50 / P95 / P99, model, ms",
        [" / ".join(map(ms, three)) for three in quantiles],
        " / ".join(map(ms, (metrics.ttft_p50_s, metrics.ttft_p95_s, metrics.ttft_p99_s))),
    )
    if results is not None:
        row("TTFT P99, simulated, ms", [interval(_p99(r.ttft)) for r in results])
    row(
        "TPOT mean / P99, model, ms",
        [f"{ms(m)} / {ms(q)}" for m, q in zip(each(pools.tpot_mean_s), each(pools.tpot_p99_s), strict=True)],
        f"{ms(metrics.tpot_mean_s)} / {ms(metrics.tpot_p99_s)}",
    )
    if results is not None:
        row("TPOT P99, simulated, ms", [interval(_p99(r.tpot)) for r in results])
    row("price, $/h", map(usd, each(pools.usd_per_hour)), usd(metrics.usd_per_hour))
    row(
        "$/million output tokens",
        map(usd, each(pools.usd_per_million_output_tokens)),
        usd(metrics.usd_per_million_output_tokens),
    )
    return made


def _p99(sample: Sample) -> Estimate | None:
    return sample.quantile(0.99) if sample.n else None


def _proof(plan: Plan) -> list[RenderableType]:
    if plan.certificate is None:
        return []
    power = None if plan.power is None else plan_power_entry(plan.power)
    return [Text(certificate_sentence(certificate_entry(plan.certificate), power))]


def _power(plan: Plan) -> list[RenderableType]:
    return [] if plan.power is None else [Text(power_sentences(plan.power))]


def _binding(plan: Plan) -> list[RenderableType]:
    return [Text(line) for line in binding_lines([(bound.name.lower(), bound.value) for bound in plan.binding])]


def binding_lines(bounds: Sequence[tuple[str, str]]) -> list[str]:
    """What keeps each pool from having one replica less, from the name and the words of each pool's binding."""
    many, lone = len(bounds) > 1, Binding.ONE_REPLICA
    return [
        f"Binding{f' in pool {p}' if many else ''}: "
        f"{words if words == lone.value else f'with one replica less {words}'} ({name})."
        for p, (name, words) in enumerate(bounds)
    ]


def _sensitivities(plan: Plan) -> list[RenderableType]:
    if plan.sensitivities is None:
        return []
    lines = price_lines(vars(plan.sensitivities), tpot=plan.problem.slo.tpot_p99_s is not None)
    dollars = "; dollars of the GPUs that the objectives need" if plan.problem.aim.powered else ""
    return list(bullets(f"Next knob ({DERIVATIVES}{dollars})", lines))


DERIVATIVES = "derivatives of the model; replicas as real numbers"


def price_lines(slopes: Mapping[str, Any], *, tpot: bool) -> list[str]:
    """The fields of a plan's `Sensitivities` in words; `tpot`: whether there is an objective on it."""
    lines = [
        f"+1 req/s costs {usd(slopes['usd_per_hour_per_rps'])}/h",
        _objective("TTFT", slopes["usd_per_hour_per_ttft_ms"]),
        *([_objective("TPOT", slopes["usd_per_hour_per_tpot_ms"])] if tpot else []),
    ]
    each = zip(slopes["ttft_p99_ms_per_replica"], slopes["tpot_p99_ms_per_replica"], strict=True)
    return lines + [
        f"one replica more in pool {p}: P99 TTFT {_signed(ttft)} ms, P99 TPOT {_signed(tpot_ms)} ms (slope here)"
        for p, (ttft, tpot_ms) in enumerate(each)
    ]


def _objective(name: str, slope: float) -> str:
    if abs(slope) < 1e-9:
        return f"the P99 {name} objective does not bind: relaxing it saves nothing"
    verb = "saves" if slope < 0 else "costs"
    return f"relaxing the P99 {name} objective by 1 ms {verb} {usd(abs(slope))}/h"


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{number(value)}"


def _rounds(plan: Plan) -> Table:
    table = Table(title="Tries", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    power = ("kW, model / simulated",) if plan.power is not None else ()
    for column in ("", "fleet", "$/h", *power, "P99 TTFT, ms", "P99 TPOT, ms", "simulator"):
        table.add_column(column, justify="left" if column in ("fleet", "simulator") else "right")
    for k, each in enumerate(plan.rounds):
        found = each.verification
        said = "not asked" if found is None else "overloaded" if found.overloaded else found.verdict.value
        if found is not None and found.slo_met and not each.met:
            said = "above the budget on power"
        drawn = [number(v, 4) if v is not None else "-" for v in (each.proposal.kilowatts, each.kilowatts)]
        ttft, tpot = (None, None) if found is None else (found.ttft_p99_s, found.tpot_p99_s)
        price = f"{each.proposal.usd_per_hour:,.2f}"
        columns = [price, *([" / ".join(drawn)] if power else []), interval(ttft), interval(tpot), said]
        table.add_row(str(k + 1), fleet(each.proposal.design), *columns)
    return table


def inputs_table(inputs: Inputs) -> Table:
    """Every input and where it came from."""
    table = Table(title="Inputs", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("input", "value", "from"):
        table.add_column(column, overflow="fold")
    for key, entry in inputs.items():
        table.add_row(key, shown(entry.value), entry.source)
    return table


def shown(value: object) -> str:
    """An input's value as someone gave it."""
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {shown(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return ("; " if any(isinstance(inner, Mapping) for inner in value) else ", ").join(map(shown, value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return given(value) if math.isfinite(value) else str(value)
    return "yes" if value is True else "no" if value is False else str(value)


def sources(profiles: Sequence[Profile]) -> list[RenderableType]:
    """A line for each profile's source, loud where nobody measured it."""
    lines: list[RenderableType] = []
    for profile in profiles:
        loud = UNMEASURED in str(profile.source)
        lines.append(Text(f"Profile {profile.name}: {profile.source}.", style="yellow" if loud else ""))
    return lines


def bullets(title: str, lines: Sequence[str]) -> list[RenderableType]:
    """A title and its lines; nothing without lines."""
    if not lines:
        return []
    listed = Table.grid(padding=(0, 1))
    for line in lines:
        listed.add_row(" -", line)
    return [Text(f"{title}:"), listed]


def _workload_notes(plan: Plan) -> list[str]:
    workload = plan.problem.workload
    found = plan.verification
    notes = [f"workload {workload.name}: {workload.source}", *(f"workload: {note}" for note in workload.notes)]
    if found is not None:
        result = found.result
        notes.append(
            f"simulated {result.num_requests:,} requests with seed {result.seed}, the first "
            f"{percent(result.warmup_fraction)} of the time left out; {percent(found.attainment)} of all offered "
            "requests met every objective"
        )
        if result.undefined_tpot:
            notes.append(
                f"{result.undefined_tpot:,} requests with one output token have no TPOT and are left out of it"
            )
    return notes
