"""The power of a planned fleet: by the model, by the simulator, and against its budgets."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from des import SimulationResult
from jaxsim.energy import WATTS_PER_KW, Electricity, Energy, electricity, fleet_energy
from jaxsim.evaluate import pool_laws
from jaxsim.fleet import FleetDesign
from jaxsim.power import PowerLaw
from jaxsim.units import SECONDS_PER_HOUR
from optim._compile import program
from optim.cases import Case
from optim.power_event import simulated_watts
from optim.power_terms import PowerTerms
from optim.problem import PlanProblem
from optim.search import Proposal


@dataclass(frozen=True)
class PlanPower:
    """Power and energy of a plan at the load that it is for.

    Attributes:
        terms: laws, prices, budgets.
        used: by the model, of the GPUs alone.
        bill: the same at the meter.
        simulated_kilowatts: time average at the meter; None where the simulator was not asked.
        nominal_kilowatts: at the meter if every GPU ran an endless batch: what wiring must bear.
        budget_kw: the tighter of the budgets; inf without any.
    """

    terms: PowerTerms
    used: Energy
    bill: Electricity
    simulated_kilowatts: float | None
    nominal_kilowatts: float
    budget_kw: float


@program
def _energy(case: Case, replicas: jax.Array, upper: jax.Array, power: PowerLaw) -> Energy:
    laws = pool_laws(case.design(replicas, upper), case.tables, case.rate)
    return fleet_energy(laws, power, case.profile.gpus_per_replica)


def plan_power(proposal: Proposal, problem: PlanProblem, result: SimulationResult | None) -> PlanPower | None:
    """Of a proposal and what the simulator found of it; None where the problem says nothing of power."""
    terms = problem.power
    if terms is None:
        return None
    padded = proposal.padded
    power = terms.stacked(proposal.profiles)
    used: Energy = _energy(proposal.case, jnp.asarray(padded.replicas), jnp.asarray(padded.upper_tokens), power)
    pools = jax.tree.map(lambda v: np.asarray(v)[list(proposal.pools)], used.pools)
    used = Energy(pools, used.watts, used.output_tokens_per_s, used.tokens_per_joule)
    prices = terms.prices
    nominal = np.asarray(power.nominal_w)[list(proposal.pools)]
    return PlanPower(
        terms=terms,
        used=used,
        bill=electricity(used, pue=prices.pue, usd_per_kwh=prices.usd_per_kwh, kg_co2_per_kwh=prices.kg_co2_per_kwh),
        simulated_kilowatts=None if result is None else simulated_kilowatts(proposal.design, terms, result),
        nominal_kilowatts=prices.pue * float(np.asarray(used.pools.gpus) @ nominal) / WATTS_PER_KW,
        budget_kw=terms.budget_kw(problem.output_tokens_per_s * SECONDS_PER_HOUR),
    )


def simulated_kilowatts(design: FleetDesign, terms: PowerTerms, result: SimulationResult) -> float:
    """Time average at the meter of a simulated design."""
    profiles = tuple(design.profile.at(p) for p in range(design.num_pools))
    gpus = np.asarray(design.profile.gpus_per_replica).tolist()
    return float(terms.prices.pue * simulated_watts(result, gpus, terms.stacked(profiles)) / WATTS_PER_KW)
