"""The routers: which pool a request goes to.

Each is a frozen set of rules. What can be decided from a request alone is decided here, as a table (`des.routing`);
what depends on the state of the fleet is named here and done by the event loop: the choice of a replica
(`dispatch`), and spill-over by pressure (`spill_pressure`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from des.knowledge import InputOnly, InputPlusMax, Knowledge, KnownLength, Predicted, Total, require_whole
from des.router import Router, as_given, by_length, check_dispatch, check_knows, columns, require_share
from des.routing import ANY_POOL, Served, pool_of_length
from jaxsim._checks import invalid, require, require_positive
from jaxsim.fleet import FleetDesign
from jaxsim.workload import Workload


@dataclass(frozen=True, kw_only=True)
class LengthRouter(Router):
    """Each request goes to the first pool whose `upper_tokens` is at least its known length.

    One whose true total the pool cannot hold is rejected there and counted: part of the price of not knowing.
    (The reference fleet simulator's LengthRouter, its production default.)

    Attributes:
        knows: the length that the router goes by.
    """

    knows: Knowledge = field(default_factory=Total)

    def __post_init__(self) -> None:
        check_dispatch(self)
        check_knows(self.knows, Knowledge)

    def served(self, workload: Workload, design: FleetDesign) -> Served:
        """The workload's rows, each to the pools that it may be taken to belong in."""
        return by_length(workload, design, self.knows)

    def _rules(self) -> str:
        return f"by length, to the first pool whose threshold is at least {self.knows.describe()}"


@dataclass(frozen=True, kw_only=True)
class SpilloverRouter(Router):
    """By length, but while a pool is under pressure its requests go to the next longer one that can hold them.

    Pressure is (active + queued) / slots of the pool's accepting replicas, tested in the event loop when a request
    arrives. A pool without replicas hands all its requests on. (The reference fleet simulator's SpilloverRouter; its
    `spill_threshold` is the pressure.)

    Attributes:
        pressure: from which on requests move on, > 0; above 1 a queue is tolerated first.
        knows: the length that the router goes by.
    """

    pressure: float
    knows: Knowledge = field(default_factory=Total)

    def __post_init__(self) -> None:
        check_dispatch(self)
        require_positive("pressure", self.pressure, "it is (active + queued) / slots of a pool")
        check_knows(self.knows, Knowledge)

    @property
    def spill_pressure(self) -> float:
        """Load per slot from which on a pool hands requests to the next."""
        return self.pressure

    def served(self, workload: Workload, design: FleetDesign) -> Served:
        """As `LengthRouter`."""
        return by_length(workload, design, self.knows)

    def _rules(self) -> str:
        words = f"by length, to the first pool whose threshold is at least {self.knows.describe()}"
        return f"{words}; to the next longer pool while (active + queued) / slots >= {self.pressure:g}"


@dataclass(frozen=True, kw_only=True)
class CompressRouter(Router):
    r"""By length, but prompts a little above a threshold may be compressed to fit below it.

    With $T$ the threshold below a request's pool and $k$ its known length, the request is in the band where
    $T < k \le \gamma T$. There its prompt loses $k - T$ tokens with the chance ``success * compressible``, and
    it goes to the shorter pool; the output stays, and one prompt token must be left. It is served with its new
    lengths, so the shorter pool's service law holds it as it is. Beyond the last threshold, the fleet's own limit,
    nothing is compressed. The work of compressing is not modelled. (The reference fleet simulator's
    CompressAndRouteRouter, which adds such requests to the short pool's rate but not to its service law.)

    Attributes:
        gamma: upper end of the band over its threshold, >= 1; 1 compresses nothing.
        success: chance that compressing a compressible request succeeds, in [0, 1]. Left out with categories.
        compressible: share of requests of a compressible kind, in [0, 1]; or categories, name -> (share of
            requests, chance of success), whose shares sum to at most 1. Independent of length.
        knows: the length that the router goes by; a function of the request, so no `Predicted`.
    """

    warnings: ClassVar[tuple[str, ...]] = (
        "compress-and-route is for sizing and for sweeps of gamma; run live, it can worsen P99 against routing by "
        "length alone, since the short pool takes on its longest requests, and neither the work of compressing nor "
        "the quality of the answers is modelled",
    )

    gamma: float
    success: float | None = None
    compressible: float | Mapping[str, Any] = 1.0
    knows: Knowledge = field(default_factory=Total)

    def __post_init__(self) -> None:
        check_dispatch(self)
        require((self.gamma >= 1) & (self.gamma < math.inf), "gamma", self.gamma, ">= 1 and finite")
        check_knows(self.knows, KnownLength)
        if not isinstance(self.compressible, Mapping):
            require_share("compressible", self.compressible)
            require_share("success", 1.0 if self.success is None else self.success)
            return
        if self.success is not None:
            raise ValueError(
                f"success must be left out where compressible has categories with their own, got {self.success!r}"
            )
        _check_categories(self.compressible)
        object.__setattr__(self, "compressible", dict(self.compressible))

    @property
    def chance(self) -> float:
        """That a request in the band is compressed."""
        if isinstance(self.compressible, Mapping):
            return min(math.fsum(share * success for share, success in self.compressible.values()), 1.0)
        return self.compressible * (1.0 if self.success is None else self.success)

    def served(self, workload: Workload, design: FleetDesign) -> Served:
        """The workload's rows, then the compressed form of each that is in a band."""
        assert isinstance(self.knows, KnownLength)
        inputs, outputs, share = columns(workload)
        upper = np.asarray(design.upper_tokens)
        known = self.knows.tokens(inputs, outputs)
        home = pool_of_length(upper, known)
        threshold = upper[np.maximum(home, 1) - 1]
        fits = np.floor(threshold)  # lengths are whole
        shorter = inputs - (known - fits)
        at = np.flatnonzero((home >= 1) & (known <= self.gamma * threshold) & (shorter >= 1))
        given = np.arange(len(share), dtype=np.int32)
        row, up_to = np.stack([given, given]), np.ones((2, len(share)))
        row[0, at] = len(share) + np.arange(len(at))
        up_to[0] = 0.0
        up_to[0, at] = self.chance
        meant = np.stack([home, home])
        meant[0, at] = pool_of_length(upper, fits[at])
        inputs, outputs = np.append(inputs, shorter[at]), np.append(outputs, outputs[at])
        belongs = pool_of_length(upper, inputs + outputs)
        source = np.append(given, given[at])
        keep = slice(None) if len(at) else slice(1, None)  # nothing to draw where nothing is in a band
        return Served(inputs, outputs, source, share, up_to[keep], row[keep], meant[keep], belongs)

    def _rules(self) -> str:
        return (
            f"by length, to the first pool whose threshold is at least {self.knows.describe()}; prompts of requests "
            f"up to {self.gamma:g} times the threshold below are cut to fit it with a chance of {self.chance:.4g}"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelRouter(Router):
    """Each request asks for a model, and goes to that model's pool, if its true total fits there.

    Thresholds between pools do not matter; the last is the fleet's own limit, and each pool has its `max_context`.

    Attributes:
        pool_of_model: pool of each model label 0, 1, ...
        model_of_row: label of each workload row, an array of whole numbers. (`Workload.from_lengths` merges requests
            of equal lengths into one row: where those differ in model, give shares.)
        model_share: instead, an array of the shares of requests that ask for each model: one line for all rows, or one
            for each row.
    """

    pool_of_model: tuple[int, ...]
    model_of_row: Any = None
    model_share: Any = None

    def __post_init__(self) -> None:
        check_dispatch(self)
        object.__setattr__(self, "pool_of_model", tuple(self.pool_of_model))
        require(len(self.pool_of_model) > 0, "pool_of_model", self.pool_of_model, "one pool a model")
        for model, pool in enumerate(self.pool_of_model):
            require_whole(f"pool_of_model[{model}]", pool, least=0)
        if (self.model_of_row is None) == (self.model_share is None):
            raise ValueError("one of model_of_row and model_share must be given, got " + _both(self.model_of_row))
        if self.model_share is not None:
            object.__setattr__(self, "model_share", _shares(self.model_share, len(self.pool_of_model)))
        else:
            object.__setattr__(self, "model_of_row", _labels(self.model_of_row, len(self.pool_of_model)))

    def served(self, workload: Workload, design: FleetDesign) -> Served:
        """The workload's rows, each to the pools of the models that it may ask for.

        Raises:
            ValueError: a pool that the design has not, or labels for another number of rows.
        """
        pools = np.array(self.pool_of_model, dtype=np.int16)
        for model, pool in enumerate(self.pool_of_model):
            require(pool < design.num_pools, f"pool_of_model[{model}]", pool, f"< {design.num_pools}, the pools")
        num_rows = len(workload.weight)
        if self.model_of_row is not None:
            _check_rows("model_of_row", len(self.model_of_row), num_rows)
            return as_given(workload, design, np.ones((1, num_rows)), pools[self.model_of_row][None])
        share = np.asarray(self.model_share)
        if share.ndim == 2:
            _check_rows("model_share", len(share), num_rows)
        up_to = np.cumsum(np.broadcast_to(share, (num_rows, len(pools))).T, axis=0)
        up_to[-1] = 1.0
        return as_given(workload, design, up_to, np.broadcast_to(pools[:, None], up_to.shape))

    def _rules(self) -> str:
        models = ", ".join(f"{model} to pool {pool}" for model, pool in enumerate(self.pool_of_model))
        return f"by model: {models}"


@dataclass(frozen=True, kw_only=True)
class AnyRouter(Router):
    """Any pool that can hold a request's true total; `dispatch` chooses among all their replicas.

    With ``"least-loaded"`` the pool with the least (active + queued) / slots of a replica, for pools of one kind (the
    reference fleet simulator's LeastLoadedRouter).
    """

    def __post_init__(self) -> None:
        check_dispatch(self)

    def served(self, workload: Workload, design: FleetDesign) -> Served:
        """The workload's rows, each to any pool."""
        shape = (1, len(workload.weight))
        return as_given(workload, design, np.ones(shape), np.full(shape, ANY_POOL, dtype=np.int16))

    def _rules(self) -> str:
        return "to any pool that can hold the request"


ROUTERS: Mapping[str, type[Router]] = MappingProxyType(
    {
        "length": LengthRouter,
        "spillover": SpilloverRouter,
        "compress": CompressRouter,
        "model": ModelRouter,
        "any": AnyRouter,
    }
)
"""Routers by the name that a plan file gives them."""

KNOWLEDGE: Mapping[str, type[Knowledge]] = MappingProxyType(
    {"total": Total, "input-plus-max": InputPlusMax, "input": InputOnly, "predicted": Predicted}
)
"""What a router may know of a length, by the name that a plan file gives it."""


def _check_categories(categories: Mapping[str, Any]) -> None:
    for name, pair in categories.items():
        if np.shape(pair) != (2,):
            raise invalid(f"compressible[{name!r}]", pair, "a pair (share of requests, chance of success)")
        require_share(f"share of compressible[{name!r}]", pair[0])
        require_share(f"success of compressible[{name!r}]", pair[1])
    total = math.fsum(share for share, _ in categories.values())
    require(total <= 1 + 1e-9, "sum of the shares of compressible", total, "<= 1", "the rest is not compressible")


def _labels(model_of_row: Any, num_models: int) -> np.ndarray:
    labels = np.asarray(model_of_row)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f"model_of_row must be one whole number a workload row, got shape {labels.shape} of {labels.dtype}"
        )
    require((labels >= 0) & (labels < num_models), "model_of_row", labels, f"from 0 to {num_models - 1}, the models")
    return labels


def _shares(model_share: Any, num_models: int) -> np.ndarray:
    shares = np.asarray(model_share, dtype=np.float64)
    if shares.ndim not in (1, 2) or shares.shape[-1] != num_models:
        raise ValueError(
            f"model_share must be {num_models} shares, one a model, or a line of them a row, got shape {shares.shape}"
        )
    require(shares >= 0, "model_share", shares, ">= 0")
    sums = shares.sum(-1)
    require(np.abs(sums - 1) < 1e-9, "sum of model_share", sums, "1")
    return shares


def _check_rows(name: str, number: int, num_rows: int) -> None:
    if number != num_rows:
        raise ValueError(f"{name} must have one entry per workload row ({num_rows}), got {number}")


def _both(given: Any) -> str:
    return "none" if given is None else "both"
