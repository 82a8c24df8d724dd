"""Every test runs in float64, with strict promotion rules and the jaxtyping annotations checked."""

import json
import os
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

install_import_hook(("jaxsim", "des", "optim"), "typecheck.check")

import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

REPOSITORY = Path(__file__).parent.parent


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
