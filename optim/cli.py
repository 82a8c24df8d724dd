"""The command line: `fleetgrad COMMAND`. Commands are in `optim.commands`; importing this does no computation."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperCommand

from optim.commands.compare_routers import compare_routers
from optim.commands.cost import cost
from optim.commands.disagg import disagg
from optim.commands.export import export
from optim.commands.fit import fit
from optim.commands.pareto import pareto
from optim.commands.plan import plan
from optim.commands.power import power
from optim.commands.profiles import profiles
from optim.commands.robust import robust
from optim.commands.schedule import schedule
from optim.commands.sensitivity import sensitivity
from optim.commands.serve import serve
from optim.commands.simulate import simulate
from optim.commands.trace import trace
from optim.commands.validate import validate
from optim.commands.whatif import whatif

app = typer.Typer(
    name="fleetgrad",
    help="Plan GPU fleets for LLM inference: differentiable queueing models, checked by simulation.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS = (
    plan,
    simulate,
    whatif,
    pareto,
    sensitivity,
    robust,
    schedule,
    disagg,
    power,
    cost,
    export,
    validate,
    compare_routers,
    fit,
    trace,
    profiles,
    serve,
)


class _Command(TyperCommand):
    """A command whose context is of the class that commands name in their signatures."""

    context_class = typer.Context


for command in COMMANDS:
    app.command(cls=_Command)(command)


def _version(asked: bool) -> bool:
    if asked:
        typer.echo(f"fleetgrad {version('fleetgrad')}")
        raise typer.Exit
    return asked


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Plan GPU fleets for LLM inference: differentiable queueing models, checked by simulation."""


def cache_folder() -> Path:
    """Where programs are kept between runs."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "fleetgrad"


_FOR_WORKERS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)
"""Settings that worker processes take from the environment: they compile nothing that is compiled already."""


def prepare_jax() -> None:
    """float64, and programs kept on disk so that a later run neither traces nor compiles them."""
    import jax

    from optim._compile import keep_programs

    jax.config.update("jax_enable_x64", True)
    try:
        (cache_folder() / "programs").mkdir(parents=True, exist_ok=True)
    except OSError:  # nowhere to write: every run compiles
        return
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    for name in _FOR_WORKERS:
        os.environ.setdefault(name.upper(), str(getattr(jax.config, name)))
    keep_programs(cache_folder() / "programs")


def main() -> None:
    """The entry point."""
    prepare_jax()
    app()
