"""robust: the plan's hardware and thresholds, and as many replicas as the uncertainty asks for.

plan -> scenarios -> what each pool needs in each -> the cheapest fleet for every probability -> the simulator at the
scenarios that leave least room, and again with a corrected model where it disagrees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from jaxsim._checks import invalid, require_x64
from jaxsim.evaluate import Metrics
from jaxsim.fleet import FleetDesign
from optim.assessment import Assessment, assess
from optim.cases import choice_of
from optim.chance import cheapest_cover, covered
from optim.plan import PRECISION, Plan, PlanStatus, plan
from optim.problem import PlanProblem
from optim.scenario_batch import ScenarioBatch
from optim.scenarios import Scenarios, scenarios
from optim.sensitivity_request import correction_of
from optim.sizing import whole_replicas
from optim.uncertainty import Uncertainty
from optim.verdict import Verdict, worst
from optim.verify import Correction, Verification, verify

DRAWS = 256
PROBABILITIES = (0.5, 0.9, 0.95, 0.99)
MOST_ALONE = 64
"""Draws of each source by itself, at most."""
MAX_ROUNDS = 4

Progress = Callable[[str], None]


class RobustStatus(Enum):
    """How it ended. The values are the sentences."""

    VERIFIED = "robust plan found, and verified by the simulator where it has least room"
    UNVERIFIED = "robust plan found; the simulator was not asked"
    NO_PLAN = "there is no plan to make robust"
    INFEASIBLE = "no number of replicas is enough in as many scenarios as asked for"
    GPU_CAP = "the cap on GPUs is too low to be robust"
    COIN_FLIP = "the simulator's intervals cross the objectives where the fleet has least room"
    REFUSED = "the simulator said no where the fleet has least room"


@dataclass(frozen=True)
class Level:
    """The cheapest fleet for one probability.

    Attributes:
        probability: with which the SLO is to be met; None is the worst case, every scenario and corner.
        replicas: of each pool; None where no fleet does it.
        usd_per_hour: of it; inf where there is none.
        premium_usd_per_hour: over the nominal plan; below 0 it is cheaper.
        gpus: of it.
        assessment: None where there is no fleet.
    """

    probability: float | None
    replicas: np.ndarray | None
    usd_per_hour: float
    premium_usd_per_hour: float
    gpus: float
    assessment: Assessment | None = None


@dataclass(frozen=True)
class SourceCost:
    """What one source of uncertainty costs by itself, everything else as known; inf where nothing is enough.

    Attributes:
        name: the key of [uncertainty].
        premium_usd_per_hour: over the nominal sizes, at the chosen level.
        worst_premium_usd_per_hour: in the worst case.
    """

    name: str
    premium_usd_per_hour: float
    worst_premium_usd_per_hour: float


@dataclass(frozen=True)
class Check:
    """One scenario in the simulator, the robust and the nominal fleet with the same arrivals and lengths.

    Attributes:
        row: of the scenarios.
        pools: that have least room in it.
        model: of the robust fleet.
        robust, nominal: the simulator's verdicts.
    """

    row: int
    pools: tuple[int, ...]
    model: Metrics
    robust: Verification
    nominal: Verification


@dataclass(frozen=True)
class Robust:
    """The answer. Without a nominal plan, all but `plan` is empty.

    Attributes:
        status, problem, uncertainty: the problem's max_context holds the longest request of any scenario where none
            was given.
        plan: the nominal one.
        scenarios: what was looked at.
        nominal: of the nominal plan's fleet.
        levels: by probability, the worst case last.
        chosen: place of the level that was asked for.
        required: whole replicas of each pool in each scenario, by the model as last corrected.
        sources: the costliest first.
        checks: the simulator's, of the chosen fleet.
        rounds: of checking and correcting.
    """

    status: RobustStatus
    problem: PlanProblem
    uncertainty: Uncertainty
    plan: Plan
    scenarios: Scenarios | None = None
    nominal: Assessment | None = None
    levels: tuple[Level, ...] = ()
    chosen: int = -1
    required: np.ndarray | None = None
    sources: tuple[SourceCost, ...] = ()
    checks: tuple[Check, ...] = ()
    rounds: int = 0

    @property
    def level(self) -> Level:
        """The one asked for."""
        return self.levels[self.chosen]

    @property
    def design(self) -> FleetDesign | None:
        """The robust fleet; None where there is none."""
        base = self.plan.design
        if base is None or not self.levels or self.level.replicas is None:
            return None
        return replace(base, replicas=self.level.replicas)


def robust(
    problem: PlanProblem,
    uncertainty: Uncertainty,
    *,
    probabilities: Sequence[float] = PROBABILITIES,
    choose: float | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    precision: float = PRECISION,
    simulate: bool = True,
    progress: Progress = lambda _: None,
) -> Robust:
    """Plan for what is known, then size its pools for what is not.

    Args:
        problem: what is known.
        uncertainty: what is not.
        probabilities: with which the SLO is to be met, a fleet for each, in (0, 1).
        choose: the one whose fleet is the answer and is simulated; None is the worst case.
        draws: of the Sobol sample, a power of two.
        seed: of the sample and of the simulator.
        precision: relative half-width of the simulated P99s' 95 % intervals.
        simulate: False skips the simulator, for the nominal plan too.
        progress: told what is being done.

    Raises:
        ValueError: a probability outside (0, 1), or what `optim.scenarios.scenarios` refuses.
    """
    require_x64()
    wanted = sorted({float(p) for p in probabilities} | ({choose} if choose is not None else set()))
    for probability in wanted:
        if not 0.0 < probability < 1.0:
            raise invalid("probability", probability, "between 0 and 1", "the worst case is always shown beside them")
    problem = _roomy(problem, uncertainty)
    drawn = scenarios(uncertainty, problem, draws=draws, seed=seed)
    found = plan(problem, seed=seed, precision=precision, simulate=simulate, progress=progress)
    if found.design is None or found.status is PlanStatus.REFUSED:
        return Robust(RobustStatus.NO_PLAN, problem, uncertainty, found)
    search = _Search(found, uncertainty, drawn, (*wanted, None), draws, seed, precision, progress)
    return search.answer(wanted.index(choose) if choose is not None else len(wanted), simulate)


def _roomy(problem: PlanProblem, uncertainty: Uncertainty) -> PlanProblem:
    """Without a limit given, one that holds the longest request of any scenario."""
    if problem.max_context is not None or not uncertainty.scales_lengths:
        return problem
    inputs, outputs = np.asarray(problem.workload.input_tokens), np.asarray(problem.workload.output_tokens)
    more = inputs * uncertainty.largest_factor("input_tokens_factor")
    more = more + outputs * uncertainty.largest_factor("output_tokens_factor")
    return replace(problem, max_context=float(max(np.ceil(more.max()) + 1.0, problem.context)))


class _Search:
    """Everything that stays while the model is corrected."""

    def __init__(
        self,
        found: Plan,
        uncertainty: Uncertainty,
        drawn: Scenarios,
        wanted: tuple[float | None, ...],
        draws: int,
        seed: int,
        precision: float,
        progress: Progress,
    ) -> None:
        assert found.design is not None  # the caller has looked
        assert found.usd_per_hour is not None
        self.plan, self.problem, self.uncertainty, self.drawn = found, found.problem, uncertainty, drawn
        self.wanted, self.draws, self.seed, self.precision, self.progress = wanted, draws, seed, precision, progress
        self.design, self.usd_per_hour = found.design, found.usd_per_hour
        self.nominal = np.asarray(self.design.replicas)
        self.price = np.asarray(self.design.profile.usd_per_hour)
        self.profiles = tuple(self.design.profile.at(p) for p in range(self.design.num_pools))
        self.case = choice_of(self.problem, self.profiles).case

    def answer(self, chosen: int, simulate: bool) -> Robust:
        """Size, check, correct; until the simulator agrees or the rounds are used up."""
        correction, rounds = correction_of(self.plan), 0
        checks: tuple[Check, ...] = ()
        while True:
            rounds += 1
            sizes = self.sizes(self.drawn, correction, "scenario")
            required = whole_replicas(sizes)
            levels = [self.level(required, probability) for probability in self.wanted]
            level = levels[chosen]
            if level.replicas is None or self.over_cap(level) or not simulate:
                break
            checks = tuple(self.checks(sizes, level.replicas))
            if all(check.robust.slo_met for check in checks) or rounds == MAX_ROUNDS:
                break
            correction = self.corrected(correction, checks, level.replicas)
        assessed, nominal = self.assessed(required, levels, correction)
        return Robust(
            status=self.status(level, checks, simulate),
            problem=self.problem,
            uncertainty=self.uncertainty,
            plan=self.plan,
            scenarios=self.drawn,
            nominal=nominal,
            levels=tuple(assessed),
            chosen=chosen,
            required=required,
            sources=self.alone(correction, self.wanted[chosen]),
            checks=checks if level.replicas is not None and not self.over_cap(level) else (),
            rounds=rounds,
        )

    def batch(self, drawn: Scenarios, correction: Correction) -> ScenarioBatch:
        """Those scenarios on the plan's hardware, by the model as corrected."""
        return ScenarioBatch(
            self.problem, self.profiles, self.case, np.asarray(self.design.upper_tokens), drawn, correction
        )

    def sizes(self, drawn: Scenarios, correction: Correction, what: str) -> np.ndarray:
        """Real replicas of each pool in each scenario."""
        sized = self.batch(drawn, correction).sizes(
            model=self.problem.model, told=lambda at: self.progress(f"sizing {what} {at:,} of {len(drawn):,}")
        )
        return sized.replicas

    def level(self, required: np.ndarray, probability: float | None) -> Level:
        """The cheapest fleet for one probability, or for every scenario."""
        replicas = _cheapest(required, self.drawn.probability, self.price, probability)
        if replicas is None:
            return Level(probability, None, np.inf, np.inf, np.inf)
        replicas = np.maximum(replicas, 1.0)  # a pool that is empty in most scenarios is there all the same
        usd = float(replicas @ self.price)
        gpus = float(replicas @ np.asarray(self.design.profile.gpus_per_replica))
        return Level(probability, replicas, usd, usd - self.usd_per_hour, gpus)

    def over_cap(self, level: Level) -> bool:
        """Whether it has more GPUs than allowed."""
        return self.problem.max_gpus is not None and level.gpus > self.problem.max_gpus

    def assessed(
        self, required: np.ndarray, levels: list[Level], correction: Correction
    ) -> tuple[list[Level], Assessment]:
        """The levels and the nominal fleet in every scenario."""
        there = [np.asarray(level.replicas) for level in levels if level.replicas is not None]
        fleets, place = np.unique(np.stack([self.nominal, *there]), axis=0, return_inverse=True)
        figures = self.batch(self.drawn, correction).figures(
            fleets,
            model=self.problem.model,
            told=lambda at: self.progress(f"evaluating scenario {at:,} of {len(self.drawn):,}"),
        )
        found = [assess(self.drawn, required, fleets[f], figures, f) for f in place.reshape(-1).tolist()]
        known = iter(found[1:])
        said = [level if level.replicas is None else replace(level, assessment=next(known)) for level in levels]
        return said, found[0]

    def checks(self, sizes: np.ndarray, replicas: np.ndarray) -> list[Check]:
        """The simulator where each pool has least room, among the scenarios that the fleet is to be enough in."""
        batch = self.batch(self.drawn, Correction.none(len(replicas)))
        rows = np.flatnonzero(covered(whole_replicas(sizes), replicas))
        tight: dict[int, list[int]] = {}
        for pool in range(len(replicas)):
            tight.setdefault(int(rows[sizes[rows, pool].argmax()]), []).append(pool)
        return [self.check(batch, row, pools, replicas) for row, pools in tight.items()]

    def check(self, batch: ScenarioBatch, row: int, pools: list[int], replicas: np.ndarray) -> Check:
        """Both fleets in one scenario, with common random numbers."""
        verdicts = []
        for title, fleet in (("robust", replicas), ("nominal", self.nominal)):
            self.progress(f"simulating the {title} fleet at {self.drawn.words(row)}")
            design, problem = batch.played(row, fleet)
            model = batch.metrics(row, fleet, model=self.problem.model)
            verdicts.append(verify(design, problem, analytic=model, seed=self.seed, precision=self.precision))
        shown = batch.metrics(row, replicas, model=self.problem.model)
        return Check(row, tuple(pools), shown, *verdicts)

    def corrected(self, correction: Correction, checks: tuple[Check, ...], replicas: np.ndarray) -> Correction:
        """With what the simulator said where it said no."""
        batch = self.batch(self.drawn, Correction.none(len(replicas)))
        for check in checks:
            if not check.robust.slo_met:
                idle = batch.metrics(check.row, replicas, model=self.problem.model, idle=True)
                pools = tuple(range(len(replicas)))
                correction = correction.updated(pools, check.robust, check.model.pools, idle.pools)
        return correction

    def status(self, level: Level, checks: tuple[Check, ...], simulate: bool) -> RobustStatus:
        """How it ended."""
        if level.replicas is None:
            return RobustStatus.INFEASIBLE
        if self.over_cap(level):
            return RobustStatus.GPU_CAP
        if not simulate:
            return RobustStatus.UNVERIFIED
        said = worst(check.robust.verdict for check in checks)
        return {
            Verdict.MET: RobustStatus.VERIFIED,
            Verdict.COIN_FLIP: RobustStatus.COIN_FLIP,
            Verdict.MISSED: RobustStatus.REFUSED,
        }[said]

    def alone(self, correction: Correction, chosen: float | None) -> tuple[SourceCost, ...]:
        """Each source by itself, the costliest first; nothing to compare where there is one."""
        known = whole_replicas(self.sizes(self._only(()), correction, "scenario"))
        base = float(known[0] @ self.price)
        costs = []
        for name in self.uncertainty.sources:
            drawn = self._only((name,))
            needs = whole_replicas(self.sizes(drawn, correction, f"{name} alone, scenario"))
            found = [_cheapest(needs, drawn.probability, self.price, level) for level in (chosen, None)]
            premiums = [np.inf if fleet is None else float(fleet @ self.price) - base for fleet in found]
            costs.append(SourceCost(name, *premiums))
        return tuple(sorted(costs, key=lambda cost: (-cost.premium_usd_per_hour, -cost.worst_premium_usd_per_hour)))

    def _only(self, names: tuple[str, ...]) -> Scenarios:
        draws = min(self.draws, MOST_ALONE)
        return scenarios(self.uncertainty, self.problem, draws=draws, seed=self.seed, only=names)


def _cheapest(
    required: np.ndarray, probability: np.ndarray, price: np.ndarray, level: float | None
) -> np.ndarray | None:
    """For a probability, or in the worst case."""
    if level is None:
        most = required.max(axis=0)
        return most if np.all(np.isfinite(most)) else None
    return cheapest_cover(required, probability, price, level)
