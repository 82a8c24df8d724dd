"""Who may import whom, who may print, and that an import computes nothing: read from the sources."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("jaxsim", "des", "optim")
OUTSIDE = {"examples", "tests", "benchmarks", "scripts"}

LAWS_AND_DATA = {"physics", "kv_transfer", "units", "profiles", "workload", "fleet", "power", "_checks", "_ops"}
"""What the simulator may use of the models: no queueing, occupancy or latency formula, lest it check a formula with
itself."""

MAY_PRINT = {Path("optim/cli.py")}
"""The command line, and everything in `optim/commands`."""


def sources(package):
    found = sorted((ROOT / package).rglob("*.py"))
    assert found
    return found


def modules_imported(path, root=ROOT):
    """Full names of what a file imports, anywhere in it."""
    package = ".".join(path.relative_to(root).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                parts = package.split(".")
                module = ".".join([*parts[: len(parts) - node.level + 1], *([module] if module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def imported_of(path, package):
    """Submodules of a package that a file imports; names that are not modules are left out."""
    for name in modules_imported(path):
        top, _, rest = name.partition(".")
        if top == package:
            first = rest.split(".")[0]
            is_module = (ROOT / package / f"{first}.py").exists() or (ROOT / package / first / "__init__.py").exists()
            yield first if is_module else ""


FILES = [pytest.param(path, id=str(path.relative_to(ROOT))) for package in PACKAGES for path in sources(package)]
FORBIDDEN = {"jaxsim": ("des", "optim"), "des": ("optim",), "optim": ()}


@pytest.mark.parametrize("path", FILES)
def test_imports_follow_the_arrows(path):
    """jaxsim <- des <- optim; nothing imports what stands outside."""
    package = path.relative_to(ROOT).parts[0]
    tops = {name.split(".")[0] for name in modules_imported(path)}
    assert not tops & {*FORBIDDEN[package], *OUTSIDE}
    if package == "des":
        used = {name for name in imported_of(path, "jaxsim") if name}
        assert used <= LAWS_AND_DATA, f"{path.name} uses {sorted(used - LAWS_AND_DATA)} of jaxsim"


def test_the_simulator_takes_no_other_name_from_the_models():
    """`from jaxsim import x` names a module, never a function of the package."""
    for path in sources("des"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "jaxsim":
                assert {alias.name for alias in node.names} <= LAWS_AND_DATA, path


def test_a_wrong_arrow_is_seen(tmp_path):
    """Plain, relative, and inside a function: a reader that finds nothing must be able to find something."""
    file = tmp_path / "des" / "imagined.py"
    file.parent.mkdir()
    text = "from jaxsim.queueing import erlang_c\nfrom .other import x\ndef f():\n    import optim.plan\n"
    file.write_text(text, encoding="utf-8")
    found = set(modules_imported(file, root=tmp_path))
    assert {"jaxsim.queueing", "jaxsim.queueing.erlang_c", "des.other", "optim.plan"} <= found


LOOP = [
    pytest.param(path, id=path.name) for path in sources("des") if path.name.startswith("_") and path.stem[1] != "_"
]


@pytest.mark.parametrize("path", LOOP)
def test_compiled_code_comes_from_the_files_of_its_fingerprint(path):
    """The loop's machine code is kept on disk and found again by the contents of `des/_*.py` and the physics; what
    else it were made of could change unseen."""
    own = {name for name in imported_of(path, "des") if name}
    assert all(name.startswith("_") for name in own), own
    assert {name for name in imported_of(path, "jaxsim") if name} <= {"physics", "_ops"}


def test_the_physics_stand_alone():
    assert set(imported_of(ROOT / "jaxsim" / "physics.py", "jaxsim")) <= {"_ops", ""}
    assert not set(imported_of(ROOT / "jaxsim" / "_ops.py", "jaxsim"))


def test_the_judge_shares_nothing_with_the_engine():
    """The slow stepper has the dispatcher's hash in common with it, which both must draw from, and no rule."""
    assert {name for name in imported_of(ROOT / "tests" / "stepper.py", "des") if name} == {"_random"}
    assert not set(imported_of(ROOT / "tests" / "stepper.py", "jaxsim"))


@pytest.mark.parametrize("path", FILES)
def test_nothing_prints_but_the_command_line(path):
    relative = path.relative_to(ROOT)
    if relative in MAY_PRINT or relative.parts[:2] == ("optim", "commands"):
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print", f"{relative}:{node.lineno}"


@pytest.mark.parametrize("path", FILES)
def test_no_jax_flag_is_set(path):
    """Only the command line may: whoever imports the packages chooses."""
    relative = path.relative_to(ROOT)
    if relative.parts[0] == "optim" and (relative in MAY_PRINT or relative.parts[1] == "commands"):
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            text = ast.unparse(node.func)
            assert not text.endswith("config.update"), f"{relative}:{node.lineno}"
        if isinstance(node, ast.Assign):
            assert not any("environ" in ast.unparse(t) for t in node.targets), f"{relative}:{node.lineno}"


CHECK = """
import sys
import jax
before = dict(jax.config.values)
import {module}
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized(), "a backend was started"
changed = {{k for k, v in jax.config.values.items() if before.get(k, v) != v}}
assert not changed, changed
assert not jax.config.jax_enable_x64
"""


@pytest.mark.parametrize("module", [*PACKAGES, "jaxsim.queueing", "optim.cli"])
def test_an_import_computes_nothing(module):
    """No backend starts and no flag changes, so the user can still choose device and precision."""
    done = subprocess.run(
        [sys.executable, "-c", CHECK.format(module=module)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
