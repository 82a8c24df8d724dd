"""Reported cases of practice that the readers must get right.

Inputs and expectations are those of `cases/cases_public.jsonl`; each test's name has the case's.
"""
# ruff: noqa: N802  the cases' names are in capitals

import json

import pytest
from typer.testing import CliRunner

from jaxsim import read_trace
from optim.cli import app


@pytest.fixture
def formats(shared_data):
    return shared_data / "formats"


def command(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.mark.parametrize("name", ["azure_2023", "azure_2024_tz"])
def test_case_R1_dates_with_seven_decimals_or_an_offset(cases, formats, name):
    wanted = cases["R1"]["expected"]
    trace = read_trace(formats / f"{name}.csv")
    assert len(trace.input_tokens) == wanted["rows_parsed_each"]
    gap = wanted["first_gap_s"][name]
    assert trace.arrival_s[1] - trace.arrival_s[0] == pytest.approx(gap["value"], abs=gap["abs_tol"])


def test_case_R1_columns_are_found_by_name_never_filled_in(cases, formats, tmp_path):
    assert (formats / "azure_2023.csv").read_text().split("\n")[0].split(",") == cases["R1"]["inputs"]["columns"]
    path = tmp_path / "t.csv"
    for stamp in cases["R1"]["inputs"]["timestamp_samples"]:
        path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{stamp},5,6\n")
        assert read_trace(path).input_tokens.tolist() == [5]
    path.write_text("TIMESTAMP,ContextTokens\n2023-11-16 18:20:01.1234567,5\n")
    with pytest.raises(ValueError, match="no column for output_tokens"):
        read_trace(path)


def test_case_R2_requests_without_output_are_failures_and_counted(cases, formats):
    wanted = cases["R2"]["expected"]
    path = formats / "burstgpt.csv"
    dropped, kept = read_trace(path), read_trace(path, failed="keep")
    for trace in (dropped, kept):
        (note,) = [note for note in trace.notes if "0 output tokens" in note]
        assert note.startswith(f"{wanted['failed_rows_reported']} of 5 requests")
    assert len(kept.output_tokens) - len(dropped.output_tokens) == wanted["failed_rows_reported"]
    assert any('failed="drop"' in note for note in dropped.notes) is wanted["default_visible"]
    assert any("kept as load with ONE output token" in note for note in kept.notes)


def test_case_R3_units_and_block_hashes(cases, formats, tmp_path):
    case = cases["R3"]
    trace = read_trace(formats / "mooncake.jsonl")
    notes = " ".join(trace.notes)
    assert "in ms (as in the Mooncake format" in notes and "mean rate 0.5556 requests/s" in notes
    assert (trace.prefix_hit_share is not None) is case["expected"]["hit_rate_computed"]
    path = tmp_path / "bad.jsonl"
    row = case["inputs"]["bad_row"]
    right = (formats / "mooncake.jsonl").read_text().splitlines()[:3]
    path.write_text("\n".join([*right, json.dumps(row)]) + "\n")
    (warning,) = [note for note in read_trace(path).notes if note.startswith("warning")]
    size = case["inputs"]["block_size"]
    assert "in 1 of 4 rows" in warning and "first: line 4" in warning
    assert f"{len(row['hash_ids'])} hash ids for {row['input_length']} tokens" in warning
    assert f"fill 1 blocks of {size}" in warning
    seconds = read_trace(formats / "mooncake.jsonl", time_unit="s")
    assert seconds.arrival_s[-1] == 1000.0 * trace.arrival_s[-1]


def test_case_R4_files_that_are_empty_zipped_marked_or_cut(cases, formats):
    assert {path.split("/")[1] for path in cases["R4"]["inputs"]["files"]} == {
        "empty.csv", "bom.csv", "azure_2023.csv.gz", "header_only.csv", "truncated.jsonl"
    }  # fmt: skip
    for name, words in (("empty.csv", "empty.csv: the file is empty"), ("header_only.csv", "0 requests"),
                        ("truncated.jsonl", "line 2: not JSON")):  # fmt: skip
        for verb in ("trace", "fit"):
            found = command(verb, formats / name)
            assert found.exit_code == 2 and found.stdout == ""
            assert name in found.stderr
        assert words in command("trace", formats / name).stderr
    assert "1 of 2 lines cannot be read" in command("trace", formats / "truncated.jsonl").stderr
    for name in ("bom.csv", "azure_2023.csv.gz"):
        assert command("trace", formats / name).exit_code == 0


def test_case_R5_unknown_columns_list_what_was_found_and_how_to_map(cases, formats):
    path = formats / "unknown_columns.csv"
    found = command("trace", path)
    assert found.exit_code == 2
    for column in cases["R5"]["inputs"]["columns"]:
        assert repr(column) in found.stderr
    for words in ("found columns", "expected input_tokens under one of the names", "--map input_tokens=prompt_tok"):
        assert words in found.stderr
    mapped = command("trace", path, "--map", "input_tokens=prompt_tok", "--map", "output_tokens=gen_tok", "--json")
    assert json.loads(mapped.stdout)["input_tokens"]["mean"] == 150.0
