"""The best fleet under a (corrected) model: the lattice chooses hardware and cells, gradients the thresholds.

`lattice` prices every choice of hardware at once. For the few cheapest, `relax` descends on the thresholds with real
replicas and `round_plan` makes whole fleets of what both found; the cheapest of all is proposed. The lattice also gives
the bound that certifies it. Best is cheapest, unless the problem's power terms say otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxsim._checks import invalid
from jaxsim.energy import WATTS_PER_KW
from jaxsim.evaluate import Metrics
from jaxsim.fleet import FleetDesign
from jaxsim.profiles import Profile
from optim.cases import IDLE_RATE, Case, Choice, case_metrics, cases, choice_of, without_empty_pools
from optim.lattice import Lattice, Path, lattice
from optim.pool_power import fleet_kilowatts, hardware_of
from optim.pool_power import kilowatts as kilowatts_of
from optim.power_terms import MINIMIZE, Aim
from optim.problem import PlanProblem
from optim.relax import relax
from optim.rounding import Rounded, round_plan
from optim.sizing import Targets
from optim.verify import Correction

MOST_CHOICES = 3
"""Choices of hardware whose thresholds are refined between the nodes of the lattice."""

_SAME = 1e-12
"""A bound this close to a value, relative, is the value but for rounding."""


@dataclass(frozen=True)
class Proposal:
    """A whole design that the model holds for feasible, with what the model says of it.

    Attributes:
        profiles, case, padded: as searched, with empty pools.
        pools: places of the pools with requests among the padded ones.
        design, analytic: the pools with requests.
        usd_per_hour: of its GPUs.
        value: what is to be least (`Aim.value`): dollars per hour, unless power has a say.
        kilowatts: at the meter; None where the problem says nothing of power.
    """

    profiles: tuple[Profile, ...]
    case: Case
    padded: FleetDesign
    pools: tuple[int, ...]
    design: FleetDesign
    analytic: Metrics
    usd_per_hour: float
    value: float
    kilowatts: float | None = None

    @property
    def gpus(self) -> float:
        """Of all pools."""
        return float(np.sum(self.design.replicas * np.asarray(self.design.profile.gpus_per_replica)))


@dataclass(frozen=True)
class Certificate:
    """A lower bound for any fleet, and how far the plan is above it.

    Attributes:
        lower_bound: on what is to be least, in its unit (`optim.power_terms.MINIMIZE`).
        gap: share of the plan's own.
        method: in a few words.
        minimize: what is to be least.
    """

    lower_bound: float
    gap: float
    method: str
    minimize: str = "cost"

    @property
    def lower_bound_usd_per_hour(self) -> float:
        """Where what is to be least is in dollars.

        Raises:
            ValueError: it is not.
        """
        if MINIMIZE[self.minimize] != "usd_per_hour":
            raise invalid("minimize", self.minimize, "in dollars for a bound in dollars", "see lower_bound")
        return self.lower_bound


class Search:
    """A problem with what is computed once for it."""

    def __init__(self, problem: PlanProblem) -> None:
        self.problem = problem
        self.single = cases(problem, num_pools=1)
        self._choices: dict[tuple[int, ...], Choice] = {}
        self._lattices: dict[bytes, Lattice] = {}
        self._descents: dict[tuple[int, ...], np.ndarray] = {}

    def choice(self, hardware: tuple[int, ...]) -> Choice:
        """The case of so many pools on these profiles of the problem."""
        if hardware not in self._choices:
            self._choices[hardware] = choice_of(self.problem, tuple(self.problem.profiles[p] for p in hardware))
        return self._choices[hardware]

    def lattice(self, correction: Correction) -> Lattice:
        """Every choice of hardware under the corrected model."""
        ttft, tpot = correction.targets(self.problem.slo)
        key = np.concatenate([ttft, tpot, [correction.power]]).tobytes()
        if key not in self._lattices:
            targets = [Targets(jnp.asarray(a), jnp.asarray(b)) for a, b in zip(ttft, tpot, strict=True)]
            hardware = [choice.case for choice in self.single]
            self._lattices[key] = lattice(
                hardware, targets, model=self.problem.model, aim=self._aim(correction, self.problem.profiles)
            )
        return self._lattices[key]

    def propose(self, correction: Correction) -> Proposal | None:
        """The best design by the corrected model; None where there is none within the budget on power.

        One within the cap on GPUs is preferred to a cheaper one above it.
        """
        best: tuple[Choice, Rounded] | None = None
        least = (True, np.inf)
        for path in self._promising(self.lattice(correction)):
            choice = self.choice(path.hardware)
            aim = self._aim(correction, choice.profiles)
            case = choice.case.with_targets(*correction.targets(self.problem.slo))
            starts = np.concatenate([np.maximum(path.upper_tokens, 1.0)[None], self._relaxed(case, path, aim)])
            rounded = round_plan(case, starts, model=self.problem.model, aim=aim)
            if rounded is None:
                continue
            gpus = float(np.sum(rounded.replicas * np.asarray(case.profile.gpus_per_replica)))
            rank = (gpus > aim.max_gpus, float(aim.value(rounded.usd_per_hour, rounded.kilowatts)))
            if rank < (least[0], least[1] - 1e-9):
                best, least = (Choice(choice.profiles, case), rounded), rank
        return None if best is None else self._proposal(*best)

    def certificate(self, correction: Correction, value: float) -> Certificate:
        """How far a value is above the bound under the corrected model."""
        found, power = self.lattice(correction), self.problem.power
        bound = min(found.bound, value)
        gap = 0.0 if np.isclose(bound, value, rtol=_SAME, atol=0.0) else 1.0 - bound / value
        method = f"shortest path over {found.nodes} thresholds, whole replicas"
        if np.isfinite(self.problem.aim.max_kw):
            method += ", the budget on power priced"
        return Certificate(bound, gap, method, "cost" if power is None else power.minimize)

    def idle(self, proposal: Proposal) -> Metrics:
        """The model's figures of a proposal without load."""
        replicas, upper = np.asarray(proposal.padded.replicas), np.asarray(proposal.padded.upper_tokens)
        quiet = eqx.tree_at(lambda c: c.rate, proposal.case, jnp.asarray(IDLE_RATE))
        figures = case_metrics(quiet, jnp.asarray(replicas), jnp.asarray(upper), model=self.problem.model)
        return without_empty_pools(proposal.profiles, replicas, upper, figures)[1]

    def _aim(self, correction: Correction, profiles: tuple[Profile, ...]) -> Aim:
        """The problem's on this hardware, its budget on power in what the model draws where the simulator draws it."""
        aim, terms = self.problem.aim, self.problem.power
        if terms is None or not aim.powered:
            return aim
        return aim._replace(max_kw=aim.max_kw / correction.power, power=terms.at_meter(profiles))

    def _promising(self, found: Lattice) -> list[Path]:
        """The best paths, those within the cap on GPUs first."""
        gpus = np.array([float(np.asarray(profile.gpus_per_replica)) for profile in self.problem.profiles])
        most = self.problem.aim.max_gpus
        over = [float(path.replicas @ gpus[list(path.hardware)]) > most for path in found.paths]
        ranked = sorted(zip(over, range(len(over)), strict=True))
        return [found.paths[at] for _, at in ranked[:MOST_CHOICES]]

    def _relaxed(self, case: Case, path: Path, aim: Aim) -> np.ndarray:
        """Thresholds that the descent finds on this hardware, one row a start, best first.

        They are starts for the search of whole sizes: found once, as a correction moves them little.
        """
        if path.hardware not in self._descents:
            _, upper = relax(_weighed(case, path, aim), model=self.problem.model)
            self._descents[path.hardware] = np.asarray(upper)
        return self._descents[path.hardware]

    def _proposal(self, choice: Choice, rounded: Rounded) -> Proposal:
        replicas, upper = rounded.replicas, rounded.upper_tokens
        figures = case_metrics(choice.case, jnp.asarray(replicas), jnp.asarray(upper), model=self.problem.model)
        design, analytic, pools = without_empty_pools(choice.profiles, replicas, upper, figures)
        padded = choice.case.design(jnp.asarray(replicas), jnp.asarray(upper))
        usd, kilowatts = rounded.usd_per_hour, None
        if (terms := self.problem.power) is not None:
            kilowatts = fleet_kilowatts(choice.case, terms.at_meter(choice.profiles), upper, replicas)
        value = float(self.problem.aim.value(usd, kilowatts))
        return Proposal(choice.profiles, choice.case, padded, pools, design, analytic, usd, value, kilowatts)


def _weighed(case: Case, path: Path, aim: Aim) -> Case:
    """The case at prices of a replica as the descent on thresholds takes them: what one of the path's comes to.

    Where power counts that of a replica is fixed as it is on the path: near enough for starts, priced exactly later.
    """
    if aim.kw == 0.0 or aim.power is None:
        return case
    dollars = np.asarray(case.profile.usd_per_gpu_hour)
    law = aim.power
    power = (np.asarray(law.idle_w) + 0.5 * np.asarray(law.range_w)) / WATTS_PER_KW
    for p in np.flatnonzero(path.used):
        low = 0.0 if p == 0 else float(path.upper_tokens[p - 1])
        row = (np.array([v]) for v in (low, path.upper_tokens[p], path.replicas[p]))
        gpus = path.replicas[p] * float(np.asarray(case.profile.gpus_per_replica)[p])
        if gpus > 0:
            power[p] = kilowatts_of(hardware_of(case, law, int(p)), *row)[0] / gpus
    return eqx.tree_at(lambda c: c.profile.usd_per_gpu_hour, case, jnp.asarray(aim.value(dollars, power)))
