"""How exported files are read back in the tests: engines' documented flags, and what is in a file's head."""

import argparse
import json
import shlex

from exported import deployed, document, fleet

from optim.documents import profile_entry
from optim.export import export_files
from optim.export_formats import FORMATS
from optim.export_options import ExportOptions
from optim.export_plan import fleet_of_document

KINDS = ("one pool", "two pools", "disaggregated")
WITHOUT_LOADS = tuple(name for name in FORMATS if name not in ("autoscaling", "keda"))
GIVEN = ExportOptions(
    name="chat",
    model="org/model",
    image="registry/vllm:v1",
    dynamo_image="registry/dynamo:v1",
    gpu_memory_utilization=0.85,
    node_labels=dict.fromkeys(("H100-80GB", "h100-sxm"), ("nvidia.com/gpu.product", "SOME-GPU")),
    hf_token_secret="hub",
)


def written(kind, name, options=ExportOptions()):
    """Files of a format, by name."""
    source = fleet(kind) if isinstance(kind, str) else kind
    return {f.name: f.text for f in export_files(source, options, name, workload=no_workload).files}


def no_workload():
    raise AssertionError("these formats need no workload")


def fleet_with(profile, **changes):
    """The plan of one pool with another profile."""
    doc = document("one pool")
    doc["profiles"] = [json.loads(json.dumps(profile_entry(profile)))]
    doc["design"]["pools"][0]["profile"] = profile.name
    doc |= changes
    return fleet_of_document(doc, file="plan.json")


def words_of(script):
    """A script's one command."""
    return shlex.split(script.replace("\\\n", " "), comments=True)


def comments(text):
    """The header: comment lines joined to a paragraph."""
    return " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise AssertionError(message)


def parsed(flags, words):
    """By a table of flags and types; a flag that comes twice is an error."""
    parser = _Parser(allow_abbrev=False)
    for flag, kind in flags.items():
        given = {"choices": kind} if isinstance(kind, tuple) else {"type": kind}
        parser.add_argument(flag, **given)
    names = [word for word in words if word.startswith("--")]
    assert len(set(names)) == len(names)
    return parser.parse_args(words)


VLLM = {  # docs.vllm.ai, engine arguments of `vllm serve`
    "model_tag": str,
    "--tensor-parallel-size": int,
    "--pipeline-parallel-size": int,
    "--max-model-len": int,
    "--max-num-seqs": int,
    "--max-num-batched-tokens": int,
    "--gpu-memory-utilization": float,
    "--quantization": ("awq", "fp8", "gptq", "bitsandbytes", "compressed-tensors"),
    "--kv-cache-dtype": ("auto", "fp8", "fp8_e4m3", "fp8_e5m2"),
    "--kv-transfer-config": json.loads,
    "--served-model-name": str,
    "--port": int,
}
SGLANG = {  # docs.sglang.io, server arguments
    "--model-path": str,
    "--tp-size": int,
    "--pp-size": int,
    "--context-length": int,
    "--max-running-requests": int,
    "--chunked-prefill-size": int,
    "--quantization": ("fp8", "awq", "gptq"),
    "--kv-cache-dtype": ("auto", "fp8_e5m2", "fp8_e4m3"),
    "--disaggregation-mode": ("null", "prefill", "decode"),
    "--port": int,
}
TENSORRT_LLM = {  # TensorRT-LLM, trtllm-serve
    "model": str,
    "--tp_size": int,
    "--pp_size": int,
    "--max_seq_len": int,
    "--max_batch_size": int,
    "--max_num_tokens": int,
    "--port": int,
}
DYNAMO = VLLM | {"--model": str, "--disaggregation-mode": ("prefill", "decode", "agg")}
DYNAMO.pop("model_tag")


def check_vllm(found, label, kind, options=GIVEN):
    """Every value that the plan has of a pool."""
    _, gpus, context = deployed(kind)[label]
    assert found.tensor_parallel_size in (gpus, None)
    assert found.max_model_len == context
    profile = fleet(kind).pools[0].profile
    assert found.max_num_batched_tokens == int(profile.chunk_tokens)
    # vLLM refuses a budget below the requests that may run, and needs a whole step for each of them
    assert 1 <= found.max_num_seqs <= found.max_num_batched_tokens
    assert found.gpu_memory_utilization == options.gpu_memory_utilization
    role = {"prefill": "kv_producer", "decode": "kv_consumer"}.get(label)
    transfer = found.kv_transfer_config
    assert (transfer is None) == (role is None)
    return transfer, role
