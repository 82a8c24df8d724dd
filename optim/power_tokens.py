"""Tokens per watt: GPUs for one model ranked by the energy of a token at equal SLO, and over utilisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxsim._checks import require, require_x64
from jaxsim.energy import Electricity, Energy, electricity, fleet_energy, stack_power
from jaxsim.evaluate import Metrics, metrics, pool_laws, tabulate
from jaxsim.fleet import FleetDesign
from jaxsim.power import PowerLaw
from jaxsim.profiles import Profile
from jaxsim.roofline_names import parse_name
from jaxsim.workload import Workload
from optim._compile import program
from optim.figures import lengths_alone
from optim.plan import PRECISION, Plan, plan
from optim.power_terms import Prices
from optim.problem import SLO, PlanProblem

Progress = Callable[[str], None]


@dataclass(frozen=True)
class CurvePoint:
    """A fleet at another rate, by the model; `slo_met` says whether it still meets the objectives there."""

    utilization: float
    rate: float
    active: float
    watts_per_gpu: float
    tokens_per_joule: float
    ttft_p99_s: float
    tpot_p99_s: float
    slo_met: bool


@dataclass(frozen=True)
class Ranked:
    """A GPU's cheapest fleet that meets the SLO, and its energy.

    Attributes:
        profile: hardware.
        plan: that fleet, or why there is none.
        energy, bill: at the rate asked for; None without a fleet.
        curve: the same fleet over utilisation.
    """

    profile: Profile
    plan: Plan
    energy: Energy | None
    bill: Electricity | None
    curve: tuple[CurvePoint, ...]


@dataclass(frozen=True)
class Ranking:
    """GPUs by output tokens per joule, best first; those without a fleet last.

    Attributes:
        same_model: whether the profiles are of one model; None where their names do not say.
        model_text: the same as a sentence.
    """

    problem: PlanProblem
    ranked: tuple[Ranked, ...]
    same_model: bool | None
    model_text: str


def same_model(profiles: Sequence[Profile]) -> tuple[bool | None, str]:
    """Whether profiles are of one model, as far as their names say."""
    names = [str(profile.name) for profile in profiles]
    silent = [name for name in names if "@" not in name]
    models = sorted({parse_name(name).model for name in names if "@" in name})
    if len(models) > 1:
        return False, f"the profiles are of different models ({', '.join(models)}): their tokens are not alike"
    if silent:
        which = f"the name{'' if len(silent) == 1 else 's'} {', '.join(silent)} {'does' if len(silent) == 1 else 'do'}"
        return None, f"{which} not say of which model: the ranking holds only if all are of the same one"
    return True, f"all profiles are of {models[0]}"


@program
def _at_rates(design: FleetDesign, workload: Workload, rates: jax.Array, power: PowerLaw) -> tuple[Energy, Metrics]:
    tables = tabulate(workload, design.profile)

    def one(rate: jax.Array) -> tuple[Energy, Metrics]:
        laws = pool_laws(design, tables, rate)
        return fleet_energy(laws, power, design.profile.gpus_per_replica), metrics(laws)

    return jax.vmap(one)(rates)


def ranking(
    problem: PlanProblem,
    laws: Mapping[str, PowerLaw],
    prices: Prices,
    *,
    utilizations: Sequence[float],
    seed: int = 0,
    precision: float = PRECISION,
    simulate: bool = True,
    progress: Progress = lambda _: None,
) -> Ranking:
    """Plan each profile by itself, in one pool, and rank by output tokens per joule at the rate asked for.

    Args:
        problem: what to serve, with the profiles to rank; `step` model.
        laws: power of one GPU, by the profiles' `gpu`.
        prices: PUE, price and carbon.
        utilizations: of full batch, at which each fleet is looked at besides, in (0, 1).
        seed, precision, simulate: of the planner's verification.
        progress: told what is being done.

    Raises:
        ValueError: a utilisation out of its domain.
    """
    require_x64()
    levels = np.asarray(utilizations, dtype=float)
    require((levels > 0) & (levels < 1), "utilizations", list(utilizations), "in (0, 1)")
    found = []
    for profile in problem.profiles:
        name = str(profile.name)

        def told(words: str, name: str = name) -> None:
            progress(f"{name}: {words}")

        alone = replace(problem, profiles=(profile,), max_pools=1)
        made = plan(alone, seed=seed, precision=precision, simulate=simulate, progress=told)
        found.append(_ranked(profile, made, laws[str(profile.gpu)], prices, levels))
    ranked = sorted(found, key=lambda one: -np.inf if one.energy is None else float(one.energy.tokens_per_joule))
    known, text = same_model(problem.profiles)
    return Ranking(problem, tuple(ranked[::-1]), known, text)


def _ranked(profile: Profile, made: Plan, law: PowerLaw, prices: Prices, levels: np.ndarray) -> Ranked:
    if made.design is None or made.analytic is None:
        return Ranked(profile, made, None, None, ())
    problem, load = made.problem, float(made.analytic.utilization)
    rates = np.append(problem.rate, problem.rate * levels / load)
    design = _anonymous(made.design)
    lengths = lengths_alone(problem.limited)
    energies, figures = _at_rates(design, lengths, jnp.asarray(rates), stack_power([law]))
    here: Energy = jax.tree.map(lambda v: v[0], energies)
    bill = electricity(here, pue=prices.pue, usd_per_kwh=prices.usd_per_kwh, kg_co2_per_kwh=prices.kg_co2_per_kwh)
    curve = tuple(_point(energies, figures, k, float(rates[k]), problem.slo) for k in range(1, len(rates)))
    return Ranked(profile, made, here, bill, curve)


def _anonymous(design: FleetDesign) -> FleetDesign:
    """The design without names, so that equal shapes share one program."""
    return FleetDesign(design.profile.unnamed(), design.replicas, design.upper_tokens, design.max_context)


def _point(energies: Energy, figures: Metrics, k: int, rate: float, slo: SLO) -> CurvePoint:
    ttft, tpot = float(figures.ttft_p99_s[k]), float(figures.tpot_p99_s[k])
    return CurvePoint(
        utilization=float(figures.utilization[k]),
        rate=rate,
        active=float(energies.pools.active[k, 0]),
        watts_per_gpu=float(energies.pools.watts_per_gpu[k, 0]),
        tokens_per_joule=float(energies.tokens_per_joule[k]),
        ttft_p99_s=ttft,
        tpot_p99_s=tpot,
        slo_met=ttft <= slo.ttft_p99_s and (slo.tpot_p99_s is None or tpot <= slo.tpot_p99_s),
    )
