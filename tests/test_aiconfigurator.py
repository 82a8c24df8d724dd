"""Profiles by aiconfigurator's step times: the conversion with times of a known law, refusals, and the real package."""

import importlib.util
import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

import jaxsim
from jaxsim import aiconfigurator as bridge
from jaxsim.fit.table import StepTable, step_seconds
from jaxsim.physics import StepLaw
from optim.cli import app

LAW = StepLaw(5e-3, 1.2e-5, 3e-8, 2e-5, 4e-10, 0.0)


class Engine:
    """Answers of a known law, in milliseconds, as aiconfigurator's compiled engine gives them."""

    def decode_step_latency(self, gen_tokens, isl, osl):
        assert osl == 2
        return 1e3 * float(LAW.base_s + gen_tokens * (LAW.per_sequence_s + LAW.per_token_s * (isl + 1)))

    def predict_prefill_latency(self, bs, isl):
        rows = StepTable.of(bs, 1.0, mean_context=isl, prompt_tokens=bs * isl).rows
        return 1e3 * float(step_seconds(LAW, rows)[0])


def limits(**changes):
    return jaxsim.roofline("llama-3.1-8b", "h200", cpu_time_s=2e-3, **changes)


def table(**changes):
    given = {"kv_tokens": 1e6, "max_num_seqs": 256, "max_context": 131072, "source": "a fake"}
    return bridge.sample_steps(Engine(), **(given | changes))


def test_the_law_of_the_step_times_is_found_and_the_limits_are_kept():
    base = limits()
    built = bridge.fitted_profile(base, table(), shapes="its config")
    found = np.array([getattr(built.law, name) for name in LAW._fields[:5]])
    assert found == pytest.approx(np.array(LAW[:5]), rel=1e-3)
    assert float(built.overhead_s) == pytest.approx(2e-3)
    for name in ("kv_blocks", "max_num_seqs", "chunk_tokens", "usd_per_gpu_hour", "gpus_per_replica"):
        assert float(getattr(built, name)) == float(getattr(base, name))
    assert built.name == base.name and built.gpu == "h200"
    for words in ("step times of a fake", "decode 0.0% (held out 0.0%)", "prompts 0.0%", "CPU time 2 ms", "its config"):
        assert words in built.source
    assert "price is the middle of 2.50 to 7.00" in built.source


def test_steps_that_no_engine_could_hold_are_not_sampled():
    """But every batch is, at its shortest context."""
    small, large = table(kv_tokens=20_000, max_context=4096), table()
    decoded = small.prompt_tokens == 0
    held = small.num_active * small.mean_context
    assert (held[decoded & (small.mean_context > 128)] <= 20_000).all() and small.mean_context.max() == 4096
    assert set(small.num_active[decoded]) == {n for n in bridge.BATCHES if n <= 256}
    assert len(small) < len(large) and set(large.prompt_tokens) == {0, *bridge.PROMPTS}
    assert table(max_context=64, kv_tokens=1e5).mean_context.max() == 64


def fake_package(monkeypatch, tmp_path, *, engine=None, missing=None):
    """The surface of the package that is used: databases, configs, engines."""

    class Handle:
        @staticmethod
        def compile(repository, system, backend, **settings):
            Handle.asked = (repository, system, backend, settings)
            return Engine() if engine is None else engine

    modules = {
        "sdk.perf_database": SimpleNamespace(get_supported_databases=lambda: {"h200_sxm": {"vllm": ["1"]}}),
        "sdk.common": SimpleNamespace(),
        "sdk.engine": SimpleNamespace(EngineHandle=Handle),
    }

    def imported(name, package=None):
        if missing is not None and name.startswith(bridge.PACKAGE):
            raise missing
        if name == "importlib.metadata":
            return SimpleNamespace(version=lambda of: "9.9")
        return modules[name.removeprefix(f"{bridge.PACKAGE}.")]

    folder = tmp_path / "model_configs"
    folder.mkdir()
    for name in ("meta-llama--Meta-Llama-3.1-8B", "zai-org--GLM-5", "Qwen--Qwen3-30B-A3B"):
        text = json.dumps({"model_type": "glm_moe_dsa"}) if "GLM" in name else "{}"
        (folder / f"{name}_config.json").write_text(text, encoding="utf-8")
    monkeypatch.setattr(bridge, "import_module", imported)
    monkeypatch.setattr(bridge, "files", lambda package: tmp_path)
    return Handle


def test_names_are_those_of_the_catalogue(monkeypatch, tmp_path):
    handle = fake_package(monkeypatch, tmp_path)
    built = bridge.aiconfigurator_profile("llama-3.1-8b", "h200_sxm", "vllm", tp=2, kv_dtype="fp8")
    repository, system, backend, settings = handle.asked
    assert (repository, system, backend) == ("meta-llama/Meta-Llama-3.1-8B", "h200_sxm", "vllm")
    assert settings["tp_size"] == 2 and settings["kvcache_quant_mode"] == "fp8" and settings["moe_tp_size"] is None
    assert built.name == "llama-3.1-8b@h200_sxm:tp2:vllm" and float(built.gpus_per_replica) == 2
    assert "aiconfigurator 9.9 (meta-llama/Meta-Llama-3.1-8B on h200_sxm with vllm, tp 2, fp8 KV)" in built.source
    assert float(built.kv_blocks) == float(jaxsim.roofline("llama-3.1-8b", "h200", tp=2, kv_dtype="fp8").kv_blocks)
    bridge.aiconfigurator_profile("qwen3-30b-a3b", "h200_sxm", "vllm", tp=2)
    assert handle.asked[3]["moe_tp_size"] == 2


class Broken(Engine):
    def predict_prefill_latency(self, bs, isl):
        raise RuntimeError("context data missing for kv_quant")


