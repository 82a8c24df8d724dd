"""Power and energy as parts of JSON documents."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxsim.energy import Electricity, Energy, electricity
from optim.plan_power import PlanPower
from optim.power_terms import MINIMIZE, Prices
from optim.search import Certificate

Document = dict[str, Any]


def energy_entry(used: Energy) -> Document:
    """Power of a fleet's GPUs, and of each pool's."""
    pools = used.pools
    return {
        "watts": float(used.watts),
        "output_tokens_per_s": float(used.output_tokens_per_s),
        "output_tokens_per_joule": float(used.tokens_per_joule),
        "pools": [
            {
                "gpus": float(pools.gpus[p]),
                "watts_per_gpu": float(pools.watts_per_gpu[p]),
                "active_batch": float(pools.active[p]),
                "idle_share": float(pools.idle_share[p]),
            }
            for p in range(len(np.asarray(pools.gpus)))
        ],
    }


def bill_entry(bill: Electricity) -> Document:
    """At the meter; null where no price or intensity was given."""
    return {name: None if value is None else float(value) for name, value in vars(bill).items()}


def bill_of(used: Energy, prices: Prices) -> Electricity:
    """What power comes to under the prices given."""
    return electricity(used, pue=prices.pue, usd_per_kwh=prices.usd_per_kwh, kg_co2_per_kwh=prices.kg_co2_per_kwh)


def plan_power_entry(power: PlanPower) -> Document:
    """Power of a plan, and the budgets on it; kilowatts are at the meter, watts those of the GPUs alone."""
    terms = power.terms
    by_model, budget = float(power.bill.kilowatts), power.budget_kw
    simulated = power.simulated_kilowatts
    return {
        "minimize": terms.minimize,
        "kilowatts": by_model,
        "simulated_kilowatts": simulated,
        "nominal_kilowatts": power.nominal_kilowatts,
        "budget": {
            "max_kw": terms.max_kw,
            "max_kwh_per_million_tokens": terms.max_kwh_per_million_tokens,
            "kilowatts": budget if np.isfinite(budget) else None,
            "simulated_met": None if simulated is None or not np.isfinite(budget) else simulated <= budget,
        },
        **energy_entry(power.used),
        "electricity": bill_entry(power.bill),
    }


def certificate_entry(proof: Certificate) -> Document:
    """The bound, in the unit of what is least."""
    return {
        "minimize": proof.minimize,
        f"lower_bound_{MINIMIZE[proof.minimize]}": proof.lower_bound,
        "gap": proof.gap,
        "method": proof.method,
    }
