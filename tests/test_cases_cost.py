"""Public problems of users about dollars per million tokens, answered by the product."""

# ruff: noqa: N802  the cases' names are in capitals

import json

import pytest
from typer.testing import CliRunner

from jaxsim.cost import usd_per_million
from optim.cli import app
from optim.cost import check_claim, run_cost


def expected(wanted):
    return pytest.approx(wanted["value"], rel=wanted["rel_tol"])


def ask(*arguments):
    return CliRunner().invoke(app, ["cost", *map(str, arguments)])


def test_case_C1_a_gpu_that_idles(cases):
    """700 tokens/s for $2.50/h: ten times as dear at a tenth of the load, and it says at which."""
    inputs, wanted = cases["C1"]["inputs"], cases["C1"]["expected"]
    shares = inputs["utilisation"]
    price = inputs["price_per_gpu_hr"] * inputs["n_gpus"]
    for share, answer in zip(shares, wanted["usd_per_M_out"], strict=True):
        found = float(usd_per_million(price, inputs["out_tok_s_at_saturation"], utilization=share))
        assert found == expected(answer)
        variables = {"price_hr": price, "tok_s": inputs["out_tok_s_at_saturation"], "util": share}
        assert found == pytest.approx(eval(wanted["formula"], {}, variables))
    arguments = (
        "--usd-per-gpu-hour", inputs["price_per_gpu_hr"], "--gpus", inputs["n_gpus"],
        "--output-tokens-per-s", inputs["out_tok_s_at_saturation"], "--utilization", ",".join(map(str, shares)),
    )  # fmt: skip
    doc = json.loads(ask(*arguments, "--json").stdout)
    for one, share, answer in zip(doc["served"], shares, wanted["usd_per_M_out"], strict=True):
        assert one["utilization"] == share
        assert one["cost_usd_per_million"]["output_tokens"] == expected(answer)
    page = ask(*arguments).stdout
    assert "$0.992" in page and "$9.92" in page and "100 %" in page and "10 %" in page
    assert "prompts are in the price of the output tokens" in " ".join(page.split())


def test_case_C1_input_output_and_blended_tokens_are_told_apart(cases):
    """With prompts four times as long as the outputs (guessed): three prices of one bill."""
    inputs = cases["C1"]["inputs"]
    rate = inputs["out_tok_s_at_saturation"]
    result = ask(
        "--usd-per-gpu-hour", inputs["price_per_gpu_hr"], "--output-tokens-per-s", rate, "--input-tokens-per-s",
        4 * rate, "--utilization", 0.1, "--json",
    )  # fmt: skip
    prices = json.loads(result.stdout)["served"][0]["cost_usd_per_million"]
    assert prices["output_tokens"] == pytest.approx(4 * prices["input_tokens"]) == pytest.approx(5 * prices["tokens"])


def test_case_C1_a_price_at_saturation_forgets_idle_time(cases):
    """$0.992, claimed of a GPU that is busy a tenth of the time."""
    inputs, wanted = cases["C1"]["inputs"], cases["C1"]["expected"]
    price = float(usd_per_million(inputs["price_per_gpu_hr"], inputs["out_tok_s_at_saturation"], utilization=0.1))
    claim = check_claim(wanted["usd_per_M_out"][0]["value"], "output", {"output": price}, utilization=0.1)
    assert not claim.holds
    assert claim.over == pytest.approx(0.1, rel=0.01)
    assert any("forgets idle time" in doubt for doubt in claim.doubts)


def test_case_C2_pages_are_not_tokens(cases):
    """$12,000 per million is what pages cost in that run; tokens cost $16.44, in a run of hardly a stream."""
    inputs, wanted = cases["C2"]["inputs"], cases["C2"]["expected"]
    run = run_cost(
        3600.0 * inputs["price_per_s"],
        wall_s=inputs["wall_s"],
        counts={"tokens": inputs["total_tokens"], "pages": inputs["pages"]},
    )
    assert run.usd == expected(wanted["usd_total"])
    assert run.usd_per_million["tokens"] == expected(wanted["usd_per_M_tokens"])
    assert run.usd_per_million["pages"] == expected(wanted["usd_per_M_pages"])
    claim = check_claim(inputs["user_claim_usd_per_M_tokens"], "tokens", run.usd_per_million)
    mix_up, single_stream = wanted["must_flag"]
    assert not claim.holds and any(mix_up in doubt for doubt in claim.doubts)
    assert any(all(words in doubt for words in single_stream.split(": ")) for doubt in run.doubts)


def test_case_C2_on_the_command_line(cases):
    inputs, wanted = cases["C2"]["inputs"], cases["C2"]["expected"]
    arguments = (
        "--usd-per-gpu-s", inputs["price_per_s"], "--wall-s", inputs["wall_s"], "--tokens", inputs["total_tokens"],
        "--count", f"pages={inputs['pages']}", "--claim", inputs["user_claim_usd_per_M_tokens"],
    )  # fmt: skip
    result = ask(*arguments, "--json")
    assert result.exit_code == 0
    doc = json.loads(result.stdout)
    assert doc["cost_usd"] == expected(wanted["usd_total"])
    assert doc["cost_usd_per_million"]["tokens"] == expected(wanted["usd_per_M_tokens"])
    assert doc["cost_usd_per_million"]["pages"] == expected(wanted["usd_per_M_pages"])
    assert doc["claim"]["holds"] is False and doc["claim"]["unit"] == "tokens"
    page = " ".join(ask(*arguments).stdout.split())
    assert all(flag.split(": ")[-1] in page for flag in wanted["must_flag"])
    assert page.startswith("The claim of $12,000.00 per million tokens does NOT hold: the facts give $16.44")
