"""Users' questions about KV-cache capacity, by the name of their case: inputs and answers are read from the cases."""

import math

import pytest

import jaxsim
from jaxsim.model_spec import parameters
from jaxsim.roofline_laws import full_length_sequences, kv_tokens, memory_floor_gpus


def near(expected):
    return pytest.approx(expected["value"], rel=expected["rel_tol"])


def test_k1_tokens_and_full_length_sequences_of_an_engine_log(cases):
    """1,381 blocks at 2,048 tokens; and the second log that the note quotes."""
    given, expected = cases["K1"]["inputs"], cases["K1"]["expected"]
    tokens = kv_tokens(given["kv_blocks"], given["block_size"])
    assert tokens == near(expected["kv_tokens"])
    assert full_length_sequences(tokens, given["max_ctx"]) == near(expected["max_full_length_sequences"])
    assert full_length_sequences(613024, 131072) == pytest.approx(4.68, rel=1e-3)


def test_k3_users_of_a_70b_model_at_full_context(cases):
    """How many GPUs for five users: four, because two hold the weights but not the KV cache."""
    given, expected = cases["K3"]["inputs"], cases["K3"]["expected"]
    model, gpu = jaxsim.model_spec("llama-3.3-70b"), jaxsim.gpu_spec("h100-sxm")
    assert parameters(model) == given["params"]
    assert (model.num_layers, model.num_kv_heads, model.head_dim) == (
        given["layers"],
        given["kv_heads"],
        given["head_dim"],
    )
    assert gpu.memory_bytes == given["gpu_mem_GiB"] * 2**30

    def fit(tp):
        return jaxsim.kv_capacity(
            model,
            gpu,
            tp,
            max_context=given["max_ctx"],
            sequences=given["concurrent_users"],
            weight_dtype=given["weights_dtype"],
            gpu_memory_utilization=given["gpu_memory_utilization"],
            tp_choices=tuple(given["tp_choices"]),
        )

    for tp, users in expected["users_at_tp"].items():
        assert fit(int(tp)).sequences == near(users)
    two = fit(2)
    assert two.kv_bytes_per_sequence / 2**30 == near(expected["kv_per_user_GiB"])
    assert two.min_gpus == near(expected["min_gpus"])
    assert not two.fits and fit(4).fits
    assert expected["reason_if_2"] in two.reason


def test_k4_two_cards_hold_the_weights_but_not_the_context(cases):
    given, expected = cases["K4"]["inputs"], cases["K4"]["expected"]

    def fit(max_context):
        return jaxsim.kv_capacity(
            "llama-3.1-70b",
            "h100-sxm",
            given["tp"],
            max_context=max_context,
            weight_dtype="fp16",
            gpu_memory_utilization=given["gpu_memory_utilization"],
        )

    full = fit(given["max_ctx"])
    assert full.gpus == given["n_gpus"]
    assert full.fits is expected["feasible_at_max_ctx"]
    assert full.kv_tokens == near(expected["kv_tokens_available"])
    for words in expected["error_mentions"]:
        assert words in full.reason
    assert fit(given["requested_seq_len"]).sequences == near(expected["max_seqs_at_20000"])


def test_s6_the_memory_floor_and_how_far_above_it(cases):
    """A 550B model in fp8 on H200: five GPUs hold the weights, eight serve, eighty-eight are an error to explain.

    The case does not give the model's shapes; those of a large mixture with eight KV heads stand in for them.
    """
    given, expected = cases["S6"]["inputs"], cases["S6"]["expected"]
    total, _ = (float(part.strip("AB")) * 1e9 for part in given["model"].split()[0].split("-"))
    allowed = expected["memory_floor_gpus"]
    floor = math.ceil(memory_floor_gpus(total, given["gpu_mem_GB"] * 1e9, 0.9))
    assert allowed["min"] <= floor <= allowed["max"]

    hidden, layers, experts = 6144, 80, 256
    size = int((total - 2 * 128000 * hidden) / (layers * experts * 3 * hidden))
    model = jaxsim.ModelSpec(
        name="550b-a55b",
        source="sizes of the case",
        architecture="mixture",
        num_layers=layers,
        hidden_size=hidden,
        num_heads=64,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=4 * hidden,
        vocab_size=128000,
        max_context=131072,
        native_dtype="fp8",
        num_experts=experts,
        experts_per_token=16,
        expert_size=size,
        num_moe_layers=layers,
    )
    fit = jaxsim.kv_capacity(model, given["gpu"].lower(), 8, max_context=2048, sequences=64)
    assert allowed["min"] <= fit.memory_floor_gpus <= allowed["max"]
    assert fit.min_gpus <= expected["recommended_gpus"]["max"]
    assert fit.fits
    assert f"{8 / fit.memory_floor_gpus:.1f} times the memory floor of {fit.memory_floor_gpus}" in fit.reason
    alone = jaxsim.kv_capacity(model, given["gpu"].lower(), 4, max_context=2048)
    assert not alone.fits
    assert "memory binds" in alone.reason and "8 GPUs" in alone.reason
