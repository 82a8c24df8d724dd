"""The examples run, stay short, and use the public surface only."""

import re
import runpy
from pathlib import Path

import pytest

from optim.build import fleet_request, plan_request
from optim.config import read_settings

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = sorted(EXAMPLES.glob("[0-9]*.py"))
PLANS = sorted(EXAMPLES.glob("*.toml"))


RUNS = [pytest.param(p, id=p.name, marks=[pytest.mark.slow] if p.name == "07_grid_flex.py" else []) for p in SCRIPTS]


@pytest.mark.parametrize("script", RUNS)
def test_scripts_run_and_say_something(script, capsys):
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as absent:
        pytest.skip(str(absent.code))
    assert capsys.readouterr().out


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_short_and_touch_nothing_private(script):
    text = script.read_text()
    assert len(text.splitlines()) < 60
    assert not re.search(r"\b_[a-z]\w*\.|\._[a-z]|import _", text)


@pytest.mark.parametrize("plan", PLANS, ids=lambda path: path.name)
def test_plan_files_are_read(plan):
    settings = read_settings(plan, {})
    if settings.tables.fleet.pools is not None:
        assert fleet_request(settings).design.num_pools >= 1
    else:
        assert plan_request(settings).problem.rate > 0
