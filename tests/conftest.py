"""Every test runs in float64, with strict promotion rules and the jaxtyping annotations checked."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from jaxtyping import install_import_hook

# Tests run each program once or a few times: what they wait for is the compiler.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")

install_import_hook(("jaxsim", "des", "optim"), "typecheck.check")

import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

hypothesis.settings.register_profile("suite", derandomize=True)  # the same code is judged by the same examples
hypothesis.settings.load_profile("suite")

RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID")
if RUN is not None:  # the workers of one run share what they compile
    jax.config.update("jax_compilation_cache_dir", str(Path(tempfile.gettempdir()) / f"fleetgrad-tests-{RUN}"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture(scope="module", autouse=True)
def few_programs() -> Iterator[None]:
    """A worker that kept every compiled program of the whole suite would grow to many gigabytes."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of licensed traces and reference tables, named by FLEETGRAD_DATA."""
    folder = Path(os.environ.get("FLEETGRAD_DATA", REPOSITORY.parent / "shared")).resolve()
    if not folder.is_dir():
        pytest.skip(f"reference data not found at {folder}; set FLEETGRAD_DATA to its folder")
    return folder


@pytest.fixture(scope="session")
def cases(shared_data: Path) -> dict[str, dict]:
    """Public problems of users with their answers, by their ids."""
    lines = (shared_data / "cases" / "cases_public.jsonl").read_text(encoding="utf-8").splitlines()
    return {case["id"]: case for case in map(json.loads, lines)}
