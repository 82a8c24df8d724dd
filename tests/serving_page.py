"""What the tests of `fleetgrad serve` share: a client, questions, and a process that stands in for a job's."""

import textwrap
import time
import warnings

import pytest

REASON = "fleetgrad serve needs the extra: pip install 'fleetgrad[serve]' httpx"
ORIGIN = "http://127.0.0.1:8765"
KEYS = {"what", "value", "allowed", "hint"}


def question(**changes):
    """Two pools of a preset under the reference model, which compiles in a second."""
    pools = [{"profile": "h100-80gb", "replicas": 6, "upper_tokens": 2048.0}, {"profile": "h100-80gb", "replicas": 4}]
    asked = {"workload": {"name": "azure"}, "rate_rps": 100.0, "ttft_p99_ms": 500.0, "model": "kimura"}
    return asked | {"max_context": 8192.0, "pools": pools} | changes


def open_client(folder, **limits):
    """A client of a server over a folder; to be used as a context, in which jobs run."""
    pytest.importorskip("fastapi", reason=REASON)
    pytest.importorskip("httpx", reason=REASON)
    with warnings.catch_warnings():  # starlette 1 asks for the successor of httpx, where httpx does as well
        warnings.simplefilter("ignore")
        from fastapi.testclient import TestClient
    from optim.web.app import create_app
    from optim.web.settings import Limits, ServerSettings

    app = create_app(ServerSettings(folder, limits=Limits(**limits)), warm=False)
    return TestClient(app, base_url=ORIGIN, raise_server_exceptions=False)


def ready(client, path, asked, seconds=300.0):
    """An answer, once what it needs is compiled."""
    end = time.monotonic() + seconds
    while True:
        found = client.post(path, json=asked)
        if found.status_code != 202 or time.monotonic() > end:
            return found
        assert found.json() == {"status": "compiling"}
        time.sleep(0.05)


def wait_for(client, key, *states, seconds=60.0):
    """A job, once it is in one of these states."""
    end = time.monotonic() + seconds
    while True:
        row = client.get(f"/api/jobs/{key}").json()
        if row["state"] in states:
            return row
        assert time.monotonic() < end, row
        time.sleep(0.02)


STAND_IN = """
import json, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
job = json.loads((folder / "job.json").read_text())
def say(**words):
    print(json.dumps(words), flush=True)
print("a library that prints")
say(progress="began")
if job["seed"] == 1:
    time.sleep(600)
if job["seed"] == 2:
    say(failed={"what": "rate", "value": 1, "allowed": "another", "hint": ""})
    sys.exit()
if job["seed"] == 3:
    sys.exit(7)
document = {"status": "ok", "inputs": {"rate_rps": {"value": 100.0}}, "design": {"pools": [], "gpus": 10}}
document |= {"cost_usd_per_hour": 30.0, "verification": {"verdict": "met", "overloaded": False, "slo_met": True}}
(folder / "out" / "simulation.json").write_text(json.dumps(document))
(folder / "out" / "report.html").write_text("<p>report</p>")
say(done=True)
"""
"""Speaks as `optim.web.run_job` does, and ends as the seed says."""


def stand_in(folder):
    """The command of a process that stands in for a job's."""
    import sys

    script = folder / "stand_in.py"
    script.write_text(textwrap.dedent(STAND_IN), encoding="utf-8")
    return (sys.executable, str(script))
