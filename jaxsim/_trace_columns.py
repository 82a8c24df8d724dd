"""Which column of a file is what: by exact known names or the caller's mapping, never by position."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

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


@cache
def _plain_names(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(map(plain, names))


@dataclass(frozen=True)
class Vocabulary:
    """Our columns with the names by which files know them.

    Attributes:
        aliases: known names of each of our columns.
        required: groups of ours, of each of which one must be there.
    """

    aliases: Mapping[str, tuple[str, ...]]
    required: tuple[tuple[str, ...], ...]

    def knows(self, ours: str, name: str) -> bool:
        """True where `name` is a known name of our column."""
        return plain(name) in _plain_names(self.aliases[ours])

    def check_mapping(self, columns: Mapping[str, str] | None) -> None:
        """Only our names can be mapped, each to a column of its own."""
        for ours in columns or {}:
            if ours not in self.aliases:
                raise unknown(
                    "column to map", ours, self.aliases, f"write ours first: {self.required[0][0]}=their_name"
                )
        theirs = list((columns or {}).values())
        if len(set(theirs)) < len(theirs):
            raise ValueError(f"columns must map each of our names to another column, got {dict(columns or {})!r}")

    def resolve(self, names: tuple[str, ...], columns: Mapping[str, str] | None, file: str) -> dict[str, int]:
        """Position of each of our columns in `names`; only the required ones must be there.

        Raises:
            ValueError: a required column is not there, a mapped one is not there, or two could be meant.
        """
        found = f"found columns: {', '.join(map(repr, names)) or 'none'}"
        chosen: dict[str, int] = {}
        for ours in self.aliases:
            at = self._matching(ours, names, columns, file, found)
            if len(at) > 1:
                several = " and ".join(repr(names[k]) for k in at)
                how = f"say which: --map {ours}={names[at[0]]} (Python: columns={{{ours!r}: {names[at[0]]!r}}})"
                if len({names[k] for k in at}) == 1:
                    how = "rename one of them"
                raise refusal(file, f"more than one column could be {ours}: {several}", how)
            if at:
                chosen[ours] = at[0]
        missing = [group for group in self.required if not any(ours in chosen for ours in group)]
        for ours, theirs in (columns or {}).items():
            if any(self.knows(wanted, theirs) for group in missing for wanted in group):
                what = " or ".join(" or ".join(group) for group in missing)
                raise refusal(file, f"one column was taken for two: {theirs!r} is {ours} (mapped) and {what}", found)
        if missing:
            raise refusal(file, *self._missing(missing, names, found))
        if len(set(chosen.values())) < len(chosen):
            raise refusal(file, f"one column was taken for two of {', '.join(chosen)}", found)
        return chosen

    def _matching(
        self, ours: str, names: tuple[str, ...], columns: Mapping[str, str] | None, file: str, found: str
    ) -> list[int]:
        theirs = (columns or {}).get(ours)
        if theirs is None:
            taken = set((columns or {}).values())
            return [k for k, name in enumerate(names) if self.knows(ours, name) and name not in taken]
        at = [k for k, name in enumerate(names) if name == theirs]
        if not at:
            near = difflib.get_close_matches(theirs, names, n=3, cutoff=0.5)
            meant = f"did you mean {' or '.join(map(repr, near))}?" if near else "map to one of those"
            raise refusal(file, f"no column {theirs!r}, to which {ours} was mapped", found, meant)
        return at

    def _missing(self, missing: list[tuple[str, ...]], names: tuple[str, ...], found: str) -> list[str]:
        sentences = [f"no column for {' and '.join(map(_either, missing))}", found]
        if names and all(re.fullmatch(r"\s*[-+.\d]*\d[-+.:\dTZ ]*", name) for name in names):
            sentences.append("the first line looks like data: it must be a header with the column names")
        for group in missing:
            others = f"; or {', '.join(group[1:])} likewise" if len(group) > 1 else ""
            sentences.append(f"expected {group[0]} under one of the names {', '.join(self.aliases[group[0]])}{others}")
        example = {group[0]: self._nearest(group[0], names) for group in missing}
        flags = " ".join(f"--map {ours}={theirs}" for ours, theirs in example.items())
        return [*sentences, f"map other names with {flags} (Python: columns={example!r})"]

    def _nearest(self, ours: str, names: tuple[str, ...]) -> str:
        """The column most like a known name, for the example in the error text; never a sum over requests."""

        def likeness(name: str) -> float:
            known = [plain(alias) for alias in self.aliases[ours] if len(plain(alias)) > 3]
            return max(difflib.SequenceMatcher(None, plain(name), alias).ratio() for alias in known)

        best = max((name for name in names if "total" not in name.lower()), key=likeness, default="")
        return best if best and likeness(best) > 0.5 else "YOUR_COLUMN"


def _either(group: tuple[str, ...]) -> str:
    return group[0] if len(group) == 1 else f"({' or '.join(group)})"


TRACE = Vocabulary(ALIASES, ((INPUT,), (OUTPUT,)))
"""The columns of a request trace."""
