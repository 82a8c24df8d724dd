"""What people read of a simulated fleet: verdict, rules in force, the model beside the simulation, counts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from des import PoolResult, Sample, SimulationResult
from jaxsim.evaluate import Metrics
from jaxsim.units import SECONDS_PER_HOUR
from optim.build import FleetRequest
from optim.inputs import Inputs
from optim.report import bullets, inputs_table, pools_table, slo_sentence, sources, table
from optim.rules import Rules
from optim.simulation_document import ROLES, distinct_profiles, simulation_notes
from optim.verdict import Verdict
from optim.words import fleet, given, interval, ms, number, percent, usd, whole


def simulation_report(
    request: FleetRequest, result: SimulationResult, inputs: Inputs, analytic: Metrics | None, verdict: Verdict | None
) -> Group:
    """A simulated fleet as a page."""
    parts: list[RenderableType] = [
        simulation_verdict(request, result, verdict),
        "",
        *rules_lines(request.rules, result),
        "",
    ]
    if analytic is not None:
        parts += [pools_table(request.design, analytic, result.pools), ""]
    parts += [_counts(request, result), "", _latencies(result, request.rules), "", inputs_table(inputs), ""]
    workload = request.workload
    notes = simulation_notes(request, result, modelled=analytic is not None)
    notes += [f"workload {workload.name}: {workload.source}", *(f"workload: {note}" for note in workload.notes)]
    if result.undefined_tpot:
        notes.append(f"{result.undefined_tpot:,} requests with one output token have no TPOT and are left out of it")
    return Group(*parts, *sources(distinct_profiles(request.design)), *bullets("Notes", notes))


def fleet_words(request: FleetRequest) -> str:
    """The fleet in a line, prefill and decode pools by their names."""
    design = request.design
    if request.rules.transfer is None:
        return fleet(design)
    parts = [
        f"{count:.0f} x {name} ({role})"
        for count, name, role in zip(np.asarray(design.replicas), design.profile.name, ROLES, strict=True)
    ]
    return f"{' + '.join(parts)}, to {whole(np.asarray(design.upper_tokens)[-1])} tokens"


def pool_names(request: FleetRequest) -> list[str]:
    """What each pool is called."""
    if request.rules.transfer is not None:
        return list(ROLES)
    return [f"pool {p}" for p in range(request.design.num_pools)]


def rate_words(request: FleetRequest, result: SimulationResult) -> str:
    """The offered rate; of clients that send as fast as they can, what they sent."""
    return f"{number(result.rate)} req/s" + (" (what the clients sent)" if request.rate is None else "")


def rules_lines(rules: Rules, result: SimulationResult) -> list[Text]:
    """The rules in force, in words."""
    lines = {"Serving": result.serving, "Router": result.router, "Arrivals": rules.arrivals_text}
    if (link := rules.transfer) is not None:
        lines["Router"] = "every request to the prefill pool, then to the decode pool"
        lines["Transfer"] = (
            f"{given(link.kv_bytes_per_token)} bytes a prompt token over one link of {link.bytes_per_s / 1e9:g} GB/s, "
            f"{ms(link.latency_s)} ms latency"
        )
    if (failures := rules.failures) is not None:
        lines["Failures"] = (
            f"each replica up for {failures.mean_up_s / SECONDS_PER_HOUR:g} h and down for "
            f"{failures.mean_repair_s / 60:g} min on average (available {percent(failures.availability)} of the time)"
        )
    if (schedule := rules.schedule) is not None:
        rows = zip(schedule.time_s, schedule.pool, schedule.replicas, strict=True)
        steps = ", ".join(f"from {time:g} s pool {pool} has {count}" for time, pool, count in rows)
        lines["Schedule"] = f"{steps}; a new replica starts up in {schedule.startup_s:g} s"
    return [Text(f"{name}: {words}.") for name, words in lines.items()]


def simulation_verdict(request: FleetRequest, result: SimulationResult, verdict: Verdict | None) -> Text:
    """The answer in a sentence."""
    what = f"{fleet_words(request)} at {rate_words(request, result)}: {usd(request.design.usd_per_hour)}/h."
    if not result.ttft.n:
        return Text(f"{what} Every request was rejected.", style="bold red")
    ttft = interval(result.ttft.quantile(0.99))
    tpot = interval(result.tpot.quantile(0.99)) if result.tpot.n else "none"
    if result.overloaded:
        loads = [f"Pool {p.index} is offered {number(p.load)} times its capacity" for p in result.pools if p.overloaded]
        return Text(
            f"OVERLOADED: {what} {'. '.join(loads)}. Queues grow without end, so every latency below grows with the "
            f"length of the run: P99 TTFT {ms(result.ttft.quantile(0.99).value)} ms after {result.num_requests:,} "
            "requests.",
            style="bold red",
        )
    words = {Verdict.MET: ": met", Verdict.COIN_FLIP: f": {Verdict.COIN_FLIP.value}", Verdict.MISSED: ": NOT met"}
    styles = {Verdict.MET: "bold green", Verdict.COIN_FLIP: "bold yellow", Verdict.MISSED: "bold red"}
    said = "" if verdict is None else words[verdict]
    style = "bold" if verdict is None else styles[verdict]
    return Text(f"{what} {slo_sentence('Simulated', ttft, tpot, request.slo)}{said}.", style=style)


def _counts(request: FleetRequest, result: SimulationResult) -> Table:
    """What the simulator counted, pool by pool."""
    disaggregated = request.rules.transfer is not None
    made = table("simulated", *pool_names(request), "fleet", left=("simulated",))

    def row(title: str, figure: Callable[[PoolResult], str], all_pools: str = "") -> None:
        made.add_row(title, *map(figure, result.pools), all_pools)

    rejected = f"{result.rejected:,} ({percent(result.rejected / max(result.requests, 1))})"
    if disaggregated:
        made.add_row("requests", "", "", f"{result.requests:,}")
        made.add_row("rejected", "", "", rejected)
    else:
        row("requests", lambda p: f"{p.requests:,}", f"{result.requests:,}")
        row("rejected", lambda p: f"{p.rejected:,}", rejected)
    row("running / waiting, mean a replica", _mean_load)
    row("sequences / KV blocks in use", lambda p: f"{percent(p.sequence_utilization)} / {percent(p.kv_utilization)}")
    row("step, mean, ms", lambda p: ms(p.step_time_s))
    if request.rules.serving.kv != "reserve":
        row(
            "requests preempted (preemptions)",
            lambda p: f"{p.preempted:,} ({p.preemptions:,})",
            f"{result.preempted:,} ({result.preemptions:,})",
        )
    if request.rules.failures is not None or request.rules.schedule is not None:
        hours = sum(pool.replica_hours for pool in result.pools)
        row("replica-hours up", lambda p: number(p.replica_hours), number(hours))
    return made


def _mean_load(pool: PoolResult) -> str:
    return f"{number(pool.mean_active / pool.replicas)} / {number(pool.mean_queued / pool.replicas)}"


def _latencies(result: SimulationResult, rules: Rules) -> Table:
    made = table("simulated, ms", "mean", "P50", "P95", "P99", "requests", left=("simulated, ms",))
    for name, sample in _samples(result, rules).items():
        if not sample.n:
            made.add_row(name, *["none"] * 4, "0")
            continue
        p50, p95, p99 = (sample.quantile(q) for q in (0.5, 0.95, 0.99))
        made.add_row(name, ms(sample.mean().value), ms(p50.value), ms(p95.value), interval(p99), f"{sample.n:,}")
    return made


def _samples(result: SimulationResult, rules: Rules) -> dict[str, Sample]:
    """The latencies that were measured, in the order in which a request meets them."""
    waits = rules.concurrency is not None
    samples = {"wait of the client to send": result.phase("client_wait_s")} if waits else {}
    if rules.transfer is not None:
        samples["wait for prefill"] = result.phase("prefill_wait_s")
        samples["wait for the link and transfer"] = result.phase("transfer_s")
        samples["wait for decode"] = result.wait
    else:
        samples["wait for admission"] = result.wait
    samples |= {"TTFT": result.ttft, "TPOT": result.tpot}
    if result.replications[0].gaps is not None:
        samples["ITL (gaps, not requests)"] = result.itl
    return samples | {"end to end": result.e2e}
