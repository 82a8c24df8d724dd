"""How well a fit knows its coefficients, as a table [fit] of the profile file that it wrote."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxsim.fit import COEFFICIENTS, StepFit
from optim.config import ConfigError

KEYS = ("coefficients", "degrees_of_freedom", "covariance_s2", "held_out_median_error")


@dataclass(frozen=True)
class FitErrors:
    """Standard errors of a fitted law with their correlation.

    Attributes:
        coefficients: names of those that have a standard error.
        covariance_s2: of these, in their own units squared.
        degrees_of_freedom: the fewest that one of them rests on.
        held_out_median_error: relative error of the law on rows that it was not fitted to; None where none were held
            out. What the form of the law gets wrong is in it and not in the covariance.
    """

    coefficients: tuple[str, ...]
    covariance_s2: np.ndarray
    degrees_of_freedom: int
    held_out_median_error: float | None

    @classmethod
    def of(cls, fit: StepFit) -> FitErrors | None:
        """Those of a fit; None where no coefficient has a standard error."""
        names = tuple(n for n in COEFFICIENTS if math.isfinite(getattr(fit.standard_errors, n)))
        if not names:
            return None
        at = [COEFFICIENTS.index(name) for name in names]
        held = fit.held_out.get("all")
        return cls(
            names,
            np.asarray(fit.covariance)[np.ix_(at, at)],
            min(fit.degrees_of_freedom[name] for name in names),
            None if held is None else held.median,
        )

    @property
    def standard_errors_s(self) -> dict[str, float]:
        """Of each coefficient, in its own unit."""
        return dict(zip(self.coefficients, np.sqrt(np.diag(self.covariance_s2)).tolist(), strict=True))

    def toml(self) -> str:
        """The table, as `read_fit_errors` reads it."""
        rows = ",\n".join(f"    {row!r}" for row in self.covariance_s2.tolist())
        held = self.held_out_median_error
        names = ", ".join(f'"{name}"' for name in self.coefficients)
        lines = [
            "[fit]",
            f"coefficients = [{names}]",
            f"degrees_of_freedom = {self.degrees_of_freedom}",
            *([] if held is None else [f"held_out_median_error = {held!r}"]),
            f"covariance_s2 = [\n{rows},\n]",
        ]
        return "\n".join([*lines, ""])


def read_fit_errors(table: Any, file: str) -> FitErrors:
    """From the table [fit] of a profile file.

    Raises:
        ConfigError: an unknown or missing key, an unknown coefficient, or no covariance of them.
    """
    if not isinstance(table, dict):
        raise ConfigError(f"{file}: fit must be a table [fit], got {table!r}")
    if unknown := [key for key in table if key not in KEYS]:
        raise ConfigError(f"{file}: unknown key {unknown[0]!r} in [fit]; known: {', '.join(KEYS)}")
    if missing := [key for key in KEYS[:3] if key not in table]:
        raise ConfigError(f"{file}: {', '.join(missing)} missing in [fit]")
    names, degrees, held = table["coefficients"], table["degrees_of_freedom"], table.get("held_out_median_error")
    if not isinstance(names, list) or not names or any(name not in COEFFICIENTS for name in names):
        raise ConfigError(f"{file}: fit.coefficients must be some of {', '.join(COEFFICIENTS)}, got {names!r}")
    if len(set(names)) < len(names):
        raise ConfigError(f"{file}: fit.coefficients must be different, got {names!r}")
    if isinstance(degrees, bool) or not isinstance(degrees, int) or degrees < 1:
        raise ConfigError(f"{file}: fit.degrees_of_freedom must be a whole number >= 1, got {degrees!r}")
    if held is not None and (isinstance(held, bool) or not isinstance(held, int | float) or not 0 <= held < math.inf):
        raise ConfigError(f"{file}: fit.held_out_median_error must be a finite number >= 0, got {held!r}")
    try:
        covariance = np.asarray(table["covariance_s2"], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{file}: fit.covariance_s2 must be rows of numbers") from error
    if not _is_covariance(covariance, len(names)):
        raise ConfigError(
            f"{file}: fit.covariance_s2 must be a symmetric matrix with no negative eigenvalue, {len(names)} rows of "
            f"{len(names)}, got {table['covariance_s2']!r}"
        )
    return FitErrors(tuple(names), covariance, degrees, None if held is None else float(held))


def _is_covariance(matrix: np.ndarray, size: int) -> bool:
    if matrix.shape != (size, size) or not np.all(np.isfinite(matrix)) or np.any(np.diag(matrix) < 0):
        return False
    scale = np.sqrt(np.diag(matrix))
    both = np.outer(scale, scale)
    correlation = np.divide(matrix, both, out=np.zeros_like(matrix), where=both > 0)
    symmetric = np.allclose(correlation, correlation.T, atol=1e-9)
    return bool(symmetric and np.linalg.eigvalsh(0.5 * (correlation + correlation.T)).min() > -1e-9)
