"""What a fit says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from jaxsim._checks import require
from jaxsim.fit.doubts import Warned
from jaxsim.fit.law import COEFFICIENTS, LawFit
from jaxsim.fit.table import StepTable, step_seconds
from jaxsim.physics import StepLaw
from jaxsim.profiles import Profile


class Errors(NamedTuple):
    """Absolute relative errors of the law over some rows; `bias` is the mean of the signed ones.

    A fraction each: 0.02 is 2 %.
    """

    rows: int
    mean: float
    median: float
    p90: float
    worst: float
    bias: float

    @classmethod
    def of(cls, errors: np.ndarray) -> Errors:
        """Of signed relative errors."""
        size = np.abs(errors)
        return cls(
            len(errors),
            float(size.mean()),
            float(np.median(size)),
            float(np.quantile(size, 0.9)),
            float(size.max()),
            float(errors.mean()),
        )


@dataclass(frozen=True)
class StepFit:
    """A law fitted to measured steps, or to the means of benchmark runs.

    Attributes:
        law: the coefficients.
        standard_errors: of the coefficients; NaN for those that were not fitted or are at their bound.
        covariance: of the coefficients, in the order of `COEFFICIENTS`; 0 where the standard error is NaN.
        degrees_of_freedom: rows that each fitted coefficient rests on, beyond the coefficients fitted to them.
        fitted: names of the coefficients that the rows determine; the others are 0.
        at_bound: those of them that are at their lower bound, 0 (`base_s`: a millionth of the typical time).
        errors: on the rows fitted to: of "all", of "decode" and "prompt" rows (of runs: of "ttft" and "tpot"), and
            of each group.
        held_out: on rows that the law was not fitted to: each fold's rows by the law of the other folds. By group as
            above; empty where a fold would leave too few rows.
        scales: relative error above which a row counted linearly, of "decode" and "prompt" rows, or of "runs".
        warned: what is to be doubted.
        rows, source: what was fitted to.
    """

    law: StepLaw
    standard_errors: StepLaw
    covariance: np.ndarray
    degrees_of_freedom: dict[str, int]
    fitted: tuple[str, ...]
    at_bound: tuple[str, ...]
    errors: dict[str, Errors]
    held_out: dict[str, Errors]
    scales: dict[str, float]
    warned: tuple[Warned, ...]
    rows: int
    source: str

    @property
    def warnings(self) -> tuple[str, ...]:
        """The sentences of `warned`."""
        return tuple(each.text for each in self.warned)

    @property
    def description(self) -> str:
        """What the law rests on."""
        return f"fitted to {self.rows:,} rows of {self.source}, median error {self.errors['all'].median:.1%}"

    def seconds(self, table: StepTable) -> np.ndarray:
        """Time of other steps by the law."""
        return np.asarray(step_seconds(self.law, table.rows))

    def error(self, table: StepTable) -> Errors:
        """Error of the law on other steps."""
        return Errors.of(self.seconds(table) / table.time_s - 1.0)

    def interval(self, level: float = 0.95) -> dict[str, tuple[float, float]]:
        """Confidence interval of each fitted coefficient that is not at its bound, by Student's t.

        It holds for errors of the rows that are independent; those that the law's form makes are not.
        """
        require(0.0 < level < 1.0, "level", level, "between 0 and 1", "95 % is 0.95")
        found = {}
        for name in self.fitted:
            value, error = getattr(self.law, name), getattr(self.standard_errors, name)
            if np.isfinite(error):
                half = float(stdtrit(self.degrees_of_freedom[name], 0.5 + 0.5 * level)) * error
                found[name] = (value - half, value + half)
        return found

    def applied_to(self, profile: Profile, *, name: str | None = None) -> Profile:
        """The profile with this law: its limits and price, our times."""
        return replace(
            profile, **self.law._asdict(), name=profile.name if name is None else name, source=self.description
        )

    def profile(
        self,
        *,
        name: str,
        gpu: str,
        chunk_tokens: float,
        max_num_seqs: float,
        kv_blocks: float,
        block_tokens: float = 16.0,
        calibration_context: float = 8192.0,
        usd_per_gpu_hour: float = 0.0,
        gpus_per_replica: float = 1.0,
    ) -> Profile:
        """A profile with this law; the arguments are the attributes of `jaxsim.Profile`."""
        numbers: dict[str, Any] = {
            **self.law._asdict(),
            "chunk_tokens": chunk_tokens,
            "max_num_seqs": max_num_seqs,
            "kv_blocks": kv_blocks,
            "block_tokens": block_tokens,
            "calibration_context": calibration_context,
            "usd_per_gpu_hour": usd_per_gpu_hour,
            "gpus_per_replica": gpus_per_replica,
        }
        return Profile(**numbers, name=name, gpu=gpu, source=self.description)

    def summary(self) -> str:
        """Coefficients with their standard errors, the errors, and what is to be doubted."""
        return "\n".join(_lines(self))


def errors_by(errors: np.ndarray, chosen: dict[str, np.ndarray]) -> dict[str, Errors]:
    """Of signed relative errors: of all and of each choice of rows that is not empty."""
    found = {name: Errors.of(errors[rows]) for name, rows in chosen.items() if rows.any()}
    return {"all": Errors.of(errors), **found}


def by_label(groups: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The rows of each group."""
    labels = np.asarray(groups)
    return {label: labels == label for label in dict.fromkeys(groups)}


def standard_errors_of(fit: LawFit, fitted: tuple[str, ...], at_bound: tuple[str, ...]) -> StepLaw:
    """Roots of the covariance's diagonal; NaN for what has none."""
    roots = np.sqrt(np.diag(np.asarray(fit.covariance)))
    known = {name for name in fitted if name not in at_bound}
    errors = {name: float(root) if name in known else np.nan for name, root in zip(COEFFICIENTS, roots, strict=True)}
    return StepLaw(**errors, overhead_s=np.nan)


def names_at_bound(fit: LawFit) -> tuple[str, ...]:
    """Coefficients at their lower bound."""
    return tuple(name for name, bound in zip(COEFFICIENTS, fit.at_bound, strict=True) if bound)


def _lines(fit: StepFit) -> Iterator[str]:
    yield fit.description
    for name in COEFFICIENTS:
        value, error = getattr(fit.law, name), getattr(fit.standard_errors, name)
        note = "not fitted" if name not in fit.fitted else "at its bound" if name in fit.at_bound else f"+- {error:.2g}"
        yield f"  {name:21s} {value:.4g} s  {note}"
    for title, errors in (("on these rows", fit.errors), ("on rows held out", fit.held_out)):
        for label, found in errors.items():
            yield (
                f"  error {title}, {label} ({found.rows:,} rows): median {found.median:.1%}, 90 % within "
                f"{found.p90:.1%}, worst {found.worst:.1%}"
            )
    yield from (f"  warning: {text}" for text in fit.warnings)
