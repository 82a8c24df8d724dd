"""What a request was, as a short text: equal inputs have equal digests in every process and on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import PurePath
from typing import Any

import jax
import numpy as np


def digest(value: Any) -> str:
    """SHA-256 of all that a value is made of: numbers, texts, arrays, containers and objects of such.

    Raises:
        TypeError: something in it is of another kind, such as an open file.
    """
    return hashlib.sha256(b"".join(_parts(value))).hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    kind = type(value)
    yield f"<{kind.__module__}.{kind.__qualname__}".encode()
    if value is None or isinstance(value, bool | int | str | PurePath | Enum):
        yield repr(value).encode()
    elif isinstance(value, bytes):
        yield value
    elif isinstance(value, float):
        yield value.hex().encode()
    elif isinstance(value, np.ndarray | np.generic | jax.Array):
        yield from _array(np.asarray(value))
    elif isinstance(value, dict):
        yield from _parts([[key, value[key]] for key in sorted(value, key=repr)])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _parts(each)
    elif callable(value) and hasattr(value, "__code__"):
        closure = [cell.cell_contents for cell in value.__closure__ or ()]
        yield from _parts([value.__module__, value.__qualname__, value.__code__.co_code, closure])
    elif is_dataclass(value):
        for field in fields(value):
            yield from _parts([field.name, value.__dict__[field.name]])
    elif hasattr(value, "__dict__"):
        yield from _parts(vars(value))
    else:
        raise TypeError(f"a {kind.__qualname__} has no digest, so parts of what it is used for cannot be kept")
    yield b">"


def _array(values: np.ndarray) -> Iterator[bytes]:
    yield f"{values.dtype.descr} {values.shape}".encode()
    if values.dtype.hasobject:
        yield from _parts(values.tolist())
    else:
        yield np.ascontiguousarray(values).tobytes()


@cache
def sources(*packages: str) -> str:
    """SHA-256 of every module of some packages."""
    whole = hashlib.sha256()
    for package in packages:
        for source in _modules(resources.files(package)):
            whole.update(source.read_bytes())
    return whole.hexdigest()


def _modules(folder: Traversable) -> Iterator[Traversable]:
    """Every module below a folder, in the order of names."""
    for entry in sorted(folder.iterdir(), key=lambda p: p.name):
        if entry.is_dir():
            yield from _modules(entry)
        elif entry.name.endswith(".py"):
            yield entry
