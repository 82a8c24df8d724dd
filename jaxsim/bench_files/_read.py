"""Which tool wrote a file, and its runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

from jaxsim._checks import invalid, require_positive, unknown
from jaxsim._text_files import text_of
from jaxsim._trace_columns import refusal
from jaxsim.bench_files import _aiperf_records, _guidellm, _nvidia, _serving
from jaxsim.bench_files._entries import Entry, lines_in, listed, on_line, parsed
from jaxsim.bench_files._exposition import Scrape, is_exposition, parse
from jaxsim.bench_files._scrapes import runs_between
from jaxsim.bench_files._served import served_between
from jaxsim.benchmark_run import BenchmarkRun
from jaxsim.observed import Observed

SNIFFED_CHARACTERS = 65_536
"""Beginning of a file in which its first line is looked for."""


class Kind(Enum):
    """What a file holds; the values say it in words."""

    VLLM = "vLLM bench serve results"
    SGLANG = "sglang bench_serving results"
    GUIDELLM = "a GuideLLM report"
    SUMMARY_JSON = "a GenAI-Perf or AIPerf summary in JSON"
    SUMMARY_CSV = "a GenAI-Perf or AIPerf summary in CSV"
    AIPERF_RECORDS = "AIPerf request records"
    SCRAPE = "a Prometheus scrape"


FORMATS = tuple(kind.value for kind in Kind)
"""What is read, in words."""

MAPPABLE = (*_serving.KEYS, *_nvidia.KEYS)
"""Our keys, to which those of a file can be mapped."""


def recognise(path: str | Path, *, columns: Mapping[str, str] | None = None) -> Kind | None:
    """What benchmark a file holds; None for anything else, and for what cannot be read.

    Args:
        path: the file.
        columns: our keys to the file's, as in `read_benchmark`.
    """
    path = Path(path)
    if not path.is_file() or path.stat().st_size == 0 or path.suffix.lower() == ".parquet":
        return None
    try:
        with text_of(path) as stream:
            start = stream.read(SNIFFED_CHARACTERS)
        stripped = start.lstrip()
        if not stripped.startswith("{"):
            return _kind_of_text(stripped)
        record = _object(stripped.split("\n", 1)[0])
        if record is None:
            with text_of(path) as stream:
                record = _object(stream.read())
    except ValueError:  # not text
        return None
    return None if record is None else _kind_of_record(_renamed(record, columns))


def broken_document(path: Path) -> ValueError | None:
    """The refusal of a .json file that is no JSON from its first line on; None for any other."""
    if (
        not path.is_file()
        or path.stat().st_size == 0
        or path.name.lower().removesuffix(".gz").rpartition(".")[2] != "json"
    ):
        return None
    try:
        text = _text(path)
        if _object(text.lstrip().split("\n", 1)[0]) is None:
            parsed(text)
    except ValueError as error:
        if str(error).startswith(path.name):
            return error
        return refusal(path.name, str(error), "is the file truncated or still being written?")
    return None


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _kind_of_text(start: str) -> Kind | None:
    first = start.split("\n", 1)[0].strip()
    if first.split(",")[0].strip().strip('"') == "Metric" and "," in first:
        return Kind.SUMMARY_CSV
    return Kind.SCRAPE if is_exposition(start) else None


def _kind_of_record(record: Mapping[str, Any]) -> Kind | None:
    if _aiperf_records.is_record(record):
        return Kind.AIPERF_RECORDS
    if isinstance(record.get("benchmarks"), list):
        return Kind.GUIDELLM
    if _nvidia.is_summary(record):
        return Kind.SUMMARY_JSON
    if _serving.is_serving(record):
        return Kind.SGLANG if _serving.is_sglang(record) else Kind.VLLM
    return None


def read_benchmark(
    path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    concurrency: int | None = None,
    offered_rate: float | None = None,
) -> tuple[BenchmarkRun, ...]:
    """The runs of a benchmark's file, in the file's order; `BenchmarkRun.tool` says what it was read as.

    Args:
        path: a file in one of `FORMATS`, gzipped or not.
        columns: our keys to the file's, for keys unknown here: ``{"mean_ttft_ms": "ttft_avg"}``; top level only, and
            metrics of a CSV.
        concurrency: requests in flight that the clients allowed, for files that do not say it.
        offered_rate: requests per second that they were told to send at, likewise; inf is all at once.

    Raises:
        FileNotFoundError: no such file.
        ValueError: anything else that stands between the file and its runs, with file, line or key, what was expected
            and how to map it.
    """
    path = Path(path)
    for ours in columns or {}:
        if ours not in MAPPABLE:
            raise unknown("key to map", ours, MAPPABLE, "write ours first: mean_ttft_ms=their_name")
    text = _text(path)
    try:
        runs = _runs(path, text, columns)
    except ValueError as error:
        if str(error).startswith(path.name):
            raise
        raise refusal(path.name, str(error)) from error  # a figure that only the run as a whole refuses
    return tuple(with_load(run, concurrency=concurrency, offered_rate=offered_rate) for run in runs)


def read_scrapes(before: str | Path, after: str | Path, *, duration_s: float | None = None) -> tuple[BenchmarkRun, ...]:
    """The requests that ended between two scrapes of a vLLM server, a run for each model.

    Args:
        before, after: what the server answered at /metrics, earlier and later.
        duration_s: seconds between them; left out, by the times in the scrapes, and without these no rate is known.

    Percentiles are buckets of histograms, never numbers.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not scrapes of vLLM, counters that went down since the server was started again, or nothing served
            in between.
    """
    scrapes = [_scrape(Path(each)) for each in (before, after)]
    return runs_between(scrapes[0], scrapes[1], duration_s)


def read_served(
    pairs: Sequence[tuple[str | Path, str | Path]], *, duration_s: float | None = None, model: str | None = None
) -> Observed:
    """What the replicas of one model served between two scrapes of each, added up.

    Args:
        pairs: of each server (vLLM, SGLang, TensorRT-LLM), what it answered at /metrics, earlier and later; one answer
            may hold several replicas, told apart by their labels.
        duration_s: seconds between the scrapes of each pair; left out, by the times in them.
        model: which one, where several are served.

    Quantiles are interpolated in the buckets of histograms and known to these.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no pair, not scrapes of one kind of server, no such model, no duration, nothing served in between,
            or a counter that went down since a server was started again.
    """
    if not pairs:
        raise invalid("pairs", 0, "one pair of scrapes or more", "an earlier and a later one of each server")
    read = [(_scrape(Path(before)), _scrape(Path(after))) for before, after in pairs]
    return served_between(read, duration_s=duration_s, model=model)


def _scrape(path: Path) -> Scrape:
    text = _text(path)
    if not is_exposition(text):
        raise refusal(path.name, "not a Prometheus scrape", "save what the server answers at /metrics")
    return parse(path.name, text)


def with_load(run: BenchmarkRun, *, concurrency: int | None = None, offered_rate: float | None = None) -> BenchmarkRun:
    """The run with the load that its file does not say.

    Raises:
        ValueError: the file says another one.
    """
    summary, notes = run.summary, []
    if concurrency is not None:
        if concurrency < 1:
            raise invalid("concurrency", concurrency, ">= 1")
        if summary.max_concurrency not in (None, concurrency):
            raise refusal(run.label, f"the clients' limit is {summary.max_concurrency}, not {concurrency} as given")
        notes.append(f"at most {concurrency} in flight, as given")
        summary = replace(summary, max_concurrency=concurrency)
    if offered_rate is not None:
        if offered_rate != float("inf"):
            require_positive("offered_rate", offered_rate)
        if summary.offered_rate not in (None, offered_rate):
            raise refusal(run.label, f"the offered rate is {summary.offered_rate:g}, not {offered_rate:g} as given")
        notes.append(f"{offered_rate:g} requests/s offered, as given")
        summary = replace(summary, offered_rate=offered_rate)
    return replace(run, summary=summary, notes=(*run.notes, *notes))


def _text(path: Path) -> str:
    if not path.exists():
        raise FileNotFoundError(f"benchmark file not found: {path}; check the path")
    if path.is_dir():
        raise refusal(path.name, "is a folder", "give the files in it")
    with text_of(path) as stream:
        text = stream.read()
    if not text.strip():
        raise refusal(path.name, "the file is empty: 0 runs", f"expected one of: {', '.join(FORMATS)}")
    return text


def _runs(path: Path, text: str, columns: Mapping[str, str] | None) -> tuple[BenchmarkRun, ...]:
    stripped = text.lstrip()
    if not stripped.startswith(("{", "[")):
        return _runs_of_text(path, text, stripped, columns)
    first = _object(stripped.split("\n", 1)[0])
    if first is None:
        return _runs_of_document(path, text, columns)
    records = _records(path, text, columns)
    kinds = {_kind_of_record(record): line for line, record in reversed(records)}
    if len(kinds) > 1:
        several = " and ".join(f"line {line} is {_words(kind)}" for kind, line in kinds.items())
        raise refusal(path.name, several, "split the file by kind")
    kind = next(iter(kinds))
    entries = [(line, Entry(path.name, record, on_line(line))) for line, record in records]
    if kind is Kind.AIPERF_RECORDS:
        return (_aiperf_records.read_records(entries),)
    one = len(entries) == 1
    return tuple(run for line, entry in entries for run in _runs_of_record(entry, "" if one else f"line {line}"))


def _records(path: Path, text: str, columns: Mapping[str, str] | None) -> list[tuple[int, dict[str, Any]]]:
    """Line and object of each line that is not blank."""
    found: list[tuple[int, dict[str, Any]]] = []
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        try:
            record = parsed(content)
        except ValueError as error:
            what = str(error).replace("line 1, ", f"line {line}, ", 1)
            hint = f"{len(found)} lines before it can be read; is the file truncated or still being written?"
            raise refusal(path.name, what, hint) from error
        if not isinstance(record, dict):
            raise refusal(path.name, f"line {line}: a JSON object was expected, got a {type(record).__name__}")
        found.append((line, _renamed(record, columns)))
    return found


def _runs_of_document(path: Path, text: str, columns: Mapping[str, str] | None) -> tuple[BenchmarkRun, ...]:
    try:
        value = parsed(text)
    except ValueError as error:
        raise refusal(path.name, str(error), "is the file truncated or still being written?") from error
    if not isinstance(value, dict):
        raise refusal(path.name, f"a JSON object was expected, got a {type(value).__name__}", _expected())
    return _runs_of_record(Entry(path.name, _renamed(value, columns), lines_in(text)), "")


def _runs_of_record(entry: Entry, place: str) -> tuple[BenchmarkRun, ...]:
    kind = _kind_of_record(entry.values)
    if kind is Kind.GUIDELLM:
        return _guidellm.read_report(entry)
    if kind is Kind.SUMMARY_JSON:
        marks = ("schema_version", "aiperf_version")
        tool = _nvidia.AIPERF if any(entry.has(key) for key in marks) else f"{_nvidia.GENAI_PERF} or {_nvidia.AIPERF}"
        return (_nvidia.read_summary(entry, tool),)
    if kind in (Kind.VLLM, Kind.SGLANG):
        return (_serving.read_run(entry, place),)
    raise refusal(entry.file, f"not a benchmark that is known here; found keys: {listed(entry.values)}", _expected())


def _runs_of_text(path: Path, text: str, start: str, columns: Mapping[str, str] | None) -> tuple[BenchmarkRun, ...]:
    kind = _kind_of_text(start)
    if kind is Kind.SUMMARY_CSV:
        return (_nvidia.read_csv(path.name, text, columns),)
    if kind is Kind.SCRAPE:
        raise refusal(
            path.name,
            "one Prometheus scrape: its counters began when the server did, so two are needed",
            "give an earlier and a later one of the same server (Python: read_scrapes(before, after))",
        )
    if start[:1] == "<":
        raise refusal(path.name, "looks like HTML", "save the tool's JSON instead", _expected())
    first = start.split("\n", 1)[0].strip()[:60]
    raise refusal(path.name, f"line 1: not a benchmark that is known here, begins with {first!r}", _expected())


def _renamed(record: dict[str, Any], columns: Mapping[str, str] | None) -> dict[str, Any]:
    """The record under our keys; a mapped key that it lacks is left to be missed by its reader."""
    if not columns:
        return record
    kept = {key: value for key, value in record.items() if key not in columns and key not in columns.values()}
    return kept | {ours: record[theirs] for ours, theirs in columns.items() if theirs in record}


def _expected() -> str:
    return (
        f"expected one of: {', '.join(FORMATS)}; map other keys of such a file with --map, as in "
        "--map mean_ttft_ms=THEIR_KEY; a table of steps needs columns such as n, context and time_ms"
    )


def _words(kind: Kind | None) -> str:
    return "of no known kind" if kind is None else kind.value
