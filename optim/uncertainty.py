"""What a plan does not know: demand, coefficients of the step time, the mix of lengths. Every source is explicit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from jaxsim._checks import invalid, require_positive, unknown
from jaxsim.physics import StepLaw
from jaxsim.profiles import Profile
from optim.fit_errors import FitErrors

LAW = StepLaw._fields
"""Coefficients of the step time, the engine's overhead last."""


@dataclass(frozen=True)
class Interval:
    """Anything between two ends, each value as likely as another; both ends are corners."""

    low: float
    high: float

    def __post_init__(self) -> None:
        require_positive("low", self.low)
        require_positive("high", self.high)
        if self.low > self.high:
            raise invalid("an interval", [self.low, self.high], "[low, high] with low <= high")

    def at(self, share: np.ndarray) -> np.ndarray:
        """Its quantiles."""
        return self.low + share * (self.high - self.low)


@dataclass(frozen=True)
class DemandScenario:
    """One future among several.

    Attributes:
        name: for people.
        probability: in (0, 1]; those of all scenarios sum to 1.
        rate: requests per second; None is the problem's own.
        input_tokens_factor, output_tokens_factor: of the lengths of every request.
    """

    name: str
    probability: float
    rate: float | None = None
    input_tokens_factor: float = 1.0
    output_tokens_factor: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.probability <= 1.0:
            raise invalid(f"probability of scenario {self.name!r}", self.probability, "in (0, 1]")
        for key in ("input_tokens_factor", "output_tokens_factor"):
            require_positive(f"{key} of scenario {self.name!r}", getattr(self, key))
        if self.rate is not None:
            require_positive(f"rate of scenario {self.name!r}", self.rate)


@dataclass(frozen=True)
class Uncertainty:
    """Sources that are independent of each other; one left out is known.

    Attributes:
        scenarios: futures with their probabilities; none is the problem's own demand.
        rate: requests per second, instead of scenarios.
        rate_cv: the rate is log-normal with this coefficient of variation, around the mean that the problem or the
            scenario gives.
        step_time_factor: of every coefficient of every profile at once: what the form of the law gets wrong.
        coefficients: by profile and coefficient, a relative half-width: each by itself anywhere within it.
        fits: by profile, errors of a fit: Student's t with its covariance.
        input_tokens_factor, output_tokens_factor: of the lengths of every request.
        length_sample: the mix of lengths is a sample of so many requests: its rows are drawn anew (bootstrap).
    """

    scenarios: tuple[DemandScenario, ...] = ()
    rate: Interval | None = None
    rate_cv: float | None = None
    step_time_factor: Interval | None = None
    coefficients: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    fits: Mapping[str, FitErrors] = field(default_factory=dict)
    input_tokens_factor: Interval | None = None
    output_tokens_factor: Interval | None = None
    length_sample: int | None = None

    def __post_init__(self) -> None:
        _check_scenarios(self.scenarios)
        if self.rate is not None and (self.scenarios or self.rate_cv is not None):
            other = "scenarios" if self.scenarios else "rate_cv"
            raise ValueError(f"rate and {other} must not be given together; both say what the demand is")
        if self.rate_cv is not None:
            require_positive("rate_cv", self.rate_cv)
        if self.length_sample is not None and self.length_sample < 1:
            raise invalid("length_sample", self.length_sample, ">= 1", "requests that the mix of lengths was seen in")
        for name, widths in self.coefficients.items():
            for key, width in widths.items():
                if key not in LAW:
                    raise unknown("coefficient", key, LAW)
                if not 0.0 <= width < 1.0:
                    raise invalid(f"{key} of {name!r}", width, "a relative half-width in [0, 1)", "10 % is 0.1")
            if name in self.fits:
                raise ValueError(f"{name!r} must have half-widths or the errors of its fit, not both")

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of what is uncertain; the keys of a plan file's [uncertainty]."""
        given = {
            "scenarios": bool(self.scenarios),
            "rate": self.rate is not None,
            "rate_cv": self.rate_cv is not None,
            "step_time_factor": self.step_time_factor is not None,
            "coefficients": bool(self.coefficients),
            "fit": bool(self.fits),
            "input_tokens_factor": self.input_tokens_factor is not None,
            "output_tokens_factor": self.output_tokens_factor is not None,
            "length_sample": self.length_sample is not None,
        }
        return tuple(name for name, there in given.items() if there)

    @property
    def unbounded(self) -> tuple[str, ...]:
        """Sources without a worst case: the worst that is looked at is the worst that was drawn."""
        return tuple(name for name in self.sources if name in ("rate_cv", "fit", "length_sample"))

    @property
    def scales_lengths(self) -> bool:
        """Whether requests may be longer or shorter than the workload says."""
        factors = [f for s in self.scenarios for f in (s.input_tokens_factor, s.output_tokens_factor)]
        varied = self.input_tokens_factor is not None or self.output_tokens_factor is not None
        return varied or any(factor != 1.0 for factor in factors)

    def largest_factor(self, which: str) -> float:
        """The largest factor of `input_tokens_factor` or `output_tokens_factor`."""
        spread = getattr(self, which)
        of_scenarios = max((getattr(s, which) for s in self.scenarios), default=1.0)
        return float(of_scenarios * (1.0 if spread is None else spread.high))

    def check_profiles(self, profiles: tuple[Profile, ...]) -> None:
        """Every profile that is spoken of must be one of these.

        Raises:
            ValueError: it is not, with the near ones.
        """
        names = [str(profile.name) for profile in profiles]
        for name in (*self.coefficients, *self.fits):
            if name not in names:
                raise unknown("profile", name, names)


def _check_scenarios(scenarios: tuple[DemandScenario, ...]) -> None:
    if not scenarios:
        return
    total = sum(scenario.probability for scenario in scenarios)
    if abs(total - 1.0) > 1e-6:
        raise ValueError(f"probabilities of the scenarios must sum to 1, got {total:g}")
    names = [scenario.name for scenario in scenarios]
    if len(set(names)) < len(names):
        raise ValueError(f"scenarios must have different names, got {names}")
