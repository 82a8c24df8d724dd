"""The three ways to ask what a token costs: a throughput with a price, a measured run, a fleet in a plan file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from optim.build import FleetRequest, fleet_request
from optim.config import ConfigError, read_settings
from optim.cost import KINDS, TOKENS, Claim, FleetCost, RunCost, check_claim, fleet_cost, run_cost
from optim.figures import model_figures
from optim.inputs import GIVEN, Input, Inputs, flag

ALWAYS_BUSY = (
    "utilisation 100 %: no fleet with a P99 objective runs there, so this is the least that a token can cost; give "
    "--utilization"
)


@dataclass(frozen=True)
class CostRequest:
    """A fleet or a run with its bill; one of `fleet` and `run`.

    Attributes:
        gpus: that are paid for.
        inputs: with their sources.
        notes: what a reader must know.
        claim: somebody's figure, checked.
    """

    fleet: FleetCost | None
    run: RunCost | None
    gpus: float
    inputs: Inputs
    notes: tuple[str, ...]
    claim: Claim | None = None

    def claimed(self, usd: float, unit: str | None) -> CostRequest:
        """With a claim, held against the first utilisation, or the run.

        Args:
            usd: dollars per million.
            unit: of what; left out, all tokens of a run and the output tokens of a fleet.
        """
        if self.fleet is not None:
            first = self.fleet.served[0]
            known, share = first.usd_per_million, first.utilization
        else:
            assert self.run is not None  # one of them is there
            known, share = self.run.usd_per_million, 1.0
        if unit is None:
            order = KINDS if self.fleet is not None else (TOKENS, *KINDS)
            unit = next((kind for kind in order if kind in known), next(iter(known)))
        found = check_claim(usd, unit, known, num_gpus=self.gpus, utilization=share)
        inputs = {**self.inputs, "claim_usd_per_million": Input(usd, GIVEN), "claim_unit": Input(unit, GIVEN)}
        return replace(self, claim=found, inputs=inputs)


def priced_throughput(
    price: tuple[float, str],
    gpus: float,
    per_s: Mapping[str, float],
    utilization: Sequence[float],
    *,
    given: bool,
    api: Mapping[str, float],
) -> CostRequest:
    """GPUs of a price that serve so many tokens at saturation.

    Args:
        price: dollars for a GPU and hour, and what said it.
        gpus: paid for.
        per_s: of each unit at saturation, all GPUs together.
        utilization: shares of it, in (0, 1].
        given: whether somebody said the utilisation.
        api: prices of an API, by unit.

    Raises:
        ValueError: a value out of its domain.
    """
    found = fleet_cost(price[0] * gpus, per_s, utilization=utilization, api=api)
    inputs = _price_inputs(price, gpus)
    inputs |= {f"{unit.replace(' ', '_')}_per_s": Input(rate, GIVEN) for unit, rate in per_s.items()}
    inputs |= _fleet_inputs(utilization, given, api)
    notes = () if given else (ALWAYS_BUSY,)
    if "input tokens" not in found.per_s:
        notes = (*notes, "input tokens not given: prompts are in the price of the output tokens, and not told apart")
    return CostRequest(found, None, gpus, inputs, notes)


def measured_run(
    price: tuple[float, str], gpus: float, wall_s: float, made: Mapping[str, float], concurrency: float | None
) -> CostRequest:
    """A run on GPUs of a price.

    Args:
        price: dollars for a GPU and hour, and what said it.
        gpus: held.
        wall_s: seconds that they were held.
        made: of each unit.
        concurrency: requests at a time; None where not known.

    Raises:
        ValueError: a value out of its domain.
    """
    found = run_cost(price[0] * gpus, wall_s=wall_s, counts=made, concurrency=concurrency)
    inputs = _price_inputs(price, gpus) | {"wall_s": Input(wall_s, GIVEN)}
    inputs |= {f"count_{unit.replace(' ', '_')}": Input(count, GIVEN) for unit, count in made.items()}
    inputs["concurrency"] = Input(concurrency, "not given" if concurrency is None else GIVEN)
    return CostRequest(None, found, gpus, inputs, found.doubts)


def fleet_in_file(file: Path, utilization: Sequence[float], *, given: bool, api: Mapping[str, float]) -> CostRequest:
    """The pools that a plan file spells out: saturated where its first pool is, by the model.

    Args:
        file: the plan file.
        utilization: of the saturated fleet, beside its own load.
        given: whether somebody said it.
        api: prices of an API, by unit.

    Raises:
        ConfigError: no pools, no rate, or pools whose load does not split by length.
        ValueError: a fleet of no price.
    """
    asked = fleet_request(read_settings(file, {}))
    if asked.rate is None or not np.isfinite(asked.rate):
        raise ConfigError(f"{file.name}: workload.rate is required to say what a token costs, requests per second")
    figures = model_figures(asked.design, asked.workload, asked.rate, asked.rules, model=asked.model)
    if figures is None:
        raise ConfigError(f"{file.name}: the load must split by length, which it does not with [transfer] or any pool")
    used = float(figures.utilization)
    inputs_s, outputs_s = _tokens_per_s(asked)
    shares = [used, *utilization] if used <= 1.0 else list(utilization)
    per_s = {"output tokens": outputs_s / used, "input tokens": inputs_s / used}
    found = fleet_cost(float(asked.design.usd_per_hour), per_s, utilization=shares, api=api)
    gpus = float(np.sum(asked.design.replicas * asked.design.profile.gpus_per_replica))
    notes = (
        f"saturation by the model: {asked.rate / used:.4g} requests/s, where the first pool is at its full batch; the "
        f"load given is {100 * used:.3g} % of it, and other shares scale it",
        *((f"the load given is {used:.3g} times what the fleet can serve: overload",) if used > 1.0 else ()),
        *asked.notes,
    )
    rules = set(asked.rules.inputs)
    inputs = {key: value for key, value in asked.inputs.items() if key not in rules}
    return CostRequest(found, None, gpus, inputs | _fleet_inputs(utilization, given, api), notes)


def _tokens_per_s(asked: FleetRequest) -> tuple[float, float]:
    """Prompt and output tokens a second of the accepted requests at the load given."""
    workload, longest = asked.workload, float(np.asarray(asked.design.upper_tokens)[-1])
    share = np.asarray(workload.weight) * (np.asarray(workload.total_tokens) <= longest)
    assert asked.rate is not None  # the caller has looked
    inputs, outputs = (float(share @ np.asarray(n)) for n in (workload.input_tokens, workload.output_tokens))
    return asked.rate * inputs, asked.rate * outputs


def _price_inputs(price: tuple[float, str], gpus: float) -> Inputs:
    usd, option = price
    shown = usd if option == "usd_per_gpu_hour" else usd / 3600.0
    return {option: Input(shown, GIVEN), "gpus": flag(gpus, given=gpus != 1.0)}


def _fleet_inputs(utilization: Sequence[float], given: bool, api: Mapping[str, float]) -> Inputs:
    prices = {f"api_usd_per_million_{unit.replace(' ', '_')}": Input(price, GIVEN) for unit, price in api.items()}
    return {"utilization": flag(list(utilization), given=given), **prices}
