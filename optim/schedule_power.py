"""Electricity of a day: energy, money and carbon of a staffing in each interval, by the model's occupancy."""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsim._checks import require, require_non_negative, require_positive
from jaxsim.energy import JOULES_PER_KWH, fleet_energy
from jaxsim.evaluate import pool_laws, tabulate
from jaxsim.fleet import FleetDesign
from jaxsim.power import PowerLaw, power_w
from jaxsim.workload import Workload
from optim._compile import program
from optim.cases import in_batches
from optim.demand import RateProfile
from optim.figures import lengths_alone
from optim.staffing import Staffing

_AT_ONCE = 64


@dataclass(frozen=True)
class Grid:
    """What electricity comes with in each interval of a day.

    Attributes:
        pue: power of the building over that of its GPUs, >= 1.
        usd_per_kwh: price, which may be negative; None where nothing is priced.
        kg_co2_per_kwh: carbon intensity, >= 0; None where none is given.
    """

    pue: float
    usd_per_kwh: tuple[float, ...] | None = None
    kg_co2_per_kwh: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        require_positive("pue", self.pue)
        require(self.pue >= 1, "pue", self.pue, ">= 1")
        if self.usd_per_kwh is not None:
            require(np.isfinite(np.array(self.usd_per_kwh)), "usd_per_kwh", np.array(self.usd_per_kwh), "finite")
        if self.kg_co2_per_kwh is not None:
            require_non_negative("kg_co2_per_kwh", np.array(self.kg_co2_per_kwh))


@dataclass(frozen=True)
class DayEnergy:
    """Electricity at the meter in each interval.

    Attributes:
        kwh: PUE included.
        usd, kg_co2: None without a price, or an intensity.
    """

    kwh: Float[np.ndarray, " intervals"]
    usd: Float[np.ndarray, " intervals"] | None
    kg_co2: Float[np.ndarray, " intervals"] | None

    @property
    def total_kwh(self) -> float:
        """Of the day."""
        return float(self.kwh.sum())

    @property
    def total_usd(self) -> float | None:
        """Of the day."""
        return None if self.usd is None else float(self.usd.sum())

    @property
    def total_kg_co2(self) -> float | None:
        """Of the day."""
        return None if self.kg_co2 is None else float(self.kg_co2.sum())


@program
def _watts(design: FleetDesign, workload: Workload, rates: Array, replicas: Array, power: PowerLaw) -> Array:
    tables = tabulate(workload, design.profile)

    def one(rate: Array, engines: Array) -> Array:
        held = eqx.tree_at(lambda d: d.replicas, design, engines)
        return fleet_energy(pool_laws(held, tables, rate), power, design.profile.gpus_per_replica).watts

    return jax.vmap(one)(rates, replicas)


def watts_at(
    design: FleetDesign, workload: Workload, rates: np.ndarray, replicas: np.ndarray, power: PowerLaw
) -> Float[np.ndarray, " rows"]:
    """Watts of the GPUs of a fleet at each rate with each row's replicas, by the model (`step`).

    Args:
        design: hardware and thresholds; its own replicas do not matter.
        workload: joint lengths.
        rates: requests per second.
        replicas: of each row and pool; a pool with 0 draws nothing.
        power: of one GPU of each pool, stacked.
    """
    anonymous = eqx.tree_at(lambda d: d.profile, design, design.profile.unnamed())
    lengths = lengths_alone(workload)
    (watts,) = in_batches(
        lambda rows: (_watts(anonymous, lengths, rows[0], rows[1], power),),
        np.asarray(rates, dtype=float),
        np.asarray(replicas, dtype=float),
        size=_AT_ONCE,
    )
    return watts


def day_energy(
    staffing: Staffing,
    demand: RateProfile,
    design: FleetDesign,
    workload: Workload,
    *,
    power: PowerLaw,
    grid: Grid,
) -> DayEnergy:
    """Electricity of a staffing under a demand.

    Replicas that take requests draw what their load says; those that are starting draw idle power; what is not there
    draws nothing. Requests that a released replica still finishes are counted where the load is.

    Args:
        staffing: of the design's pools.
        demand: on whose intervals the figures are.
        design: hardware and thresholds.
        workload: joint lengths.
        power: of one GPU of each pool, stacked.
        grid: what a kWh comes with.
    """
    found = staffing.stretches(demand.edges_s[:-1].tolist())
    at = np.clip(np.searchsorted(demand.edges_s, found.middles_s, side="right") - 1, 0, demand.num_intervals - 1)
    rates = np.where(found.middles_s < 0.0, 0.0, demand.rates[at])
    rows, back = np.unique(np.column_stack([rates, found.running]), axis=0, return_inverse=True)
    watts = watts_at(design, workload, rows[:, 0], rows[:, 1:], power)[back.ravel()]
    idle = np.asarray(power_w(power, jnp.zeros(len(design.replicas)))) * np.asarray(design.profile.gpus_per_replica)
    joules = (watts + found.starting @ idle) * found.lengths_s
    kwh = grid.pue / JOULES_PER_KWH * np.bincount(at, joules, minlength=demand.num_intervals)
    usd, kg_co2 = (None if of is None else kwh * np.array(of) for of in (grid.usd_per_kwh, grid.kg_co2_per_kwh))
    return DayEnergy(kwh, usd, kg_co2)
