"""Routers side by side, for people and for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from des import Estimate
from des.remarks import FEW_REQUESTS
from jaxsim.units import MS_PER_S
from optim.build import FleetRequest
from optim.compare_routers import ANYWHERE, ORACLE, UNKNOWING, Comparison, Price, Standing
from optim.documents import (
    Document,
    design_entry,
    document,
    estimate_entry,
    input_entries,
    pool_entry,
    profile_entry,
    profile_warnings,
    quantile_entry,
    workload_entry,
)
from optim.inputs import Inputs
from optim.report import bullets, inputs_table, sources, table
from optim.simulation_document import count_entries, distinct_profiles
from optim.words import fleet, interval, ms, number, percent, usd

COMPRESS = "compress"
SPILL_WARNING = "spillover reads the state of the fleet at each arrival; a real router knows it some time later"


def comparison_document(
    request: FleetRequest, found: Comparison, inputs: Inputs, left_out: Sequence[str], seed: int
) -> Document:
    """Every router's figures on the same requests."""
    best = found.best
    status = "refused" if found.slo is not None and not found.any_met else "ok"
    doc = document("router-comparison", status, model=request.model, seed=seed)
    doc["inputs"] = input_entries(inputs)
    doc["design"] = design_entry(request.design)
    doc["cost_usd_per_hour"] = float(request.design.usd_per_hour)
    doc["serving"], doc["arrivals"] = request.rules.serving.describe(), request.rules.arrivals_text
    doc["routers"] = [_entry(standing) for standing in found.standings]
    doc["best"] = None if best is None else best.contender.name
    doc["left_out"] = list(left_out)
    doc["workload"] = workload_entry(request.workload, found.standings[0].rejected_share)
    doc["profiles"] = [profile_entry(p) for p in distinct_profiles(request.design)]
    doc["warnings"] = notes(request, found, left_out)
    return doc


def _entry(standing: Standing) -> Document:
    result, price = standing.result, standing.price
    return {
        "name": standing.contender.name,
        "label": standing.contender.label,
        "rules": result.router,
        "ttft_p99_ms": quantile_entry(result.ttft),
        "tpot_p99_ms": quantile_entry(result.tpot),
        "slo_met": standing.slo_met,
        "attainment": standing.attainment,
        "overloaded": result.overloaded,
        **count_entries(result),
        "rejected_share": standing.rejected_share,
        "offered_rate_rps": result.rate,
        "price_of_not_knowing": None if price is None else _price_entry(price),
        "pools": [
            {
                "ttft_p99_ms": quantile_entry(p.ttft),
                "tpot_p99_ms": quantile_entry(p.tpot),
                "mean_load": _load(p.mean_active + p.mean_queued, p.replicas),
                **pool_entry(p),
            }
            for p in result.pools
        ],
        "warnings": list(result.warnings),
    }


def _price_entry(price: Price) -> Document:
    share = price.rejected_share
    return {
        "ttft_p99_ms": estimate_entry(price.ttft_p99_s),
        "rejected_share": {"value": share.value, "low": share.low, "high": share.high},
        "attainment": price.attainment,
    }


def csv_rows(found: Comparison) -> list[Document]:
    """One row a router."""
    rows = []
    for standing in found.standings:
        entry = _entry(standing)
        ttft, tpot = entry["ttft_p99_ms"] or {}, entry["tpot_p99_ms"] or {}
        row = {key: entry[key] for key in ("name", "attainment", "slo_met", "overloaded", "requests", "rejected")}
        row |= {f"ttft_p99_ms{end}": ttft.get(key) for end, key in (("", "value"), ("_low", "low"), ("_high", "high"))}
        row |= {"tpot_p99_ms": tpot.get("value"), **entry["misrouted"], "compressed": entry["compressed"]}
        row |= {"preempted_requests": entry["preempted_requests"], "preemptions": entry["preemptions"]}
        row |= {f"pool_{p}_mean_load": pool["mean_load"] for p, pool in enumerate(entry["pools"])}
        rows.append(row)
    return rows


def comparison_report(request: FleetRequest, found: Comparison, inputs: Inputs, left_out: Sequence[str]) -> Group:
    """The comparison as a page."""
    first = found.standings[0].result
    parts: list[RenderableType] = [
        _verdict(request, found),
        "",
        Text(
            f"The same {first.num_requests:,} requests for each, {_runs(len(first.replications))}. Serving: "
            f"{request.rules.serving.describe()}. Arrivals: {request.rules.arrivals_text}."
        ),
        "",
        _standings(found),
        "",
        *_prices(found),
        inputs_table(inputs),
        "",
    ]
    workload = request.workload
    told = [*notes(request, found, left_out), f"workload {workload.name}: {workload.source}"]
    told += [f"workload: {note}" for note in workload.notes]
    return Group(*parts, *sources(distinct_profiles(request.design)), *bullets("Notes", told))


def _runs(number: int) -> str:
    return "in one run" if number == 1 else f"in {number} runs"


def _verdict(request: FleetRequest, found: Comparison) -> Text:
    rate, cost = number(found.standings[0].result.rate), usd(request.design.usd_per_hour)
    what = f"{fleet(request.design)} at {rate} req/s: {cost}/h."
    best = found.best
    if best is None:
        return Text(f"OVERLOADED: {what} Every router overloads a pool.", style="bold red")
    ttft = interval(best.result.ttft.quantile(0.99))
    met = sum(bool(s.slo_met) for s in found.standings)
    if found.slo is None:
        said = f"Least rejected, then lowest P99 TTFT: {best.contender.name}, {ttft} ms"
        return Text(f"{what} {said}; no objective was given.", style="bold")
    share = percent(best.attainment)
    said = f"{met} of {len(found.standings)} routers meet the objectives"
    style = "bold green" if met else "bold red"
    return Text(f"{what} {said}. Best: {best.contender.name}, {share} of requests in time, P99 TTFT {ttft} ms.", style)


