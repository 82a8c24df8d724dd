"""What every router has: dispatch within a pool, its table, its expectation; and what routers share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int

from des.knowledge import Knowledge, KnownLength, require_whole
from des.routing import NO_POOL, RouteTable, Served, pool_of_length, settle
from jaxsim._checks import invalid, require, unknown
from jaxsim.fleet import FleetDesign
from jaxsim.workload import Workload

_DISPATCH_TEXT = {
    "least-loaded": "the replica with the fewest active + queued requests",
    "random": "a replica at random",
    "round-robin": "the replicas in turn",
    "power-of-two": "the less loaded of two replicas, each drawn at random",
    "prefix-affinity": "the replica that holds most of the prompt's prefix, unless it has over {slack} requests more "
    "than the least loaded",
}

DISPATCH = tuple(_DISPATCH_TEXT)
"""How a replica is chosen within a pool, or over all pools that can hold the request."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Router(ABC):
    """What every router has.

    Attributes:
        dispatch: one of `DISPATCH`.
        affinity_slack: for ``"prefix-affinity"``, and only then: requests (active + queued) by which the replica that
            holds most of a prompt's prefix may exceed the least loaded one; >= 0. Beyond it the request goes to
            the least loaded.
    """

    warnings: ClassVar[tuple[str, ...]] = ()

    dispatch: str = "least-loaded"
    affinity_slack: int | None = None

    @property
    def spill_pressure(self) -> float:
        """Load per slot from which on a pool hands requests to the next; infinity for never."""
        return math.inf

    @abstractmethod
    def served(self, workload: Workload, design: FleetDesign) -> Served:
        """The rows that requests are served with, and the outcomes of each workload row."""

    @abstractmethod
    def _rules(self) -> str:
        """Which pool, in words."""

    def describe(self) -> str:
        """The rules in words."""
        return f"{self._rules()}; then {_DISPATCH_TEXT[self.dispatch].format(slack=self.affinity_slack)}"

    def table(self, served: Served, reasons: Int[np.ndarray, "pools served"]) -> RouteTable:
        """Where each outcome ends, given `des.routing.capability` of the served rows."""
        return settle(served, reasons, pass_empty=math.isfinite(self.spill_pressure))

    def expected_workload(self, workload: Workload, design: FleetDesign) -> Workload:
        """What a workload becomes: compressed requests count with the lengths that they are served with.

        For the analytical model, whose service laws then include them. The workload itself where nothing is
        compressed; else one without arrival times, since chance decides which of its requests is compressed.
        """
        served = self.served(workload, design)
        if served.compressed_share == 0.0:
            return workload
        weight = served.weight
        kept = weight > 0
        return Workload.from_lengths(
            served.input_tokens[kept],
            served.output_tokens[kept],
            weight=weight[kept],
            prefix_cache_hit_rate=workload.prefix_cache_hit_rate,
            rate=workload.rate,
            name=workload.name,
            source=workload.source,
            notes=(*workload.notes, f"{served.compressed_share:.4%} of requests compressed"),
            breakpoints=workload.breakpoints,
        )


def columns(workload: Workload) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Input tokens, output tokens and share of each row."""
    return np.asarray(workload.input_tokens), np.asarray(workload.output_tokens), np.asarray(workload.weight)


def by_length(workload: Workload, design: FleetDesign, knows: Knowledge) -> Served:
    """Rows as they are, sent by what is known of their length."""
    inputs, outputs, share = columns(workload)
    upper = np.asarray(design.upper_tokens)
    up_to, meant = knows.destinations(inputs, outputs, upper)
    row = np.arange(len(share), dtype=np.int32)
    belongs = pool_of_length(upper, inputs + outputs)
    return Served(inputs, outputs, row, share, up_to, np.broadcast_to(row, meant.shape), meant, belongs)


def as_given(workload: Workload, design: FleetDesign, up_to: np.ndarray, meant: np.ndarray) -> Served:
    """Outcomes that no length decides, but for the fleet's own limit."""
    inputs, outputs, share = columns(workload)
    row = np.arange(len(share), dtype=np.int32)
    beyond = inputs + outputs > np.asarray(design.upper_tokens)[-1]
    meant = np.where(beyond, NO_POOL, meant).astype(np.int16)
    return Served(inputs, outputs, row, share, up_to, np.broadcast_to(row, meant.shape), meant, None)


def check_dispatch(router: Router) -> None:
    """A known way, with the slack that it needs."""
    dispatch, slack = router.dispatch, router.affinity_slack
    if dispatch not in DISPATCH:
        raise unknown("dispatch", dispatch, DISPATCH)
    if (slack is None) == (dispatch == "prefix-affinity"):
        raise ValueError(
            f"affinity_slack must be given for dispatch='prefix-affinity', and only then, got {slack!r} with "
            f"{dispatch!r}; it is a number of requests"
        )
    if slack is not None:
        require_whole("affinity_slack", slack, least=0)


def check_knows(knows: Any, kind: Any) -> None:
    """An object of a class of knowledge."""
    if isinstance(knows, kind):
        return
    fixed = kind is KnownLength
    allowed = "Total(), InputPlusMax(max_tokens=...)" + (" or InputOnly()" if fixed else ", InputOnly() or Predicted()")
    hint = "how much to cut must follow from the request" if fixed and isinstance(knows, Knowledge) else ""
    raise invalid("knows", knows, allowed, hint)


def require_share(name: str, value: Any, hint: str = "") -> None:
    """A number in [0, 1]."""
    require((value >= 0) & (value <= 1), name, value, "in [0, 1]", hint)
