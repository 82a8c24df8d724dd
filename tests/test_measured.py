"""Measured profiles: what the file says, what a profile is made of, and that the file is what the fits give."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import jaxsim
from jaxsim.kv_fit import kv_capacity
from jaxsim.measured import measured_law, measured_laws, measured_profile
from jaxsim.roofline_names import BASES, parse_name

NAME = "llama-3.1-70b@h100-sxm:tp4:fp8:vllm"

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))


@pytest.mark.parametrize("name", measured_laws())
def test_every_law_makes_a_profile_that_says_how_good_it_is(name: str) -> None:
    found, made = measured_laws()[name], jaxsim.profile(name)
    assert parse_name(name).basis in BASES
    assert made.name == name
    assert made.law == found.law
    assert float(made.max_num_seqs) == found.max_batch
    assert float(made.chunk_tokens) == found.chunk_tokens
    assert "held out" in str(made.source) and "aiconfigurator" in str(made.source)
    first = "decode held out" if name.endswith("kernels") else "tpot held out"
    assert found.errors[first] <= 0.1
    assert set(found.standard_errors) <= set(found.law._fields)
    assert all(0 <= error < 1 for error in found.errors.values())


def test_kv_cache_and_price_are_those_of_the_layout() -> None:
    made = measured_profile(NAME)
    assert float(made.kv_blocks) == pytest.approx(
        kv_capacity("llama-3.1-70b", "h100-sxm", tp=4, weight_dtype="fp8").kv_blocks, rel=1e-3
    )
    assert float(made.gpus_per_replica) == 4
    assert float(measured_profile(NAME, usd_per_gpu_hour=1.5).usd_per_hour) == 6.0


def test_limits_can_be_given() -> None:
    made = measured_profile(NAME, max_num_seqs=256, chunk_tokens=2048)
    assert (float(made.max_num_seqs), float(made.chunk_tokens)) == (256, 2048)
    with pytest.raises(ValueError, match="max_num_seqs must be > 0"):
        measured_profile(NAME, max_num_seqs=0)


def test_order_of_parts_and_kv_format_do_not_matter() -> None:
    assert measured_law("llama-3.1-70b@h100-sxm:vllm:fp8:tp4") is measured_law(NAME)
    half = measured_profile(NAME.replace(":vllm", ":kv-fp8:vllm"))
    assert float(half.kv_blocks) == pytest.approx(2 * float(measured_profile(NAME).kv_blocks), rel=1e-3)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("llama-3.1-70b@h100-sxm:tp4:fp8:sglang", "known: .*llama-3.1-70b@h100-sxm:tp4:fp8:vllm.*datasheets"),
        ("llama-3.1-70b@h100-sxm:tp4:vllm:kernels", "each part at most once"),
        ("llama-3.1-70b@h100-sxm:tp3:vllm", "tp must be one of"),
        ("qwen3-8b@h100-sxm:vllm", "unknown measured profile 'qwen3-8b@h100-sxm:tp1:vllm'"),
    ],
)
def test_a_law_that_was_not_measured_is_refused(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        jaxsim.profile(name)


def test_a_basis_is_never_left_out_silently() -> None:
    """The roofline of the same layout is another profile, and says so."""
    datasheet = jaxsim.profile(NAME.removesuffix(":vllm"))
    assert str(datasheet.source).startswith("roofline, not measured")
    assert float(datasheet.base_s) != float(measured_profile(NAME).base_s)


def test_a_step_takes_longer_with_less_hardware() -> None:
    laws = [measured_law(f"llama-3.1-70b@h200:tp{tp}:fp8:vllm").law for tp in (1, 2, 4, 8)]
    steps = [law.base_s + 32 * (law.per_sequence_s + 2000 * law.per_token_s) for law in laws]
    assert steps == sorted(steps, reverse=True)
    prompts = [law.prefill_per_token_s for law in laws]
    assert prompts == sorted(prompts, reverse=True)


@pytest.mark.parametrize("name", [NAME, "qwen3-32b@h100-sxm:tp4:vllm", "llama-3.1-8b@h100-sxm:tp1:kernels"])
def test_the_file_is_what_the_fits_give(name: str, monkeypatch: pytest.MonkeyPatch, shared_data: Path) -> None:
    monkeypatch.setenv("FLEETGRAD_DATA", str(shared_data))
    import measured_profiles as script

    if name.endswith("kernels"):
        table = dict(script.kernel_groups())[name]
        fit = jaxsim.fit_steps(table)
    else:
        found = next(group for group in script.engine_groups() if script.engine_name(group) == name)
        fit = jaxsim.fit_runs(found.table)
    stored = measured_law(name)
    again = script.toml([replace(stored, law=fit.law._replace(overhead_s=stored.law.overhead_s))])
    kept = script.toml([stored])
    values = [[float(line.split(" = ")[1]) for line in text.splitlines()[3:9]] for text in (again, kept)]
    np.testing.assert_allclose(values[0], values[1], rtol=1e-3, atol=1e-12)
