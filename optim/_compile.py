"""jit for the programs of a plan: each runs once or a few times, so it should compile fast rather than run fast."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

_FAST_COMPILE = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
"""On CPUs, a quarter of the compilation time for three to four times the (much shorter) run time."""


@cache
def _options() -> dict[str, Any]:
    """`_FAST_COMPILE` where this backend and version of XLA know it; else none."""
    if jax.default_backend() != "cpu":
        return {}
    try:
        jax.jit(lambda x: x, compiler_options=_FAST_COMPILE)(jnp.zeros(()))
    except jax.errors.JaxRuntimeError:
        return {}
    return _FAST_COMPILE


def jit_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """`equinox.filter_jit` with fast compilation; arguments that are not arrays are static."""
    compiled: list[Callable[..., Any]] = []

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not compiled:
            options: dict[str, Any] = {"compiler_options": _options()}
            compiled.append(eqx.filter_jit(function, **options))
        return compiled[0](*args, **kwargs)

    return call
