"""Plan files: strict TOML, with every value's source remembered, to a PlanProblem or a FleetDesign.

A file has the tables `[workload]`, `[slo]` and `[fleet]`; flags of the command line override its values. Nothing is
guessed: an unknown key is an error that lists the near ones, and what was left out shows up as a default.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Tokens = Annotated[float, Field(ge=2, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]


class ConfigError(ValueError):
    """Bad input; the text is the whole message for people."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class WorkloadTable(_Table):
    """What is served: exactly one of `name`, `trace`, `cdf`."""

    name: Text | None = Field(None, description="embedded workload; `fleetgrad profiles` lists them")
    trace: Text | None = Field(None, description="request trace: CSV, parquet or JSON lines; relative to this file")
    cdf: Text | None = Field(None, description="JSON list of [total tokens, cumulative share]; relative to this file")
    output_share: float | None = Field(
        None, gt=0, lt=1, allow_inf_nan=False, description="share of a request's total tokens that is output (cdf)"
    )
    rate: Positive | None = Field(None, description="requests per second; left out, the workload's own")
    map: dict[str, Text] | None = Field(None, description="our column names to the trace's")
    time_unit: Literal["s", "ms", "us", "ns"] | None = Field(None, description="of the trace's numeric timestamps")
    failed: Literal["drop", "keep"] | None = Field(None, description="trace requests with 0 output tokens")


class SloTable(_Table):
    """Objectives on the 99th percentile."""

    ttft_p99_ms: Positive | None = Field(None, description="P99 time to first token; required to plan")
    tpot_p99_ms: Positive | None = Field(None, description="P99 time per output token; left out, no objective")


class PoolTable(_Table):
    """One pool of a fleet to simulate."""

    profile: Text = Field(description="preset or path of a profile.toml")
    replicas: Count = Field(description="engines")
    max_context: Tokens | None = Field(None, description="tokens above which it accepts nothing; else the fleet's")
    upper_tokens: Tokens | None = Field(None, description="routes totals up to here to this pool; the last has none")


class FleetTable(_Table):
    """What it is served with: `profiles` to plan with, or `pools` to simulate."""

    profiles: list[Text] | None = Field(None, min_length=1, description="presets, or paths of profile.toml")
    max_pools: Annotated[int, Field(ge=1, le=6)] | None = Field(None, description="pools allowed; default 2")
    max_context: Tokens | None = Field(None, description="longest request in tokens; else the workload's longest")
    long_requests: Literal["reject", "truncate"] | None = Field(None, description='above max_context; "reject"')
    model: Literal["step", "kimura"] | None = Field(None, description='default "step"')
    max_gpus: Count | None = Field(None, description="cap on the GPUs of the whole fleet; default none")
    pools: list[PoolTable] | None = Field(None, min_length=1, description="for `fleetgrad simulate`")


class PlanFile(_Table):
    """A plan file of fleetgrad."""

    workload: WorkloadTable = Field(default_factory=WorkloadTable)  # type: ignore[arg-type]
    slo: SloTable = Field(default_factory=SloTable)  # type: ignore[arg-type]
    fleet: FleetTable = Field(default_factory=FleetTable)  # type: ignore[arg-type]


TABLES: dict[str, type[_Table]] = {"workload": WorkloadTable, "slo": SloTable, "fleet": FleetTable}

FLAGS = {
    "workload.name": "--workload",
    "workload.trace": "--trace",
    "workload.cdf": "--cdf",
    "workload.output_share": "--output-share",
    "workload.rate": "--rate",
    "workload.map": "--map",
    "workload.time_unit": "--time-unit",
    "workload.failed": "--failed",
    "slo.ttft_p99_ms": "--ttft-p99-ms",
    "slo.tpot_p99_ms": "--tpot-p99-ms",
    "fleet.profiles": "--profile",
    "fleet.max_pools": "--max-pools",
    "fleet.max_context": "--max-context",
    "fleet.long_requests": "--long-requests",
    "fleet.model": "--model",
    "fleet.max_gpus": "--max-gpus",
}
"""The flag that overrides each key of a plan file."""

_KINDS = ("workload.name", "workload.trace", "workload.cdf")
_OF_A_KIND = (*_KINDS, "workload.output_share", "workload.map", "workload.time_unit", "workload.failed")


@dataclass(frozen=True)
class Settings:
    """A checked plan file with the flags laid over it.

    Attributes:
        tables: the values.
        file: the plan file; None where flags alone say everything.
        from_flags: dotted keys that the command line gave.
    """

    tables: PlanFile
    file: Path | None = None
    from_flags: frozenset[str] = field(default_factory=frozenset)

    def where(self, key: str) -> str:
        """How an error names a key: the flag, or file and key."""
        if key in self.from_flags or self.file is None:
            return FLAGS.get(key, key)
        return f"{self.file.name}: {key}"

    def source(self, key: str, default: str = "default") -> str:
        """Where a value came from; `default` where neither file nor flags have it."""
        if key in self.from_flags:
            return "given on the command line"
        table, _, name = key.partition(".")
        if getattr(getattr(self.tables, table), name) is None:
            return default
        return f"given in {self.file.name}" if self.file is not None else "given"

    def path(self, key: str, value: str) -> Path:
        """A path in the file is relative to the file; one in a flag to the working directory."""
        folder = Path() if key in self.from_flags or self.file is None else self.file.parent
        return folder / Path(value).expanduser()

    def error(self, key: str, problem: str | Exception) -> ConfigError:
        """An error at a key: what the key must be, or what was found where it points."""
        between = ": " if isinstance(problem, Exception) else " "
        return ConfigError(f"{self.where(key)}{between}{problem}")


