"""The catalogue: parameters against published ones, a source for every number, configs read, every way to say no."""

import csv
import dataclasses
import json

import pytest
from typer.testing import CliRunner

import jaxsim
from jaxsim.catalogue import published_parameters
from jaxsim.hf_config import ARCHITECTURES
from jaxsim.model_spec import (
    ModelSpec,
    active_parameters,
    kv_bytes_per_gpu,
    parameters,
    stage_weight_bytes,
    weight_bytes,
    weight_format,
)
from optim.cli import app
from optim.profile_file import find_profile, read_profile

MODELS = jaxsim.model_names()
GPUS = jaxsim.gpu_names()


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_the_catalogue_holds_what_it_promises():
    cards = ["a100-40gb-sxm", "a100-40gb-pcie", "a100-80gb-sxm", "a100-80gb-pcie", "a10g", "a30", "l4", "l40s"]
    cards += ["h100-sxm", "h100-pcie", "h200", "b200", "b300", "gb200", "gb300", "rtx-pro-6000", "mi300x"]
    names = ["llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "llama-3.3-70b", "mistral-7b", "mixtral-8x7b"]
    names += ["qwen3-8b", "qwen3-32b", "qwen3-30b-a3b", "qwen3-235b-a22b", "deepseek-v3", "gpt-oss-20b", "gpt-oss-120b"]
    assert set(GPUS) >= set(cards)
    assert set(MODELS) >= set(names)


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_the_published_ones(name):
    total, active, source = published_parameters(name)
    model = jaxsim.model_spec(name)
    assert parameters(model) == pytest.approx(total, rel=0.005)
    assert source and model.source.startswith("config.json of ")
    if active is None:
        assert active_parameters(model) == parameters(model)
    else:  # published to two digits; gpt-oss leaves the input embedding out
        assert active_parameters(model, embedding="gpt-oss" not in name) == pytest.approx(active, rel=0.02)


EXACT = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "qwen3-8b": 8_190_735_360,
    "mistral-7b": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704,
    "gpt-oss-20b": 20_914_757_184,
    "deepseek-v3": 671_026_419_200,
}


@pytest.mark.parametrize("name", EXACT)
def test_parameters_to_the_last_one(name):
    """The element counts of the published tensors (deepseek-v3 without its multi-token prediction layer)."""
    assert parameters(jaxsim.model_spec(name)) == EXACT[name]


@pytest.mark.parametrize(("name", "gib"), [("gpt-oss-120b", 60.8), ("gpt-oss-20b", 12.8)])
def test_bytes_of_a_mixed_format_are_those_of_the_checkpoint(name, gib):
    """gpt-oss model card, table 1: experts at 4.25 bits, the rest in bf16."""
    model = jaxsim.model_spec(name)
    assert weight_bytes(model, 1, weight_format("mxfp4")).total / 2**30 == pytest.approx(gib, rel=0.005)


@pytest.mark.parametrize(
    ("name", "tp", "per_token"),
    [
        ("llama-3.1-8b", 1, 131_072),
        ("llama-3.1-70b", 1, 327_680),
        ("llama-3.1-70b", 8, 40_960),
        ("qwen3-30b-a3b", 4, 24_576),
        ("qwen3-30b-a3b", 8, 24_576),  # four KV heads on eight GPUs: each twice
        ("deepseek-v3", 1, 70_272),
        ("deepseek-v3", 8, 70_272),  # the latent is on every GPU
    ],
)
def test_kv_bytes_of_a_token(name, tp, per_token):
    model = jaxsim.model_spec(name)
    assert kv_bytes_per_gpu(model, tp, model.num_layers, 2.0).per_token == per_token


def test_windowed_layers_keep_a_window():
    model = jaxsim.model_spec("gpt-oss-120b")
    held = kv_bytes_per_gpu(model, 1, model.num_layers, 2.0)
    assert held.per_token == held.per_window_token == 18 * 2048
    assert held.of_sequence(100) == 36 * 2048 * 100
    assert held.of_sequence(10_000) == 18 * 2048 * (10_000 + 128)
    assert jaxsim.model_spec("mistral-7b-v0.1").num_window_layers == 32
    assert jaxsim.model_spec("mistral-7b").num_window_layers == 0


