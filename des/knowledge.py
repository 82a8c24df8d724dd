"""What a router knows of a request's length when it decides; the output length is not known before it is generated."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtr

from des.routing import NO_POOL, pool_of_length
from jaxsim._checks import invalid, require, require_non_negative

Rows = Float[np.ndarray, " rows"]


class Destinations(NamedTuple):
    """The pools that a row may be sent to, `NO_POOL` last where it is there, and the chance of each or an earlier."""

    up_to: Float[np.ndarray, "outcomes rows"]
    pool: Int[np.ndarray, "outcomes rows"]


class Knowledge(ABC):
    """What is known of a request's length: of each row, the chances of its pools."""

    @abstractmethod
    def destinations(self, inputs: Rows, outputs: Rows, upper: Float[np.ndarray, " pools"]) -> Destinations:
        """The first pool whose `upper` is at least the known length."""

    @abstractmethod
    def describe(self) -> str:
        """What is taken for the length, in words."""


class KnownLength(Knowledge):
    """A known length that is a function of the request."""

    @abstractmethod
    def tokens(self, inputs: Rows, outputs: Rows) -> Rows:
        """The length that the router goes by."""

    def destinations(self, inputs: Rows, outputs: Rows, upper: Float[np.ndarray, " pools"]) -> Destinations:
        """One pool each, for certain."""
        pool = pool_of_length(upper, self.tokens(inputs, outputs))
        return Destinations(np.ones((1, len(pool))), pool[None])


@dataclass(frozen=True, kw_only=True)
class Total(KnownLength):
    """Input + output: an oracle, since the output is not generated yet. The usual assumption of fleet planners."""

    def tokens(self, inputs: Rows, outputs: Rows) -> Rows:
        """Input + output."""
        return inputs + outputs

    def describe(self) -> str:
        """In words."""
        return "input + output, an oracle: no router knows the output length beforehand"


@dataclass(frozen=True, kw_only=True)
class InputPlusMax(KnownLength):
    """Input + the cap on the output that the client sends: what an engine checks against its `max_model_len`.

    Nothing is sent to too short a pool. Much is sent to too long a one, or rejected as beyond the last threshold.

    Attributes:
        max_tokens: the cap, the same for all requests; a whole number, at least the workload's longest output.
    """

    max_tokens: float

    def __post_init__(self) -> None:
        require_whole("max_tokens", self.max_tokens)

    def tokens(self, inputs: Rows, outputs: Rows) -> Rows:
        """Input + cap.

        Raises:
            ValueError: an output is longer than the cap.
        """
        longest = float(np.max(outputs, initial=0.0))
        if longest > self.max_tokens:
            raise invalid(
                "max_tokens", self.max_tokens, f">= {longest:g}, the workload's longest output", "it caps every output"
            )
        return inputs + self.max_tokens

    def describe(self) -> str:
        """In words."""
        return f"input + {self.max_tokens:,.0f}, the cap on the output that clients send"


@dataclass(frozen=True, kw_only=True)
class InputOnly(KnownLength):
    """The input alone: what a proxy that counts prompt tokens knows.

    Nothing is sent to too long a pool; what outgrows the `max_context` of its pool is rejected there.
    """

    def tokens(self, inputs: Rows, outputs: Rows) -> Rows:
        """Input."""
        return inputs

    def describe(self) -> str:
        """In words."""
        return "the input alone"


@dataclass(frozen=True, kw_only=True)
class Predicted(Knowledge):
    r"""Input + a predicted output, $L_\mathrm{in} + L_\mathrm{out} e^{\sigma z}$ with $z$ standard normal per request.

    The factor has median 1: a prediction is as often too long as too short, and two in three are within
    $e^{\pm\sigma}$ of the truth. The form is a modelling choice, the multiplicative error with the fewest
    parameters; fit $\sigma$ to the logarithm of predicted over true output of the predictor at hand.

    A pool's chance is exact, $P(\text{known} \le T) = \Phi(\ln((T - L_\mathrm{in}) / L_\mathrm{out}) / \sigma)$, and
    requests are sent by inverting it: no prediction is ever rounded.

    Attributes:
        error: $\sigma$ >= 0; 0 is `Total`, 0.3 a factor of 1.35 either way.
    """

    error: float = 0.3

    def __post_init__(self) -> None:
        require_non_negative("error", self.error, "it is the standard deviation of log(predicted / true output)")

    def destinations(self, inputs: Rows, outputs: Rows, upper: Float[np.ndarray, " pools"]) -> Destinations:
        """Every pool, and none, each with its chance."""
        ratio = np.maximum((upper[:, None] - inputs) / outputs, 0.0)
        if self.error == 0.0:
            within = (ratio >= 1.0).astype(np.float64)
        else:
            logarithm = np.log(ratio, out=np.full_like(ratio, -np.inf), where=ratio > 0)
            within = ndtr(logarithm / self.error)
        pool = np.append(np.arange(len(upper)), NO_POOL).astype(np.int16)
        up_to = np.append(within, np.ones((1, len(inputs))), axis=0)
        return Destinations(up_to, np.broadcast_to(pool[:, None], up_to.shape))

    def describe(self) -> str:
        """In words."""
        return f"input + a predicted output with a log-normal error (median 1, sigma {self.error:g})"


def require_whole(name: str, value: Any, least: int = 1) -> None:
    """A whole number >= `least`."""
    good = value >= least and value == math.floor(value)
    require(good, name, value, f"a whole number >= {least}")
