"""`fleetgrad serve`: jobs from the queue to their end, cancelled, failed, interrupted; and what they write."""

import io
import json
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from serving_page import KEYS, open_client, question, stand_in, wait_for

import optim

TRACE = "input_tokens,output_tokens\n" + "".join(f"{100 + at},{10 + at % 50}\n" for at in range(300))


@pytest.fixture
def data(tmp_path, monkeypatch):
    pytest.importorskip("fastapi", reason="fleetgrad serve needs its extra")
    from optim.web import jobs

    monkeypatch.setattr(jobs, "COMMAND", stand_in(tmp_path))
    return tmp_path / "data"


def submit(client, seed=0, **changes):
    found = client.post("/api/jobs", json={"kind": "verify", "question": question(seed=seed, **changes)})
    assert found.status_code == 201, found.text
    return found.json()["id"]


def test_a_job_is_done_and_its_files_can_be_fetched(data):
    with open_client(data) as client:
        key = submit(client)
        row = wait_for(client, key, "done", "failed")
        assert row["state"] == "done", row
        assert row["summary"]["cost_usd_per_hour"] == 30.0 and row["summary"]["tone"] == "good"
        assert row["started"] and row["ended"] and row["error"] is None
        report = client.get(f"/api/jobs/{key}/files/report.html")
        assert report.text == "<p>report</p>" and "attachment" in report.headers["content-disposition"]
        assert "sandbox" in report.headers["content-security-policy"]
        assert json.loads(client.get(f"/api/jobs/{key}/files/result.json").text)["status"] == "ok"
        plan = tomllib.loads(client.get(f"/api/jobs/{key}/files/plan.toml").text)
        assert plan["fleet"]["pools"][1]["replicas"] == 4
        other = client.get(f"/api/jobs/{key}/files/errors.log")
        assert other.status_code == 404 and set(other.json()) == KEYS
        assert client.get(f"/api/jobs/{key}/files/report.txt").status_code == 404  # not written
        assert client.delete(f"/api/jobs/{key}").status_code == 200
        assert client.get(f"/api/jobs/{key}").status_code == 404
    assert list((data / "jobs").iterdir()) == []


def test_one_runs_the_others_wait_and_both_can_be_cancelled(data):
    with open_client(data, queued=2) as client:
        first, second, third = submit(client, seed=1), submit(client), submit(client)
        assert wait_for(client, first, "running")["state"] == "running"
        assert client.get(f"/api/jobs/{second}").json()["state"] == "queued"
        submitted = client.post("/api/jobs", json={"kind": "verify", "question": question()})
        while submitted.status_code == 201:  # the first had not left the queue yet
            submitted = client.post("/api/jobs", json={"kind": "verify", "question": question()})
        assert submitted.status_code == 429 and submitted.json()["hint"]
        assert client.delete(f"/api/jobs/{first}").status_code == 409
        assert client.post(f"/api/jobs/{second}/cancel").json()["state"] == "cancelled"
        assert client.post(f"/api/jobs/{first}/cancel").json()["state"] == "cancelled"
        assert wait_for(client, third, "done", "failed")["state"] == "done"
        assert client.get(f"/api/jobs/{second}").json()["started"] is None
        again = client.post(f"/api/jobs/{first}/cancel")
        assert again.status_code == 409 and again.json()["value"] == "cancelled"


@pytest.mark.parametrize(("seed", "what"), [(2, "rate"), (3, "status 7")])
def test_a_job_that_fails_says_why_and_the_next_runs(data, seed, what):
    with open_client(data) as client:
        failed, after = submit(client, seed=seed), submit(client)
        row = wait_for(client, failed, "failed", "done")
        assert row["state"] == "failed" and what in row["error"]["what"] and set(row["error"]) == KEYS
        assert wait_for(client, after, "done", "failed")["state"] == "done"


def test_a_job_that_takes_too_long_is_ended(data):
    with open_client(data, job_s=0.8) as client:
        row = wait_for(client, submit(client, seed=1), "failed", "done")
        assert "longer than 0.8 s" in row["error"]["what"]


def test_after_a_restart_what_ran_is_interrupted_and_what_waited_runs(data):
    with open_client(data) as client:
        running, waiting = submit(client, seed=1), submit(client)
        wait_for(client, running, "running")
    with open_client(data) as client:
        row = wait_for(client, running, "interrupted")
        assert "run it again" in row["progress"]
        assert wait_for(client, waiting, "done", "failed")["state"] == "done"


def test_what_ran_when_a_server_died_is_interrupted(data):
    from optim.web.store import Store, now

    store = Store(data)
    row = {"id": "a" * 32, "kind": "plan", "label": "x", "state": "running", "progress": "round 1", "created": now()}
    store.insert("jobs", row | {"question": question()})
    store.close()
    (data / "jobs" / "half-made").mkdir(parents=True)
    (data / "uploads").mkdir()
    (data / "uploads" / "half-arrived.csv").write_text("x", encoding="utf-8")
    with open_client(data) as client:
        assert client.get(f"/api/jobs/{'a' * 32}").json()["state"] == "interrupted"
    assert not (data / "jobs" / "half-made").exists()
    assert list((data / "uploads").iterdir()) == []


