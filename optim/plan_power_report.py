"""The power of a plan, and the proof of it, in sentences."""

from __future__ import annotations

import numpy as np

from optim.plan_power import PlanPower
from optim.power_terms import GPUS_ALONE
from optim.search import Certificate
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


def certificate_sentence(proof: Certificate, power: PlanPower | None) -> str:
    """What no other fleet can do, by the model."""
    less, better, best = _PROVED[proof.minimize]
    budget = np.inf if power is None else power.budget_kw
    within = f" within {kw(budget)}" if np.isfinite(budget) else ""
    gap = f"none is {better}" if proof.gap <= 0 else f"this one is at most {percent(proof.gap)} above {best}"
    return (
        f"Certificate: under the model no fleet of these profiles{within} {less} "
        f"{amount(proof.lower_bound, proof.minimize)}; {gap} ({proof.method})."
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
