"""Optimal fleets: relax with gradients, round, certify, verify by simulation."""

from optim.demand import RateProfile
from optim.pareto import ParetoFront, ParetoPoint, pareto
from optim.plan import Plan, PlanStatus, plan
from optim.problem import SLO, PlanProblem
from optim.schedule import DaySchedule, schedule
from optim.whatif import WhatIf, whatif

__all__ = [
    "SLO",
    "DaySchedule",
    "ParetoFront",
    "ParetoPoint",
    "Plan",
    "PlanProblem",
    "PlanStatus",
    "RateProfile",
    "WhatIf",
    "pareto",
    "plan",
    "schedule",
    "whatif",
]
