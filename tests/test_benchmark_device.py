"""The benchmark of devices runs on CPUs alone, and prints what programs read."""

import math

import pytest
from test_benchmarks import KEYS, lines

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rows():
    return lines("device.py")


def test_quick_run_prints_json_lines(rows):
    names = [row["name"] for row in rows]
    assert len(set(names)) == len(names)
    speeds = {row["name"]: row["value"] for row in rows if row["unit"] == "designs/s"}
    sizes = {"kimura": 64, "step": 16}
    assert set(speeds) == {
        f"cpu.{model}.{kind}.{precision}.batch_{size}"
        for model, size in sizes.items()
        for kind in ("values", "gradients")
        for precision in ("float64", "float32")
    }
    assert all(speed > 0 for speed in speeds.values())
    for row in rows:
        assert set(row) == KEYS
        assert math.isfinite(row["value"]) and row["unit"]
        assert row["target"] is None and row["ok"] is None


def test_the_precisions_are_two(rows):
    """Both processes did the same designs, and float32 is neither exact nor nonsense."""
    errors = {row["name"]: row["value"] for row in rows if row["name"].endswith("worst_error")}
    assert set(errors) == {"cpu.kimura.float32.p99s_worst_error", "cpu.step.float32.p99s_worst_error"}
    assert all(1e-8 < error < 0.5 for error in errors.values())
