"""Lengths of requests under a change: multiplied, cut to a context, or found in a cache. NumPy or JAX arrays."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxsim._checks import is_concrete, require
from jaxsim._ops import floor_div, maximum, minimum


def scaled_tokens(tokens: Any, factor: Any) -> Any:
    """Lengths times a factor > 0, to the nearest whole token and at least one. Gradient zero."""
    return maximum(floor_div(tokens * factor + 0.5, 1.0), 1.0)


def cut_tokens(input_tokens: Any, output_tokens: Any, max_context: Any) -> tuple[Any, Any]:
    """Prompts shortened so that no total exceeds `max_context`; at least one input token is kept."""
    outputs = minimum(output_tokens, max_context - 1)
    return minimum(input_tokens, max_context - outputs), outputs


def hit_rate_of(given: Any) -> Any:
    """The share of prompts that a cache holds as an array; None for 0, so that no cache is one program however said."""
    if given is None:
        return None
    require((given >= 0) & (given <= 1), "prefix_cache_hit_rate", given, "in [0, 1]", "it is a share")
    if is_concrete(given) and np.all(np.asarray(given) == 0.0):
        return None
    return given if isinstance(given, jax.Array) else np.asarray(given, dtype=np.float64)


def found_tokens(input_tokens: Any, hit_rate: Any) -> Any:
    """Of prompts, the tokens that a prefix cache holds: the share `hit_rate` in [0, 1], but for one token at the least.

    Real numbers, with a gradient in the share.
    """
    return minimum(hit_rate * input_tokens, input_tokens - 1.0)
