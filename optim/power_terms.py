"""What a plan makes of power: the laws of its GPUs, what electricity comes with, what is to be least, and budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jaxsim._checks import invalid, require_non_negative, require_positive, unknown
from jaxsim.energy import stack_power
from jaxsim.power import PowerLaw
from jaxsim.profiles import Profile

GPUS_ALONE = 1.0

MINIMIZE = {
    "cost": "usd_per_hour",
    "energy": "kw",
    "cost+electricity": "usd_per_hour",
    "carbon": "kg_co2_per_hour",
}
"""What a plan may be the least of, and the unit that it is in."""


@dataclass(frozen=True)
class Prices:
    """What electricity comes with: PUE, $/kWh and kg CO2/kWh; None where not given."""

    pue: float
    usd_per_kwh: float | None
    kg_co2_per_kwh: float | None


class Aim(NamedTuple):
    """What a search is to find the least of, and what it may not exceed.

    Attributes:
        usd: weight of a dollar per hour of GPUs.
        kw: weight of a kilowatt at the meter.
        max_kw: at the meter.
        max_gpus: of the whole fleet.
        power: law of one GPU of each pool, at the meter; None where power decides nothing.
    """

    usd: float = 1.0
    kw: float = 0.0
    max_kw: float = np.inf
    max_gpus: float = np.inf
    power: PowerLaw | None = None

    @property
    def powered(self) -> bool:
        """Whether power decides anything."""
        return bool(self.kw > 0.0 or self.max_kw < np.inf)

    def value(self, usd_per_hour: Any, kilowatts: Any) -> Any:
        """Of fleets of these prices and powers; where power weighs nothing it need not be known."""
        return self.usd * usd_per_hour + self.kw * kilowatts if self.kw > 0.0 else self.usd * usd_per_hour


@dataclass(frozen=True)
class PowerTerms:
    """What a plan makes of power. All of it is mean power under the load, at the meter, PUE included.

    Attributes:
        laws: power law of one GPU, by the profiles' `gpu`.
        prices: PUE, price and carbon.
        minimize: "cost" of the GPUs, "energy" (kW), "cost+electricity", or "carbon" of the electricity; carbon is
            energy times one intensity, so its fleet is that of "energy".
        max_kw: budget of the site, kW; None is none.
        max_kwh_per_million_tokens: budget of a million output tokens, kWh; None is none. Under a given load it is one
            on kW.
    """

    laws: Mapping[str, PowerLaw]
    prices: Prices
    minimize: str = "cost"
    max_kw: float | None = None
    max_kwh_per_million_tokens: float | None = None

    def __post_init__(self) -> None:
        if self.minimize not in MINIMIZE:
            raise unknown("minimize", self.minimize, MINIMIZE)
        require_positive("pue", self.prices.pue)
        if self.prices.pue < 1.0:
            raise invalid("pue", self.prices.pue, ">= 1")
        for name in ("max_kw", "max_kwh_per_million_tokens"):
            if (budget := getattr(self, name)) is not None:
                require_positive(name, budget)
        for name in ("usd_per_kwh", "kg_co2_per_kwh"):
            if (price := getattr(self.prices, name)) is not None:
                require_non_negative(name, price)
        if self.minimize == "cost+electricity" and self.prices.usd_per_kwh is None:
            raise invalid("usd_per_kwh", None, "given to minimize 'cost+electricity'", "the price of electricity")
        if self.minimize == "carbon" and not self.prices.kg_co2_per_kwh:
            hint = "without carbon in its electricity every fleet is alike"
            raise invalid("kg_co2_per_kwh", self.prices.kg_co2_per_kwh, "> 0 to minimize 'carbon'", hint)

    @property
    def decides(self) -> bool:
        """Whether power has a say in the fleet that is chosen; if not it is reported."""
        return self.minimize != "cost" or self.max_kw is not None or self.max_kwh_per_million_tokens is not None

    def check(self, profiles: tuple[Profile, ...], model: str) -> None:
        """Refuse profiles and models that nothing is known of.

        Raises:
            ValueError: no law of a GPU, one that idles for nothing where power decides, or the `kimura` model.
        """
        if model != "step":
            hint = "its slots are full or empty, which says nothing of the batch that power depends on"
            raise invalid("model", model, "step beside power", hint)
        for profile in profiles:
            if str(profile.gpu) not in self.laws:
                raise unknown("power law of GPU", str(profile.gpu), self.laws)
            idle = float(self.laws[str(profile.gpu)].idle_w)
            if self.decides and idle <= 0.0:
                hint = "if idling is free, no fleet is of least power"
                raise invalid("idle_w", idle, f"> 0 for GPU {profile.gpu!r}", hint)

    def budget_kw(self, output_tokens_per_hour: float) -> float:
        """The tighter of the budgets under a load, kW; inf without any."""
        found = [np.inf] if self.max_kw is None else [self.max_kw]
        if self.max_kwh_per_million_tokens is not None:
            found.append(self.max_kwh_per_million_tokens * output_tokens_per_hour / 1e6)
        return float(min(found))

    def aim(self, output_tokens_per_hour: float, max_gpus: float) -> Aim:
        """As weights."""
        per_kwh = {
            "cost": 0.0,
            "energy": 1.0,
            "cost+electricity": self.prices.usd_per_kwh or 0.0,
            "carbon": self.prices.kg_co2_per_kwh or 0.0,
        }
        usd = 1.0 if self.minimize.startswith("cost") else 0.0
        return Aim(usd, per_kwh[self.minimize], self.budget_kw(output_tokens_per_hour), max_gpus)

    def stacked(self, profiles: tuple[Profile, ...]) -> PowerLaw:
        """The law of one GPU of each profile, along a leading axis."""
        return stack_power([self.laws[str(profile.gpu)] for profile in profiles])

    def at_meter(self, profiles: tuple[Profile, ...]) -> PowerLaw:
        """The same with what the building adds."""
        law, pue = self.stacked(profiles), self.prices.pue
        return law._replace(idle_w=pue * law.idle_w, range_w=pue * law.range_w)
