"""What the commands share: options, clean errors, where output goes. The only place that prints."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console, RenderableType

if TYPE_CHECKING:
    from des.execution import Execution
    from optim.config import Settings

PIPED_WIDTH = 100


class Exit(IntEnum):
    """Exit statuses."""

    OK = 0
    BAD_INPUT = 2
    INFEASIBLE = 3
    REFUSED = 4


File = Annotated[Path | None, typer.Argument(metavar="FILE.toml", help="Plan file; flags override what it says.")]
WorkloadName = Annotated[str | None, typer.Option("--workload", metavar="NAME", help="Embedded workload.")]
TracePath = Annotated[str | None, typer.Option("--trace", metavar="PATH", help="Request trace: CSV, parquet, JSONL.")]
CdfPath = Annotated[str | None, typer.Option("--cdf", metavar="PATH", help="JSON CDF of total tokens.")]
OutputShare = Annotated[float | None, typer.Option(help="Share of total tokens that is output (with --cdf).")]
Map = Annotated[list[str] | None, typer.Option("--map", metavar="OURS=THEIRS", help="Column of the trace; repeatable.")]
TimeUnit = Annotated[str | None, typer.Option(help="Unit of the trace's numeric timestamps: s, ms, us or ns.")]
Failed = Annotated[str | None, typer.Option(help="Trace requests without output: drop or keep.")]
Rate = Annotated[float | None, typer.Option(help="Requests per second.")]
HitRate = Annotated[
    float | None,
    typer.Option("--prefix-cache-hit-rate", help="Share of each prompt found in a prefix cache; default 0."),
]
TtftMs = Annotated[float | None, typer.Option("--ttft-p99-ms", help="Objective on P99 time to first token.")]
TpotMs = Annotated[float | None, typer.Option("--tpot-p99-ms", help="Objective on P99 time per output token.")]
Model = Annotated[str | None, typer.Option(help="step (default) or kimura (reference model).")]
Profiles = Annotated[
    list[str] | None, typer.Option("--profile", help="Preset, MODEL@GPU or path of a profile.toml; repeatable.")
]
MaxPools = Annotated[int | None, typer.Option(help="Pools allowed, 1 to 6.")]
MaxContext = Annotated[float | None, typer.Option(help="Longest request, tokens.")]
LongRequests = Annotated[str | None, typer.Option(help="Above max-context: reject or truncate.")]
MaxGpus = Annotated[int | None, typer.Option(help="Cap on the GPUs of the fleet.")]
Pue = Annotated[float | None, typer.Option("--pue", help="Power of the building over that of its GPUs.")]
UsdPerKwh = Annotated[float | None, typer.Option("--usd-per-kwh", help="Price of electricity.")]
Carbon = Annotated[float | None, typer.Option("--kg-co2-per-kwh", help="Carbon intensity of the grid.")]
Minimize = Annotated[str | None, typer.Option(help="cost (default), energy, cost+electricity or carbon.")]
MaxKw = Annotated[float | None, typer.Option(help="Budget on the mean power at the meter, PUE included.")]
MaxKwh = Annotated[
    float | None,
    typer.Option("--max-kwh-per-million-tokens", help="Budget on the energy of a million output tokens, likewise."),
]
Scheduling = Annotated[str | None, typer.Option(help="independent (default), chunked, decode-first or prefill-first.")]
BatchedTokens = Annotated[
    int | None, typer.Option("--max-num-batched-tokens", help="Token budget of a step, for other scheduling.")
]
Kv = Annotated[str | None, typer.Option(help="KV blocks: reserve (default), overflow or grow (with preemption).")]
Arrivals = Annotated[
    str | None, typer.Option(help="poisson (default), gamma, weibull, markov-modulated, piecewise or trace.")
]
Cv = Annotated[float | None, typer.Option("--cv", help="Coefficient of variation of gamma or weibull gaps.")]
Concurrency = Annotated[int | None, typer.Option(help="Requests that clients have outstanding at most (closed loop).")]
Dispatch = Annotated[
    str | None,
    typer.Option(help="Replica: least-loaded (default), random, round-robin, power-of-two or prefix-affinity."),
]
Requests = Annotated[int | None, typer.Option(min=1, help="Requests in all replications; default 400,000.")]
Replications = Annotated[int | None, typer.Option(min=1, help="Independent runs that share the requests; default 8.")]
Warmup = Annotated[float, typer.Option(help="Share of the time left out at the start.")]
Schema = Annotated[bool, typer.Option("--schema", help="Print the JSON schema of plan files and leave.")]
Seed = Annotated[int, typer.Option(min=0, help="Of the simulator's random numbers.")]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Worker processes; left out, this process. The numbers do not depend on it.")
]
Engine = Annotated[str, typer.Option(help="Workers: local (default), or ray, a cluster that RAY_ADDRESS may name.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="With --out: keep finished parts in DIR/parts; a run that was stopped goes on.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Strict JSON on standard output, nothing else.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Also write JSON, CSV, plots and an HTML report there.")
]


_PARAMETERS = {
    "workload": "workload.name",
    "trace": "workload.trace",
    "cdf": "workload.cdf",
    "output_share": "workload.output_share",
    "columns": "workload.map",
    "time_unit": "workload.time_unit",
    "failed": "workload.failed",
    "rate": "workload.rate",
    "prefix_cache_hit_rate": "workload.prefix_cache_hit_rate",
    "ttft_p99_ms": "slo.ttft_p99_ms",
    "tpot_p99_ms": "slo.tpot_p99_ms",
    "profile": "fleet.profiles",
    "max_pools": "fleet.max_pools",
    "link_gb_per_s": "transfer.gb_per_s",
    "link_latency_ms": "transfer.latency_ms",
    "kv_bytes_per_token": "transfer.kv_bytes_per_token",
    "max_context": "fleet.max_context",
    "long_requests": "fleet.long_requests",
    "model": "fleet.model",
    "max_gpus": "fleet.max_gpus",
    "scheduling": "serving.scheduling",
    "max_num_batched_tokens": "serving.max_num_batched_tokens",
    "kv": "serving.kv",
    "arrivals": "arrivals.process",
    "cv": "arrivals.cv",
    "concurrency": "arrivals.concurrency",
    "dispatch": "router.dispatch",
    "pressure": "router.pressure",
    "gamma": "router.gamma",
    "error": "router.error",
    "max_tokens": "router.max_tokens",
}
"""The key of a plan file that each parameter of a command overrides."""


def flags(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """What the command line lays over the plan file, from a command's parameters (its `locals()`)."""
    found = {key: parameters[name] for name, key in _PARAMETERS.items() if parameters.get(name) is not None}
    columns, profiles = mapping(parameters.get("columns")), parameters.get("profile")
    found |= {"workload.map": columns, "fleet.profiles": profiles or None}
    return {key: value for key, value in found.items() if value is not None}


