"""The cheapest fleet under a (corrected) model: the lattice chooses hardware and cells, gradients the thresholds.

`lattice` prices every choice of hardware at once. For the few cheapest, `relax` descends on the thresholds with real
replicas and `round_plan` makes whole fleets of what both found; the cheapest of all is proposed. The lattice also gives
the bound that certifies it.
"""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxsim.evaluate import Metrics
from jaxsim.fleet import FleetDesign
from jaxsim.profiles import Profile
from optim.cases import IDLE_RATE, Case, Choice, case_metrics, cases, choice_of, without_empty_pools
from optim.lattice import Lattice, Path, lattice
from optim.problem import PlanProblem
from optim.relax import relax
from optim.rounding import Rounded, round_plan
from optim.sizing import Targets
from optim.verify import Correction

MOST_CHOICES = 3
"""Choices of hardware whose thresholds are refined between the nodes of the lattice."""


@dataclass(frozen=True)
class Proposal:
    """A whole design that the model holds for feasible, with what the model says of it.

    Attributes:
        profiles, case, padded: as searched, with empty pools.
        pools: places of the pools with requests among the padded ones.
        design, analytic: the pools with requests.
    """

    profiles: tuple[Profile, ...]
    case: Case
    padded: FleetDesign
    pools: tuple[int, ...]
    design: FleetDesign
    analytic: Metrics
    usd_per_hour: float

    @property
    def gpus(self) -> float:
        """Of all pools."""
        return float(np.sum(self.design.replicas * np.asarray(self.design.profile.gpus_per_replica)))


@dataclass(frozen=True)
class Certificate:
    """A lower bound on the cost of any fleet, and how far the plan is above it (share of the plan's cost)."""

    lower_bound_usd_per_hour: float
    gap: float
    method: str


class Search:
    """A problem with what is computed once for it."""

    def __init__(self, problem: PlanProblem) -> None:
        self.problem = problem
        self.single = cases(problem, num_pools=1)
        self._choices: dict[tuple[int, ...], Choice] = {}
        self._lattices: dict[bytes, Lattice] = {}

    def choice(self, hardware: tuple[int, ...]) -> Choice:
        """The case of so many pools on these profiles of the problem."""
        if hardware not in self._choices:
            self._choices[hardware] = choice_of(self.problem, tuple(self.problem.profiles[p] for p in hardware))
        return self._choices[hardware]

    def lattice(self, correction: Correction) -> Lattice:
        """Every choice of hardware under the corrected model."""
        ttft, tpot = correction.targets(self.problem.slo)
        key = np.concatenate([ttft, tpot]).tobytes()
        if key not in self._lattices:
            targets = [Targets(jnp.asarray(a), jnp.asarray(b)) for a, b in zip(ttft, tpot, strict=True)]
            hardware = [choice.case for choice in self.single]
            self._lattices[key] = lattice(hardware, targets, model=self.problem.model)
        return self._lattices[key]

    def propose(self, correction: Correction) -> Proposal | None:
        """The cheapest design by the corrected model; None where there is none.

        One within the cap on GPUs is preferred to a cheaper one above it.
        """
        best: tuple[Choice, Rounded] | None = None
        least = (True, np.inf)
        for path in self._promising(self.lattice(correction)):
            choice = self.choice(path.hardware)
            case = choice.case.with_targets(*correction.targets(self.problem.slo))
            _, upper = relax(case, model=self.problem.model)
            starts = np.concatenate([np.maximum(path.upper_tokens, 1.0)[None], np.asarray(upper)])
            rounded = round_plan(case, starts, model=self.problem.model)
            if rounded is None:
                continue
            gpus = float(np.sum(rounded.replicas * np.asarray(case.profile.gpus_per_replica)))
            rank = (gpus > self._cap, rounded.usd_per_hour)
            if rank < (least[0], least[1] - 1e-9):
                best, least = (Choice(choice.profiles, case), rounded), rank
        return None if best is None else self._proposal(*best)

    def certificate(self, correction: Correction, usd_per_hour: float) -> Certificate:
        """How far a price is above the bound under the corrected model."""
        found = self.lattice(correction)
        bound = min(found.bound_usd_per_hour, usd_per_hour)
        gap = 0.0 if usd_per_hour == 0 else 1.0 - bound / usd_per_hour
        return Certificate(bound, gap, f"shortest path over {found.nodes} thresholds, whole replicas")

    def idle(self, proposal: Proposal) -> Metrics:
        """The model's figures of a proposal without load."""
        replicas, upper = np.asarray(proposal.padded.replicas), np.asarray(proposal.padded.upper_tokens)
        quiet = eqx.tree_at(lambda c: c.rate, proposal.case, jnp.asarray(IDLE_RATE))
        figures = case_metrics(quiet, jnp.asarray(replicas), jnp.asarray(upper), model=self.problem.model)
        return without_empty_pools(proposal.profiles, replicas, upper, figures)[1]

    @property
    def _cap(self) -> float:
        return np.inf if self.problem.max_gpus is None else self.problem.max_gpus

    def _promising(self, found: Lattice) -> list[Path]:
        """The cheapest paths, those within the cap on GPUs first."""
        gpus = np.array([float(np.asarray(profile.gpus_per_replica)) for profile in self.problem.profiles])
        over = [float(path.replicas @ gpus[list(path.hardware)]) > self._cap for path in found.paths]
        ranked = sorted(zip(over, range(len(over)), strict=True))
        return [found.paths[at] for _, at in ranked[:MOST_CHOICES]]

    def _proposal(self, choice: Choice, rounded: Rounded) -> Proposal:
        replicas, upper = rounded.replicas, rounded.upper_tokens
        figures = case_metrics(choice.case, jnp.asarray(replicas), jnp.asarray(upper), model=self.problem.model)
        design, analytic, pools = without_empty_pools(choice.profiles, replicas, upper, figures)
        padded = choice.case.design(jnp.asarray(replicas), jnp.asarray(upper))
        return Proposal(choice.profiles, choice.case, padded, pools, design, analytic, rounded.usd_per_hour)
