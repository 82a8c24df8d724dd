"""Profiles as TOML files: every constant spelled out, with its source."""

from __future__ import annotations

import difflib
import json
import math
from pathlib import Path

import numpy as np

from jaxsim._checks import unknown
from jaxsim.profiles import Profile, profile, profile_names
from jaxsim.roofline_names import catalogue_hint
from optim.config import ConfigError, read_toml
from optim.fit_errors import FitErrors, read_fit_errors

TEXTS = ("name", "gpu", "source")
NUMBERS = tuple(name for name in Profile.__dataclass_fields__ if name not in TEXTS)
KEYS = (*TEXTS, *NUMBERS)
DEFAULTS = {"overhead_s": 0.0}
FIT = "fit"
"""The table of a profile that `fleetgrad fit` wrote: how well its coefficients are known."""


def find_profile(name: str, path: Path) -> Profile:
    """A preset or a MODEL@GPU of the catalogue by name, or the profile file at `path` where the name looks like one.

    Raises:
        ConfigError: not a profile file.
        ValueError: unknown name, with the near ones; a model that does not fit.
    """
    if name in profile_names():
        return profile(name)
    if name.endswith(".toml") or path.is_file():
        return read_profile(path)
    if "@" in name:
        return profile(name)
    hint = f"{catalogue_hint(name)}; a profile of your own: the path of its .toml file"
    raise unknown("profile", name, profile_names(), hint)


def read_profile(path: Path) -> Profile:
    """The profile in a TOML file with the keys `KEYS`; those of `DEFAULTS` and the table `FIT` may be left out.

    Raises:
        ConfigError: no such file, not TOML, a missing or unknown key, or a value out of its domain.
    """
    table = DEFAULTS | read_toml(path, "profile file")
    if FIT in table:
        read_fit_errors(table.pop(FIT), path.name)
    for key in table:
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
            raise ConfigError(f"{path.name}: unknown key {key!r}; {hint}known: {', '.join(KEYS)}")
    if missing := [key for key in KEYS if key not in table]:
        raise ConfigError(f"{path.name}: {', '.join(missing)} missing; a profile says every constant, even if it is 0")
    for key in NUMBERS:
        value = table[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ConfigError(f"{path.name}: {key} must be a finite number, got {value!r}")
    for key in TEXTS:
        if not isinstance(table[key], str) or not table[key].strip():
            raise ConfigError(f"{path.name}: {key} must be text in quotes, got {table[key]!r}")
    try:
        return Profile(**{key: table[key] for key in KEYS})
    except ValueError as error:
        raise ConfigError(f"{path.name}: {error}") from error


def fit_errors_of(path: Path) -> FitErrors | None:
    """How well the coefficients of a profile file are known; None where it does not say.

    Raises:
        ConfigError: as `read_profile`.
    """
    table = read_toml(path, "profile file")
    return read_fit_errors(table[FIT], path.name) if FIT in table else None


def profile_toml(one: Profile, errors: FitErrors | None = None) -> str:
    """The text of a file that `read_profile` reads back to an equal profile, and `fit_errors_of` to equal errors."""
    texts = [f"{key} = {json.dumps(getattr(one, key), ensure_ascii=False)}" for key in TEXTS]
    numbers = [f"{key} = {float(np.asarray(getattr(one, key)))!r}" for key in NUMBERS]
    return "\n".join([*texts, *numbers, *([] if errors is None else ["", errors.toml().rstrip()]), ""])
