"""Saying no over HTTP: what, value, allowed, hint; a status in the four hundreds, and never a traceback."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

LONGEST = 300
"""Characters of a refused value, and of any sentence, that are sent back."""

Body = dict[str, Any]


class RefusalError(Exception):
    """A request that is refused.

    Attributes:
        status: of HTTP, 400 to 499.
        what: the thing that is wrong, or the sentence where there is no such thing.
        value: what was found.
        allowed: what it must be.
        hint: what to do.
    """

    def __init__(self, what: str, value: Any = None, *, allowed: str = "", hint: str = "", status: int = 422) -> None:
        super().__init__(what)
        self.status, self.what, self.value, self.allowed, self.hint = status, what, value, allowed, hint

    @property
    def body(self) -> Body:
        """What is sent."""
        return {
            "what": _short(self.what),
            "value": _value(self.value),
            "allowed": _short(self.allowed),
            "hint": _short(self.hint),
        }


_MUST = re.compile(r"^(?P<what>[^;]+?) must be (?P<allowed>.+?), got (?P<value>[^;]*)(?:; (?P<hint>.*))?$", re.DOTALL)
_UNKNOWN = re.compile(r"^unknown (?P<kind>[\w ]+) (?P<value>'[^']*'|\"[^\"]*\"); (?P<rest>.*)$", re.DOTALL)


def from_error(error: Exception, what: str = "") -> RefusalError:
    """What the library says no to (`jaxsim._checks`), in its parts; a text of another form is a sentence as it is.

    Args:
        error: of a wrong input.
        what: the place of the input, as the page calls it; left out, the library's own words.
    """
    text = " ".join(str(error).split())
    if found := _MUST.match(text):
        named = f"{what}: {found['what']}" if what else found["what"]
        return RefusalError(named, found["value"], allowed=found["allowed"], hint=found["hint"] or "")
    if found := _UNKNOWN.match(text):
        near, _, rest = found["rest"].rpartition("known: ")
        known, _, hint = rest.partition("; ")
        named = f"{what}: {found['kind']}" if what and what != found["kind"] else found["kind"]
        return RefusalError(named, found["value"][1:-1], allowed=f"one of {known}", hint=(near + hint).strip())
    return RefusalError(f"{what}: {text}" if what else text)


def from_validation(errors: Sequence[Any]) -> RefusalError:
    """The first thing that pydantic found wrong; unknown keys before all else."""
    found = sorted(errors, key=lambda one: one["type"] != "extra_forbidden")
    first = found[0]
    more = f"and {len(found) - 1} more" if len(found) > 1 else ""
    what = ".".join(str(part) for part in first["loc"] if part != "body") or "body"
    if first["type"] == "extra_forbidden":
        return RefusalError(f"{what}: unknown key", first["loc"][-1], allowed="a known key", hint=more)
    if first["type"] == "missing":
        return RefusalError(what, None, allowed="given", hint=more)
    allowed = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return RefusalError(what, first.get("input"), allowed=allowed, hint=more)


def of_validation(error: ValidationError) -> RefusalError:
    """The same of an exception."""
    return from_validation(error.errors(include_url=False))


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _value(value: Any) -> Any:
    """A refused value as JSON has it: numbers, words and nothing else, not too long."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float) and abs(value) < 1e300:
        return value
    return _short(value if isinstance(value, str) else repr(value))
