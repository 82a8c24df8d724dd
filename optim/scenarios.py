r"""Scenarios of an uncertainty: a low-discrepancy sample of all sources, and the corners of the bounded ones.

The sample is scrambled Sobol (A. B. Owen, J. Complexity 14, 1998): a power of two of points, one dimension for each
continuous source, the same points whatever sources are looked at. Each demand scenario has all of them, weighted by its
probability. Corners take every source at an end (coefficients all at once; a log-normal rate at its 0.1 and 99.9 %
points; a fit, which has no ends, in the middle). They have no probability and count in the worst case only.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri, stdtrit

from jaxsim._checks import invalid
from jaxsim.fit import COEFFICIENTS
from jaxsim.workload import Workload
from optim.fit_errors import FitErrors
from optim.problem import PlanProblem
from optim.uncertainty import LAW, DemandScenario, Interval, Uncertainty
from optim.words import number

RATE_CORNER = 0.999
"""Quantile at which a log-normal rate has its upper corner, and one less that at its lower."""
LEAST_FACTOR = 0.01
"""A coefficient drawn below this share of its value stays there: a step takes some time."""
_SCALARS = ("rate", "step_time_factor", "input_tokens_factor", "output_tokens_factor")


@dataclass(frozen=True)
class Scenarios:
    """What may come, one a row; corners last.

    Attributes:
        rate: requests per second.
        law_factor: of the coefficients `LAW` of each of the problem's profiles.
        input_factor, output_factor: of the lengths of every request.
        probability: sums to 1; 0 for corners.
        resampled: rows whose mix of lengths is drawn anew.
        number_of_samples: draws, corners not counted; the sample is exact where there is nothing to draw (`exact`).
        clipped: coefficients that were drawn below `LEAST_FACTOR`.
        names: of the demand scenario of each row, "" where there are none.
    """

    rate: Float[np.ndarray, " rows"]
    law_factor: Float[np.ndarray, "rows profiles law"]
    input_factor: Float[np.ndarray, " rows"]
    output_factor: Float[np.ndarray, " rows"]
    probability: Float[np.ndarray, " rows"]
    resampled: np.ndarray
    length_sample: int
    seed: int
    exact: bool
    clipped: int
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rate)

    @property
    def drawn(self) -> np.ndarray:
        """Which rows are draws, not corners."""
        return self.probability > 0

    @property
    def effective_number(self) -> float:
        """Draws of equal weight that would tell as much (L. Kish, Survey Sampling, 1965)."""
        return float(1.0 / np.sum(self.probability**2))

    def weights(self, workload: Workload, rows: np.ndarray) -> Float[np.ndarray, "chosen lengths"]:
        """Shares of the workload's rows in some scenarios."""
        known = np.asarray(workload.weight)
        found = np.tile(known, (len(rows), 1))
        for at, row in enumerate(rows):
            if self.resampled[row]:
                rng = np.random.default_rng([self.seed, int(row)])
                found[at] = rng.multinomial(self.length_sample, known / known.sum()) / self.length_sample
        return found

    def words(self, row: int) -> str:
        """A scenario in a line."""
        said = [f"{self.names[row]}:"] if self.names[row] else []
        said.append(f"{number(self.rate[row], 4)} req/s")
        law = self.law_factor[row]
        if np.ptp(law) > 1e-12:
            said.append(f"coefficients x {number(law.min())} to {number(law.max())}")
        elif law.flat[0] != 1.0:
            said.append(f"step times x {number(law.flat[0])}")
        for what, factor in (("input", self.input_factor[row]), ("output", self.output_factor[row])):
            said += [f"{what} tokens x {number(factor)}"] if factor != 1.0 else []
        said += ["lengths drawn anew"] if self.resampled[row] else []
        return f"{said[0]} {', '.join(said[1:])}" if self.names[row] else ", ".join(said)


def scenarios(
    uncertainty: Uncertainty,
    problem: PlanProblem,
    *,
    draws: int,
    seed: int,
    only: Collection[str] | None = None,
) -> Scenarios:
    """Draw scenarios of a problem.

    Args:
        uncertainty: the sources.
        problem: what is known.
        draws: points, a power of two; each demand scenario gets as many as its part of them, rounded up to one.
        seed: of the scrambling and of the lengths drawn anew.
        only: sources to vary, all others as known; left out, all.
    """
    if draws < 2 or draws & (draws - 1):
        raise invalid("draws", draws, "a power of two >= 2", "a Sobol sample is balanced only then; 256 is one")
    uncertainty.check_profiles(problem.profiles)
    active = set(uncertainty.sources if only is None else only)
    futures = uncertainty.scenarios if "scenarios" in active else (DemandScenario("", 1.0),)
    continuous = active - {"scenarios"}
    each = 2 ** math.ceil(math.log2(max(draws / len(futures), 1.0))) if continuous else 1
    shares = _sobol(_dimensions(problem), each, seed) if continuous else np.full((1, _dimensions(problem)), 0.5)
    scalars, laws, clipped = _values(uncertainty, problem, active, shares)
    corner_scalars, corner_laws = _corners(uncertainty, problem, active)
    resampled = "length_sample" in active
    rows = [
        (future, scalar, law, future.probability / each, resampled)
        for future in futures
        for scalar, law in zip(scalars, laws, strict=True)
    ]
    rows += [
        (future, scalar, law, 0.0, False)
        for future in futures
        for scalar, law in zip(corner_scalars, corner_laws, strict=True)
    ]
    own = np.array([problem.rate if future.rate is None else future.rate for future, *_ in rows])
    values = np.array([scalar for _, scalar, *_ in rows])
    rate = values[:, 0] if "rate" in active else own * values[:, 0]
    law_factor = np.array([law for _, _, law, *_ in rows])
    law_factor[..., :] *= values[:, 1, None, None]
    return Scenarios(
        rate=rate,
        law_factor=law_factor,
        input_factor=values[:, 2] * np.array([future.input_tokens_factor for future, *_ in rows]),
        output_factor=values[:, 3] * np.array([future.output_tokens_factor for future, *_ in rows]),
        probability=np.array([probability for *_, probability, _ in rows]),
        resampled=np.array([again for *_, again in rows]),
        length_sample=uncertainty.length_sample or 0,
        seed=seed,
        exact=not continuous,
        clipped=clipped * len(futures),
        names=tuple(future.name for future, *_ in rows),
    )


