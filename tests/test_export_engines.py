"""Scripts that start an engine: parsed by the documented flags, with the plan's values."""

import subprocess

import pytest
from exported import CONTEXT, FP8, deployed
from reading_exports import (
    GIVEN,
    KINDS,
    SGLANG,
    TENSORRT_LLM,
    VLLM,
    check_vllm,
    comments,
    fleet_with,
    parsed,
    words_of,
    written,
)

import jaxsim
from optim.documents import profile_entry


@pytest.mark.parametrize("kind", KINDS)
def test_vllm_scripts_are_parsed_by_the_documented_flags(kind, tmp_path):
    files = written(kind, "vllm", GIVEN)
    assert set(files) == {f"vllm-{label}.sh" for label in deployed(kind)}
    for label in deployed(kind):
        text = files[f"vllm-{label}.sh"]
        words = words_of(text)
        assert words[:3] == ["vllm", "serve", "org/model"]
        found = parsed(VLLM, words[2:])
        transfer, role = check_vllm(found, label, kind)
        assert transfer is None or transfer == {"kv_connector": "NixlConnector", "kv_role": role}
        assert found.quantization is None  # the model was given, so its format is its own
        assert f"the plan has {deployed(kind)[label][0]}" in comments(text)
        (tmp_path / "script.sh").write_text(text)
        assert subprocess.run(["sh", "-n", str(tmp_path / "script.sh")], check=False).returncode == 0


@pytest.mark.parametrize("kind", KINDS)
def test_sglang_scripts_are_parsed_by_the_documented_flags(kind):
    files = written(kind, "sglang", GIVEN)
    for label, (_, gpus, context) in deployed(kind).items():
        words = words_of(files[f"sglang-{label}.sh"])
        assert words[:3] == ["python3", "-m", "sglang.launch_server"]
        found = parsed(SGLANG, words[3:])
        assert (found.tp_size, found.context_length, found.model_path) == (gpus, context, "org/model")
        assert found.disaggregation_mode == (label if kind == "disaggregated" else None)


def test_tensorrt_llm_scripts_are_parsed_by_the_documented_flags():
    words = words_of(written("one pool", "tensorrt-llm")["tensorrt-llm-pool-0.sh"])
    assert words[:2] == ["trtllm-serve", "serve"]
    found = parsed(TENSORRT_LLM, words[2:])
    assert (found.tp_size, found.max_seq_len, found.model) == (4, CONTEXT, "meta-llama/Llama-3.1-70B")
    with pytest.raises(ValueError, match=r"got a prefill pool; TensorRT-LLM describes disaggregated serving"):
        written("disaggregated", "tensorrt-llm")


def test_a_catalogue_profile_says_model_format_and_memory():
    text = written(fleet_with(jaxsim.profile("llama-3.1-8b@h100-sxm:tp2:pp2:fp8:kv-fp8")), "vllm")["vllm-pool-0.sh"]
    found = parsed(VLLM, words_of(text)[2:])
    assert (found.model_tag, found.tensor_parallel_size, found.pipeline_parallel_size) == (
        "meta-llama/Llama-3.1-8B",
        2,
        2,
    )
    assert (found.quantization, found.kv_cache_dtype, found.gpu_memory_utilization) == ("fp8", "fp8", 0.9)


def test_what_the_engines_cannot_quantise_themselves_is_a_placeholder():
    text = written(fleet_with(jaxsim.profile("llama-3.1-70b@h100-sxm:tp2:int4")), "vllm")["vllm-pool-0.sh"]
    assert "vllm serve REPLACE_WITH_MODEL_IN_INT4" in text


def test_memory_is_left_to_the_engine_where_the_plan_does_not_know_it():
    """A preset names no model, and a profile of one's own may have another KV cache than the catalogue's."""
    text = written("two pools", "vllm")["vllm-pool-0.sh"]
    assert "vllm serve REPLACE_WITH_MODEL" in text and "--gpu-memory-utilization 0" not in text
    assert "share of GPU memory unknown to the plan" in comments(text)
    entry = profile_entry(FP8)
    smaller = jaxsim.Profile(**{key: value for key, value in entry.items() if key != "kv_blocks"}, kv_blocks=1000)
    text = written(fleet_with(smaller), "vllm")["vllm-pool-0.sh"]
    assert "--gpu-memory-utilization 0" not in text and "KV cache of 16,000 tokens" in comments(text)


def test_the_budget_of_a_step_has_a_token_for_each_request():
    entry = profile_entry(FP8) | {"chunk_tokens": 32.0, "name": "own"}
    text = written(fleet_with(jaxsim.Profile(**entry), model="step"), "vllm")["vllm-pool-0.sh"]
    found = parsed(VLLM, words_of(text)[2:])
    assert found.max_num_batched_tokens == found.max_num_seqs == 64
    assert "chunk of 32 tokens is below the 64 requests" in comments(text)


def test_the_reference_model_lets_as_many_run_as_its_slots():
    """min(blocks // ceil(context / block), max_slots x calibration context / context), by hand for the preset."""
    flags = words_of(written("two pools", "vllm")["vllm-pool-1.sh"])
    assert parsed(VLLM, flags[2:]).max_num_seqs == min(65536 // 500, 256 * 8192 // 8000) == 131
