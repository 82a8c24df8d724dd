"""A report as one HTML file that needs nothing else: text that users gave is escaped, no request leaves the page.

What stands on a page is plain data (sections of blocks); the template lays it out and escapes every word of it.
plotly.js is written into the file once, and only where there are charts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

Cell = str


@dataclass(frozen=True)
class Words:
    """Paragraphs, or a list."""

    kind: ClassVar[str] = "words"
    lines: Sequence[str]
    listed: bool = False


@dataclass(frozen=True)
class Table:
    """Cells as words. `left`: columns of text; `strong`: rows that stand out; `titled`: rows begin with a title."""

    kind: ClassVar[str] = "table"
    columns: Sequence[Cell]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    left: frozenset[int] = frozenset({0})
    strong: frozenset[int] = frozenset()
    titled: bool = True


@dataclass(frozen=True)
class Chart:
    """An interactive chart: `figure` is plotly's JSON, with null where there is no number."""

    kind: ClassVar[str] = "chart"
    name: str
    title: str
    figure: dict[str, Any]
    caption: str
    table: Table | None = None
    height: int = 440


@dataclass(frozen=True)
class Code:
    """Something to copy."""

    kind: ClassVar[str] = "code"
    text: str


@dataclass(frozen=True)
class Folded:
    """A long text behind a title."""

    kind: ClassVar[str] = "document"
    title: str
    text: str


Block = Words | Table | Chart | Code | Folded


@dataclass(frozen=True)
class Section:
    """A part of the page with an anchor of its own."""

    anchor: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Card:
    """One figure that leads."""

    title: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Page:
    """A report. `tone` is of the verdict: good, warn, bad, or none."""

    kind: str
    title: str
    verdict: str
    sections: Sequence[Section]
    tone: str = ""
    cards: Sequence[Card] = field(default_factory=tuple)

    @property
    def footer(self) -> str:
        """What made it."""
        return f"fleetgrad {version('fleetgrad')}. This page is complete: it asks no server for anything."


@cache
def _template_text(name: str) -> str:
    return resources.files("optim").joinpath("templates", name).read_text(encoding="utf-8")


def render(page: Page) -> str:
    """The page as HTML.

    Raises:
        ValueError: two charts or sections of one name, or a number in a chart that JSON does not have.
    """
    charts = [block for section in page.sections for block in section.blocks if isinstance(block, Chart)]
    names = [section.anchor for section in page.sections] + [chart.name for chart in charts]
    if len(set(names)) < len(names):
        raise ValueError(f"sections and charts must have names of their own, got {names}")
    engine = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    return engine.from_string(_template_text("report.html")).render(
        page=page,
        css=Markup(_template_text("report.css")),
        script=Markup(_template_text("report.js")),
        library=Markup(_plotly()) if charts else "",
        figures=_in_script({chart.name: chart.figure for chart in charts}),
    )


def write_page(path: Path, page: Page) -> None:
    """Write it, UTF-8."""
    path.write_text(render(page), encoding="utf-8")


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _in_script(value: Any) -> Markup:
    """JSON that cannot end the script it stands in."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
