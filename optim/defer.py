r"""Requests that may wait, moved to the cheapest or cleanest hours of a day: a linear program over whole intervals.

Requests :math:`x_{kj}` of interval k are served in j, within their share and their longest wait. The rates that follow
are at most the highest that there was. Minimised is what an extra request costs where it is served, as a line through
the exact sizes (`Slopes`), and, where capacity can be reserved, the bill of a fluid: R requests a second reserved all
day, and what is above them, :math:`o_j \ge \lambda_j - R`, on demand. The result is sized anew by whoever asked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from jaxsim._checks import require, require_positive, unknown
from jaxsim.units import SECONDS_PER_HOUR
from optim.demand import RateProfile

OBJECTIVES = ("usd", "carbon")
_LAZINESS = 1e-6
"""Of the mean cost of a request, for being moved at all, and once more for a day's wait: nothing moves for nothing."""


@dataclass(frozen=True)
class Deferrable:
    """Requests that may wait.

    Attributes:
        share: of every interval's requests, in (0, 1].
        max_wait_s: longest wait until they are released to be served, seconds. A request counts as arrived at the start
            of its interval and as released at the end of the one that serves it, so none waits longer, and a wait must
            be two intervals or more to move anything.
        minimize: "usd" or "carbon".
    """

    share: float
    max_wait_s: float
    minimize: str = "usd"

    def __post_init__(self) -> None:
        require((self.share > 0) & (self.share <= 1), "share", self.share, "in (0, 1]", "a share is not in percent")
        require_positive("max_wait_s", self.max_wait_s)
        if self.minimize not in OBJECTIVES:
            raise unknown("minimize", self.minimize, OBJECTIVES)


@dataclass(frozen=True)
class RequestCosts:
    """What one request costs more where it is served.

    Attributes:
        served: in each interval, of the objective; any sign.
        on_demand_per_hour: for one request a second more, in the same unit; 0 where that is no part of the objective.
        reserved_per_hour: of the same capacity kept all day; None where nothing can be reserved.
    """

    served: Float[np.ndarray, " intervals"]
    on_demand_per_hour: float = 0.0
    reserved_per_hour: float | None = None


@dataclass(frozen=True)
class Moved:
    """Where requests are served.

    Attributes:
        demand: the rates that follow.
        requests: of interval k (row) that are served in interval j (column); the diagonal is 0.
        moved_share: of all requests.
        mean_wait_s: of those that are moved, from the middle of their interval to that of the one that serves them.
    """

    demand: RateProfile
    requests: Float[np.ndarray, "intervals intervals"]
    moved_share: float
    mean_wait_s: float


def move(demand: RateProfile, deferrable: Deferrable, costs: RequestCosts) -> Moved:
    """The cheapest way to serve a demand some of which may wait.

    Raises:
        ValueError: the wait is too short to reach another interval. RuntimeError: the linear program was not solved.
    """
    from scipy.optimize import linprog  # here: slow to import, and rarely needed
    from scipy.sparse import coo_array, csr_array, hstack, vstack

    wait_s, since, until = _pairs(demand, deferrable.max_wait_s)
    if not len(since):
        shortest = float(2.0 * demand.lengths_s.min())
        hint = "two intervals; requests of one are served in another only if none of them waits longer"
        raise ValueError(f"max_wait_s must be >= {shortest:g} s, got {deferrable.max_wait_s:g}; {hint}")
    count, pairs, length = demand.num_intervals, len(since), demand.lengths_s
    columns = np.arange(pairs)
    leaves = csr_array(coo_array((np.ones(pairs), (since, columns)), shape=(count, pairs)))
    comes = csr_array(coo_array((np.ones(pairs), (until, columns)), shape=(count, pairs)))
    arrived = demand.rates * length
    limit = demand.rates.max() * length
    gain = costs.served[until] - costs.served[since]
    scale = float(np.abs(costs.served).mean()) or 1.0
    price = gain + _LAZINESS * scale * (1.0 + wait_s / demand.end_s)
    rows, most = [leaves, comes - leaves], [deferrable.share * arrived, limit - arrived]
    if costs.reserved_per_hour is not None:  # capacity R kept all day, and o_j above it: rate_j - R - o_j <= 0
        none = csr_array((2 * count, count + 1))
        over = csr_array(np.hstack([-length[:, None], -np.diag(length)]))
        matrix = vstack([hstack([vstack(rows), none]), hstack([comes - leaves, over])])
        most.append(-arrived)
        hours = length / SECONDS_PER_HOUR
        kept = costs.reserved_per_hour * float(hours.sum())
        price = np.concatenate([price, [kept], costs.on_demand_per_hour * hours])
    else:
        matrix = vstack(rows)
    unit = float(np.abs(price).max()) or 1.0
    found = linprog(price / unit, A_ub=matrix, b_ub=np.concatenate(most), bounds=(0, None), method="highs")
    if not found.success:
        raise RuntimeError(f"moving requests: the linear program was not solved ({found.message})")
    shifted = np.maximum(found.x[:pairs], 0.0)
    served = arrived - leaves @ shifted + comes @ shifted
    requests = np.zeros((count, count))
    requests[since, until] = shifted
    total = float(shifted.sum())
    return Moved(
        demand=demand.with_rates(np.maximum(served / length, 0.0), f"{demand.source}, some of it moved"),
        requests=requests,
        moved_share=total / demand.requests,
        mean_wait_s=float(shifted @ wait_s) / total if total > 0 else 0.0,
    )


def _pairs(demand: RateProfile, max_wait_s: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean wait, interval of arrival and of service of every move that keeps all waits within the longest."""
    starts, ends, count = demand.edges_s[:-1], demand.edges_s[1:], demand.num_intervals
    days = (0.0, demand.end_s) if demand.repeat else (0.0,)
    found = []
    for since in range(count):
        for day in days:
            for until in range(count):
                later = until > since if day == 0.0 else until < since
                longest = ends[until] + day - starts[since]
                if later and longest <= max_wait_s * (1.0 + 1e-12):
                    middle = 0.5 * (starts[until] + ends[until] - starts[since] - ends[since]) + day
                    found.append((middle, since, until))
    made = np.array(found).reshape(-1, 3)
    return made[:, 0], made[:, 1].astype(int), made[:, 2].astype(int)


def line_through(rates: Float[np.ndarray, " rates"], values: Float[np.ndarray, " rates"]) -> float:
    """Slope of the least-squares line, a unit of the value for one request a second."""
    return float(np.polyfit(rates, values, 1)[0])
