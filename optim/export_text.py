"""Files of an export: what stands at their head, and YAML."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, NamedTuple

import yaml

from optim.export_options import PLACEHOLDER
from optim.export_plan import ExportFleet

_WIDTH = 116


class ExportFile(NamedTuple):
    """A file to write."""

    name: str
    text: str


class Origin(NamedTuple):
    """A value of a file and where it came from."""

    what: str
    value: Any
    source: str


@dataclass
class Head:
    """What a file says of itself.

    Attributes:
        written_for: the format and its version.
        origins: values and their sources.
        notes: what was assumed, and what the file does not do.
        fill_in: placeholders, and what belongs there.
    """

    written_for: str
    origins: list[Origin] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    fill_in: dict[str, str] = field(default_factory=dict)

    def add(self, origins: Iterable[Origin] = (), notes: Iterable[str] = ()) -> None:
        """More of both; what was said is not said twice."""
        self.origins += [one for one in origins if one not in self.origins]
        self.notes += [note for note in notes if note not in self.notes]

    def filled(self, value: str, meaning: str) -> str:
        """The value; listed where it is a placeholder."""
        if PLACEHOLDER in value:
            self.fill_in[value] = meaning
        return value


def provenance(fleet: ExportFleet, command: str) -> str:
    """The command, the versions and the document in a sentence."""
    document = fleet.document
    status = str(getattr(document["status"], "name", document["status"])).lower()
    return (
        f"Written by fleetgrad {version('fleetgrad')} ({command}) from {fleet.file}: kind {fleet.kind}, status "
        f"{status}, fleetgrad {document['version']}, schema_version {document['schema_version']}."
    )


def header(fleet: ExportFleet, head: Head, command: str) -> str:
    """The comment at the head of a file: who wrote it, for which format, and where each value came from."""
    lines = [*_wrapped(provenance(fleet, command)), *_wrapped(f"For {head.written_for}.")]
    if head.fill_in:
        lines += ["", "To fill in before use:"]
        lines += _items(f"{word}: {meaning}" for word, meaning in head.fill_in.items())
    lines += ["", "Where values come from:"]
    lines += _items(f"{one.what} = {one.value}: {one.source}" for one in head.origins)
    if notes := [*head.notes, *(f"plan: {warning}" for warning in fleet.warnings)]:
        lines += ["", "Know before use:", *_items(notes)]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def _wrapped(text: str, first: str = "", later: str = "") -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )


def _items(texts: Iterable[str]) -> list[str]:
    return [line for text in texts for line in _wrapped(text, "- ", "  ")]


class _Dumper(yaml.SafeDumper):
    """Without anchors: what is the same in two places is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def yaml_file(name: str, head: str, documents: Sequence[dict[str, Any]]) -> ExportFile:
    """Documents of YAML below a header."""
    text = yaml.dump_all(
        documents,
        None,
        _Dumper,
        sort_keys=False,
        explicit_start=True,
        default_flow_style=False,
        allow_unicode=True,
        width=10_000,
    )
    return ExportFile(name, f"{head}{text}")
