"""Which column of a trace file is what: by exact known names or the caller's mapping, never by position."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from jaxsim._checks import unknown

INPUT, OUTPUT, TIME = "input_tokens", "output_tokens", "timestamp"

ALIASES: dict[str, tuple[str, ...]] = {
    INPUT: (
        "input_tokens",
        "ContextTokens",
        "Request tokens",
        "input_length",
        "prompt_size",
        "num_prefill_tokens",
        "prompt_tokens",
        "prompt_len",
        "prompt_length",
        "input_len",
        "input_sequence_length",
        "isl",
        "in",
        "usage.prompt_tokens",
        "usage.input_tokens",
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.prompt_tokens",
    ),
    OUTPUT: (
        "output_tokens",
        "GeneratedTokens",
        "Response tokens",
        "output_length",
        "token_size",
        "num_decode_tokens",
        "completion_tokens",
        "output_len",
        "output_sequence_length",
        "osl",
        "out",
        "usage.completion_tokens",
        "usage.output_tokens",
        "gen_ai.usage.output_tokens",
        "gen_ai.usage.completion_tokens",
    ),
    TIME: (
        "timestamp",
        "timestamp_s",
        "timestamp_ms",
        "timestamp_us",
        "timestamp_ns",
        "t_s",
        "t",
        "ts",
        "time",
        "time_s",
        "time_ms",
        "arrived_at",
        "arrival_time",
        "arrival_timestamp",
        "arrival_s",
        "arrival_ms",
        "created",
        "created_at",
        "request_start_ns",
        "start_time_unix_nano",
    ),
}
"""Known names of each column; letter case, spaces, underscores and hyphens do not count."""


def refusal(file: str, *sentences: str) -> ValueError:
    """The error of a file that cannot be read: its name, then what is wrong and what to do."""
    return ValueError(f"{file}: " + "; ".join(sentences))


def plain(name: str) -> str:
    """A column name without what does not count."""
    return re.sub(r"[\s_-]+", "", name).lower()


_KNOWN = {ours: {plain(alias) for alias in aliases} for ours, aliases in ALIASES.items()}


def is_known(ours: str, name: str) -> bool:
    """True where `name` is a known name of our column."""
    return plain(name) in _KNOWN[ours]


def check_mapping(columns: Mapping[str, str] | None) -> None:
    """Only our three names can be mapped, each to a column of its own."""
    for ours in columns or {}:
        if ours not in ALIASES:
            raise unknown("column to map", ours, ALIASES, "write ours first: input_tokens=their_name")
    theirs = list((columns or {}).values())
    if len(set(theirs)) < len(theirs):
        raise ValueError(f"columns must map each of our names to another column, got {dict(columns or {})!r}")


def resolve(names: tuple[str, ...], columns: Mapping[str, str] | None, file: str) -> dict[str, int]:
    """Position of each of our columns in `names`; `timestamp` may be absent, the lengths may not.

    Raises:
        ValueError: a length column is not there, a mapped one is not there, or two could be meant.
    """
    found = f"found columns: {', '.join(map(repr, names)) or 'none'}"
    chosen: dict[str, int] = {}
    for ours in ALIASES:
        theirs = (columns or {}).get(ours)
        if theirs is not None:
            at = [k for k, name in enumerate(names) if name == theirs]
            if not at:
                near = difflib.get_close_matches(theirs, names, n=3, cutoff=0.5)
                meant = f"did you mean {' or '.join(map(repr, near))}?" if near else "map to one of those"
                raise refusal(file, f"no column {theirs!r}, to which {ours} was mapped", found, meant)
        else:
            at = [k for k, name in enumerate(names) if is_known(ours, name)]
        if len(at) > 1:
            several = " and ".join(repr(names[k]) for k in at)
            how = f"say which: --map {ours}={names[at[0]]} (Python: columns={{{ours!r}: {names[at[0]]!r}}})"
            if len({names[k] for k in at}) == 1:
                how = "rename one of them"
            raise refusal(file, f"more than one column could be {ours}: {several}", how)
        if at:
            chosen[ours] = at[0]
    missing = [ours for ours in (INPUT, OUTPUT) if ours not in chosen]
    if missing:
        raise refusal(file, *_missing(missing, names, found))
    if len(set(chosen.values())) < len(chosen):
        raise refusal(file, f"one column was taken for two of {', '.join(chosen)}", found)
    return chosen


def _missing(missing: list[str], names: tuple[str, ...], found: str) -> list[str]:
    sentences = [f"no column for {' and '.join(missing)}", found]
    if names and all(re.fullmatch(r"\s*[-+.\d]*\d[-+.:\dTZ ]*", name) for name in names):
        sentences.append("the first line looks like data: it must be a header with the column names")
    sentences += [f"expected {ours} under one of the names {', '.join(ALIASES[ours])}" for ours in missing]
    example = {ours: _nearest(ours, names) for ours in missing}
    flags = " ".join(f"--map {ours}={theirs}" for ours, theirs in example.items())
    return [*sentences, f"map other names with {flags} (Python: columns={example!r})"]


def _nearest(ours: str, names: tuple[str, ...]) -> str:
    """The column most like a known name, for the example in the error text; never a sum over requests."""

    def likeness(name: str) -> float:
        known = (alias for alias in _KNOWN[ours] if len(alias) > 3)
        return max(difflib.SequenceMatcher(None, plain(name), alias).ratio() for alias in known)

    best = max((name for name in names if "total" not in name.lower()), key=likeness, default="")
    return best if best and likeness(best) > 0.5 else "YOUR_COLUMN"