@pytest.mark.parametrize("name", MODELS)
def test_groups_and_stages_share_the_weights(name):
    """All GPUs together hold the weights once, but for what is repeated; a stage holds no less than its share."""
    model = jaxsim.model_spec(name)
    bits = weight_format(model.native_dtype)
    whole = weight_bytes(model, 1, bits).total
    for tp in (2, 4, 8):
        together = tp * weight_bytes(model, tp, bits).total
        assert whole <= together < 1.12 * whole
    for pp in (2, 4):
        assert whole / pp <= stage_weight_bytes(model, 1, pp, bits) < whole / pp * 1.35


@pytest.mark.parametrize("name", GPUS)
def test_every_number_of_a_gpu_has_a_source(name):
    gpu = jaxsim.gpu_spec(name)
    for field in dataclasses.fields(gpu):
        if field.name not in ("name", "vendor", "sources"):
            assert gpu.source_of(field.name)
    assert gpu.flops_per_s["bf16"] > 0 and gpu.memory_bytes_per_s > 0 and gpu.tdp_w > 0
    assert all(0 < share < 1 for share in gpu.matmul_efficiency.values())
    if gpu.price is not None:
        assert 0 < gpu.price.low <= gpu.price.middle <= gpu.price.high
        assert gpu.price.as_of and "usd_per_gpu_hour" in gpu.sources
    if gpu.all_reduce is not None:
        assert gpu.all_reduce.measured_on in gpu.source_of("all_reduce")


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ("a100_pcie", "a100-80gb-pcie"),
        ("a100_sxm", "a100-80gb-sxm"),
        ("a30", "a30"),
        ("l4", "l4"),
        ("l40s", "l40s"),
        ("h100_sxm", "h100-sxm"),
        ("h100_pcie", "h100-pcie"),
        ("h200_sxm", "h200"),
        ("b200_sxm", "b200"),
        ("b300_sxm", "b300"),
        ("gb200", "gb200"),
        ("gb300", "gb300"),
        ("rtx_pro_6000_server", "rtx-pro-6000"),
    ],
)
def test_the_cited_table_says_the_same(shared_data, row, name):
    path = shared_data / "data" / "specs" / "gpu_specs.csv"
    table = {line["gpu"]: line for line in csv.DictReader(path.read_text(encoding="utf-8").splitlines())}[row]
    gpu = jaxsim.gpu_spec(name)
    assert gpu.memory_bytes_per_s == float(table["mem_bw_Bps"])
    assert gpu.memory_bytes == float(table["mem_capacity_B"])
    for dtype in ("bf16", "fp8", "fp4"):
        assert gpu.flops_per_s.get(dtype) == (float(table[f"{dtype}_flops"]) if table[f"{dtype}_flops"] else None)
    assert gpu.tdp_w == float(table["tdp_w"])
    assert gpu.intra_node_bytes_per_s == float(table["intra_node_Bps"])
    assert gpu.inter_node_bytes_per_s == float(table["inter_node_Bps"])
    assert gpu.gpus_per_node == float(table["gpus_per_node"])


def test_the_cited_prices_say_the_same(shared_data):
    path = shared_data / "data" / "specs" / "prices_failures.csv"
    rows = [
        row for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()) if row["kind"] == "price_range"
    ]
    names = {"a100-80gb": "a100-80gb-sxm", "h100-sxm": "h100-sxm", "h200-sxm": "h200"}
    for row in rows:
        low, high = map(float, row["value"].split("-"))
        assert jaxsim.gpu_spec(names[row["gpu"]]).price == (low, high, "2026-05")


