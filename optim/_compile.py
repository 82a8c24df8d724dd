"""Programs of a plan: compiled fast, and kept between runs so that a later run does not even trace them.

A plan runs a handful of JAX programs a few times each, so tracing and compiling them costs far more than running
them. `program` compiles with little optimisation (`fast=False` for those that run long), and `keep_programs` makes
it store each traced program (`jax.export`) beside JAX's own cache of compiled ones. The key is a digest of the
sources of the models, the versions, and the shapes and static arguments; a changed source is another program.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
import threading
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from des.digest import sources

_FAST_COMPILE = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
"""On CPUs, a quarter of the compilation time for three to four times the (much shorter) run time."""

_folder: list[Path] = []

Compiled = Callable[[list[Any]], list[Any]]


def keep_programs(folder: Path | None) -> None:
    """Keep traced programs in `folder` (created when needed) from now on; None keeps none."""
    _folder[:] = [] if folder is None else [folder]


def programs_folder() -> Path | None:
    """Where traced programs are kept; worker processes are told, and share it."""
    return _folder[0] if _folder else None


def program(function: Callable[..., Any] | None = None, *, fast: bool = True) -> Callable[..., Any]:
    """Decorator like `equinox.filter_jit`: arrays are traced, everything else is static.

    Args:
        function: of pytrees to a pytree of arrays.
        fast: compile fast rather than run fast.
    """
    if function is None:
        return lambda f: program(f, fast=fast)
    compiled: dict[Any, tuple[Compiled, Any]] = {}
    building = threading.Lock()

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        arrays, static = eqx.partition((args, kwargs), eqx.is_array)
        leaves, shape = jax.tree.flatten(arrays)
        leaves = [jnp.asarray(v, dtype=v.dtype) for v in leaves]  # a weak type would compile anew
        fixed, fixed_shape = jax.tree.flatten(static)
        key = (shape, fixed_shape, tuple(fixed), tuple((v.shape, v.dtype) for v in leaves))
        if key not in compiled:
            with building:  # another thread may be at it: see `optim.plan`
                if key not in compiled:
                    run, template = _build(function, key, leaves, shape, static, _options() if fast else {})
                    results = run(leaves)  # compiles
                    compiled[key] = run, template
                    return jax.tree.unflatten(jax.tree.structure(template), results)
        run, template = compiled[key]
        return jax.tree.unflatten(jax.tree.structure(template), run(leaves))

    return call


def _build(
    function: Callable[..., Any], key: Any, leaves: list[Any], shape: Any, static: Any, options: dict[str, Any]
) -> tuple[Compiled, Any]:
    """The compiled function of flat arrays, and a pytree of the result's structure."""
    templates: list[Any] = []

    def flat(values: list[Any]) -> list[Any]:
        args, kwargs = eqx.combine(jax.tree.unflatten(shape, values), static)
        out = function(*args, **kwargs)
        results, structure = jax.tree.flatten(out)
        templates[:] = [jax.tree.unflatten(structure, list(range(len(results))))]
        return [jnp.asarray(v) for v in results]

    if not _folder:
        run = jax.jit(flat, compiler_options=options)
        jax.eval_shape(flat, leaves)
        return run, templates[0]
    path = _folder[0] / f"{_digest(function, key, options)}.program"
    if (stored := _load(path)) is None:
        exported = jax.export.export(jax.jit(flat))(leaves)
        stored = exported, templates[0]
        _store(path, exported, templates[0])
    exported, template = stored
    return jax.jit(exported.call, compiler_options=options), template


def _digest(function: Callable[..., Any], key: Any, options: dict[str, Any]) -> str:
    text = f"{_environment()} {function.__module__}.{function.__qualname__} {key} {sorted(options)}"
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _environment() -> str:
    """Versions, backend and sources that a traced program depends on."""
    x64 = jax.config.read("jax_enable_x64")
    return f"{jax.__version__} {jax.default_backend()} {x64} {sources('jaxsim', 'optim')}"


def _load(path: Path) -> tuple[Any, Any] | None:
    """A stored program; None where there is none or it cannot be read, which costs a trace and no more."""
    try:
        serialized, template = pickle.loads(path.read_bytes())
        return jax.export.deserialize(serialized), template
    except (OSError, ValueError, pickle.UnpicklingError, EOFError, AttributeError, ImportError):
        return None


def _store(path: Path, exported: Any, template: Any) -> None:
    """Write whole or not at all; a cache that cannot be written is not an error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(pickle.dumps((bytes(exported.serialize()), template)))
        os.replace(file.name, path)
    except OSError:
        return


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
