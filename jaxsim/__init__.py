"""Differentiable analytical models of LLM serving fleets."""

from jaxsim.bench_files import read_benchmark, read_scrapes, read_served
from jaxsim.benchmark_run import BenchmarkRun
from jaxsim.catalogue import GpuSpec, gpu_names, gpu_spec, model_names, model_spec
from jaxsim.embedded import workload, workload_names
from jaxsim.evaluate import Metrics, evaluate
from jaxsim.fit import RunTable, StepFit, StepTable, fit_runs, fit_steps, read_steps, runs_of, two_point
from jaxsim.fleet import FleetDesign
from jaxsim.hf_config import model_from_config
from jaxsim.kv_fit import KvCapacity, kv_capacity
from jaxsim.measured import MeasuredLaw, measured_laws, measured_profile
from jaxsim.mix import mix
from jaxsim.model_spec import ModelSpec
from jaxsim.observed import Observed, observed_run
from jaxsim.profiles import Profile, profile, profile_names
from jaxsim.request_doctor import examine
from jaxsim.roofline import roofline
from jaxsim.traces import read_trace
from jaxsim.workload import Workload

__all__ = [
    "BenchmarkRun",
    "FleetDesign",
    "GpuSpec",
    "KvCapacity",
    "MeasuredLaw",
    "Metrics",
    "ModelSpec",
    "Observed",
    "Profile",
    "RunTable",
    "StepFit",
    "StepTable",
    "Workload",
    "evaluate",
    "examine",
    "fit_runs",
    "fit_steps",
    "gpu_names",
    "gpu_spec",
    "kv_capacity",
    "measured_laws",
    "measured_profile",
    "mix",
    "model_from_config",
    "model_names",
    "model_spec",
    "observed_run",
    "profile",
    "profile_names",
    "read_benchmark",
    "read_scrapes",
    "read_served",
    "read_steps",
    "read_trace",
    "roofline",
    "runs_of",
    "two_point",
    "workload",
    "workload_names",
]