REFUSED = [
    (("llama-3.1-8b", "h20", "vllm"), {}, "unknown aiconfigurator system 'h20'; did you mean 'h200_sxm'?"),
    (("llama-3.1-8b", "h200_sxm", "tgi"), {}, "unknown aiconfigurator backend 'tgi'"),
    (("llama-3.1-8b", "h200_sxm", "sglang"), {}, "unknown aiconfigurator backend on h200_sxm 'sglang'"),
    (("mistral-7b", "h200_sxm", "vllm"), {}, "unknown aiconfigurator model 'mistral-7b (mistralai/Mistral-7B-v0.3)'"),
    (("lama-3.1-8b", "h200_sxm", "vllm"), {}, "did you mean 'llama-3.1-8b'"),
    (("zai-org/GLM-5", "h200_sxm", "vllm"), {}, "unknown architecture 'glm_moe_dsa'"),
    (("llama-3.1-8b", "h200_sxm", "vllm"), {"kv_dtype": "fp4"}, "unknown KV-cache dtype 'fp4'"),
    (("llama-3.1-8b", "h200_sxm", "vllm"), {"tp": 3}, "tp must be one of 1, 2, 4, 8, got 3"),
]


@pytest.mark.parametrize(("names", "settings", "text"), REFUSED)
def test_what_is_not_known_is_refused_with_what_is(monkeypatch, tmp_path, names, settings, text):
    fake_package(monkeypatch, tmp_path)
    with pytest.raises(ValueError) as error:
        bridge.aiconfigurator_profile(*names, **settings)
    assert text in str(error.value)


def test_a_table_that_the_package_lacks_is_said_so(monkeypatch, tmp_path):
    fake_package(monkeypatch, tmp_path, engine=Broken())
    with pytest.raises(ValueError, match="has no step times: context data missing for kv_quant; another kv_dtype"):
        bridge.aiconfigurator_profile("llama-3.1-8b", "h200_sxm", "vllm")


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        (ModuleNotFoundError("no", name="aiconfigurator_core"), "needs the package aiconfigurator_core, which is not"),
        (ImportError("bad image"), "aiconfigurator does not run on "),
    ],
)
def test_without_the_extra_the_hint_says_how_to_get_it(monkeypatch, tmp_path, missing, text):
    fake_package(monkeypatch, tmp_path, missing=missing)
    with pytest.raises(ValueError) as error:
        bridge.aiconfigurator_profile("llama-3.1-8b", "h200_sxm", "vllm")
    assert text in str(error.value) and "pip install 'fleetgrad[aiconfigurator]'" in str(error.value)


def command(*arguments):
    result = CliRunner().invoke(app, ["profiles", *arguments])
    return result.exit_code, result.stdout, " ".join(result.stderr.split())


OF_WHAT = ("--from", "aiconfigurator", "llama-3.1-8b", "h200_sxm", "vllm")


def test_the_command_prints_and_writes(monkeypatch, tmp_path):
    fake_package(monkeypatch, tmp_path)
    code, out, _ = command(*OF_WHAT, "--tp", "2", "--json")
    doc = json.loads(out)
    assert code == 0 and doc["status"] == "ok" and doc["profile"]["gpus_per_replica"] == 2
    assert "step times of aiconfigurator 9.9" in doc["profile"]["source"]
    file = tmp_path / "profile.toml"
    code, out, _ = command(*OF_WHAT, "--cpu-time-ms", "1", "--out", str(file))
    assert code == 0 and "Written to" in out and "overhead_s = 0.001" in file.read_text(encoding="utf-8")
    assert "overhead_s = 0.003" in command(*OF_WHAT)[1]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--from", "vidur", "a", "b", "c"), "--from vidur: expected --from aiconfigurator MODEL SYSTEM BACKEND"),
        (("llama-3.1-8b", "h200_sxm"), "llama-3.1-8b h200_sxm: expected --from aiconfigurator MODEL SYSTEM BACKEND"),
        (("--from", "aiconfigurator", "llama-3.1-8b"), "takes MODEL SYSTEM BACKEND, got llama-3.1-8b"),
        ((*OF_WHAT, "--alpha-bw", "0.7", "--pp", "2"), "--pp, --alpha-bw not with --from aiconfigurator"),
        ((*OF_WHAT, "--build", "llama-3.1-8b"), "--build not with --from aiconfigurator"),
        (("--from", "aiconfigurator", "a", "b", "vllm"), "unknown aiconfigurator system 'b'"),
    ],
)
def test_the_command_refuses(monkeypatch, tmp_path, arguments, text):
    fake_package(monkeypatch, tmp_path)
    code, out, err = command(*arguments)
    assert code == 2 and not out and text in err


def test_nothing_imports_it_at_start_up():
    text = "import sys, jaxsim, des, optim; sys.exit(any('aiconfigurator' in name for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", text], check=False).returncode == 0


@pytest.mark.skipif(
    importlib.util.find_spec(bridge.PACKAGE) is None, reason="the extra aiconfigurator is not installed"
)
@pytest.mark.filterwarnings("default")
def test_against_the_real_package():
    """Its H200 under vLLM: our law fits its steps of a dense model, and stands near our own roofline."""
    built = bridge.aiconfigurator_profile("llama-3.1-8b", "h200_sxm", "vllm")
    ours = jaxsim.roofline("llama-3.1-8b", "h200")
    assert float(built.base_s) == pytest.approx(float(ours.base_s), rel=0.5)
    assert float(built.prefill_per_token_s) == pytest.approx(float(ours.prefill_per_token_s), rel=0.5)
    assert float(built.kv_blocks) == float(ours.kv_blocks)
    decode = float(built.source.partition("decode ")[2].partition("%")[0])
    assert decode < 5.0
