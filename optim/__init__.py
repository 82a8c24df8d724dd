"""Optimal fleets: relax with gradients, round, certify, verify by simulation."""

from optim.pareto import ParetoFront, ParetoPoint, pareto
from optim.plan import Plan, PlanStatus, plan
from optim.problem import SLO, PlanProblem

__all__ = ["SLO", "ParetoFront", "ParetoPoint", "Plan", "PlanProblem", "PlanStatus", "pareto", "plan"]
