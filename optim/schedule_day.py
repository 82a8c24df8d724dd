"""A day for one fleet's hardware and thresholds: what intervals need, who is there when, and what it all costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from jaxsim._checks import require_non_negative
from jaxsim.energy import JOULES_PER_KWH
from jaxsim.fleet import FleetDesign
from jaxsim.power import PowerLaw
from optim.defer import RequestCosts, line_through
from optim.demand import RateProfile
from optim.figures import figures, lengths_alone
from optim.problem import PlanProblem
from optim.rate_sizes import RateSizes, sizes_at_rates
from optim.schedule_cost import DayCost, GpuPrices, day_cost
from optim.schedule_play import LEAST_LEAD_S, RESIDENCES, Played, Window, play_staffing
from optim.schedule_power import DayEnergy, Grid, day_energy, watts_at
from optim.sizing import Targets
from optim.slopes import Point
from optim.staffing import Staffing, always, staffing
from optim.verify import Correction

COLD_START_S = 300.0
_LINE_RATES = 32


@dataclass(frozen=True)
class Scaling:
    """How replicas come and go.

    Attributes:
        cold_start_s: from the order of a replica to the first request it takes, seconds, >= 0; paid for.
        hold_s: for which a replica that is not needed any more still takes requests, seconds, >= 0.
        spare: share by which each interval's rate is raised before it is sized, >= 0.
    """

    cold_start_s: float = COLD_START_S
    hold_s: float = 0.0
    spare: float = 0.0

    def __post_init__(self) -> None:
        for name in ("cold_start_s", "hold_s", "spare"):
            require_non_negative(name, getattr(self, name))


@dataclass(frozen=True)
class Electric:
    """What the electricity of a day is reckoned with: power of one GPU of each pool (stacked), and the grid."""

    power: PowerLaw
    grid: Grid


@dataclass(frozen=True)
class Outcome:
    """A demand served by both fleets, by the model.

    Attributes:
        needed: replicas of each interval and pool.
        static, scheduled: who is there when.
        cost: of both.
        static_energy, scheduled_energy: None where no electricity is reckoned.
    """

    needed: Int[np.ndarray, "intervals pools"]
    static: Staffing
    scheduled: Staffing
    cost: DayCost
    static_energy: DayEnergy | None
    scheduled_energy: DayEnergy | None


class Day:
    """What stays while demand and additions change."""

    def __init__(
        self,
        problem: PlanProblem,
        design: FleetDesign,
        correction: Correction,
        scaling: Scaling,
        prices: GpuPrices,
        electric: Electric | None,
    ) -> None:
        self.problem, self.design, self.scaling, self.prices, self.electric = problem, design, scaling, prices, electric
        self.workload = lengths_alone(problem.limited)
        targets = Targets(*(jnp.asarray(v) for v in correction.targets(problem.slo)))
        self.point = Point.of(design, problem, targets)
        self.gpus = tuple(float(n) for n in np.asarray(design.profile.gpus_per_replica))

    def sizes(self, rates: np.ndarray) -> RateSizes:
        """By the model, with what is spare."""
        return sizes_at_rates(self.point, self.workload, rates * (1.0 + self.scaling.spare), model=self.problem.model)

    def outcome(self, demand: RateProfile, needed: Int[np.ndarray, "intervals pools"]) -> Outcome:
        """Both fleets for what is needed."""
        cold, repeat = self.scaling.cold_start_s, demand.repeat
        static = always(needed.max(axis=0).tolist(), demand.end_s, cold_start_s=cold, repeat=repeat)
        scheduled = staffing(needed, demand.edges_s, cold_start_s=cold, hold_s=self.scaling.hold_s, repeat=repeat)
        cost = day_cost(static, scheduled, self.gpus, self.prices)
        energies = [self._energy(found, demand) for found in (static, scheduled)]
        return Outcome(needed, static, scheduled, cost, *energies)

    def _energy(self, found: Staffing, demand: RateProfile) -> DayEnergy | None:
        if self.electric is None:
            return None
        power, grid = self.electric.power, self.electric.grid
        return day_energy(found, demand, self.design, self.problem.limited, power=power, grid=grid)

    def request_costs(self, demand: RateProfile, minimize: str) -> RequestCosts:
        """What one request costs more in each interval: a line through the exact sizes over the day's rates."""
        high = float(demand.rates.max())
        rates = np.linspace(min(float(demand.rates.min()), 0.5 * high), high, _LINE_RATES)
        replicas = self.sizes(rates).replicas
        on_demand = line_through(rates, replicas @ (np.array(self.prices.on_demand) * self.gpus))
        served = np.zeros(demand.num_intervals)
        if self.electric is not None:
            power, grid = self.electric.power, self.electric.grid
            watts = watts_at(self.design, self.problem.limited, rates, replicas, power)
            of = grid.usd_per_kwh if minimize == "usd" else grid.kg_co2_per_kwh
            if of is not None:
                served = line_through(rates, watts) * grid.pue / JOULES_PER_KWH * np.array(of)
        if minimize == "carbon":
            return RequestCosts(served)
        if self.prices.reserved is None:
            return RequestCosts(served, on_demand)
        return RequestCosts(
            served, on_demand, line_through(rates, replicas @ (np.array(self.prices.reserved) * self.gpus))
        )

    def objective(self, found: Outcome, minimize: str) -> float:
        """Of the scheduled fleet: dollars of GPUs, bought as cheaply as can be, and electricity; or kg of CO2."""
        energy = found.scheduled_energy
        if minimize == "carbon":
            assert energy is not None and energy.total_kg_co2 is not None  # checked by the caller
            return energy.total_kg_co2
        bought = found.cost.scheduled.usd if found.cost.split_usd is None else found.cost.split_usd
        return bought + (0.0 if energy is None else energy.total_usd or 0.0)

    def play(self, found: Staffing, demand: RateProfile, window: Window, seed: int) -> Played:
        """In the simulator."""
        problem = self.problem
        return play_staffing(
            found, demand, window, self.design, problem.limited, problem.slo, model=problem.model, seed=seed
        )

    def lead_s(self, needed: Int[np.ndarray, "intervals pools"]) -> float:
        """By which an empty fleet has filled, at the highest rate."""
        peak = replace_replicas(self.design, needed.max(axis=0))
        pools = figures(peak, self.workload, self.problem.rate, model=self.problem.model).pools
        stay_s = float((np.asarray(pools.active_batch) * np.asarray(pools.replicas)).sum()) / self.problem.rate
        return LEAST_LEAD_S + RESIDENCES * stay_s


def replace_replicas(design: FleetDesign, replicas: Sequence[float] | np.ndarray) -> FleetDesign:
    """The same hardware and thresholds with other numbers of replicas."""
    return FleetDesign(design.profile, np.asarray(replicas, dtype=float), design.upper_tokens, design.max_context)