def read_settings(file: Path | None, flags: Mapping[str, Any]) -> Settings:
    """Read a plan file and lay the flags over it.

    Args:
        file: TOML; None starts from nothing.
        flags: dotted keys of `FLAGS` to values; None is not given.

    Raises:
        ConfigError: no such file, not TOML, an unknown key or a value out of its domain.
    """
    tables = {} if file is None else read_toml(file, "plan file")
    given = {key: value for key, value in flags.items() if value is not None}
    if file is not None:
        _check(tables, file=file, from_flags=frozenset())
    kind = next((key for key in _KINDS if key in given), None)
    if kind is not None:
        for key in _OF_A_KIND:  # what belongs to another workload goes with it
            tables.get("workload", {}).pop(key.partition(".")[2], None)
    for key, value in given.items():
        table, _, name = key.partition(".")
        tables.setdefault(table, {})[name] = value
    return Settings(_check(tables, file=file, from_flags=frozenset(given)), file, frozenset(given))


def read_toml(file: Path, what: str) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        ConfigError: no such file, a folder, not UTF-8, or not TOML, with line and column.
    """
    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        near = difflib.get_close_matches(file.name, [p.name for p in file.parent.glob("*.toml")], n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "check the path"
        raise ConfigError(f"{what} not found: {file}; {hint}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file.name}: not UTF-8 text ({error.reason}); save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file.name}: not TOML: {error}; expected lines such as rate = 200.0") from error
    except OSError as error:
        raise ConfigError(f"{file.name}: {what} cannot be read ({error.strerror})") from error


def _check(tables: dict[str, Any], *, file: Path | None, from_flags: frozenset[str]) -> PlanFile:
    try:
        return PlanFile.model_validate(tables)
    except ValidationError as error:
        found = sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ConfigError(_sentence(found[0], file, from_flags) + more) from error


def _sentence(error: Any, file: Path | None, from_flags: frozenset[str]) -> str:
    """One pydantic error as: place, what, value, allowed, hint."""
    loc = error["loc"]
    dotted = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")
    key = ".".join(str(part) for part in loc[:2])
    flag = FLAGS[key] if key in from_flags and key in FLAGS else None
    place = flag or (f"{file.name}: {dotted}" if file is not None else dotted)
    if error["type"] == "extra_forbidden":
        return f"{file.name if file else 'command line'}: {_unknown_key(loc)}"
    if error["type"] == "missing":
        return f"{place} is required; {describe(loc)}"
    value = error["input"]
    return f"{place} must be {_allowed(error)}, got {value!r}" + _hint(loc, value)


def _unknown_key(loc: tuple[Any, ...]) -> str:
    name = str(loc[-1])
    model = _table_at(loc[:-1])
    known = list(model.model_fields)
    inside = f" in [{'.'.join(str(p) for p in loc[:-1] if not isinstance(p, int))}]" if len(loc) > 1 else ""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    elsewhere = [table for table, fields in TABLES.items() if name in fields.model_fields and fields is not model]
    hint = ""
    if near:
        hint = f"did you mean {' or '.join(repr(n) for n in near)}? "
    elif elsewhere:
        hint = f"it belongs in [{elsewhere[0]}]; "
    return f"unknown key {name!r}{inside}; {hint}known: {', '.join(known)}"


def _table_at(loc: tuple[Any, ...]) -> type[BaseModel]:
    if not loc:
        return PlanFile
    return PoolTable if len(loc) > 1 and loc[1] == "pools" else TABLES[str(loc[0])]


def describe(loc: tuple[Any, ...]) -> str:
    """What a key means, from its model."""
    described = _table_at(loc[:-1]).model_fields.get(str(loc[-1]))
    return (described.description if described is not None else None) or "give it a value"


_TYPES = {
    "float_type": "a number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "string_type": "text in quotes",
    "string_too_short": "text in quotes, not empty",
    "list_type": "a list",
    "too_short": "a list with at least one entry",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "finite_number": "a finite number",
}


def _allowed(error: Any) -> str:
    kind, context = error["type"], error.get("ctx", {})
    signs = {"greater_than": ">", "greater_than_equal": ">=", "less_than": "<", "less_than_equal": "<="}
    if kind in signs:
        bound = next(iter(context.values()))
        return f"{signs[kind]} {bound:g}" + (" and finite" if kind.startswith("greater") else "")
    if kind == "literal_error":
        return context["expected"]
    return _TYPES.get(kind, error["msg"])


def _hint(loc: tuple[Any, ...], value: Any) -> str:
    if isinstance(value, str) and str(loc[-1]) not in TABLES:
        annotated = _table_at(loc[:-1]).model_fields.get(str(loc[-1]))
        choices = [] if annotated is None else [str(c) for c in _literals(annotated.annotation)]
        near = difflib.get_close_matches(value, choices, n=1, cutoff=0.4)
        return f"; did you mean {near[0]!r}?" if near else ""
    return ""


def _literals(annotation: Any) -> list[Any]:
    inner = getattr(annotation, "__args__", ())
    return [c for c in inner if isinstance(c, str)] or [c for part in inner for c in _literals(part)]