def test_the_process_of_a_job_ends_with_its_server():
    script = "from optim.web.run_job import _end_with_server as end; end()"
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", script], stdin=subprocess.DEVNULL, cwd=root, timeout=120)
    assert done.returncode == 3


def test_inputs_are_a_plan_file_that_the_command_line_takes(data, tmp_path):
    from optim.build import plan_request
    from optim.config import read_settings

    with open_client(data) as client:
        upload = client.post("/api/uploads?name=Ours.csv&failed=keep", content=TRACE).json()
        asked = question(
            workload={"upload": upload["id"]},
            profiles=["h100-80gb", "a100-80gb"],
            usd_per_gpu_hour={"a100-80gb": 1.5},
            max_gpus=40,
            tpot_p99_ms=70.0,
        )
        found = client.post("/api/jobs", json={"kind": "plan", "question": asked})
        assert found.status_code == 201, found.text
        key = found.json()["id"]
        packed = client.get(f"/api/jobs/{key}/files/inputs.zip").content
        client.delete(f"/api/uploads/{upload['id']}")
        assert client.get(f"/api/jobs/{key}/files/inputs.zip").content == packed
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        archive.extractall(tmp_path / "inputs")
    assert {p.name for p in (tmp_path / "inputs").iterdir()} == {"plan.toml", "profile-2.toml", "workload.csv"}
    problem = plan_request(read_settings(tmp_path / "inputs" / "plan.toml", {})).problem
    assert [float(p.usd_per_gpu_hour) for p in problem.profiles][1] == 1.5
    assert [p.name for p in problem.profiles] == ["h100-80gb", "a100-80gb"]
    assert (problem.rate, problem.slo.ttft_p99_s, problem.slo.tpot_p99_s) == (100.0, 0.5, 0.07)
    assert (problem.max_gpus, problem.model, problem.max_pools, problem.context) == (40, "kimura", 2, 8192.0)


def inputs_of(folder, kind, trace=False, **changes):
    """The folder of a job, made as the queue makes it."""
    pytest.importorskip("fastapi", reason="fleetgrad serve needs its extra")
    from optim.web import job_files
    from optim.web.choices import resolve
    from optim.web.question import JobAsked
    from optim.web.settings import ServerSettings
    from optim.web.store import Store
    from optim.web.uploads import Uploads, options_of

    settings = ServerSettings(folder / "data")
    store = Store(settings.data)
    uploads = Uploads(store, settings)
    row = None
    if trace:
        path = settings.uploads / f"{'b' * 32}.csv"
        path.write_text(TRACE, encoding="utf-8")
        row = uploads.keep(path, "Ours.csv", options_of({}))
        changes["workload"] = {"upload": row["id"]}
    asked = JobAsked.model_validate({"kind": kind, "question": question(**changes)})
    made = folder / "job"
    path = Path() if row is None else uploads.path(row)
    job_files.write_inputs(made, asked, resolve(asked.question, uploads), row, path)
    store.close()
    return made, json.loads((made / job_files.JOB_FILE).read_text(encoding="utf-8"))


def test_verifying_writes_what_the_command_line_writes(tmp_path):
    from optim.web.run_job import run_verify
    from optim.web.summary import summary

    folder, job = inputs_of(tmp_path, "verify", trace=True, rate_rps=20.0)
    told = []
    run_verify(folder, job, told.append)
    assert told[0] == "reading the workload" and told[-1] == "writing the report"
    document = json.loads((folder / "out" / "simulation.json").read_text(encoding="utf-8"))
    found = summary("verify", document)
    assert found["slo_met"] is True and found["tone"] == "good" and found["requests"] > 0
    assert found["inputs"]["workload"] == "Ours.csv"
    assert found["simulated"]["ttft_p99_ms"]["low"] <= found["simulated"]["ttft_p99_ms"]["value"]
    report = (folder / "out" / "report.html").read_text(encoding="utf-8")
    assert "Ours.csv" in report and str(tmp_path) not in report


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_plan_that_is_impossible_is_a_result(tmp_path, monkeypatch, real):
    import importlib

    from optim.diagnose import Infeasible, Reason
    from optim.web.run_job import run_plan
    from optim.web.summary import summary

    def impossible(problem, *, seed, progress):
        progress("round 1")
        reasons = (Reason(Infeasible.PREFILL, "no fleet is that fast"),)
        return optim.Plan(optim.PlanStatus.INFEASIBLE, problem, seed, reasons=reasons)

    if not real:
        monkeypatch.setattr(importlib.import_module("optim.plan"), "plan", impossible)
    model = "step" if real else "kimura"  # the reference model holds the objective against the wait alone
    folder, job = inputs_of(tmp_path, "plan", trace=True, ttft_p99_ms=0.001, max_pools=1, model=model)
    told = []
    run_plan(folder, job, told.append)
    assert any(words.startswith("round 1") for words in told)
    found = summary("plan", json.loads((folder / "out" / "plan.json").read_text(encoding="utf-8")))
    assert found["status"] == "infeasible" and found["tone"] == "bad"
    assert found["reasons"] and found["cost_usd_per_hour"] is None and found["pools"] is None
    report = (folder / "out" / "report.html").read_text(encoding="utf-8")
    assert "Ours.csv" in report and str(tmp_path) not in report