@pytest.mark.parametrize(
    ("find", "name", "texts"),
    [
        (jaxsim.gpu_spec, "h100", ["unknown gpu 'h100'", "'h100-sxm'", "jaxsim.GpuSpec"]),
        (jaxsim.gpu_spec, "", ["unknown gpu ''"]),
        (jaxsim.model_spec, "llama-3.1-71b", ["unknown model 'llama-3.1-71b'", "'llama-3.1-70b'", "config.json"]),
        (jaxsim.profile, "h200", ["unknown profile 'h200'", "is a GPU", "llama-3.1-8b@h200:tp1"]),
        (jaxsim.profile, "qwen3-8b", ["unknown profile 'qwen3-8b'", "is a model", "qwen3-8b@h100-sxm:tp1"]),
        (jaxsim.profile, "qwen3-8b@h100", ["unknown gpu 'h100'", "'h100-sxm'"]),
        (jaxsim.profile, "qwen3@h200", ["unknown model 'qwen3'", "'qwen3-8b'"]),
        (jaxsim.profile, "qwen3-8b@h200:tp4:tp2", ["part 'tp2'", "each part at most once"]),
        (jaxsim.profile, "qwen3-8b@h200:tp 4", ["part 'tp 4'", "MODEL@GPU[:tpN]"]),
        (jaxsim.profile, "qwen3-8b@h200:fp9", ["unknown weight dtype 'fp9'", "'fp8'"]),
        (jaxsim.profile, "qwen3-8b@h200:kv-fp9", ["unknown KV-cache dtype 'fp9'", "'fp8'"]),
        (jaxsim.profile, "qwen3-8b@h200:tp3", ["tp must be one of 1, 2, 4, 8, got 3", "32 heads and 8 KV heads"]),
        (jaxsim.profile, "qwen3-8b@h200:tp16", ["tp must be one of 1, 2, 4, 8, got 16", "pp crosses nodes"]),
        (jaxsim.profile, "qwen3-8b@h200:pp99", ["pp must be a whole number from 1 to the 36 layers"]),
        (jaxsim.profile, "qwen3-8b@h200:mxfp4", ["weight_dtype must be another one", "qwen3-8b has none"]),
        (jaxsim.profile, "llama-3.1-8b@a30:tp2", ["gpu 'a30' has no price with a citable source", "usd_per_gpu_hour"]),
        (jaxsim.profile, "qwen3-32b@mi300x:tp2", ["no all-reduce time with a citable source", "all_reduce=False"]),
        (jaxsim.profile, "llama-3.1-70b@h100-sxm", ["does not fit", "memory binds", "add GPUs or quantise"]),
    ],
)
def test_what_is_not_there_is_an_error_that_says_so(find, name, texts):
    with pytest.raises(ValueError) as error:
        find(name)
    for text in texts:
        assert text in str(error.value)


def test_aliases_are_listed_and_lead_to_the_same():
    assert jaxsim.gpu_spec("h100_sxm") is jaxsim.gpu_spec("h100-sxm")
    assert jaxsim.model_spec("meta-llama/Llama-3.1-8B") is jaxsim.model_spec("llama-3.1-8b")


LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
LATENT = {"q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}

PUBLISHED_CONFIGS = [
    (LLAMA, 8_030_261_248),
    (  # Qwen2.5-7B
        LLAMA
        | {"model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28}
        | {"num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "use_sliding_window": False},
        7_615_616_512,
    ),
    (  # Phi-3-mini-4k
        LLAMA
        | {"model_type": "phi3", "hidden_size": 3072, "num_key_value_heads": 32, "intermediate_size": 8192}
        | {"vocab_size": 32064, "sliding_window": 2047},
        3_821_079_552,
    ),
    (  # gemma-2-9b
        LLAMA
        | {"model_type": "gemma2", "num_hidden_layers": 42, "hidden_size": 3584, "num_attention_heads": 16}
        | {"head_dim": 256, "vocab_size": 256000, "sliding_window": 4096},
        9_241_705_984,
    ),
    (  # DeepSeek-V2-Lite
        LLAMA
        | LATENT
        | {"model_type": "deepseek_v2", "num_hidden_layers": 27, "hidden_size": 2048, "num_attention_heads": 16}
        | {"num_key_value_heads": 16, "intermediate_size": 10944, "moe_intermediate_size": 1408, "vocab_size": 102400}
        | {"n_routed_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2, "first_k_dense_replace": 1},
        15_706_484_224,
    ),
    (  # Kimi-K2
        LLAMA
        | LATENT
        | {"model_type": "kimi_k2", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 64}
        | {"num_key_value_heads": 64, "intermediate_size": 18432, "moe_intermediate_size": 2048, "vocab_size": 163840}
        | {"n_routed_experts": 384, "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 1}
        | {"q_lora_rank": 1536, "quantization_config": {"quant_method": "fp8"}},
        1.026e12,
    ),
]


def write(folder, config):
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    return path


@pytest.mark.parametrize(("config", "published"), PUBLISHED_CONFIGS, ids=lambda value: str(value)[:24])
def test_a_config_of_ones_own(tmp_path, config, published):
    model = jaxsim.model_from_config(write(tmp_path, config))
    assert parameters(model) == pytest.approx(published, rel=1e-3)
    assert model.name == tmp_path.name
    assert jaxsim.model_from_config(tmp_path, name="mine").name == "mine"  # the folder does as well


def test_every_architecture_of_the_catalogue_is_read_by_the_same_reader():
    assert {jaxsim.model_spec(name).architecture for name in MODELS} <= set(ARCHITECTURES)


WITHOUT_LAYERS = {key: value for key, value in LLAMA.items() if key != "num_hidden_layers"}


@pytest.mark.parametrize(
    ("config", "texts"),
    [
        (WITHOUT_LAYERS, ["config.json: num_hidden_layers: missing, expected a whole number > 0"]),
        (LLAMA | {"hidden_size": "4096"}, ["hidden_size: found '4096', expected a whole number > 0"]),
        (LLAMA | {"vocab_size": -1}, ["vocab_size: found -1, expected a whole number > 0"]),
        (LLAMA | {"intermediate_size": True}, ["intermediate_size: found True"]),
        (LLAMA | {"num_key_value_heads": 5}, ["num_kv_heads must be a divisor of num_heads 32, got 5"]),
        (LLAMA | {"hidden_size": 4097}, ["head_dim: missing", "4097 is no multiple of 32 heads"]),
        (LLAMA | {"tie_word_embeddings": 1}, ["tie_word_embeddings: found 1, expected true or false"]),
        (LLAMA | {"torch_dtype": "int3"}, ["torch_dtype: found 'int3'", "weight_dtype"]),
        (LLAMA | {"quantization_config": {"quant_method": "exl9"}}, ["quantization_config: found", "weight_dtype"]),
        (
            LLAMA | {"model_type": "lama"},
            ["unknown architecture 'lama'", "'llama'", "config.json", "jaxsim.ModelSpec", "hidden_size"],
        ),
        ({"hidden_size": 1}, ["model_type: missing, expected one of deepseek_v2"]),
        ({"text_config": {}, "vision_config": {}}, ["decoder-only language model", "multimodal"]),
        ("{", ["not JSON"]),
        ("[]", ["found list, expected an object"]),
        (
            LLAMA | {"model_type": "qwen3_moe", "mlp_only_layers": [1]},
            ["decoder_sparse_step", "experts in every layer"],
        ),
    ],
)
def test_what_is_wrong_with_a_config_is_said(tmp_path, config, texts):
    with pytest.raises(ValueError) as error:
        jaxsim.model_from_config(write(tmp_path, config))
    for text in texts:
        assert text in str(error.value)


def test_a_missing_config_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"none\.json: cannot be read .*expected a Hugging Face config"):
        jaxsim.model_from_config(tmp_path / "none.json")


def test_a_weight_format_can_be_given_where_the_config_has_an_unknown_one(tmp_path):
    path = write(tmp_path, LLAMA | {"quantization_config": {"quant_method": "exl9"}})
    assert jaxsim.model_from_config(path, weight_dtype="int4").native_dtype == "int4"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"num_layers": 0}, "model num_layers must be at least 1, got 0"),
        ({"num_moe_layers": 40}, "model num_moe_layers must be 0 to num_layers 32, got 40"),
        ({"num_moe_layers": 1}, "model experts_per_token must be 1 to num_experts 0, got 0"),
        ({"native_dtype": "bf17"}, "unknown weight dtype 'bf17'"),
    ],
)
def test_a_spec_of_ones_own_is_checked(change, text):
    with pytest.raises(ValueError, match=text):
        dataclasses.replace(jaxsim.model_spec("llama-3.1-8b"), **change)


