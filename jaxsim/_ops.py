"""The few primitives that a law may use beside operators.

A law of `jaxsim.physics` is one free function. JAX traces it, NumPy evaluates it and numba compiles it,
so it may use only arithmetic operators and the functions below, each of which picks the library of its
argument: a JAX array or tracer goes to `jax.numpy`, anything else to NumPy.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def _library(*values: Any) -> Any:
    return jnp if any(isinstance(v, jax.Array) for v in values) else np


def maximum(x: Any, y: Any) -> Any:
    """Elementwise larger value."""
    return _library(x, y).maximum(x, y)


def minimum(x: Any, y: Any) -> Any:
    """Elementwise smaller value."""
    return _library(x, y).minimum(x, y)


def ceil_div(x: Any, y: Any) -> Any:
    """ceil(x / y) for y > 0, as a float; exact for integers below 2**53. Gradient zero."""
    return _library(x, y).ceil(x / y)


def floor_div(x: Any, y: Any) -> Any:
    """floor(x / y) for y > 0, as a float; exact for integers below 2**53. Gradient zero."""
    return _library(x, y).floor(x / y)
