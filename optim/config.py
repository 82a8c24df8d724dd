"""Reading plan files: strict TOML, with every value's source remembered, and flags laid over it.

`optim.plan_file` has the tables. Nothing is guessed: an unknown key is an error that lists the near ones, and what was
left out shows up as a default.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from optim.plan_file import CHOICES, ROWS, TABLES, PlanFile


class ConfigError(ValueError):
    """Bad input; the text is the whole message for people."""


FLAGS = {
    "workload.name": "--workload",
    "workload.trace": "--trace",
    "workload.cdf": "--cdf",
    "workload.output_share": "--output-share",
    "workload.rate": "--rate",
    "workload.prefix_cache_hit_rate": "--prefix-cache-hit-rate",
    "workload.map": "--map",
    "workload.time_unit": "--time-unit",
    "workload.failed": "--failed",
    "slo.ttft_p99_ms": "--ttft-p99-ms",
    "slo.tpot_p99_ms": "--tpot-p99-ms",
    "fleet.profiles": "--profile",
    "fleet.max_pools": "--max-pools",
    "transfer.gb_per_s": "--link-gb-per-s",
    "transfer.latency_ms": "--link-latency-ms",
    "transfer.kv_bytes_per_token": "--kv-bytes-per-token",
    "fleet.max_context": "--max-context",
    "fleet.long_requests": "--long-requests",
    "fleet.model": "--model",
    "fleet.max_gpus": "--max-gpus",
    "serving.scheduling": "--scheduling",
    "serving.max_num_batched_tokens": "--max-num-batched-tokens",
    "serving.kv": "--kv",
    "arrivals.process": "--arrivals",
    "arrivals.cv": "--cv",
    "arrivals.concurrency": "--concurrency",
    "router.dispatch": "--dispatch",
    "router.pressure": "--pressure",
    "router.gamma": "--gamma",
    "router.error": "--error",
    "router.max_tokens": "--max-tokens",
    "power.pue": "--pue",
    "power.usd_per_kwh": "--usd-per-kwh",
    "power.kg_co2_per_kwh": "--kg-co2-per-kwh",
    "power.minimize": "--minimize",
    "power.max_kw": "--max-kw",
    "power.max_kwh_per_million_tokens": "--max-kwh-per-million-tokens",
    "demand.table": "--demand",
    "demand.from_trace": "--from-trace",
    "demand.interval_minutes": "--interval-minutes",
    "demand.mean_rps": "--mean-rate",
    "demand.grid_table": "--grid",
    "scaling.cold_start_s": "--cold-start-s",
    "scaling.hold_minutes": "--hold-minutes",
    "scaling.spare_percent": "--spare-percent",
    "scaling.on_demand_usd_per_gpu_hour": "--on-demand-usd-per-gpu-hour",
    "scaling.reserved_usd_per_gpu_hour": "--reserved-usd-per-gpu-hour",
    "defer.share": "--defer-share",
    "defer.max_wait_hours": "--defer-hours",
    "defer.minimize": "--minimize",
    "uncertainty.rate": "--rate-range",
    "uncertainty.rate_cv": "--rate-cv",
    "uncertainty.step_time_factor": "--step-time-factor",
    "uncertainty.fit": "--fit",
    "uncertainty.input_tokens_factor": "--input-tokens-factor",
    "uncertainty.output_tokens_factor": "--output-tokens-factor",
    "uncertainty.length_sample": "--length-sample",
}
"""The flag that overrides each key of a plan file."""

_KINDS = {
    "workload": (("name", "trace", "cdf", "mix"), ("output_share", "map", "time_unit", "failed")),
    "demand": (
        ("table", "from_trace"),
        ("rates_rps", "peak_rps", "trough_rps", "peak_hour", "interval_minutes", "zeros", "map", "only"),
    ),
}
"""Keys of a table that a flag may choose among, and those that belong to one of them."""


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

    def value(self, key: str) -> Any:
        """What the file and flags say for a dotted key; None where they say nothing."""
        table, _, name = key.partition(".")
        inside = getattr(self.tables, table)
        return inside if not name or inside is None else getattr(inside, name)

    def where(self, key: str) -> str:
        """How an error names a key: the flag, or file and key."""
        if key in self.from_flags or self.file is None:
            return FLAGS.get(key, key)
        return f"{self.file.name}: {key}"

    def source(self, key: str, default: str = "default") -> str:
        """Where a value came from; `default` where neither file nor flags have it."""
        if key in self.from_flags:
            return "given on the command line"
        if self.value(key) is None:
            return default
        return f"given in {self.file.name}" if self.file is not None else "given"

    def path(self, key: str, value: str) -> Path:
        """A path in the file is relative to the file; one in a flag to the working directory."""
        folder = Path() if key in self.from_flags or self.file is None else self.file.parent
        return folder / Path(value).expanduser()

    def missing(self, key: str, hint: str) -> ConfigError:
        """An error at a key that has a flag and must be given."""
        flag, file = FLAGS[key], self.file
        where = f"{flag} (or {key} in a file)" if file is None else f"{file.name}: {key} (or {flag})"
        return ConfigError(f"{where} is required; {hint}")

    def error(self, key: str, problem: str | Exception) -> ConfigError:
        """An error at a key: what the key must be, or what was found where it points."""
        between = ": " if isinstance(problem, Exception) else " "
        return ConfigError(f"{self.where(key)}{between}{problem}")

    @contextmanager
    def naming(self, *tables: str) -> Iterator[None]:
        """What the library finds wrong, named as the key of one of these tables that said it."""
        try:
            yield
        except ConfigError:
            raise
        except ValueError as error:
            name, _, rest = str(error).partition(" ")
            table = next((table for table in tables if name in TABLES[table].model_fields), None)
            if table is not None:
                raise self.error(f"{table}.{name}", rest) from error
            raise ConfigError(f"{self.file.name if self.file else 'command line'}: {error}") from error


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
    for table, (kinds, others) in _KINDS.items():
        if any(f"{table}.{kind}" in given for kind in kinds):
            for name in (*kinds, *others):  # what belongs to another workload or demand goes with it
                tables.get(table, {}).pop(name, None)
    for key, value in given.items():
        table, _, name = key.partition(".")
        for other, takers in CHOICES.get(key, {}).items():  # what the file has for another choice
            if value not in takers and f"{table}.{other}" not in given:
                tables.get(table, {}).pop(other, None)
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
    return ROWS.get(".".join(str(part) for part in loc if not isinstance(part, int)), TABLES[str(loc[0])])


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
    if kind == "too_short":
        least = context["min_length"]
        return f"a list with at least {'one entry' if least == 1 else f'{least} entries'}"
    return _TYPES.get(kind, error["msg"])


_PYTHON_ONLY = {("router", "kind"): {"model": "routing by model is for Python: des.ModelRouter"}}


def _hint(loc: tuple[Any, ...], value: Any) -> str:
    if isinstance(value, dict) and ".".join(map(str, loc)) in ("schedule", *ROWS):
        return f"; each row is a table [[{'.'.join(map(str, loc))}]]"
    if isinstance(value, str) and value in _PYTHON_ONLY.get(loc, {}):
        return f"; {_PYTHON_ONLY[loc][value]}"
    if isinstance(value, str) and str(loc[-1]) not in TABLES:
        annotated = _table_at(loc[:-1]).model_fields.get(str(loc[-1]))
        choices = [] if annotated is None else [str(c) for c in _literals(annotated.annotation)]
        near = difflib.get_close_matches(value, choices, n=1, cutoff=0.4)
        return f"; did you mean {near[0]!r}?" if near else ""
    return ""


def _literals(annotation: Any) -> list[Any]:
    inner = getattr(annotation, "__args__", ())
    return [c for c in inner if isinstance(c, str)] or [c for part in inner for c in _literals(part)]
