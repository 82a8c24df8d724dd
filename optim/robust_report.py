"""A robust plan for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from jaxsim.units import MS_PER_S
from optim.assessment import Assessment, Spread
from optim.inputs import Inputs
from optim.plan import PlanStatus
from optim.report import bullets, inputs_table, sources, table, verdict, verdict_words
from optim.robust import Level, Robust, RobustStatus
from optim.robust_document import robust_warnings
from optim.verdict import Verdict
from optim.words import fleet, given, interval, ms, number, percent, usd


def robust_report(found: Robust, notes: Sequence[str], inputs: Inputs) -> Group:
    """A robust plan as a page: the answer, a fleet for every probability, the sources, the simulator, the inputs."""
    if found.nominal is None:
        parts: list[RenderableType] = [verdict(found.plan), "", inputs_table(inputs), ""]
        return Group(*parts, *bullets("Notes", robust_warnings(found, notes)))
    parts = [_answer(found), _nominal(found, found.nominal), "", _levels(found), _spreads(found), _sources(found)]
    parts += _checks(found)
    parts += [inputs_table(inputs), "", *sources(found.problem.profiles)]
    return Group(*parts, *bullets("Notes", robust_warnings(found, notes)))


def _name(probability: float | None) -> str:
    return "worst case" if probability is None else f"{percent(probability)} of the scenarios"


def _for(probability: float | None) -> str:
    return f"for {'the ' if probability is None else ''}{_name(probability)}"


def _answer(found: Robust) -> Text:
    level, status = found.level, found.status
    if status is RobustStatus.INFEASIBLE or found.design is None:
        return Text(f"INFEASIBLE: {_name(level.probability)}: {status.value}; {_why(found)}.", style="bold red")
    what = f"{fleet(found.design)}: {usd(level.usd_per_hour)}/h, {_premium(level)} {_for(level.probability)}"
    if status is RobustStatus.GPU_CAP:
        cap = found.problem.max_gpus
        return Text(f"INFEASIBLE: {status.value}: {what} needs {level.gpus:.0f} GPUs, above {cap}.", style="bold red")
    if status is RobustStatus.UNVERIFIED:
        return Text(f"Robust: {what}; by the model, NOT verified by the simulator.", style="bold yellow")
    if status is RobustStatus.VERIFIED:
        return Text(f"Robust: {what}; verified by the simulator where it has least room.", style="bold green")
    loud = "bold yellow" if status is RobustStatus.COIN_FLIP else "bold red"
    return Text(f"REFUSED: {what}; {status.value}.", style=loud)


def _why(found: Robust) -> str:
    """Which levels can be had."""
    there = [level for level in found.levels if level.replicas is not None]
    if not there:
        return "lengthen the objectives, shorten the intervals, or take faster hardware"
    best = there[-1]
    return f"up to {_name(best.probability)} there is a fleet, for {usd(best.usd_per_hour)}/h (--choose)"


def _premium(level: Level) -> str:
    premium = level.premium_usd_per_hour
    if abs(premium) < 5e-7:
        return "nothing more"
    return f"{usd(abs(premium))}/h {'more' if premium > 0 else 'less'}"


def _nominal(found: Robust, nominal: Assessment) -> Text:
    plan = found.plan
    assert plan.design is not None and plan.usd_per_hour is not None  # it has been assessed
    word = {Verdict.MET: "met", Verdict.COIN_FLIP: "a COIN FLIP, not met", Verdict.MISSED: "MISSED"}[nominal.verdict]
    style = {Verdict.MET: "green", Verdict.COIN_FLIP: "yellow", Verdict.MISSED: "red"}[nominal.verdict]
    asked = ", verified at the demand given" if plan.status is PlanStatus.VERIFIED else ", not simulated"
    crossed = _crossed(found, nominal)
    return Text(
        f"Nominal plan: {fleet(plan.design)}: {usd(plan.usd_per_hour)}/h{asked}: {word}; it is enough in "
        f"{_share(found, nominal)} of the scenarios{crossed}.",
        style=style,
    )


def _share(found: Robust, assessed: Assessment) -> str:
    assert found.scenarios is not None  # it has been assessed
    if found.scenarios.exact:
        return percent(assessed.share_met)
    low, high = 100.0 * assessed.low, 100.0 * assessed.high
    return f"{percent(assessed.share_met)} [{low:.1f}, {high:.1f}]"


def _crossed(found: Robust, assessed: Assessment) -> str:
    slo, said = found.problem.slo, []
    for p, pool in enumerate(assessed.pools):
        where = f" in pool {p}" if len(assessed.pools) > 1 else ""
        if pool.utilization.crosses(1.0):
            said.append(f"utilisation{where} crosses 1")
        if pool.ttft_p99_s.crosses(slo.ttft_p99_s):
            said.append(f"P99 TTFT{where} crosses its SLO")
        if pool.tpot_p99_s.crosses(slo.tpot_p99_s):
            said.append(f"P99 TPOT{where} crosses its SLO")
    return f"; {', '.join(said)}" if said else ""


def _levels(found: Robust) -> RenderableType:
    made = table(
        "SLO met in",
        "replicas",
        "GPUs",
        "$/h",
        "over nominal",
        "enough in [95 %]",
        "",
        title="What robustness costs (model; the cheapest replicas for each)",
        left=("SLO met in", ""),
    )
    assert found.nominal is not None and found.plan.design is not None  # the caller has looked
    for k, level in enumerate(found.levels):
        which = "simulated" if k == found.chosen and found.checks else ""
        if level.replicas is None or level.assessment is None:
            made.add_row(_name(level.probability), "none is enough", "", "", "", "", which, style="red")
            continue
        over = "-" if abs(level.premium_usd_per_hour) < 5e-7 else f"{level.premium_usd_per_hour:+,.2f}"
        made.add_row(
            _name(level.probability),
            " + ".join(f"{n:.0f}" for n in level.replicas),
            f"{level.gpus:.0f}",
            f"{level.usd_per_hour:,.2f}",
            over,
            _share(found, level.assessment),
            which,
            style="bold" if which else "",
        )
    return made


def _spreads(found: Robust) -> RenderableType:
    made = table(
        "",
        "pool",
        "P99 TTFT, ms",
        "P99 TPOT, ms",
        "utilisation",
        title="Median [2.5 %, 97.5 %] over the scenarios, worst of all after the bar (model, corrected)",
        left=("",),
    )
    shown = [("nominal", found.nominal)]
    shown += [("robust", found.level.assessment)] if found.level.assessment is not None else []
    for name, assessed in shown:
        assert assessed is not None  # the nominal one is there wherever this page is made
        for p, pool in enumerate(assessed.pools):
            made.add_row(
                name if p == 0 else "",
                str(p),
                _spread(pool.ttft_p99_s, ms),
                _spread(pool.tpot_p99_s, ms),
                _spread(pool.utilization, number),
            )
    return made


def _spread(spread: Spread, show: Callable[[float], str]) -> str:
    return f"{show(spread.median)} [{show(spread.low)}, {show(spread.high)}] | {show(spread.worst)}"


def _sources(found: Robust) -> RenderableType:
    level = found.level.probability
    columns = [None] if level is None else [level, None]
    made = table(
        "source",
        *(f"$/h {_for(column)}" for column in columns),
        title="What each source costs by itself, over the sizes for what is known",
        left=("source",),
    )
    for source in found.sources:
        premiums = (source.premium_usd_per_hour, source.worst_premium_usd_per_hour)[-len(columns) :]
        made.add_row(source.name, *map(_dollars, premiums))
    return made


def _dollars(premium: float) -> str:
    if math.isinf(premium):
        return "none is enough"
    return "-" if abs(premium) < 5e-7 else f"{premium:+,.2f}"


def _checks(found: Robust) -> list[RenderableType]:
    if not found.checks or found.scenarios is None:
        return []
    title = "The simulator where the robust fleet has least room (both fleets with the same random numbers)"
    made = table("", f"P99 TTFT, ms ({_objective(found, 'ttft')})", f"P99 TPOT, ms ({_objective(found, 'tpot')})", "",
                 title=title, left=("", ""))  # fmt: skip
    for check in found.checks:
        made.add_row(found.scenarios.words(check.row), "", "", "", style="bold")
        made.add_row(" robust, model", ms(check.model.ttft_p99_s), ms(check.model.tpot_p99_s), "")
        for name, said in (("robust", check.robust), ("nominal", check.nominal)):
            figures = (interval(said.ttft_p99_s), interval(said.tpot_p99_s))
            made.add_row(f" {name}, simulated", *figures, verdict_words(said))
    if found.rounds == 1:
        return [made]
    return [made, Text(f"It said no {found.rounds - 1} times before, and the model was corrected by it."), ""]


def _objective(found: Robust, figure: str) -> str:
    limit = found.problem.slo.ttft_p99_s if figure == "ttft" else found.problem.slo.tpot_p99_s
    return "no objective" if limit is None else f"SLO {given(round(limit * MS_PER_S, 9))}"
