"""--workers, --engine and --resume: what the commands say and write is the same, and of one request."""

import sys
from pathlib import Path

import polars as pl
import pytest
from test_cli import run, strict
from test_execution import contents, no_workers_left

__all__ = ["no_workers_left"]

PLAN = """
[workload]
name = "azure"
rate = 20.0
[slo]
ttft_p99_ms = 500
[fleet]
profiles = ["a100-80gb"]
max_pools = 1
max_context = 8192
model = "kimura"
"""
POOLS = """
[workload]
name = "azure"
rate = 8.0
[fleet]
model = "kimura"
[[fleet.pools]]
profile = "a100-80gb"
replicas = 2
max_context = 8192
"""
GRID = ("--rate", "10:40:10", "--ttft-p99-ms", "1,200,500")
SMALL = ("--requests", "1600", "--replications", "4")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A plan file, and one of pools."""
    folder = tmp_path_factory.mktemp("files")
    for name, text in (("plan.toml", PLAN), ("pools.toml", POOLS)):
        (folder / name).write_text(text)
    return folder


def answered(*arguments):
    """The JSON of a command that succeeds."""
    result = run(*map(str, arguments), "--json")
    assert result.exit_code == 0, result.output
    return strict(result.stdout)


def without_parts(folder):
    """Files beside the parts, those that name the command line left out."""
    found = contents(folder)
    return {name: found[name] for name in found if not name.startswith("parts") and name != "report.html"}


def test_a_resumable_grid_says_and_writes_what_a_plain_one_does(files, tmp_path):
    plain = answered("whatif", files / "plan.toml", *GRID, "--out", tmp_path / "plain")
    asked = ("whatif", files / "plan.toml", *GRID, "--resume", "--out", tmp_path / "parts")
    assert answered(*asked) == plain
    assert without_parts(tmp_path / "parts") == without_parts(tmp_path / "plain")
    before = contents(tmp_path / "parts")
    assert answered(*asked) == plain
    assert contents(tmp_path / "parts") == before
    assert {"parts/manifest.json", "parts/part-000000.parquet"} < set(before)


def test_a_large_grid_goes_to_parts_and_a_summary(files, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["optim.commands.whatif"], "MAX_POINTS", 8)
    asked = ("whatif", str(files / "plan.toml"), *GRID)
    refused = run(*asked)
    assert refused.exit_code == 2
    assert "must have at most 8 points without --out DIR, got 12; give the folder" in refused.stderr
    doc = answered(*asked, "--out", tmp_path)
    table = pl.read_parquet(tmp_path / "parts" / "part-000000.parquet")
    costs = table["cost_usd_per_hour"]
    assert doc["parts"] == {
        "what_ifs": 12,
        "feasible": table["feasible"].sum(),
        "least_cost_usd_per_hour": costs.min(),
        "greatest_cost_usd_per_hour": costs.max(),
        "files": 1,
    }
    assert "points" not in doc
    page = (tmp_path / "report.txt").read_text()
    assert f"12 what-ifs, {doc['parts']['feasible']} feasible from ${costs.min():,.2f} to" in page
    assert {path.name for path in tmp_path.iterdir()} == {"parts", "report.txt", "whatif.json"}


@pytest.mark.slow
def test_a_simulation_is_the_same_by_workers_and_from_kept_replications(files, tmp_path):
    plain = answered("simulate", files / "pools.toml", *SMALL)
    asked = ("simulate", files / "pools.toml", *SMALL, "--out", tmp_path, "--resume")
    assert answered(*asked, "--workers", "2") == plain
    assert answered(*asked) == plain
    assert len(list((tmp_path / "parts").glob("400-*.parquet"))) == 4


def test_another_request_in_the_same_folder_is_refused(files, tmp_path):
    asked = ("simulate", str(files / "pools.toml"), *SMALL, "--out", str(tmp_path), "--resume")
    assert run(*asked).exit_code == 0
    refused = run(*asked, "--seed", "1")
    assert refused.exit_code == 2
    assert "must be of the same request, got inputs" in refused.stderr
    assert "name another folder, or remove this one to begin anew" in refused.stderr


@pytest.mark.slow
def test_a_plan_keeps_the_replications_of_every_round(files, tmp_path):
    asked = ("plan", files / "plan.toml", "--precision", "0.5", "--replications", "16", "--out", tmp_path, "--resume")
    first = answered(*asked)
    before = contents(tmp_path)
    assert answered(*asked) == first
    assert contents(tmp_path) == before
    (sourced,) = (entry for name, entry in first["inputs"].items() if name == "replications")
    assert sourced == {"value": 16, "source": "given on the command line"}
    rounds = sorted((Path(tmp_path) / "parts").iterdir())
    assert [folder.name for folder in rounds] == [f"round-{k + 1}" for k in range(len(rounds))]
    assert all(len(list(folder.glob("*.parquet"))) == 16 for folder in rounds)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--resume"], "--resume needs --out DIR, the folder that finished parts are kept in"),
        (["--engine", "slurm"], "unknown engine 'slurm'; known: local, ray"),
    ],
)
@pytest.mark.parametrize("command", ["whatif", "plan", "simulate"])
def test_bad_options_are_refused(command, arguments, text, files):
    file = files / ("pools.toml" if command == "simulate" else "plan.toml")
    result = run(command, str(file), *arguments)
    assert result.exit_code == 2
    assert text in result.stderr
