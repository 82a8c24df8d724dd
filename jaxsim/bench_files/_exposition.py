"""One scrape in the text format of Prometheus: names, labels, values, and times where they are written.

The format: https://prometheus.io/docs/instrumenting/exposition_formats/, and OpenMetrics, whose exemplars are passed
over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from jaxsim._trace_columns import refusal

MS_PER_S = 1e3
EPOCH_MS = 1e11
"""Times from here on are milliseconds, as Prometheus writes them; OpenMetrics writes seconds."""

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{(.*)\})?\s+(\S+)(?:\s+(-?\d+(?:\.\d+)?))?\s*$")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}

Labels = tuple[tuple[str, str], ...]
"""Names and values, sorted."""


@dataclass(frozen=True)
class Scrape:
    """The samples of one scrape.

    Attributes:
        file: its name.
        values: by name, then by labels.
        lines: where each sample stands.
        time_s: latest time written beside a sample; None where none is.
    """

    file: str
    values: dict[str, dict[Labels, float]] = field(repr=False)
    lines: dict[tuple[str, Labels], int] = field(repr=False)
    time_s: float | None


def is_exposition(text: str) -> bool:
    """Whether the first lines are comments or samples of this format."""
    lines = [line.strip() for line in text.splitlines()[:50] if line.strip()]
    if any(line.startswith(("# HELP ", "# TYPE ")) for line in lines):
        return True
    first = next((line for line in lines if not line.startswith("#")), "")
    match = _SAMPLE.match(first)
    return match is not None and match[2] is not None and _number(match[3]) is not None


def parse(file: str, text: str) -> Scrape:
    """The samples of a scrape.

    Raises:
        ValueError: a line that is neither a comment nor a sample, with its number.
    """
    values: dict[str, dict[Labels, float]] = {}
    lines: dict[tuple[str, Labels], int] = {}
    times: list[float] = []
    for at, line in enumerate(text.splitlines(), start=1):
        stripped = line.split(" # {")[0].strip()  # an exemplar of OpenMetrics
        if not stripped or stripped.startswith("#"):
            continue
        match = _SAMPLE.match(stripped)
        value = None if match is None else _number(match[3])
        labels = None if match is None else _labels(match[2] or "")
        if match is None or value is None or labels is None:
            expected = 'expected name{label="value"} number, or a comment'
            raise refusal(file, f"line {at}: not a sample of a Prometheus scrape ({expected}), got {line[:80]!r}")
        name = match[1].replace("vllm_", "vllm:", 1) if match[1].startswith("vllm_") else match[1]
        if labels in values.setdefault(name, {}):
            raise refusal(file, f"line {at}: {name} with these labels stands on line {lines[name, labels]} already")
        values[name][labels] = value
        lines[name, labels] = at
        if match[4] is not None:
            written = float(match[4])
            times.append(written / MS_PER_S if written >= EPOCH_MS else written)
    if not values:
        raise refusal(file, "no sample in the file", "save what the server answers at /metrics")
    return Scrape(file, values, lines, max(times, default=None))


def _number(text: str) -> float | None:
    try:
        return float(text)  # "+Inf" and "NaN" too
    except ValueError:
        return None


def _labels(text: str) -> Labels | None:
    """None where the text is no list of labels."""
    found, at = [], 0
    while text[at:].strip():
        match = _LABEL.match(text, at)
        if match is None:
            return None
        found.append((match[1], re.sub(r'\\["\\n]', lambda escape: _ESCAPES[escape[0]], match[2])))
        at = match.end()
    return tuple(sorted(found))
