"""One way to say no: what, value, allowed, hint.

Checks act on concrete values only. Inside `jax.jit`, `vmap` or `grad` a value is a tracer and
has no number yet; there, functions return `inf` (overload) instead of raising.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np


def invalid(name: str, value: Any, allowed: str, hint: str = "") -> ValueError:
    """The error text of the whole product: ``name must be allowed, got value; hint``."""
    return ValueError(f"{name} must be {allowed}, got {_show(value)}" + (f"; {hint}" if hint else ""))


def unknown(kind: str, value: str, known: Iterable[str], hint: str = "") -> ValueError:
    """An unknown name is an error that lists the near ones; it never becomes another thing."""
    names = sorted(known)
    near = difflib.get_close_matches(str(value), names, n=3, cutoff=0.4)
    tail = f"did you mean {' or '.join(repr(n) for n in near)}? " if near else ""
    return ValueError(f"unknown {kind} {value!r}; {tail}known: {', '.join(names)}" + (f"; {hint}" if hint else ""))


def is_concrete(*values: Any) -> bool:
    """True where no value is a JAX tracer."""
    return not any(isinstance(v, jax.core.Tracer) for v in values)


def require(good: Any, name: str, value: Any, allowed: str, hint: str = "") -> None:
    """Raise `invalid` unless `good` holds everywhere; traced values pass unchecked.

    `good` is computed by the caller from `value`; NaN compares false and is therefore refused.
    """
    if is_concrete(good, value) and not np.all(np.asarray(good)):
        bad = np.asarray(value)
        if bad.ndim and bad.shape == np.shape(good):
            bad = bad[~np.asarray(good)][0]
        raise invalid(name, bad[()], allowed, hint)


def require_positive(name: str, value: Any, hint: str = "") -> None:
    """Finite and > 0."""
    v = value if not is_concrete(value) else np.asarray(value)
    require((v > 0) & (v < np.inf), name, value, "> 0 and finite", hint)


def require_non_negative(name: str, value: Any, hint: str = "") -> None:
    """Finite and >= 0."""
    v = value if not is_concrete(value) else np.asarray(value)
    require((v >= 0) & (v < np.inf), name, value, ">= 0 and finite", hint)


def require_x64() -> None:
    """Planning is done in float64; say the line to add where it is off."""
    if not jax.config.read("jax_enable_x64"):
        raise RuntimeError(
            "fleetgrad computes in float64 but JAX is in float32 mode; add "
            '`jax.config.update("jax_enable_x64", True)` before the first JAX computation '
            "(the environment variable JAX_ENABLE_X64=1 does the same)"
        )


def _show(value: Any) -> str:
    return repr(value.item()) if isinstance(value, np.generic) else repr(value)
