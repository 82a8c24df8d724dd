"""What a token costs, for people and for programs. Every dollar has its unit."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.text import Text

from optim.cost import Claim, FleetCost, RunCost
from optim.cost_request import CostRequest
from optim.documents import Document, document, input_entries
from optim.report import bullets, inputs_table, table
from optim.words import given, number, percent, usd


def cost_document(request: CostRequest) -> Document:
    """Dollars per million of every unit, at every utilisation."""
    doc = document("cost", "ok", inputs=input_entries(request.inputs))
    if (fleet := request.fleet) is not None:
        doc["cost_usd_per_hour"] = fleet.usd_per_hour
        doc["per_s_at_saturation"] = _keys(fleet.per_s)
        doc["served"] = [
            {
                "utilization": one.utilization,
                "cost_usd_per_million": _keys(one.usd_per_million),
                "idle_usd_per_hour": one.idle_usd_per_hour,
                "over_api": one.over_api,
            }
            for one in fleet.served
        ]
        doc["break_even_utilization"] = fleet.break_even
        doc["break_even_per_day"] = _keys(fleet.break_even_per_day)
    if (run := request.run) is not None:
        doc["cost_usd"] = run.usd
        doc["wall_s"] = run.wall_s
        doc["counts"] = _keys(run.counts)
        doc["cost_usd_per_million"] = _keys(run.usd_per_million)
    if (claim := request.claim) is not None:
        doc["claim"] = {
            "usd_per_million": claim.usd_per_million,
            "unit": claim.unit,
            "computed_usd_per_million": claim.computed,
            "claimed_over_computed": claim.over,
            "holds": claim.holds,
            "doubts": list(claim.doubts),
        }
    doc["warnings"] = list(request.notes)
    return doc


def _keys(values: object) -> Document:
    assert isinstance(values, dict)
    return {str(unit).replace(" ", "_"): value for unit, value in values.items()}


def cost_report(request: CostRequest) -> Group:
    """The bill as a page: the claim, the figures, the break-even, the inputs."""
    parts: list[RenderableType] = []
    if request.claim is not None:
        parts += [_claim(request.claim), ""]
    if request.fleet is not None:
        parts += _fleet(request.fleet)
    if request.run is not None:
        parts += _run(request.run)
    return Group(*parts, "", inputs_table(request.inputs), "", *bullets("Notes", list(request.notes)))


def _claim(claim: Claim) -> Text:
    said = f"{usd(claim.usd_per_million)} per million {claim.unit}"
    if claim.holds:
        return Text(f"The claim of {said} holds: the facts give {usd(claim.computed)}.", style="bold green")
    why = "; ".join(claim.doubts)
    return Text(f"The claim of {said} does NOT hold: the facts give {usd(claim.computed)}; {why}.", style="bold red")


def _fleet(found: FleetCost) -> list[RenderableType]:
    units = list(found.per_s)
    compared = found.break_even is not None
    made = table(
        "utilisation",
        *(f"$/million {unit}" for unit in units),
        "idle, $/h",
        *(["times the API"] if compared else []),
        title=f"The whole bill of {usd(found.usd_per_hour)}/h over each kind of token",
    )
    for one in found.served:
        prices = [usd(one.usd_per_million[unit]) for unit in units]
        api = [] if one.over_api is None else [number(one.over_api)]
        made.add_row(percent(one.utilization), *prices, usd(one.idle_usd_per_hour), *api)
    served = ", ".join(f"{number(rate, 4)} {unit}/s" for unit, rate in found.per_s.items())
    parts: list[RenderableType] = [Text(f"At saturation: {served}."), made]
    return parts if not compared else [*parts, _break_even(found)]


def _break_even(found: FleetCost) -> Text:
    share = found.break_even
    assert share is not None  # the caller has looked
    prices = " and ".join(f"{usd(price)} per million {unit}" for unit, price in found.api.items())
    if math.isinf(share):
        return Text(f"The API at {prices} is free: it is cheaper at any load.", style="bold")
    if share > 1.0:
        return Text(
            f"The API at {prices} is cheaper at any load: the fleet would have to serve {number(share)} times what it "
            "can.",
            style="bold",
        )
    day = ", ".join(f"{number(count / 1e6)} million {unit}" for unit, count in found.break_even_per_day.items())
    return Text(
        f"Break-even with the API at {prices}: {percent(share)} utilisation ({day} a day); below it the API is "
        "cheaper.",
        style="bold",
    )


def _run(found: RunCost) -> list[RenderableType]:
    made = table("unit", "made", "$/million", title="The whole bill over each unit", left=("unit",))
    for unit, count in found.counts.items():
        made.add_row(unit, given(count), usd(found.usd_per_million[unit]))
    return [Text(f"The run cost {usd(found.usd)} for {number(found.wall_s, 4)} s.", style="bold"), made]
