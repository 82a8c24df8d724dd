"""Optimal fleets: relax with gradients, round, certify, verify by simulation; under uncertainty, robust."""

from optim.demand import RateProfile
from optim.pareto import ParetoFront, ParetoPoint, pareto
from optim.plan import Plan, PlanStatus, plan
from optim.power_terms import PowerTerms, Prices
from optim.problem import SLO, PlanProblem
from optim.robust import Robust, RobustStatus, robust
from optim.schedule import DaySchedule, schedule
from optim.sweep import Sweep, sweep
from optim.uncertainty import DemandScenario, Interval, Uncertainty
from optim.whatif import WhatIf, whatif

__all__ = [
    "SLO",
    "DaySchedule",
    "DemandScenario",
    "Interval",
    "ParetoFront",
    "ParetoPoint",
    "Plan",
    "PlanProblem",
    "PlanStatus",
    "PowerTerms",
    "Prices",
    "RateProfile",
    "Robust",
    "RobustStatus",
    "Sweep",
    "Uncertainty",
    "WhatIf",
    "pareto",
    "plan",
    "robust",
    "schedule",
    "sweep",
    "whatif",
]
