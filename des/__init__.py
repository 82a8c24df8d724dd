"""Discrete-event simulation of fleets of continuously batching engines, exact to the step.

Of `jaxsim` it uses the laws of physics and the data types, and no queueing formula, so that it can check one.
"""

from des.results import PoolResult, SimulationResult
from des.simulate import prepare, simulate
from des.slots import simulate_slot_server as simulate_slots
from des.stats import Estimate, Sample

__all__ = ["Estimate", "PoolResult", "Sample", "SimulationResult", "prepare", "simulate", "simulate_slots"]
