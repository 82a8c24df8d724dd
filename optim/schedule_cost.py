"""What a day costs: a static fleet for its highest interval, the schedule, and the schedule partly reserved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from jaxsim._checks import require, require_positive
from jaxsim.units import SECONDS_PER_HOUR
from optim.staffing import Reserved, Staffing, reserve


@dataclass(frozen=True)
class GpuPrices:
    """Dollars per GPU-hour of each pool's GPUs.

    Attributes:
        on_demand: for the time that a replica is there, > 0.
        reserved: for all the time, > 0; None where nothing can be reserved.
    """

    on_demand: tuple[float, ...]
    reserved: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        require_positive("on_demand", np.array(self.on_demand))
        if self.reserved is not None:
            require_positive("reserved", np.array(self.reserved))
            sizes = len(self.reserved)
            require(sizes == len(self.on_demand), "the number of reserved", sizes, f"{len(self.on_demand)}, one a pool")


@dataclass(frozen=True)
class FleetHours:
    """What a staffing is paid for in a day.

    Attributes:
        gpu_hours: of each pool, cold starts included.
        starting_gpu_hours: of these, in cold starts.
        starts: cold starts of each pool.
        usd: on demand.
    """

    gpu_hours: tuple[float, ...]
    starting_gpu_hours: tuple[float, ...]
    starts: tuple[int, ...]
    usd: float


@dataclass(frozen=True)
class DayCost:
    """Dollars of a day.

    Attributes:
        hours: length of the day.
        static, scheduled: on demand.
        static_reserved_usd: every replica of the static fleet reserved; None without a reserved price, as the next.
        reserved: of each pool, the least-cost number of reserved replicas.
        split_usd: the schedule with those reserved and the rest on demand.
        breakeven: of each pool, the share of the time from which on a replica is worth its reservation.
    """

    hours: float
    static: FleetHours
    scheduled: FleetHours
    static_reserved_usd: float | None
    reserved: tuple[Reserved, ...] | None
    split_usd: float | None
    breakeven: tuple[float, ...] | None

    @property
    def saved_usd(self) -> float:
        """By the schedule against the static fleet, both on demand."""
        return self.static.usd - self.scheduled.usd

    @property
    def cheapest(self) -> tuple[str, float]:
        """The way of buying that costs least: its name and dollars of a day."""
        ways = {"static on demand": self.static.usd, "schedule on demand": self.scheduled.usd}
        if self.static_reserved_usd is not None and self.split_usd is not None:
            ways |= {"static reserved": self.static_reserved_usd, "schedule with reservations": self.split_usd}
        name = min(ways, key=lambda way: ways[way])
        return name, ways[name]


def fleet_hours(found: Staffing, gpus: Sequence[float], usd_per_gpu_hour: Sequence[float]) -> FleetHours:
    """GPU-hours and dollars of a staffing whose replicas of each pool have so many GPUs."""
    each = [float(found.billed_s(p).sum()) * gpus[p] / SECONDS_PER_HOUR for p in range(len(gpus))]
    starting = [seconds * gpus[p] / SECONDS_PER_HOUR for p, seconds in enumerate(found.starting_s)]
    usd = sum(hours * price for hours, price in zip(each, usd_per_gpu_hour, strict=True))
    return FleetHours(tuple(each), tuple(starting), found.starts, float(usd))


def usd_by_interval(
    found: Staffing, edges_s: Float[np.ndarray, " edges"], gpus: Sequence[float], usd_per_gpu_hour: Sequence[float]
) -> Float[np.ndarray, " intervals"]:
    """Dollars of a staffing on demand in each interval of the day; they add up to `FleetHours.usd`.

    What a day that does not repeat orders before it begins is in its first interval.
    """
    cut = found.stretches(edges_s[:-1].tolist())
    at = np.clip(np.searchsorted(edges_s, cut.middles_s, side="right") - 1, 0, len(edges_s) - 2)
    per_s = np.array(gpus) * np.array(usd_per_gpu_hour) / SECONDS_PER_HOUR
    usd = (cut.running + cut.starting) @ per_s * cut.lengths_s
    return np.bincount(at, usd, minlength=len(edges_s) - 1)


def day_cost(static: Staffing, scheduled: Staffing, gpus: Sequence[float], prices: GpuPrices) -> DayCost:
    """Price both fleets, and find the replicas of the schedule to reserve.

    A reservation is a matter of the bill: a reserved replica runs when the schedule says so.

    Args:
        static, scheduled: over the same day.
        gpus: of a replica of each pool.
        prices: of a GPU of each pool.
    """
    hours = scheduled.end_s / SECONDS_PER_HOUR
    fixed, moving = (fleet_hours(found, gpus, prices.on_demand) for found in (static, scheduled))
    if prices.reserved is None:
        return DayCost(hours, fixed, moving, None, None, None, None)
    pairs = zip(gpus, prices.reserved, prices.on_demand, strict=True)
    per_s = [(number * r / SECONDS_PER_HOUR, number * d / SECONDS_PER_HOUR) for number, r, d in pairs]
    chosen = tuple(
        reserve(scheduled.billed_s(p), scheduled.paid_s, reserved_usd_per_s=r, on_demand_usd_per_s=d)
        for p, (r, d) in enumerate(per_s)
    )
    return DayCost(
        hours=hours,
        static=fixed,
        scheduled=moving,
        static_reserved_usd=float(sum(n * r * static.paid_s for n, (r, _) in zip(static.most, per_s, strict=True))),
        reserved=chosen,
        split_usd=float(sum(one.usd[one.replicas] for one in chosen)),
        breakeven=tuple(r / d for r, d in per_s),
    )
