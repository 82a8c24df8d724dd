"""What a command was given: every input as it was used, and where it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

GIVEN = "given on the command line"


@dataclass(frozen=True)
class Input:
    """One input as it was used, and where it came from."""

    value: Any
    source: str


Inputs = dict[str, Input]


def flag(value: Any, *, given: bool, default: str = "default") -> Input:
    """An input that only the command line can give."""
    return Input(value, GIVEN if given else default)
