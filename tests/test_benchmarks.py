"""The benchmarks run, and print what programs read: one strict JSON object a line with the agreed keys."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
KEYS = {"name", "value", "unit", "target", "ok"}


def not_json(text):
    raise ValueError(f"{text} is not strict JSON")


def lines(script):
    fast_compile = "--xla_backend_optimization_level=0"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": fast_compile}
    command = [sys.executable, str(REPOSITORY / "benchmarks" / script), "--quick", "--json"]
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, env=environment)
    return [json.loads(line, parse_constant=not_json) for line in run.stdout.splitlines()]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("speed.py", {"designs.kimura.evaluated.with_gradient.rate_200", "simulator.replicas_10.over_peer"}),
        ("accuracy.py", {"constant.ttft_p99.median", "growing.tpot_mean.worst", "prefill.mean_active.judged"}),
    ],
)
def test_quick_run_prints_json_lines(script, expected):
    rows = lines(script)
    names = [row["name"] for row in rows]
    assert len(set(names)) == len(names)
    assert expected <= set(names)
    for row in rows:
        assert set(row) == KEYS
        assert math.isfinite(row["value"])
        assert isinstance(row["unit"], str) and row["unit"]
        assert (row["target"] is None) == (row["ok"] is None)
        assert row["ok"] in (None, True, False)
