"""Tables of measured steps in files: names, units, refusals."""

import json

import numpy as np
import polars as pl
import pytest

from jaxsim import fit_steps, read_steps
from jaxsim.fit import StepTable, join_steps
from jaxsim.fit.table import step_seconds
from jaxsim.physics import StepLaw

LAW = StepLaw(0.012, 3e-5, 6e-8, 5e-5, 2e-9, 0.0)


def written(tmp_path, text, name="steps.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("header", "row", "active", "context", "seconds"),
    [
        ("n,context,time_ms", "4,1000,12.5", 4, 1000, 0.0125),
        ("batch_size,ctx,step_time_us", "4,1000,12500", 4, 1000, 0.0125),
        ("num_active,context_tokens,time_s", "4,4000,0.0125", 4, 1000, 0.0125),
        ("Num Seqs,Total_Context,latency_ns", "4,4000,12500000", 4, 1000, 0.0125),
        ("n;context;time_ms", "4;1000;12,5", 4, 1000, 0.0125),
        ("n\tmean_context\tduration_ms", "4\t1000\t12.5", 4, 1000, 0.0125),
    ],
)
def test_names_and_units(tmp_path, header, row, active, context, seconds):
    table = read_steps(written(tmp_path, f"{header}\n{row}\n\n"))
    assert (table.num_active[0], table.mean_context[0]) == (active, context)
    assert table.time_s[0] == pytest.approx(seconds, rel=1e-12)
    assert table.source == "steps.csv" and len(table) == 1


def test_prompts_and_groups(tmp_path):
    text = "n,context,time_ms,prompt_tokens,prompt_context,config\n4,500,12,0,0,a\n1,800,40,512,800,b\n"
    table = read_steps(written(tmp_path, text))
    assert table.prompt_tokens.tolist() == [0, 512] and table.token_contexts.tolist() == [0, 512 * 800]
    assert table.groups == ("a", "b")
    whole = read_steps(written(tmp_path, "n,context,time_ms,prompt_tokens\n1,512,40,512\n"))
    assert whole.token_contexts.tolist() == [512.0**2]


def test_parquet_and_json_lines(tmp_path):
    frame = pl.DataFrame({"n": [1, 2], "context": [10, 20], "time_ms": [5.0, 6.0]})
    frame.write_parquet(tmp_path / "s.parquet")
    lines = "\n".join(json.dumps(row) for row in frame.to_dicts())
    for path in (tmp_path / "s.parquet", written(tmp_path, lines, "s.jsonl")):
        table = read_steps(path)
        assert table.num_active.tolist() == [1, 2] and table.time_s == pytest.approx([0.005, 0.006])


def test_mapping_says_the_unit_too(tmp_path):
    path = written(tmp_path, "running,ctx_tok,latency\n4,1000,12500\n")
    table = read_steps(path, columns={"num_active": "running", "context_tokens": "ctx_tok", "time_us": "latency"})
    assert (table.mean_context[0], table.time_s[0]) == (250, pytest.approx(0.0125))
    mapped = read_steps(written(tmp_path, "n,context,time_ms\n4,1000,5\n"), columns={"context_tokens": "context"})
    assert mapped.mean_context[0] == 250


def test_tables_are_joined_under_their_names(tmp_path):
    first = read_steps(written(tmp_path, "n,context,time_ms\n1,10,5\n2,10,6\n", "a.csv"))
    second = read_steps(written(tmp_path, "n,context,time_ms,group\n3,10,7,x\n", "b.csv"))
    both = join_steps([first, second])
    assert both.groups == ("a.csv", "a.csv", "x") and both.num_active.tolist() == [1, 2, 3]
    assert both.source == "a.csv, b.csv" and join_steps([first]) is first


