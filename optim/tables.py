"""What people read of a sweep, a grid, a trace and the presets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from jaxsim.profiles import Profile
from jaxsim.trace_stats import LengthSummary, TraceStatistics
from optim.build import PlanRequest
from optim.documents import Document, profile_warnings
from optim.inputs import Input, Inputs
from optim.pareto import AXES, ParetoFront
from optim.plan_power_report import kw
from optim.profile_file import NUMBERS
from optim.report import bullets, inputs_table, slo_sentence, sources, table
from optim.words import compact, fleet, given, ms, number, percent, usd, whole

LISTED = 12
"""Values of an input that are listed where there are too many points to list."""


def pareto_report(front: ParetoFront, request: PlanRequest, inputs: Inputs) -> Group:
    """A sweep over thresholds as a page."""
    powered = request.problem.power is not None
    power = ("kW",) if powered else ()
    columns = ("fleet", "threshold", "$/h", *power, "P99\nTTFT, ms", "P99\nTPOT, ms", "utili-\nsation", "SLO", "")
    made = table(*columns, left=("fleet", "SLO", ""))
    for k, point in enumerate(front.points):
        figures = point.analytic
        best = k == front.recommended
        made.add_row(
            compact(point.design.profile.name, np.asarray(point.design.replicas).tolist()),
            "none" if point.threshold is None else whole(point.threshold),
            f"{point.usd_per_hour:,.2f}",
            *([number(point.kilowatts, 4) + ("" if point.within_budget else "*")] if powered else []),
            ms(figures.ttft_p99_s),
            ms(figures.tpot_p99_s),
            f"{float(figures.utilization):.3f}",
            "met" if point.slo_met else "no",
            "recommended" if best else "dominated" if point.dominated else "front",
            style="dim" if point.dominated else "bold" if best else "",
        )
    marks = _front_words(front, request)
    return Group(pareto_verdict(front, request), "", made, marks, "", inputs_table(inputs), "", *_footer(request))


def pareto_verdict(front: ParetoFront, request: PlanRequest) -> Text:
    """The answer in a sentence."""
    if front.recommended is None:
        return Text(f"INFEASIBLE: {_nothing(front)}.", style="bold red")
    chosen, slo = front.points[front.recommended], request.problem.slo
    sentence = slo_sentence("Model's", ms(chosen.analytic.ttft_p99_s), ms(chosen.analytic.tpot_p99_s), slo)
    drawn = "" if chosen.kilowatts is None else f", {kw(chosen.kilowatts)}"
    return Text(
        f"Recommended: {fleet(chosen.design)}: {usd(chosen.usd_per_hour)}/h{drawn}. {sentence}; not simulated.",
        style="bold green",
    )


def _front_words(front: ParetoFront, request: PlanRequest) -> Text:
    """What the front is in, and what its marks mean."""
    said = [f"Front: no other design is as good in all of {'; '.join(AXES[axis] for axis in front.axes)}."]
    if front.points and front.points[0].kwh_per_million_tokens is not None:
        factor = front.points[0].kwh_per_million_tokens / float(front.points[0].kilowatts or np.nan)
        said.append(f"A kW is {number(factor)} kWh per million output tokens at this load.")
    if not all(point.within_budget for point in front.points):
        said.append(f"*: above the budget of {kw(request.problem.aim.max_kw)}.")
    return Text(" ".join(said))


def _nothing(front: ParetoFront) -> str:
    met = [point for point in front.points if point.slo_met]
    if not met:
        return "no design of the sweep meets the objectives"
    least = min(point.kilowatts or 0.0 for point in met)
    return (
        f"no design of the sweep that meets the objectives is within the budget on power; the least draws {kw(least)}"
    )


def _footer(request: PlanRequest) -> list[RenderableType]:
    problem = request.problem
    notes = [*request.notes, *(profile_warnings(problem.profiles) if problem.model == "step" else [])]
    notes += [f"workload {problem.workload.name}: {problem.workload.source}"]
    return [*sources(problem.profiles), *bullets("Notes", notes)]


def whatif_report(document: Document, request: PlanRequest, inputs: Inputs) -> Group:
    """A grid of what-ifs as a page; without the table where there are too many to list."""
    head = Text(whatif_words(document), style="bold")
    if "parts" in document:
        brief = {key: _brief(entry) for key, entry in inputs.items()}
        return Group(head, "", inputs_table(brief), "", *_footer(request))
    made = table(
        "req/s", "P99 TTFT, ms", "P99 TPOT, ms", "$/h", "relaxed $/h", "fleet", "total tokens to", left=("fleet",)
    )
    for point in document["points"]:
        tpot = point["slo_tpot_p99_ms"]
        pools = point["pools"]
        engines = compact([p["profile"] for p in pools], [p["replicas"] for p in pools]) if pools else "infeasible"
        made.add_row(
            given(point["rate_rps"]),
            given(round(point["slo_ttft_p99_ms"], 6)),
            "none" if tpot is None else given(round(tpot, 6)),
            f"{point['cost_usd_per_hour']:,.2f}" if point["feasible"] else "-",
            f"{point['relaxed_cost_usd_per_hour']:,.2f}" if point["feasible"] else "-",
            engines,
            " / ".join(whole(p["upper_tokens"]) for p in pools),
            style="" if point["feasible"] else "red",
        )
    return Group(head, "", made, "", inputs_table(inputs), "", *_footer(request))


def _brief(entry: Input) -> Input:
    """Long lists by their ends."""
    values = entry.value
    if not isinstance(values, list) or len(values) <= LISTED:
        return entry
    return Input(f"{len(values):,} values from {given(min(values))} to {given(max(values))}", entry.source)


def whatif_words(document: Document) -> str:
    """How many of a grid's points have an answer, and what they cost where they are not listed."""
    if (parts := document.get("parts")) is not None:
        least, most = (parts[f"{end}_cost_usd_per_hour"] for end in ("least", "greatest"))
        costs = "" if least is None else f" from ${least:,.2f} to ${most:,.2f} an hour"
        return f"{parts['what_ifs']:,} what-ifs, {parts['feasible']:,} feasible{costs}; by the model, not simulated."
    feasible = sum(point["feasible"] for point in document["points"])
    return f"{len(document['points'])} what-ifs, {feasible} feasible; exact sizes by the model, not simulated."


