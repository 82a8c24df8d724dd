"""What the packages export is what `__all__` says, and what the documents promise."""

import importlib
import types

import pytest

PROMISED = {
    "jaxsim": {"Workload", "workload", "profile", "evaluate", "FleetDesign", "Profile", "profile_names"},
    "des": {
        "AnyRouter",
        "ArrivalProcess",
        "CompressRouter",
        "Estimate",
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
    },
    "optim": {"SLO", "PlanProblem", "plan", "whatif", "pareto", "Plan", "PlanStatus"},
    "jaxsim.queueing": {
        "little_law_concurrency",
        "utilization",
        "mm1_stats",
        "required_mm1_service_rate",
        "erlang_b",
        "erlang_c",
        "log_erlang_c",
        "erlang_c_wait_probability",
        "mmc_avg_queue_wait",
        "mmc_wait_quantile",
        "mg1_queue_wait",
        "mg1_response_time",
        "kimura_wait_tail",
        "kimura_wait_quantile",
        "min_servers",
    },
}


@pytest.mark.parametrize("name", ["jaxsim", "des", "optim"])
def test_exports_equal_all(name):
    """Every public name of the package that is not one of its modules, and nothing else."""
    module = importlib.import_module(name)
    found = {key for key, value in vars(module).items() if not isinstance(value, types.ModuleType)}
    assert {key for key in found if not key.startswith("_")} == set(module.__all__)
    assert len(set(module.__all__)) == len(module.__all__)


@pytest.mark.parametrize("name", PROMISED)
def test_promised_names_exist(name):
    assert set(importlib.import_module(name).__all__) >= PROMISED[name]


@pytest.mark.parametrize("name", PROMISED)
def test_everything_exported_is_documented(name):
    module = importlib.import_module(name)
    assert module.__doc__
    for exported in module.__all__:
        assert getattr(module, exported).__doc__, f"{name}.{exported}"
