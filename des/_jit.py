"""How a plain function becomes part of the compiled hot loop.

`jit` is for the pieces: compiled into whatever calls them, never cached alone; `inline` is the same for small ones that
must cost no call. `entry` is for a function that Python calls: its machine code is kept on disk, under a name with a
fingerprint of every source file that goes into it, because numba itself only watches the file of the entry point. `law`
compiles a function of `jaxsim.physics` together with the laws it calls.

All are compiled without numba's reference counting (`_nrt=False`): its atomic counters took more than half of
the loop's time. So the compiled code allocates nothing; arrays are made by the Python caller, which also
keeps them.

The state of the loop is a named tuple of some fifty arrays. Handing it to a function would copy some three hundred
words, so the entry point takes its address once (`by_reference`) and the pieces see fields through it.

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
import numpy as np
from numba.core import cgutils, types
from numba.core.imputils import lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, intrinsic, models, register_model

from jaxsim import _ops, physics


def _fingerprint() -> str:
    files = [*sorted(Path(__file__).parent.glob("_*.py")), Path(physics.__file__)]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


_numba_settings: Any = numba.config
COMPILED = not _numba_settings.DISABLE_JIT
"""Whether there is a compiler at all: with ``NUMBA_DISABLE_JIT=1`` the loop is plain Python."""

OPTIONS: dict[str, Any] = {"nogil": True, "_nrt": False}
FINGERPRINT = _fingerprint()


def jit(function: Callable) -> Any:
    """A piece of the hot loop."""
    return numba.njit(**OPTIONS)(inspect.unwrap(function))


def inline(function: Callable) -> Any:
    """A small piece of the hot loop, inlined where it is called."""
    return numba.njit(**OPTIONS, forceinline=True)(inspect.unwrap(function))


def entry(function: Callable) -> Any:
    """A compiled function that Python calls; cached on disk where some cache folder can be written."""
    plain: Any = inspect.unwrap(function)
    plain.__qualname__ += f"_{FINGERPRINT}"
    try:
        return numba.njit(**OPTIONS, cache=True)(plain)
    except RuntimeError:  # numba found no folder to write to
        return numba.njit(**OPTIONS)(plain)


@inline
def _ceil_div(x, y):
    return np.ceil(x / y)


@inline
def _maximum(x, y):
    return max(x, y)


PRIMITIVES: dict[str, Any] = {_ops.ceil_div.__name__: _ceil_div, _ops.maximum.__name__: _maximum}
"""The primitives of `jaxsim._ops` for numbers, without their choice of a library."""


def law(function: Callable) -> Any:
    """A law of `jaxsim.physics` for the hot loop, with the laws it calls."""
    plain: Any = inspect.unwrap(function)
    if plain.__name__ in PRIMITIVES:
        return PRIMITIVES[plain.__name__]
    called = (name for name in plain.__code__.co_names if inspect.isfunction(plain.__globals__.get(name)))
    scope = {**plain.__globals__, **{name: law(plain.__globals__[name]) for name in called}}
    return inline(FunctionType(plain.__code__, scope, plain.__name__, plain.__defaults__))


class Reference(types.Type):
    """The address of a named tuple, for compiled code."""

    def __init__(self, target: types.NamedTuple) -> None:
        self.target = target
        super().__init__(name=f"Reference({target})")


register_model(Reference)(models.OpaqueModel)


def _type_of_field(template: AttributeTemplate, reference: Reference, name: str) -> Any:
    fields = reference.target.fields
    return reference.target.types[fields.index(name)] if name in fields else None


@infer_getattr
class _Fields(AttributeTemplate):
    key = Reference
    generic_resolve: Any = _type_of_field


@lower_getattr_generic(Reference)
def _field(context: Any, builder: Any, reference: Reference, value: Any, name: str) -> Any:
    struct = context.get_value_type(reference.target).as_pointer()
    place = reference.target.fields.index(name)
    return builder.load(cgutils.gep_inbounds(builder, builder.bitcast(value, struct), 0, place))


@intrinsic
def _address_of(typing: Any, target: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = cgutils.alloca_once_value(builder, arguments[0])
        return builder.bitcast(place, cgutils.voidptr_t)

    return Reference(target)(target), generate


def _itself(target: Any) -> Any:
    return target


by_reference: Any = _address_of if COMPILED else _itself
"""The address of a named tuple, for as long as the compiled function that asks for it runs; without compiler itself."""
