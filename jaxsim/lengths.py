"""Lengths of requests under a change: multiplied, or cut to a context. NumPy or JAX arrays."""

from __future__ import annotations

from typing import Any

from jaxsim._ops import floor_div, maximum, minimum


def scaled_tokens(tokens: Any, factor: Any) -> Any:
    """Lengths times a factor > 0, to the nearest whole token and at least one. Gradient zero."""
    return maximum(floor_div(tokens * factor + 0.5, 1.0), 1.0)


def cut_tokens(input_tokens: Any, output_tokens: Any, max_context: Any) -> tuple[Any, Any]:
    """Prompts shortened so that no total exceeds `max_context`; at least one input token is kept."""
    outputs = minimum(output_tokens, max_context - 1)
    return minimum(input_tokens, max_context - outputs), outputs