_POWER = {
    "pue": "power.pue",
    "usd_per_kwh": "power.usd_per_kwh",
    "kg_co2_per_kwh": "power.kg_co2_per_kwh",
    "minimize": "power.minimize",
    "max_kw": "power.max_kw",
    "max_kwh_per_million_tokens": "power.max_kwh_per_million_tokens",
}


def power_flags(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The same of power, for commands whose plan may be one of energy."""
    return {key: parameters[name] for name, key in _POWER.items() if parameters.get(name) is not None}


def fail(message: str) -> NoReturn:
    """Bad input: one message, no traceback."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(Exit.BAD_INPUT)


@contextmanager
def clean_errors() -> Iterator[None]:
    """What is wrong with the input becomes a message and exit status 2."""
    try:
        yield
    except (ValueError, OSError) as error:
        fail(_one_line(str(error)))


@contextmanager
def simulator_errors(settings: Settings) -> Iterator[None]:
    """What the simulator finds wrong with the input, named as the key that said it."""
    from optim.plan_file import SIMULATOR

    with clean_errors(), settings.naming(*SIMULATOR):
        try:
            yield
        except RuntimeError as error:  # the schedule took every replica away
            raise ValueError(f"schedule: {error}") from error


def _one_line(text: str) -> str:
    return " ".join(text.split())


def show(*parts: RenderableType) -> None:
    """Print for people; at least 100 columns where nobody's terminal says otherwise."""
    if sys.stdout.isatty():
        Console(**_PLAIN).print(*parts, sep="\n")
    else:
        typer.echo(page(*parts), nl=False)


_PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}


def page(*parts: RenderableType) -> str:
    """Plain text, `PIPED_WIDTH` columns wide, no blanks at line ends."""
    text = io.StringIO()
    Console(file=text, width=PIPED_WIDTH, **_PLAIN).print(*parts, sep="\n")
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def show_json(text: str) -> None:
    """Print for programs."""
    typer.echo(text)