def test_a_law_goes_through_a_file(tmp_path):
    batch, context = (grid.ravel().astype(float) for grid in np.meshgrid((1, 4, 16, 64), (128, 1024, 4096)))
    prompt = 2.0 ** np.arange(6, 14)
    table = StepTable.of(
        np.concatenate([batch, np.ones(8)]),
        np.ones(len(batch) + 8),
        mean_context=np.concatenate([context, prompt]),
        prompt_tokens=np.concatenate([0 * batch, prompt]),
    )
    seconds = step_seconds(LAW, table.rows)
    columns = zip(table.num_active, table.mean_context, table.prompt_tokens, 1e3 * seconds, strict=True)
    rows = "".join(",".join(map(repr, map(float, row))) + "\n" for row in columns)
    fit = fit_steps(read_steps(written(tmp_path, f"n,context,prompt_tokens,time_ms\n{rows}")))
    assert np.array(fit.law) == pytest.approx(np.array(LAW), rel=1e-6)
    assert fit.description.startswith("fitted to 20 rows of steps.csv")


HEAD = "n,context,time_ms\n"

REFUSED = [
    (HEAD + "1,10,x\n", {}, ["line 2, column 'time_ms'", "time_ms must be a finite number > 0", "got 'x'", "1 of 1"]),
    (HEAD + "1,10,5\n0,10,5\n", {}, ["line 3, column 'n'", "num_active must be a finite number >= 1", "got '0'"]),
    (HEAD + "1,-1,5\n", {}, ["column 'context'", ">= 0", "got '-1'"]),
    (HEAD + "1,10,\n", {}, ["got no value"]),
    (HEAD + "1,10,0\n1,10,nan\n1,10,inf\n", {}, ["line 2", "3 of 3 rows"]),
    (HEAD + "1,10,5,6\n", {}, ["line 2: 4 fields, expected the 3 of the header"]),
    (HEAD, {}, ["0 steps", "header and rows"]),
    ("", {}, ["empty (0 bytes): 0 steps"]),
    ("n,context,time\n1,2,3\n", {}, ["line 1", "'time' is a time without a unit", "--map time_ms=time"]),
    ("n,context,step_time\n1,2,3\n", {}, ["'step_time' is a time without a unit", "step_time_ms"]),
    ("n,time_ms\n1,2\n", {}, ["no column for (mean_context or context_tokens)", "found columns: 'n', 'time_ms'"]),
    (
        "nseq,ctx,elapsed\n1,2,3\n",
        {},
        ["no column for num_active and (time_ms or time_s", "--map num_active=nseq", "or time_s, time_us, time_ns"],
    ),
    ("n,batch,context,time_ms\n1,1,2,3\n", {}, ["more than one column could be num_active: 'n' and 'batch'"]),
    ("n,context,time_ms,time_s\n1,2,3,4\n", {}, ["more than one column says the same", "'time_s' (time_s)"]),
    ("n,context,context_tokens,time_ms\n1,2,2,3\n", {}, ["more than one column says the same", "mean_context"]),
    (HEAD + "1,2,3\n", {"columns": {"time": "time_ms"}}, ["unknown column to map 'time'", "time_ms"]),
    (HEAD + "1,2,3\n", {"columns": {"time_ms": "tims"}}, ["no column 'tims'", "found columns"]),
    ("n,context,time_ms,group\n1,2,3,\n", {}, ["line 2: no group"]),
    (
        "n,context,time_ms,prompt_tokens,prompt_context\n1,2,3,512,10\n",
        {},
        ["token_contexts must be", "one prompt from its beginning"],
    ),
    (
        "timestamp,prompt_tokens,output_tokens\n0,1,2\n",
        {},
        ["a request trace", "no times of steps", "fleetgrad trace"],
    ),
    ('n,context,time_ms\n"1,2\n', {}, ["steps.csv"]),
    (HEAD.encode("utf-16"), {}, ["not UTF-8"]),
]


@pytest.mark.parametrize(("text", "arguments", "words"), REFUSED)
def test_refusals(tmp_path, text, arguments, words):
    with pytest.raises(ValueError) as error:
        read_steps(written(tmp_path, text), **arguments)
    said = str(error.value)
    assert said.startswith("steps.csv") or arguments
    for word in words:
        assert word in said


def test_no_such_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="step table not found"):
        read_steps(tmp_path / "nowhere.csv")