def _standings(found: Comparison) -> Table:
    misrouted = any(sum(s.result.misrouted) for s in found.standings)
    preempted = any(s.result.preempted for s in found.standings)
    columns = ["router", "P99 TTFT, ms", "P99\nTPOT", *(["in\ntime"] if found.slo else []), "re-\njected"]
    columns += [*(["mis-\nrouted"] if misrouted else []), *(["pre-\nempted"] if preempted else [])]
    made = table(*columns, "mean load\na replica", left=("router",))
    for column in made.columns:
        column.no_wrap = column.header != "mean load\na replica"
    for standing in found.standings:
        result = standing.result
        asked = max(result.requests, 1)
        ttft = interval(result.ttft.quantile(0.99)) if result.ttft.n else "none"
        made.add_row(
            _title(standing),
            "overloaded" if result.overloaded else ttft,
            ms(result.tpot.quantile(0.99).value) if result.tpot.n else "none",
            *([percent(standing.attainment)] if found.slo else []),
            percent(standing.rejected_share),
            *([percent(sum(result.misrouted) / asked)] if misrouted else []),
            *([percent(result.preempted / asked)] if preempted else []),
            " / ".join(_load_words(p.mean_active + p.mean_queued, p.replicas) for p in result.pools),
            style="red" if result.overloaded else "bold" if standing is found.best else "",
        )
    return made


def _title(standing: Standing) -> str:
    name = standing.contender.name
    if name in ANYWHERE:
        return f"{name} (any pool)"
    return name if name in UNKNOWING else f"{name} (oracle)"


def _spilled(found: Comparison) -> bool:
    """Whether the spill-over router sent any request to another pool than the oracle; true where that is not known."""
    counts = {s.contender.name: [p.requests for p in s.result.pools] for s in found.standings}
    return ORACLE not in counts or counts["spillover"] != counts[ORACLE]


def _load(requests: float, replicas: int) -> float:
    return requests / replicas if replicas else 0.0


def _load_words(requests: float, replicas: int) -> str:
    return number(_load(requests, replicas), 2)


def _prices(found: Comparison) -> list[RenderableType]:
    priced = [s for s in found.standings if s.price is not None]
    if not priced:
        return []
    columns = [
        "the price of not knowing",
        "P99 TTFT, ms",
        "rejected, points",
        *(["in time, points"] if found.slo else []),
    ]
    made = table(*columns, left=("the price of not knowing",))
    for standing in priced:
        price = standing.price
        assert price is not None
        made.add_row(
            f"{standing.contender.name} against {ORACLE}",
            "grows without end" if standing.result.overloaded else _signed_interval(price.ttft_p99_s, MS_PER_S),
            _signed_interval(price.rejected_share, 100.0),
            *([] if price.attainment is None else [_signed(100.0 * price.attainment)]),
        )
    return [made, ""]


def _signed_interval(gap: Estimate, scale: float) -> str:
    low, high = gap.low * scale, gap.high * scale
    if not math.isfinite(high - low):
        return f"{_signed(gap.value * scale)} (no interval)"
    return f"{_signed(gap.value * scale)} [{_signed(low)}, {_signed(high)}]"


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{number(value)}"


def notes(request: FleetRequest, found: Comparison, left_out: Sequence[str]) -> list[str]:
    """What a reader must know before choosing a router."""
    names = {s.contender.name for s in found.standings}
    told = list(request.notes)
    if request.model == "step":
        told += profile_warnings(distinct_profiles(request.design))
    for standing in found.standings:
        pools = [f"pool {p.index} {number(p.load)} times its capacity" for p in standing.result.pools if p.overloaded]
        if pools:
            told.append(
                f"{standing.contender.name} overloads the fleet ({', '.join(pools)}): its P99s grow with the run"
            )
    if ORACLE in names:
        told.append(f"{ORACLE} is an oracle: it knows the output length beforehand, which no router does")
    if "predicted" in names:
        told.append("predicted: the error is a modelling choice; fit it to log(predicted / true output) of yours")
    if "spillover" in names:
        told.append(SPILL_WARNING + ("" if _spilled(found) else "; at this pressure none was handed on"))
    told += [warning for s in found.standings for warning in s.contender.router.warnings]
    if any(sum(s.result.misrouted) for s in found.standings):
        told.append(
            "misrouted: sent to a pool of shorter or longer requests than their true total asks for; in too short a "
            "pool one is rejected if it outgrows max_context"
        )
    told.append("rejected requests have no latency, and count as misses in time: a router can buy its P99 with them")
    if request.rules.serving.kv != "reserve" and not any(s.result.preempted for s in found.standings):
        told.append("no request was preempted")
    told += left_out
    if found.standings[0].result.num_requests < FEW_REQUESTS:
        told.append(f"below {FEW_REQUESTS:,} requests a P99 is not stable")
    if any(pool.requests < 10_000 for pool in found.standings[0].result.pools):
        told.append("some pools had fewer than 10,000 requests: their P99s rest on few; simulate more")
    return told