@contextmanager
def progress(first: str) -> Iterator[Callable[[str], None]]:
    """Says what is going on, on standard error and only where that is a terminal."""
    console = Console(stderr=True, highlight=False, markup=False)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(first) as status:
        yield lambda words: status.update(words)


def positive(flag: str, value: float) -> float:
    """A flag's number, finite and > 0."""
    if not (value > 0 and math.isfinite(value)):
        fail(f"{flag} must be > 0 and finite, got {value}")
    return value


def check_warmup(warmup: float) -> None:
    """--warmup is a share of the time."""
    if not 0 <= warmup < 1:
        fail(f"--warmup must be in [0, 1), got {warmup}")


def show_schema() -> None:
    """Print the JSON schema of plan files."""
    import json

    from optim.plan_file import PlanFile

    show_json(json.dumps(PlanFile.model_json_schema(), indent=2))


def mapping(pairs: Sequence[str] | None) -> dict[str, str] | None:
    """`--map ours=theirs`, repeated, as a dictionary."""
    found: dict[str, str] = {}
    for pair in pairs or ():
        ours, equals, theirs = pair.partition("=")
        if not (ours and equals and theirs):
            fail(f"--map must be OURS=THEIRS such as input_tokens=prompt_size, got {pair!r}")
        if ours in found:
            fail(f"--map {ours} was given twice: {found[ours]!r} and {theirs!r}")
        found[ours] = theirs
    return found or None


def grid(flag: str, text: str | None) -> list[float] | None:
    """Numbers as `50,100,200` or `start:stop:step` (stop included), or both mixed."""
    if text is None:
        return None
    values: list[float] = []
    for part in text.split(","):
        fields = part.split(":")
        try:
            numbers = [float(f) for f in fields]
        except ValueError:
            fail(f"{flag} must be numbers such as 50,100,200 or 50:200:50 (start:stop:step), got {text!r}")
        if len(numbers) not in (1, 3):
            fail(f"{flag} must be numbers such as 50,100,200 or 50:200:50 (start:stop:step), got {part!r}")
        for value in numbers:
            positive(flag, value)
        if len(numbers) == 1:
            values += numbers
            continue
        start, stop, step = numbers
        if stop < start:
            fail(f"{flag} range must ascend, got {part!r}")
        if (stop - start) / step > 100_000:
            fail(f"{flag} range must have at most 100,000 values, got {part!r}")
        values += [start + k * step for k in range(int((stop - start) / step + 1e-9) + 1)]
    return values


def folder(path: Path | None) -> Path | None:
    """The output folder, made before any work is done."""
    if path is None:
        return None
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"--out {path}: cannot be made ({error.strerror}); give the path of a folder")
    return path


PARTS = "parts"
"""The folder of finished parts in the output folder."""


def execution(workers: int | None, engine: str, folder: Path | None, *, resume: bool = False) -> Execution:
    """Who carries out the tasks of a command, and where finished ones are kept."""
    from des.execution import Execution

    if resume and folder is None:
        fail("--resume needs --out DIR, the folder that finished parts are kept in")
    with clean_errors():
        return Execution(workers=workers, engine=engine, folder=folder / PARTS if resume and folder else None)


def command_line(context: typer.Context) -> list[str]:
    """The command as it was given, argument by argument: what to type to have the same again."""
    words, arguments = ["fleetgrad", str(context.info_name)], []
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        source = context.get_parameter_source(str(parameter.name))
        if source is None or source.name != "COMMANDLINE":
            continue
        if parameter.param_type_name == "argument":
            arguments += [str(v) for v in (value if isinstance(value, list | tuple) else [value])]
            continue
        flag = max(parameter.opts, key=len)
        if isinstance(value, bool):
            words.append(flag if value else max(parameter.secondary_opts, key=len))
            continue
        for each in value if isinstance(value, list | tuple) else [value]:
            words += [flag, str(getattr(each, "value", each))]
    return [*words[:2], *arguments, *words[2:]]


def report_line(folder: Path | None) -> list[str]:
    """Where the HTML report lies, for the end of what people read."""
    return [] if folder is None else ["", f"Report: {folder / 'report.html'}"]


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Dictionaries of equal keys as CSV."""
    import csv

    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)


def write_report(path: Path, report: RenderableType) -> None:
    """The page as plain text."""
    path.write_text(page(report), encoding="utf-8")
