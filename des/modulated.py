"""Markov-modulated Poisson arrivals: traffic that switches between moods."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from des.clock import PathPiece, Sampler, accumulated, time_changed, unit_gaps
from des.processes import ArrivalProcess, given_or_own
from jaxsim._checks import invalid, require, require_non_negative, require_positive
from jaxsim.workload import Workload

STAYS = 4096
"""Stays of the modulating chain drawn at a time."""
MOST_SWITCHES = 1000
"""Per request; with so many the counts differ from Poisson by a thousandth, and the chain takes all the time."""


@dataclass(frozen=True, kw_only=True)
class MarkovModulated(ArrivalProcess):
    r"""A Poisson process whose rate follows a continuous-time Markov chain (MMPP).

    The chain is in its stationary law from time 0, so the mean rate holds from the start; stays are exponential.
    Counts in two states have a closed-form dispersion (Fischer and Meier-Hellstern 1993, "The MMPP cookbook").

    Attributes:
        rates: relative rate in each of two or more states, >= 0, not all 0; scaled so that the long-run mean is the
            rate asked for.
        mean_stay_s: mean length of a stay in each state, seconds, > 0.
        switch: ``switch[i][j]`` is the probability that a stay in i is followed by one in j; rows sum to 1, zero
            diagonal, every state reachable from every other. Left out, all other states are equally likely.
    """

    rates: tuple[float, ...]
    mean_stay_s: tuple[float, ...]
    switch: tuple[tuple[float, ...], ...] | None = None

    def __post_init__(self) -> None:
        rates = np.array(self.rates, dtype=np.float64)
        require(rates.size >= 2, "the number of rates", rates.size, ">= 2", "one state is Poisson()")
        require_non_negative("rates", rates)
        require(rates.sum() > 0, "the largest of rates", rates.max(), "> 0")
        stays = np.array(self.mean_stay_s, dtype=np.float64)
        require(stays.size == rates.size, "the number of mean_stay_s", stays.size, f"{rates.size}, one for each state")
        require_positive("mean_stay_s", stays)
        object.__setattr__(self, "rates", tuple(rates.tolist()))
        object.__setattr__(self, "mean_stay_s", tuple(stays.tolist()))
        if self.switch is not None:
            switch = _checked_switch(self.switch, rates.size)
            object.__setattr__(self, "switch", tuple(map(tuple, switch.tolist())))

    @property
    def name(self) -> str:
        return "markov-modulated"

    def mean_rate(self, rate: float | None, workload: Workload) -> float:
        return given_or_own(rate, workload)

    def expected_requests(self, rate: float | None, workload: Workload) -> float:
        return np.inf

    def sampler(self, rate: float | None, gaps: np.random.Generator, workload: Workload) -> Sampler:
        mean = self.mean_rate(rate, workload)
        switches = 1.0 / (mean * float(self._visits() @ np.array(self.mean_stay_s)))
        hint = "arrivals then see the mean rate alone: use Poisson()"
        require(switches <= MOST_SWITCHES, "switches per request", switches, f"<= {MOST_SWITCHES}", hint)
        rates = np.array(self.rates) * (mean / float(self.time_share() @ np.array(self.rates)))
        # A child of its own, so that the gaps stay those of every other process.
        path = self._path(rates, gaps.spawn(1)[0])
        return Sampler(time_changed(accumulated(unit_gaps(gaps)), path))

    def time_share(self) -> Float[np.ndarray, " states"]:
        """Long-run share of time in each state."""
        time = self._visits() * np.array(self.mean_stay_s)
        return time / time.sum()

    def _visits(self) -> Float[np.ndarray, " states"]:
        """Long-run share of stays in each state: v P = v and sum(v) = 1, one equation more than unknowns."""
        switch = self._switch()
        equations = np.vstack([switch.T - np.eye(len(switch)), np.ones(len(switch))])
        return np.linalg.lstsq(equations, np.append(np.zeros(len(switch)), 1.0))[0]

    def _switch(self) -> Float[np.ndarray, "states states"]:
        if self.switch is not None:
            return np.array(self.switch)
        number = len(self.rates)
        return (1.0 - np.eye(number)) / (number - 1)

    def _path(self, rates: Float[np.ndarray, " states"], generator: np.random.Generator) -> Iterator[PathPiece]:
        """The rate over time, for ever."""
        stay_s = np.array(self.mean_stay_s)
        follow = _normalised(np.cumsum(self._switch(), axis=1))
        share = np.cumsum(self.time_share())
        state = int(np.searchsorted(share / share[-1], generator.random(), side="right"))
        now = 0.0
        while True:
            states, state = _walk(follow, state, generator.random(STAYS))
            lengths = generator.standard_exponential(STAYS) * stay_s[states]
            edges_s = np.cumsum(np.concatenate([[now], lengths]))
            yield edges_s, rates[states]
            now = edges_s[-1]


def _walk(
    follow: Float[np.ndarray, "states states"], state: int, uniform: Float[np.ndarray, " stays"]
) -> tuple[np.ndarray, int]:
    """States of consecutive stays from `state` on, and the one after them; `follow` is cumulative."""
    follower = [np.searchsorted(row, uniform, side="right").tolist() for row in follow]
    states = []
    for choice in zip(*follower, strict=True):
        states.append(state)
        state = choice[state]
    return np.array(states), state


def _normalised(cumulative: Float[np.ndarray, "states states"]) -> Float[np.ndarray, "states states"]:
    """Rows that end in exactly 1, so that no uniform number falls behind them."""
    return cumulative / cumulative[:, -1:]


def _checked_switch(switch: tuple[tuple[float, ...], ...], number: int) -> Float[np.ndarray, "states states"]:
    if len(switch) != number or any(len(row) != number for row in switch):
        raise invalid("switch", switch, f"a {number} x {number} matrix")
    matrix = np.array(switch, dtype=np.float64)
    require(matrix >= 0, "switch", matrix, ">= 0: probabilities")
    sums = matrix.sum(axis=1)
    require(np.abs(sums - 1.0) <= 1e-9, "each row's sum in switch", sums, "1", "row i lists what follows a stay in i")
    require(np.diag(matrix) == 0, "the diagonal of switch", np.diag(matrix), "0", "lengthen mean_stay_s instead")
    if not np.all(np.linalg.matrix_power((matrix > 0) + np.eye(number), number - 1) > 0):
        raise invalid("switch", switch, "such that every state can be reached from every other")
    return matrix