def trace_report(name: str, statistics: TraceStatistics, notes: Sequence[str], prefix: float | None) -> Group:
    """A trace as a page."""
    lengths = table("tokens of a request", "mean", "P50", "P90", "P99", "max", "cv2", left=("tokens of a request",))
    for title, summary in (
        ("input", statistics.input_tokens),
        ("output", statistics.output_tokens),
        ("total", statistics.total_tokens),
    ):
        lengths.add_row(title, *_summary(summary))
    facts = table("", "value", left=("", "value"))
    for title, value in _facts(statistics, prefix).items():
        facts.add_row(title, value)
    count = (
        "a law, not a list of requests" if statistics.num_requests is None else f"{statistics.num_requests:,} requests"
    )
    return Group(Text(f"{name}: {count}", style="bold"), "", lengths, facts, *bullets("Notes", list(notes)))


def _summary(summary: LengthSummary) -> list[str]:
    quantiles = (summary.p50, summary.p90, summary.p99, summary.max)
    return [f"{summary.mean:,.1f}", *map(whole, quantiles), f"{summary.cv2:.3f}"]


def _facts(statistics: TraceStatistics, prefix: float | None) -> dict[str, str]:
    def or_unknown(value: float | None, show: Any = number) -> str:
        return "unknown: no usable arrival times" if value is None else show(value)

    facts = {
        "duration, s": or_unknown(statistics.duration_s, lambda v: number(v, 5)),
        "mean rate, req/s": or_unknown(statistics.mean_rate, lambda v: number(v, 4)),
        "cv2 of the gaps (1 is Poisson)": or_unknown(statistics.interarrival_cv2),
        "share of gaps that are zero": or_unknown(statistics.zero_gap_share, percent),
    }
    for window, value in statistics.dispersion.items():
        title = f"dispersion of counts in {window} s (1 is Poisson)"
        facts[title] = "unknown: too short or no arrival times" if value is None else number(value)
    if statistics.correlation is not None:
        facts["correlation of input and output"] = f"{statistics.correlation:.3f}"
    facts["input share of all tokens"] = percent(statistics.input_share)
    for tokens, share in statistics.share_above.items():
        facts[f"requests above {tokens:,} tokens"] = percent(share)
    if prefix is not None:
        facts["prompt blocks seen before (infinite prefix cache)"] = percent(prefix)
    return facts


def profiles_report(profiles: Sequence[Profile], workloads: Sequence[Document]) -> Group:
    """The presets with every constant, and the embedded workloads."""
    made = table("constant", *(str(p.name) for p in profiles), title="Profiles", left=("constant",))
    made.add_row("gpu", *(str(p.gpu) for p in profiles))
    for name in NUMBERS:
        made.add_row(name, *(f"{np.asarray(getattr(p, name)).item():.6g}" for p in profiles))
    made.add_row("KV-cache tokens", *(whole(p.kv_tokens) for p in profiles))
    listed = table(
        "workload", "kind", "own rate, req/s", "source", title="Workloads", left=("workload", "kind", "source")
    )
    for entry in workloads:
        rate = "none" if entry["rate_rps"] is None else number(entry["rate_rps"], 4)
        listed.add_row(entry["name"], entry["kind"], rate, entry["source"])
    return Group(made, *sources(profiles), "", listed)
