"""How a plain function becomes part of the compiled hot loop.

Three decorators. `jit` is for the pieces: compiled into whatever calls them, never cached alone. `entry` is
for a function that Python calls: its machine code is kept on disk, under a name that holds a fingerprint of
every source file that goes into it, because numba itself only watches the file of the entry point. `law`
compiles a function of `jaxsim.physics` together with the laws it calls.

All are compiled without numba's reference counting (`_nrt=False`): its atomic counters took more than half of
the loop's time. So the compiled code allocates nothing; arrays are made by the Python caller, which also
keeps them.

All of them unwrap first: a type-checking import hook may have wrapped the function already. With
``NUMBA_DISABLE_JIT=1`` every one of them returns the plain function.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import numba

from jaxsim import physics


def _fingerprint() -> str:
    files = [*sorted(Path(__file__).parent.glob("_*.py")), Path(physics.__file__)]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


OPTIONS: dict[str, Any] = {"nogil": True, "_nrt": False}
FINGERPRINT = _fingerprint()


def jit(function: Callable) -> Any:
    """A piece of the hot loop, inlined where it is called."""
    return numba.njit(**OPTIONS, forceinline=True)(inspect.unwrap(function))


def entry(function: Callable) -> Any:
    """A compiled function that Python calls; cached on disk where some cache folder can be written."""
    plain: Any = inspect.unwrap(function)
    plain.__qualname__ += f"_{FINGERPRINT}"
    try:
        return numba.njit(**OPTIONS, cache=True)(plain)
    except RuntimeError:  # numba found no folder to write to
        return numba.njit(**OPTIONS)(plain)


def law(function: Callable) -> Any:
    """A law of `jaxsim.physics` for the hot loop, with the laws it calls."""
    plain: Any = inspect.unwrap(function)
    called = (name for name in plain.__code__.co_names if inspect.isfunction(plain.__globals__.get(name)))
    scope = {**plain.__globals__, **{name: law(plain.__globals__[name]) for name in called}}
    return jit(FunctionType(plain.__code__, scope, plain.__name__))
