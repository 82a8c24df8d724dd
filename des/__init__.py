"""Discrete-event simulation of fleets of continuously batching engines, exact to the step.

Of `jaxsim` it uses the laws of physics and the data types, and no queueing formula, so that it can check one.
"""

from des.arrivals import ArrivalProcess, MarkovModulated, PiecewiseRate, Poisson, Renewal, Trace
from des.availability import Caps, Failures, Schedule
from des.execution import Execution
from des.knowledge import InputOnly, InputPlusMax, Predicted, Total
from des.play import PrefixBlocks
from des.results import PoolResult, SimulationResult
from des.router import Router
from des.routers import AnyRouter, CompressRouter, LengthRouter, ModelRouter, SpilloverRouter
from des.serving import Serving
from des.simulate import prepare, simulate
from des.slots import simulate_slot_server as simulate_slots
from des.stats import Estimate, Sample
from jaxsim.kv_transfer import KvTransfer

__all__ = [
    "AnyRouter",
    "ArrivalProcess",
    "Caps",
    "CompressRouter",
    "Estimate",
    "Execution",
    "Failures",
    "InputOnly",
    "InputPlusMax",
    "KvTransfer",
    "LengthRouter",
    "MarkovModulated",
    "ModelRouter",
    "PiecewiseRate",
    "Poisson",
    "PoolResult",
    "Predicted",
    "PrefixBlocks",
    "Renewal",
    "Router",
    "Sample",
    "Schedule",
    "Serving",
    "SimulationResult",
    "SpilloverRouter",
    "Total",
    "Trace",
    "prepare",
    "simulate",
    "simulate_slots",
]
