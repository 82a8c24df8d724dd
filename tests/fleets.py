"""One small workload, its problems and the compiled programs on it: tests that share them compile them once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import jaxsim
from jaxsim.evaluate import metrics, pool_laws, tabulate
from jaxsim.fleet import FleetDesign
from jaxsim.profiles import Profile
from jaxsim.workload import Workload
from optim._compile import program
from optim.problem import SLO, PlanProblem

H100 = jaxsim.profile("h100-80gb")
A100 = jaxsim.profile("a100-80gb")
MODELS = ("step", "kimura")


@functools.cache
def small_workload():
    """150 requests of chat-like lengths, 60 to 7,900 tokens in all, of which a few have one output token."""
    rng = np.random.default_rng(3)
    inputs = np.clip(np.floor(rng.lognormal(6.3, 1.1, 150)), 16, 7000)
    outputs = np.clip(np.floor(rng.lognormal(4.6, 0.9, 150)), 1, 900)
    outputs[:5] = 1.0
    return Workload.from_lengths(inputs, outputs, name="small")


def make_profile(**changes):
    """A round-numbered profile with every coefficient in use, changed as told."""
    values = {
        "base_s": 0.01,
        "per_sequence_s": 2e-5,
        "per_token_s": 5e-8,
        "prefill_per_token_s": 2e-5,
        "prefill_per_token2_s": 1e-9,
        "chunk_tokens": 512,
        "max_num_seqs": 64,
        "kv_blocks": 16384,
        "block_tokens": 16,
        "calibration_context": 8192,
        "usd_per_gpu_hour": 2.0,
        "gpus_per_replica": 1,
        "name": "toy",
        "gpu": "toy",
        "source": "made up",
    }
    return Profile(**{**values, **changes})


def problem(**changes):
    """Plan the small workload on H100s; most tests change the rate, the model or the objectives."""
    values = {
        "workload": small_workload(),
        "rate": 120.0,
        "profiles": (H100,),
        "slo": SLO(ttft_p99_s=0.5, tpot_p99_s=0.05),
    }
    return PlanProblem(**{**values, **changes})


def two_pools(replicas=(2.0, 2.0), upper=(1500.0, 7900.0), profiles=(H100, H100)):
    """A design of two pools of the small workload."""
    return FleetDesign.of(profiles, replicas, upper)


@program
def metrics_of(design, workload, rate, model):
    """`jaxsim.evaluate` without its checks, compiled fast."""
    return metrics(pool_laws(design, tabulate(workload, design.profile, model=model), rate, model=model))


def figures(design, rate=100.0, *, model="step", workload=None):
    """Metrics of a design of two pools, from one program for each model."""
    anonymous = FleetDesign(design.profile.unnamed(), design.replicas, design.upper_tokens, design.max_context)
    return metrics_of(anonymous, workload or small_workload(), jnp.asarray(rate, dtype=float), model)


def assert_finite(tree):
    """No NaN and no infinity in any array of a tree."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        assert np.all(np.isfinite(np.asarray(leaf))), f"{jax.tree_util.keystr(path)} = {leaf}"


def assert_no_nan(tree):
    """Infinities are overload; NaN is never an answer."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        assert not np.any(np.isnan(np.asarray(leaf, dtype=float))), f"{jax.tree_util.keystr(path)} = {leaf}"


def slope(function, x, step):
    """Central difference of a scalar function, to fourth order."""
    near, far = (function(x + k * step) - function(x - k * step) for k in (1.0, 2.0))
    return (8.0 * near - far) / (12.0 * step)