def test_the_command_lists_everything_with_its_source():
    doc = json.loads(run("profiles", "--json").stdout)
    assert {gpu["name"] for gpu in doc["gpus"]} == set(GPUS)
    assert {model["name"] for model in doc["models"]} == set(MODELS)
    assert all(entry["source"] for entry in [*doc["gpus"], *doc["models"], *doc["profiles"]])
    page = run("profiles").stdout
    for text in ("h100-sxm", "1.99-5.00", "deepseek-v3", "aiconfigurator 0.12 systems", "meta-llama/Llama-3.1-8B"):
        assert text in page


def test_the_command_builds_a_profile_file(tmp_path):
    path = tmp_path / "profile.toml"
    flags = ["--tp", "4", "--weight-dtype", "fp8", "--max-num-seqs", "128", "--cpu-time-ms", "1", "--alpha-bw", "0.7"]
    result = run("profiles", "--build", "llama-3.1-70b", "--gpu", "h100-sxm", *flags, "--out", str(path))
    assert result.exit_code == 0, result.output
    assert "fits" in result.stdout and "not measured" in result.stdout
    built = read_profile(path)
    assert built.name == "llama-3.1-70b@h100-sxm:tp4:fp8"
    assert (built.gpus_per_replica, built.max_num_seqs, built.overhead_s) == (4, 128, 1e-3)
    assert "alpha_bw 0.7" in built.source
    same = jaxsim.roofline(
        "llama-3.1-70b", "h100-sxm", tp=4, weight_dtype="fp8", max_num_seqs=128, cpu_time_s=1e-3, alpha_bw=0.7
    )
    assert built.source == same.source and float(built.base_s) == float(same.base_s)


def test_the_command_prints_a_profile_and_reads_a_config(tmp_path):
    result = run("profiles", "--build", str(write(tmp_path, LLAMA)), "--gpu", "l40s", "--max-context", "8192")
    assert result.exit_code == 0, result.output
    assert 'gpu = "l40s"' in result.stdout
    path = tmp_path / "printed.toml"
    path.write_text(result.stdout, encoding="utf-8")
    assert read_profile(path).kv_blocks > 0


@pytest.mark.parametrize(
    ("flags", "code", "text"),
    [
        (["--tp", "2"], 2, "--tp only with --build MODEL"),
        (["--build", "qwen3-8b"], 2, "--build needs --gpu; known: a100-40gb-pcie"),
        (["--build", "qwen3-9b", "--gpu", "h200"], 2, "'qwen3-8b'"),
        (["--build", "nowhere/config.json", "--gpu", "h200"], 2, "cannot be read"),
        (["--build", "qwen3-8b", "--gpu", "h200", "--alpha-bw", "2"], 2, "alpha_bw must be in (0, 1], got 2.0"),
        (["--build", "qwen3-8b", "--gpu", "a30"], 2, "no price with a citable source; give usd_per_gpu_hour"),
        (["--build", "llama-3.1-70b", "--gpu", "h100-sxm", "--tp", "2"], 3, "reduce max_ctx or add GPUs or quantise"),
    ],
)
def test_the_command_says_no(flags, code, text):
    result = run("profiles", *flags)
    assert result.exit_code == code
    assert text in " ".join(result.output.split())


def test_a_plan_takes_a_catalogue_name(tmp_path):
    assert find_profile("qwen3-8b@h200", tmp_path / "qwen3-8b@h200").gpu == "h200"
    with pytest.raises(ValueError, match=r"is a GPU; a profile needs a model.*path of its \.toml file"):
        find_profile("h200", tmp_path / "h200")


def test_a_model_by_its_shapes_needs_no_catalogue():
    spec = ModelSpec(
        name="tiny",
        source="made up",
        architecture="llama",
        num_layers=2,
        hidden_size=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=128,
        vocab_size=1000,
        max_context=512,
    )
    per_layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 2 * 64
    assert parameters(spec) == 2 * 1000 * 64 + 64 + 2 * per_layer
    assert jaxsim.roofline(spec, "l4").name == "tiny@l4:tp1"
