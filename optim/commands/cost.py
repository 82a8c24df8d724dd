"""`fleetgrad cost`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optim.commands import _common as common

if TYPE_CHECKING:
    from optim.cost_request import CostRequest

UTILIZATION = "1"

PerHour = Annotated[float | None, typer.Option("--usd-per-gpu-hour", help="Price of one GPU for an hour.")]
PerSecond = Annotated[float | None, typer.Option("--usd-per-gpu-s", help="Price of one GPU for a second, instead.")]
Gpus = Annotated[float, typer.Option(help="GPUs that are paid for.")]
OutputRate = Annotated[float | None, typer.Option("--output-tokens-per-s", help="Of all GPUs at saturation.")]
InputRate = Annotated[float | None, typer.Option("--input-tokens-per-s", help="Prompt tokens served beside them.")]
TokenRate = Annotated[float | None, typer.Option("--tokens-per-s", help="Both together.")]
Utilization = Annotated[str, typer.Option(help="Shares of saturation that are asked for: 0.1,0.5 or 0.1:0.9:0.1.")]
ApiOutput = Annotated[float | None, typer.Option("--api-usd-per-million-output", help="Price of an API.")]
ApiInput = Annotated[float | None, typer.Option("--api-usd-per-million-input", help="Price of an API.")]
ApiTokens = Annotated[float | None, typer.Option("--api-usd-per-million", help="Price of an API, all tokens alike.")]
WallS = Annotated[float | None, typer.Option("--wall-s", help="Length of a measured run, seconds: its bill.")]
OutputTokens = Annotated[float | None, typer.Option(help="Made in the run.")]
InputTokens = Annotated[float | None, typer.Option(help="Read in the run.")]
Tokens = Annotated[float | None, typer.Option(help="Both together.")]
Counts = Annotated[list[str] | None, typer.Option("--count", metavar="UNIT=N", help="pages=3; repeatable.")]
Concurrency = Annotated[float | None, typer.Option(help="Requests at a time in the run.")]
ClaimOf = Annotated[float | None, typer.Option("--claim", help="Somebody's dollars per million, to be checked.")]
ClaimUnit = Annotated[str | None, typer.Option(help="Of what: tokens, 'output tokens', pages, ...")]


def cost(
    file: common.File = None,
    usd_per_gpu_hour: PerHour = None,
    usd_per_gpu_s: PerSecond = None,
    gpus: Gpus = 1.0,
    output_tokens_per_s: OutputRate = None,
    input_tokens_per_s: InputRate = None,
    tokens_per_s: TokenRate = None,
    utilization: Utilization = UTILIZATION,
    api_usd_per_million_output: ApiOutput = None,
    api_usd_per_million_input: ApiInput = None,
    api_usd_per_million: ApiTokens = None,
    wall_s: WallS = None,
    output_tokens: OutputTokens = None,
    input_tokens: InputTokens = None,
    tokens: Tokens = None,
    count: Counts = None,
    concurrency: Concurrency = None,
    claim: ClaimOf = None,
    claim_unit: ClaimUnit = None,
    as_json: common.AsJson = False,
    out: common.Out = None,
) -> None:
    """Dollars per million input, output and all tokens, idle time included; break-even with an API; claims checked.

    Three ways: GPUs by price and throughput at saturation; a run by price and length (--wall-s) with what it made; or
    FILE.toml with the pools spelled out ([[fleet.pools]]), at its own load and at saturation by the model. Exit status:
    0, also where a claim does not hold; 2 bad input.
    """
    parameters = dict(locals())
    for option in ("usd_per_gpu_hour", "usd_per_gpu_s", "gpus", "wall_s", "concurrency", "claim"):
        if parameters[option] is not None:
            common.positive(f"--{option.replace('_', '-')}", parameters[option])
    folder = common.folder(out)

    from optim.cost_report import cost_document, cost_report
    from optim.cost_request import fleet_in_file, measured_run, priced_throughput
    from optim.documents import to_json

    if (claim is None) and claim_unit is not None:
        common.fail("--claim-unit says what --claim is of; give --claim")
    shares = _shares(utilization)
    with common.clean_errors():
        if file is not None:
            _alone(parameters, "FILE.toml", ("utilization", "api", "claim"))
            request = fleet_in_file(file, shares, given=utilization != UTILIZATION, api=_api(parameters))
        elif wall_s is not None:
            _alone(parameters, "--wall-s", ("usd_per", "gpus", "wall", "count", "concurrency", "claim", *_MADE))
            request = measured_run(_price(parameters), gpus, wall_s, _made(parameters), concurrency)
        else:
            _alone(parameters, "a throughput", ("usd_per", "gpus", "utilization", "api", "claim", *_SERVED))
            request = priced_throughput(
                _price(parameters),
                gpus,
                {unit: parameters[name] for name, unit in _SERVED.items() if parameters[name] is not None},
                shares,
                given=utilization != UTILIZATION,
                api=_api(parameters),
            )
        if claim is not None:
            request = request.claimed(claim, claim_unit)
    _show(request, folder, as_json, cost_document(request), cost_report(request), to_json)


_SERVED = {
    "output_tokens_per_s": "output tokens",
    "input_tokens_per_s": "input tokens",
    "tokens_per_s": "tokens",
}
_MADE = {"output_tokens": "output tokens", "input_tokens": "input tokens", "tokens": "tokens"}
_API = {
    "api_usd_per_million_output": "output tokens",
    "api_usd_per_million_input": "input tokens",
    "api_usd_per_million": "tokens",
}
_FREE = {"utilization": UTILIZATION, "gpus": 1.0}
"""Options with a default, which is not given."""


def _alone(parameters: dict[str, Any], way: str, allowed: tuple[str, ...]) -> None:
    """An option of another way is refused."""
    exact = {*_SERVED, *_MADE}
    for name, value in parameters.items():
        if name in ("file", "as_json", "out") or value is None or value == _FREE.get(name):
            continue
        fits = name in allowed if name in exact else name.startswith(tuple(a for a in allowed if a not in exact))
        if not fits:
            common.fail(f"--{name.replace('_', '-')} cannot be given with {way}; it belongs to another way of asking")


def _price(parameters: dict[str, Any]) -> tuple[float, str]:
    """Dollars for a GPU and hour, and the option that said it."""
    hour, second = parameters["usd_per_gpu_hour"], parameters["usd_per_gpu_s"]
    if (hour is None) == (second is None):
        common.fail("the price must be --usd-per-gpu-hour or --usd-per-gpu-s, one of them")
    return (hour, "usd_per_gpu_hour") if hour is not None else (3600.0 * second, "usd_per_gpu_s")


def _shares(text: str) -> list[float]:
    shares = common.grid("--utilization", text) or [1.0]
    if max(shares) > 1.0:
        common.fail(f"--utilization must be in (0, 1], got {text!r}; 10 % is 0.1")
    return shares


def _api(parameters: dict[str, Any]) -> dict[str, float]:
    return {unit: parameters[name] for name, unit in _API.items() if parameters[name] is not None}


def _made(parameters: dict[str, Any]) -> dict[str, float]:
    made = {unit: parameters[name] for name, unit in _MADE.items() if parameters[name] is not None}
    for pair in parameters["count"] or ():
        unit, equals, text = pair.partition("=")
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not (unit.strip() and equals and number > 0):
            common.fail(f"--count must be UNIT=NUMBER such as pages=3, got {pair!r}")
        if unit.strip() in made:
            common.fail(f"--count {unit.strip()} was given twice")
        made[unit.strip()] = number
    return made


def _show(request: CostRequest, folder: Path | None, as_json: bool, document: Any, report: Any, to_json: Any) -> None:
    if folder is not None:
        common.write_report(folder / "report.txt", report)
        (folder / "cost.json").write_text(to_json(document) + "\n", encoding="utf-8")
    if as_json:
        common.show_json(to_json(document))
    else:
        common.show(report)
