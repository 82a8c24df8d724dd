"""What a token costs: a fleet at its utilisation against an API's price, a run's bill, and what a claim forgot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jaxsim._checks import require_non_negative, require_positive
from jaxsim.cost import api_usd_per_hour, break_even_utilization, per_million, usd_per_million
from jaxsim.units import SECONDS_PER_HOUR

SECONDS_PER_DAY = 24.0 * SECONDS_PER_HOUR
FEW_STREAMS = 16
"""Requests at a time up to which a GPU is mostly waiting: an engine batches hundreds."""
NEAR = 0.03
"""Relative error within which a claim is taken for another figure; claims are rounded."""
TOKENS = "tokens"
KINDS = ("output tokens", "input tokens", TOKENS)
"""Units that tokens are counted in; the last is both together."""


@dataclass(frozen=True)
class Served:
    """A fleet at one utilisation.

    Attributes:
        utilization: share of the throughput at saturation that is asked for.
        usd_per_million: the whole bill over each unit.
        idle_usd_per_hour: of the price, what is paid for what nobody asked for.
        over_api: cost over the API's for the same tokens; None without its prices.
    """

    utilization: float
    usd_per_million: Mapping[str, float]
    idle_usd_per_hour: float
    over_api: float | None


@dataclass(frozen=True)
class FleetCost:
    """A fleet's tokens in dollars.

    Attributes:
        usd_per_hour: price of all GPUs.
        per_s: of each unit at saturation.
        served: at each utilisation.
        api: prices of an API, dollars per million of each unit that it charges; empty without.
        break_even: utilisation at which the API costs the same; None without its prices, above 1 never.
    """

    usd_per_hour: float
    per_s: Mapping[str, float]
    served: tuple[Served, ...]
    api: Mapping[str, float]
    break_even: float | None

    @property
    def break_even_per_day(self) -> Mapping[str, float]:
        """Of each unit a day at which the API costs the same; empty without its prices."""
        share = self.break_even
        return {} if share is None else {unit: share * rate * SECONDS_PER_DAY for unit, rate in self.per_s.items()}


def fleet_cost(
    usd_per_hour: float,
    per_s: Mapping[str, float],
    *,
    utilization: Sequence[float] = (1.0,),
    api: Mapping[str, float] | None = None,
) -> FleetCost:
    """Dollars per million at each utilisation, and where an API costs the same.

    Args:
        usd_per_hour: price of all GPUs, >= 0.
        per_s: "output tokens", "input tokens" or "tokens" (both) a second at saturation, > 0; of two the third follows.
        utilization: in (0, 1], one or more.
        api: prices to hold against, of units of `per_s`: output tokens, input tokens or both, or all tokens alike.

    Raises:
        ValueError: a value out of its domain, nothing served, or a price of what is not known to be served.
    """
    require_non_negative("usd_per_hour", usd_per_hour)
    rates = with_total(per_s, "tokens a second")
    prices = {} if api is None else {**api}
    for unit in prices:
        if unit not in rates:
            raise ValueError(f"an API's price of {unit} must come with how many are served a second, got none")
    if TOKENS in prices and len(prices) > 1:
        raise ValueError("an API's price must be of all tokens alike or of input and output tokens, got both")
    break_even = None
    if prices:
        charged = sum(float(api_usd_per_hour(rates[unit], price)) for unit, price in prices.items())
        break_even = float(break_even_utilization(usd_per_hour, charged))
    served = tuple(
        Served(
            utilization=share,
            usd_per_million={
                unit: float(usd_per_million(usd_per_hour, rate, utilization=share)) for unit, rate in rates.items()
            },
            idle_usd_per_hour=usd_per_hour * (1.0 - share),
            over_api=None if break_even is None else break_even / share,
        )
        for share in utilization
    )
    return FleetCost(usd_per_hour, rates, served, prices, break_even)


def with_total(counts: Mapping[str, float], what: str) -> dict[str, float]:
    """Output, input and all tokens, then other units; of two kinds of tokens the third follows.

    Raises:
        ValueError: none given, one that is not > 0, or all tokens that are not input and output together.
    """
    if not counts:
        raise ValueError(f"{what} must be given for one unit at least: output tokens, input tokens or tokens")
    for unit, count in counts.items():
        require_positive(f"{what}, {unit}" if what else unit, count)
    output, inputs, both = (counts.get(unit) for unit in KINDS)
    if output is not None and inputs is not None:
        if both is not None and abs(both - output - inputs) > 1e-6 * both:
            raise ValueError(f"{what}: tokens must be input and output together ({output + inputs:g}), got {both:g}")
        both = output + inputs
    elif both is not None and (one := output if output is not None else inputs) is not None:
        if one >= both:
            raise ValueError(f"{what}: tokens must be input and output together, more than {one:g}, got {both:g}")
        output, inputs = (one, both - one) if output is not None else (both - one, one)
    found = {unit: count for unit, count in zip(KINDS, (output, inputs, both), strict=True) if count is not None}
    return found | {unit: count for unit, count in counts.items() if unit not in KINDS}


@dataclass(frozen=True)
class RunCost:
    """The bill of one measured run.

    Attributes:
        usd: of the whole run, all GPUs.
        wall_s: how long it took.
        counts: of each unit that it made: "output tokens", "input tokens", "tokens" (both), "pages", ...
        usd_per_million: of each unit.
        doubts: why it is not what a fleet would cost.
    """

    usd: float
    wall_s: float
    counts: Mapping[str, float]
    usd_per_million: Mapping[str, float]
    doubts: tuple[str, ...]


def run_cost(
    usd_per_hour: float,
    *,
    wall_s: float,
    counts: Mapping[str, float],
    concurrency: float | None = None,
) -> RunCost:
    """What a run cost, by the million of everything that it made.

    Args:
        usd_per_hour: price of all GPUs that it held.
        wall_s: seconds that they were held, start-up included where it is paid.
        counts: of each unit, > 0: "output tokens", "input tokens", "tokens" (both; of two the third follows), and any
            other, such as "pages".
        concurrency: requests at a time; None where not known.

    Raises:
        ValueError: a value out of its domain, no count, or tokens that are not input and output together.
    """
    require_positive("usd_per_hour", usd_per_hour)
    require_positive("wall_s", wall_s)
    if concurrency is not None:
        require_positive("concurrency", concurrency)
    found = with_total(counts, "made in the run")
    usd = usd_per_hour / SECONDS_PER_HOUR * wall_s
    millions = {unit: float(per_million(usd, count)) for unit, count in found.items()}
    return RunCost(usd, wall_s, found, millions, tuple(_run_doubts(found, wall_s, concurrency)))


def _run_doubts(counts: Mapping[str, float], wall_s: float, concurrency: float | None) -> list[str]:
    """What makes the bill of a run differ from that of a fleet."""
    said = []
    items = {unit: count for unit, count in counts.items() if not unit.endswith(TOKENS)}
    fewest = min(items, key=lambda unit: items[unit], default=None)
    speed = f" ({counts[TOKENS] / wall_s:,.4g} tokens/s)" if TOKENS in counts else ""
    not_fleet = "cost at concurrency 1 is not fleet cost: an engine that batches serves many times as much for it"
    if concurrency is not None:
        if concurrency <= 1:
            said.append(f"single-stream run{speed}: {not_fleet}")
        elif concurrency <= FEW_STREAMS:
            said.append(f"only {concurrency:g} requests at a time{speed}, close to a single-stream run: {not_fleet}")
    elif fewest is not None and items[fewest] <= FEW_STREAMS:
        said.append(
            f"{items[fewest]:g} {fewest} in all{speed}, so at most as many at a time and close to a single-stream run: "
            f"{not_fleet}"
        )
    else:
        said.append(f"concurrency not given{speed}: if it was a single-stream run, {not_fleet}")
    if TOKENS in counts and KINDS[0] not in counts:
        said.append("input and output tokens not told apart: a prompt token is far cheaper to serve than an output one")
    return said


@dataclass(frozen=True)
class Claim:
    """A figure that somebody gave for dollars per million.

    Attributes:
        usd_per_million: claimed.
        unit: of what.
        computed: what the facts give.
        over: claimed over computed.
        doubts: what explains it, in words; empty where it holds.
    """

    usd_per_million: float
    unit: str
    computed: float
    over: float
    doubts: tuple[str, ...] = field(default=())

    @property
    def holds(self) -> bool:
        """Whether the claim is what the facts give, within 3 %."""
        return abs(self.over - 1.0) <= NEAR


def check_claim(
    claimed: float,
    unit: str,
    usd_per_million: Mapping[str, float],
    *,
    num_gpus: float = 1.0,
    utilization: float = 1.0,
) -> Claim:
    """Hold a claim against the facts, and against what the facts give with one usual mistake.

    Args:
        claimed: dollars per million.
        unit: of what, a key of `usd_per_million`.
        usd_per_million: of each unit, all GPUs and idle time included.
        num_gpus: that the bill is for.
        utilization: that it is for.

    Raises:
        ValueError: an unknown unit, or a claim that is not > 0.
    """
    require_positive("claim", claimed)
    if unit not in usd_per_million:
        raise ValueError(f"unit must be one of {', '.join(usd_per_million)}, got {unit!r}")
    right = usd_per_million[unit]
    claim = Claim(claimed, unit, right, claimed / right)
    if claim.holds:
        return claim
    said = [words for value, words in _mistakes(unit, usd_per_million, num_gpus, utilization) if _near(claimed, value)]
    if not said:
        many = f"{claim.over:.3g} times" if claim.over > 1 else f"a {1 / claim.over:.3g}th of"
        said = [f"{many} what the facts give, and no single usual mistake explains it"]
    return Claim(claimed, unit, right, claim.over, tuple(said))


def _near(claimed: float, value: float) -> bool:
    return abs(claimed / value - 1.0) <= NEAR


def _mistakes(
    unit: str, usd_per_million: Mapping[str, float], num_gpus: float, utilization: float
) -> list[tuple[float, str]]:
    """Figures that come of one mistake each, and its name."""
    right = usd_per_million[unit]
    found = [
        (value, f"unit mix-up {other} vs {unit}: it is what a million {other} cost")
        for other, value in usd_per_million.items()
        if other != unit
    ]
    if num_gpus != 1:
        found.append((right / num_gpus, f"it is the price of one GPU, and the bill is for {num_gpus:g}"))
        found.append((right * num_gpus, f"the {num_gpus:g} GPUs are counted twice"))
    if utilization != 1:
        idle = f"{100 * (1 - utilization):.3g} %"
        found.append((right * utilization, f"it forgets idle time: the GPUs are paid for the {idle} that they idle"))
        if num_gpus != 1:
            found.append((right * utilization / num_gpus, f"it forgets idle time ({idle}) and all GPUs but one"))
    found += [
        (right / 1e3, f"it is for a thousand {unit}, not a million"),
        (right / 1e6, f"it is for one of the {unit}, not a million"),
        (right * 1e3, f"it is a thousand times too high: a price of a thousand {unit} taken for that of one?"),
        (right / SECONDS_PER_HOUR, "a price by the second was taken for one by the hour"),
        (right * SECONDS_PER_HOUR, "a price by the hour was taken for one by the second"),
        (right / 60.0, "a price by the minute was taken for one by the hour"),
        (right * 60.0, "a price by the hour was taken for one by the minute"),
    ]
    return found
