"""Laws from measurements: coefficients with standard errors, held-out errors, and what is to be doubted."""

from jaxsim.fit.bench_runs import RunsForFit, UsedRun, runs_of
from jaxsim.fit.doubts import Doubt, Warned
from jaxsim.fit.knee import Knee, knee
from jaxsim.fit.law import COEFFICIENTS
from jaxsim.fit.report import Errors, StepFit
from jaxsim.fit.run_table import RunTable
from jaxsim.fit.runs import fit_runs
from jaxsim.fit.step_files import join_steps, read_steps
from jaxsim.fit.steps import fit_steps
from jaxsim.fit.table import StepTable
from jaxsim.fit.two_point import two_point

__all__ = [
    "COEFFICIENTS",
    "Doubt",
    "Errors",
    "Knee",
    "RunTable",
    "RunsForFit",
    "StepFit",
    "StepTable",
    "UsedRun",
    "Warned",
    "fit_runs",
    "fit_steps",
    "join_steps",
    "knee",
    "read_steps",
    "runs_of",
    "two_point",
]
