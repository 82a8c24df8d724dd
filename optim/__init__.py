"""Optimal fleets: relax with gradients, round, certify, verify by simulation."""

from optim.pareto import ParetoFront, ParetoPoint, pareto
from optim.plan import Plan, PlanStatus, plan
from optim.problem import SLO, PlanProblem
from optim.whatif import WhatIf, whatif

__all__ = [
    "SLO",
    "ParetoFront",
    "ParetoPoint",
    "Plan",
    "PlanProblem",
    "PlanStatus",
    "WhatIf",
    "pareto",
    "plan",
    "whatif",
]
