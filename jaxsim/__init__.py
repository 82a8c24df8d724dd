"""Differentiable analytical models of LLM serving fleets."""

from jaxsim.embedded import workload, workload_names
from jaxsim.evaluate import Metrics, evaluate
from jaxsim.fleet import FleetDesign
from jaxsim.profiles import Profile, profile, profile_names
from jaxsim.workload import Workload

__all__ = [
    "FleetDesign",
    "Metrics",
    "Profile",
    "Workload",
    "evaluate",
    "profile",
    "profile_names",
    "workload",
    "workload_names",
]