def _dimensions(problem: PlanProblem) -> int:
    return len(_SCALARS) + len(problem.profiles) * len(LAW)


def _sobol(dimensions: int, number_of_points: int, seed: int) -> np.ndarray:
    from scipy.stats import qmc  # slow to import, and most commands do without

    exponent = number_of_points.bit_length() - 1
    return qmc.Sobol(d=dimensions, scramble=True, seed=seed).random_base2(exponent)


def _values(
    uncertainty: Uncertainty, problem: PlanProblem, active: set[str], shares: np.ndarray
) -> tuple[np.ndarray, np.ndarray, int]:
    """Of points in the unit cube: rate and factors, factors of the law, and how many of these were clipped."""
    scalars = np.ones((len(shares), len(_SCALARS)))
    for at, name in enumerate(_SCALARS):
        spread = getattr(uncertainty, name)
        if name in active and isinstance(spread, Interval):
            scalars[:, at] = spread.at(shares[:, at])
    if "rate_cv" in active and uncertainty.rate_cv is not None:
        scalars[:, 0] = lognormal(shares[:, 0], uncertainty.rate_cv)
    laws, clipped = np.ones((len(shares), len(problem.profiles), len(LAW))), 0
    for p, profile in enumerate(problem.profiles):
        own = shares[:, len(_SCALARS) + p * len(LAW) :][:, : len(LAW)]
        name = str(profile.name)
        if "coefficients" in active and name in uncertainty.coefficients:
            widths = np.array([uncertainty.coefficients[name].get(key, 0.0) for key in LAW])
            laws[:, p] = 1.0 + widths * (2.0 * own - 1.0)
        if "fit" in active and name in uncertainty.fits:
            known = np.array([float(np.asarray(getattr(profile, key))) for key in LAW])
            drawn = fit_factors(uncertainty.fits[name], known, own)
            clipped += int(np.sum(drawn < LEAST_FACTOR))
            laws[:, p] = np.maximum(drawn, LEAST_FACTOR)
    return scalars, laws, clipped


def lognormal(share: np.ndarray, cv: float) -> np.ndarray:
    """Quantiles of the log-normal law of mean 1 with that coefficient of variation."""
    variance = np.log1p(cv**2)
    return np.exp(np.sqrt(variance) * ndtri(share) - 0.5 * variance)


def fit_factors(errors: FitErrors, known: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Factors of the coefficients `LAW`, drawn from a fit's errors.

    Student's t along each principal axis of the covariance of the relative errors, so that single coefficients have
    their standard errors and pairs their correlation.
    """
    at = [LAW.index(name) for name in errors.coefficients]
    value = np.where(known[at] > 0, known[at], 1.0)
    covariance = np.where((known[at] > 0)[:, None] & (known[at] > 0), errors.covariance_s2, 0.0)
    sizes, axes = np.linalg.eigh(covariance / np.outer(value, value))
    factors = np.ones((len(shares), len(LAW)))
    scores = stdtrit(errors.degrees_of_freedom, shares[:, : len(COEFFICIENTS)][:, : len(at)])
    factors[:, at] += (scores * np.sqrt(np.maximum(sizes, 0.0))) @ axes.T
    return factors


def _corners(uncertainty: Uncertainty, problem: PlanProblem, active: set[str]) -> tuple[np.ndarray, np.ndarray]:
    """Every bounded source at an end, all combinations; coefficients all low or all high at once."""
    ends: list[list[float]] = []
    for name in _SCALARS:
        spread = getattr(uncertainty, name)
        bounded = name in active and isinstance(spread, Interval)
        ends.append([spread.low, spread.high] if bounded else [1.0])
    if "rate_cv" in active and uncertainty.rate_cv is not None:
        ends[0] = lognormal(np.array([1.0 - RATE_CORNER, RATE_CORNER]), uncertainty.rate_cv).tolist()
    widths = np.zeros((len(problem.profiles), len(LAW)))
    if "coefficients" in active:
        for p, profile in enumerate(problem.profiles):
            own = uncertainty.coefficients.get(str(profile.name), {})
            widths[p] = [own.get(key, 0.0) for key in LAW]
    signs = [-1.0, 1.0] if widths.any() else [0.0]
    if len(signs) == 1 and all(len(pair) == 1 for pair in ends):
        return np.empty((0, len(_SCALARS))), np.empty((0, *widths.shape))
    rows = list(product(*ends, signs))
    return np.array([row[:-1] for row in rows]), np.array([1.0 + row[-1] * widths for row in rows])
