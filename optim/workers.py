"""Worker processes that run JAX programs: where they may, and where they keep what they trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import jax

from des.execution import Execution
from optim._compile import keep_programs, programs_folder


@dataclass(frozen=True)
class Programs:
    """Where the process that hands out tasks keeps its traced programs, for those that carry them out."""

    folder: Path | None

    @classmethod
    def here(cls) -> Programs:
        """Of this process."""
        return cls(programs_folder())

    def share(self) -> None:
        """Keep programs there too, unless this process keeps them somewhere already."""
        if programs_folder() is None:
            keep_programs(self.folder)


def require_cpu_workers(execution: Execution) -> None:
    """Worker processes compute on CPUs: each would claim the accelerators whole.

    Raises:
        ValueError: there are accelerators.
    """
    if not execution.alone and jax.default_backend() != "cpu":
        raise ValueError(
            f"workers must be left out where JAX computes on {jax.default_backend()!r}: one process uses every device "
            "already; JAX_PLATFORMS=cpu computes on CPUs"
        )
