"""Request logs: what a record of each kind says of one request, or why it is none to plan for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Read = tuple[str, tuple[Any, Any, Any]]
"""Why the record is left out ("" if it is not), and its input tokens, output tokens and time."""

_NOTHING = (None, None, None)
_GENERATING = ("chat", "text_completion", "generate_content")


@dataclass(frozen=True)
class Log:
    """A kind of log: its title, the name of its time (whose suffix tells the unit), and how to read it."""

    title: str
    time_name: str
    matches: Callable[[dict[str, Any]], bool]
    read: Callable[[dict[str, Any]], Read]


def _first(record: Any, *names: str) -> Any:
    """The first of the named values that is there."""
    found = record if isinstance(record, dict) else {}
    return next((found[name] for name in names if found.get(name) is not None), None)


def _read_openai(record: dict[str, Any]) -> Read:
    if record.get("error") is not None:
        return "failed, an error body", _NOTHING
    usage = record.get("usage")
    if usage is None:
        return "no usage, so no token counts", _NOTHING
    lengths = (
        _first(usage, "prompt_tokens", "input_tokens"),
        _first(usage, "completion_tokens", "output_tokens"),
    )
    return "", (*lengths, _first(record, "created", "created_at"))


def _read_aiperf(record: dict[str, Any]) -> Read:
    about, metrics = record["metadata"], record["metrics"]
    if _first(about, "was_cancelled"):
        return "cancelled", _NOTHING
    if record.get("error") is not None:
        return "failed, an error", _NOTHING
    if _first(about, "benchmark_phase") == "warmup":
        return "warm-up of the benchmark", _NOTHING
    names = ("input_sequence_length", "output_sequence_length")
    lengths = tuple(_first(_first(metrics, name), "value") for name in names)
    return "", (lengths[0], lengths[1], _first(about, "request_start_ns"))


def _read_span(record: dict[str, Any]) -> Read:
    about = record["attributes"]
    operation = _first(about, "gen_ai.operation.name")
    if not any(name.startswith("gen_ai.") for name in about) or operation not in (None, *_GENERATING):
        return "not a generation by a language model", _NOTHING
    if about.get("error.type") is not None:
        return "failed, error.type is set", _NOTHING
    inputs = _first(about, "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
    outputs = _first(about, "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
    if inputs is None and outputs is None:
        return "no usage, so no token counts", _NOTHING
    return "", (inputs, outputs, _first(record, "start_time_unix_nano", "startTimeUnixNano"))


LOGS = (
    Log(
        "AIPerf request record",
        "request_start_ns",
        lambda record: isinstance(record.get("metadata"), dict) and isinstance(record.get("metrics"), dict),
        _read_aiperf,
    ),
    Log(
        "OpenTelemetry span",
        "start_time_unix_nano",
        lambda record: isinstance(record.get("attributes"), dict),
        _read_span,
    ),
    Log(
        "OpenAI response",
        "created",
        lambda record: "usage" in record or isinstance(record.get("error"), dict),
        _read_openai,
    ),
)
