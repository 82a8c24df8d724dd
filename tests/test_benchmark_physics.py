"""The benchmark of the step laws runs and prints what programs read."""

import math

from test_benchmarks import KEYS, lines


def test_quick_run_prints_json_lines(shared_data):
    rows = lines("physics.py")
    names = [row["name"] for row in rows]
    assert len(set(names)) == len(names)
    assert {"decode.step.median", "decode.kimura.worst", "prefill.smoothmax.median", "roofline.error.median"} <= {
        *names
    }
    for row in rows:
        assert set(row) == KEYS
        assert math.isfinite(row["value"]) and row["unit"]
        assert row["target"] is None and row["ok"] is None  # those are of all groups
