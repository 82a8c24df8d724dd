"""The power of a plan, and the proof of it, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from optim.plan_power import PlanPower
from optim.power_terms import GPUS_ALONE, MINIMIZE
from optim.words import given, number, percent, usd

_PROVED = {
    "cost": ("costs less than", "cheaper", "the cheapest"),
    "energy": ("draws less than", "thriftier", "the least"),
    "cost+electricity": ("costs less, its electricity included, than", "cheaper", "the cheapest"),
    "carbon": ("emits less than", "cleaner", "the cleanest"),
}


def kw(value: object) -> str:
    """Kilowatts."""
    return f"{number(value, 4)} kW"


def amount(value: float, minimize: str) -> str:
    """What is to be least, with its unit."""
    if minimize == "energy":
        return kw(value)
    return f"{number(value, 4)} kg CO2/h" if minimize == "carbon" else f"{usd(value)}/h"


def certificate_sentence(proof: Mapping[str, Any], power: Mapping[str, Any] | None) -> str:
    """What no other fleet can do, by the model.

    Args:
        proof: see `optim.energy_entries.certificate_entry`.
        power: see `plan_power_entry`; None where nothing is said of power.
    """
    minimize, gap = proof["minimize"], float(proof["gap"])
    less, better, best = _PROVED[minimize]
    budget = None if power is None else power["budget"]["kilowatts"]
    within = "" if budget is None else f" within {kw(budget)}"
    how_far = f"none is {better}" if gap <= 0 else f"this one is at most {percent(gap)} above {best}"
    return (
        f"Certificate: under the model no fleet of these profiles{within} {less} "
        f"{amount(proof[f'lower_bound_{MINIMIZE[minimize]}'], minimize)}; {how_far} ({proof['method']})."
    )


def power_sentences(power: PlanPower) -> str:
    """Mean power at the load, its budget, and what it comes to."""
    prices, bill = power.terms.prices, power.bill
    at = "of the GPUs alone" if prices.pue == GPUS_ALONE else f"at the meter, PUE {given(prices.pue)}"
    simulated = "" if power.simulated_kilowatts is None else f", {kw(power.simulated_kilowatts)} simulated"
    said = [f"Mean power at this load: {kw(bill.kilowatts)} by the model{simulated} ({at})"]
    if np.isfinite(power.budget_kw):
        said.append(f"the budget is {kw(power.budget_kw)}")
    said.append(f"{kw(power.nominal_kilowatts)} if every GPU ran full batches")
    parts = [f"{number(bill.kwh_per_million_tokens)} kWh per million output tokens"]
    if bill.usd_per_hour is not None:
        parts.append(f"electricity {usd(bill.usd_per_hour)}/h")
    if bill.kg_co2_per_hour is not None:
        parts.append(f"{number(bill.kg_co2_per_hour)} kg CO2/h")
    return f"{'; '.join(said)}. It comes to {', '.join(parts)}."
