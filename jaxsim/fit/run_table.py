"""Benchmark runs at a fixed concurrency: one row a run, its setting and its means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxsim._checks import invalid, require, require_positive
from jaxsim.fit.closed_loop import Runs

Column = Float[np.ndarray, " runs"]

RUN_OF_PADDING = Runs(1.0, 1.0, 2.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0)


@dataclass(frozen=True)
class RunTable:
    """Closed-loop benchmark runs of one engine, checked. Make one with `of`.

    Attributes:
        concurrency: clients on one replica.
        input_tokens, output_tokens: means over the requests.
        spread: half-width of the range of lengths over their mean; 0 for requests all alike.
        in_step: share of the requests that clients sent in step (see `closed_loop`): 0 where the start of a run is
            left out, one in ten where each client sends ten requests, 1 where all lengths are the same.
        chunk_tokens: prompt tokens of a request that a step computes at most.
        slots: requests that run at once at most.
        ttft_s: mean over the requests; NaN where it is not known or not to be used.
        tpot_s: mean over the requests.
        groups: a label for each run, by which errors are reported and runs held out together; empty for none.
        source: where the runs are from.
    """

    concurrency: Column
    input_tokens: Column
    output_tokens: Column
    spread: Column
    in_step: Column
    chunk_tokens: Column
    slots: Column
    ttft_s: Column
    tpot_s: Column
    groups: tuple[str, ...] = field(default=(), repr=False)
    source: str = "a table"

    def __post_init__(self) -> None:
        if self.groups and len(self.groups) != len(self):
            raise invalid("groups", len(self.groups), f"as many as runs ({len(self)})")
        for name in ("tpot_s", "input_tokens", "chunk_tokens"):
            require_positive(name, getattr(self, name))
        known = ~np.isnan(self.ttft_s)
        require_positive("ttft_s", self.ttft_s[known])
        if not known.any():
            raise invalid("ttft_s", "NaN in every run", "known in one run or more", "without it use two_point")
        for name, least in (("concurrency", 1.0), ("slots", 1.0), ("output_tokens", 2.0)):
            value = getattr(self, name)
            require(value >= least, name, value, f">= {least:g} in every run")
        require((self.in_step >= 0.0) & (self.in_step <= 1.0), "in_step", self.in_step, "in [0, 1]", "10 % is 0.1")
        require((self.spread >= 0.0) & (self.spread < 1.0), "spread", self.spread, "in [0, 1)", "20 % is 0.2")

    @classmethod
    def of(
        cls,
        concurrency: Any,
        ttft_s: Any,
        tpot_s: Any,
        *,
        input_tokens: Any,
        output_tokens: Any,
        spread: Any = 0.0,
        in_step: Any = 0.0,
        chunk_tokens: Any = 2048.0,
        slots: Any = np.inf,
        groups: Any = (),
        source: str = "a table",
    ) -> RunTable:
        """Columns of one length, or single numbers that hold for every run; see the attributes."""
        given = (concurrency, input_tokens, output_tokens, spread, in_step, chunk_tokens, slots, ttft_s, tpot_s)
        columns = np.broadcast_arrays(np.zeros(1), *(np.asarray(column, dtype=np.float64) for column in given))[1:]
        names = [name for name in cls.__dataclass_fields__ if name not in ("groups", "source")]
        named: dict[str, Any] = dict(zip(names, map(np.copy, columns), strict=True))
        return cls(**named, groups=tuple(map(str, groups)), source=source)

    def __len__(self) -> int:
        return len(self.ttft_s)

    @property
    def runs(self) -> Runs:
        """The columns alone, each run of weight 1. More slots than clients are as many."""
        return Runs(
            self.concurrency,
            self.input_tokens,
            self.output_tokens,
            self.spread,
            self.in_step,
            self.chunk_tokens,
            np.minimum(self.slots, self.concurrency),
            np.where(np.isnan(self.ttft_s), 1.0, self.ttft_s),
            self.tpot_s,
            np.where(np.isnan(self.ttft_s), 0.0, 1.0),
            np.ones(len(self)),
        )

    def points(self) -> np.ndarray:
        """A number for each run: the same where everything but the times is."""
        return np.unique(np.stack(self.runs[:7], axis=1), axis=0, return_inverse=True)[1].ravel()
