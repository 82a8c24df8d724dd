"""Make the tables of the embedded workloads: `jaxsim/data/*.npz` from traces, `cdfs.json` from CDFs.

Reads the folder that FLEETGRAD_DATA names (default ../shared). Each table holds every (input, output) pair of
its trace with its count, in order of total tokens and then input tokens: the steps between totals, the output
tokens, the counts. The catalogue `jaxsim/data/workloads.toml` is written by hand; its numbers are checked.
"""

import json
import os
import tomllib
from pathlib import Path

import numpy as np
import polars as pl

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("FLEETGRAD_DATA", REPOSITORY.parent / "shared"))
DATA = REPOSITORY / "jaxsim" / "data"
TRACES = {
    "azure-code": "azure23_code.parquet",
    "azure-conversation": "azure23_conv.parquet",
    "mooncake-conversation": "mooncake_conv.parquet",
    "sharegpt": "lengths_only.parquet",
}


def load(name: str) -> pl.DataFrame:
    trace = pl.read_parquet(SHARED / "data" / "traces" / TRACES[name])
    return trace.filter(pl.col("source") == "sharegpt10k") if name == "sharegpt" else trace


def smallest(values: np.ndarray) -> np.ndarray:
    """The same numbers in the smallest unsigned type that holds them."""
    return values.astype(np.min_scalar_type(int(values.max())))


def write_table(name: str, trace: pl.DataFrame) -> None:
    lengths = trace.select("input_tokens", "output_tokens").to_numpy()
    pairs, count = np.unique(np.stack([lengths.sum(axis=1), lengths[:, 0]]), axis=1, return_counts=True)
    total, inputs = pairs
    np.savez_compressed(
        DATA / f"{name}.npz",
        total_step=smallest(np.diff(total, prepend=0)),
        output_tokens=smallest(total - inputs),
        count=smallest(count),
    )
    print(f"{name}: {len(trace)} requests, {len(count)} rows, {(DATA / f'{name}.npz').stat().st_size} bytes")


def check_catalogue(name: str, entry: dict, trace: pl.DataFrame) -> None:
    assert entry["num_requests"] == len(trace), (name, len(trace))
    if "t_s" in trace.columns:
        times = trace["t_s"].to_numpy()
        assert entry["rate"] == len(times) / (times[-1] - times[0]), (
            name,
            len(times) / (times[-1] - times[0]),
        )


def main() -> None:
    catalogue = tomllib.loads((DATA / "workloads.toml").read_text(encoding="utf-8"))
    for name in TRACES:
        trace = load(name)
        write_table(name, trace)
        check_catalogue(name, catalogue[name], trace)
    cdfs = json.loads((SHARED / "peer" / "cdfs.json").read_text(encoding="utf-8"))
    rows = (f"{json.dumps(name)}: {json.dumps(points)}" for name, points in sorted(cdfs.items()))
    (DATA / "cdfs.json").write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
