"""From checked settings to a problem and its uncertainty, each source with where it came from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from optim.build import plan_request
from optim.config import FLAGS, ConfigError, Settings
from optim.fit_errors import FitErrors
from optim.inputs import Input, Inputs
from optim.plan_file import CoefficientsRow
from optim.problem import PlanProblem
from optim.profile_file import find_profile, fit_errors_of
from optim.uncertainty import LAW, DemandScenario, Interval, Uncertainty

_PAIRS = ("rate", "step_time_factor", "input_tokens_factor", "output_tokens_factor")
_KEYS = (
    "rate",
    "rate_cv",
    "scenarios",
    "step_time_factor",
    "fit",
    "coefficients",
    "input_tokens_factor",
    "output_tokens_factor",
    "length_sample",
)
_INPUT = {"rate": "rate_range_rps", "fit": "coefficients_standard_errors", "coefficients": "coefficients_half_widths"}
"""Names of sources among the inputs, where the key alone would not say enough."""


@dataclass(frozen=True)
class RobustRequest:
    """What a plan file asks of `fleetgrad robust`."""

    problem: PlanProblem
    uncertainty: Uncertainty
    inputs: Inputs
    notes: tuple[str, ...] = ()


def robust_request(settings: Settings) -> RobustRequest:
    """The problem and the uncertainty that a plan file and flags describe.

    Raises:
        ConfigError: nothing is uncertain, something required is missing, or a value is out of its domain.
    """
    asked = plan_request(settings, used=("uncertainty",))
    table = settings.tables.uncertainty
    fits = dict(_fits(settings)) if table.fit else {}
    with settings.naming("uncertainty"):
        pairs = {name: _interval(settings, name) for name in _PAIRS}
        uncertainty = Uncertainty(
            **pairs,
            scenarios=_scenarios(settings),
            rate_cv=table.rate_cv,
            coefficients=_coefficients(settings, asked.problem),
            fits=fits,
            length_sample=table.length_sample,
        )
        uncertainty.check_profiles(asked.problem.profiles)
    if not uncertainty.sources:
        keys = ", ".join(f"{name} ({FLAGS[key]})" for name in _KEYS if (key := f"uncertainty.{name}") in FLAGS)
        raise ConfigError(
            f"{settings.where('uncertainty')} must say what is not known: {keys}, [[uncertainty.scenarios]] or "
            "[[uncertainty.coefficients]]; for what is known there is `fleetgrad plan`"
        )
    doubts = _notes(fits) if table.step_time_factor is None else ()
    known = "known exactly: not in [uncertainty]"
    shown = {_INPUT.get(name, name): Input(None, known) for name in _KEYS}
    for name in uncertainty.sources:
        said = Input(_shown(uncertainty, name), settings.source(f"uncertainty.{name}"))
        shown[_INPUT.get(name, name)] = said
    return RobustRequest(asked.problem, uncertainty, {**asked.inputs, **shown}, (*asked.notes, *doubts))


def _interval(settings: Settings, name: str) -> Interval | None:
    pair = getattr(settings.tables.uncertainty, name)
    if pair is None:
        return None
    if pair[0] > pair[1]:
        raise settings.error(f"uncertainty.{name}", f"must be [low, high] with low <= high, got {pair!r}")
    return Interval(float(pair[0]), float(pair[1]))


def _scenarios(settings: Settings) -> tuple[DemandScenario, ...]:
    rows = settings.tables.uncertainty.scenarios or []
    return tuple(
        DemandScenario(
            name=row.name,
            probability=row.probability,
            rate=row.rate,
            input_tokens_factor=row.input_tokens_factor or 1.0,
            output_tokens_factor=row.output_tokens_factor or 1.0,
        )
        for row in rows
    )


def _coefficients(settings: Settings, problem: PlanProblem) -> dict[str, dict[str, float]]:
    """By the names of the profiles; rows say them as fleet.profiles does."""
    said = settings.tables.fleet.profiles or []
    names = dict(zip(said, (str(profile.name) for profile in problem.profiles), strict=True))
    found: dict[str, dict[str, float]] = {}
    for k, row in enumerate(settings.tables.uncertainty.coefficients or []):
        key = f"uncertainty.coefficients[{k}]"
        name = names.get(row.profile, row.profile)
        if name in found:
            raise settings.error(f"{key}.profile", f"is there twice: {row.profile!r}")
        widths = _widths(row)
        if not widths:
            raise settings.error(key, f"must give a half-width of some coefficient: {', '.join(LAW)}")
        found[name] = widths
    return found


def _widths(row: CoefficientsRow) -> dict[str, float]:
    return {name: width for name in LAW if (width := getattr(row, name)) is not None}


def _fits(settings: Settings) -> Iterator[tuple[str, FitErrors]]:
    """Of the profile files that carry the errors of their fit.

    Raises:
        ConfigError: none does.
    """
    found = 0
    for said in settings.tables.fleet.profiles or []:
        path = settings.path("fleet.profiles", said)
        if path.is_file() and (errors := fit_errors_of(path)) is not None:
            found += 1
            yield str(find_profile(said, path).name), errors
    if not found:
        raise settings.error(
            "uncertainty.fit",
            "must be left out: no profile of fleet.profiles carries the errors of a fit; "
            "`fleetgrad fit FILES --profile BASE --out mine.toml` writes one that does",
        )


def _shown(uncertainty: Uncertainty, name: str) -> object:
    """A source as the inputs list it."""
    if name == "scenarios":
        return [
            {
                "name": one.name,
                "probability": one.probability,
                "rate_rps": one.rate,
                "input_tokens_factor": one.input_tokens_factor,
                "output_tokens_factor": one.output_tokens_factor,
            }
            for one in uncertainty.scenarios
        ]
    if name == "coefficients":
        return {profile: dict(widths) for profile, widths in uncertainty.coefficients.items()}
    if name == "fit":
        return {profile: errors.standard_errors_s for profile, errors in uncertainty.fits.items()}
    value = getattr(uncertainty, name)
    return [value.low, value.high] if isinstance(value, Interval) else value


def _notes(fits: dict[str, FitErrors]) -> tuple[str, ...]:
    """What a fit's standard errors do not say."""
    return tuple(
        f"{name}: its standard errors are those of independent rows; on rows held out the law was {held:.1%} off in "
        f"the median, which step_time_factor = [{1 - held:.3g}, {1 + held:.3g}] would add"
        for name, errors in fits.items()
        if (held := errors.held_out_median_error) is not None
    )
