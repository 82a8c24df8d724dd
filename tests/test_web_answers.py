"""`fleetgrad serve`: the sliders are told what the library and the command line say, and wrong input is named."""

import json

import numpy as np
import pytest
from serving_page import KEYS, open_client, question, ready
from test_architecture import modules_imported, sources
from typer.testing import CliRunner

import jaxsim
import optim
from optim.documents import analytic_entry, plain


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with open_client(tmp_path_factory.mktemp("serve")) as found:
        yield found


def evaluated(asked):
    """The same question to `jaxsim.evaluate`."""
    pools = asked["pools"]
    profiles = []
    for pool in pools:
        one = jaxsim.profile(pool["profile"])
        price = asked.get("usd_per_gpu_hour", {}).get(pool["profile"])
        profiles.append(one if price is None else jaxsim.Profile(**{**vars(one), "usd_per_gpu_hour": price}))
    upper = [pool.get("upper_tokens", asked["max_context"]) for pool in pools]
    design = jaxsim.FleetDesign.of(profiles, [float(pool["replicas"]) for pool in pools], upper)
    workload = jaxsim.workload(asked["workload"]["name"])
    return jaxsim.evaluate(design, workload, asked["rate_rps"], model=asked["model"])


def close(found, expected):
    """Equal documents but for the rounding of numbers."""
    assert set(found) == set(expected)
    for key, value in expected.items():
        if isinstance(value, float):
            assert found[key] == pytest.approx(value, rel=1e-9, abs=1e-12), key
        elif isinstance(value, list):
            for one, other in zip(found[key], value, strict=True):
                close(one, other)
        else:
            assert found[key] == value, key


MOVES = [
    {},
    {"rate_rps": 37.5},
    {"rate_rps": 900.0},  # overload
    {"ttft_p99_ms": 50.0, "tpot_p99_ms": 10.0},
    {"usd_per_gpu_hour": {"h100-80gb": 1.25}},
    {
        "pools": [
            {"profile": "a100-80gb", "replicas": 9, "upper_tokens": 1500.0},
            {"profile": "h100-80gb", "replicas": 2},
        ]
    },
]


@pytest.mark.parametrize("model", ["kimura", pytest.param("step", marks=pytest.mark.slow)])
def test_an_answer_is_what_evaluate_says(client, model):
    for move in MOVES:
        asked = question(model=model, **move)
        found = ready(client, "/api/answer", asked).json()
        figures = evaluated(asked)
        close(found["analytic"], plain(analytic_entry(figures)))
        assert found["cost_usd_per_hour"] == pytest.approx(float(figures.usd_per_hour), rel=1e-12)
        assert found["status"] == ("overloaded" if figures.overloaded else "ok")
        for name in ("ttft", "tpot"):
            limit = asked.get(f"{name}_p99_ms")
            worst = 1e3 * float(np.max(getattr(figures.pools, f"{name}_p99_s")))
            assert found["slo"][f"{name}_p99_ms"]["met"] == (None if limit is None else worst <= limit)


def test_an_answer_is_what_the_command_line_says(client, tmp_path):
    from optim.cli import app

    asked = question()
    pools = [
        f"[[fleet.pools]]\nprofile = '{p['profile']}'\nreplicas = {p['replicas']}\n"
        f"max_context = {p.get('upper_tokens', 8192.0)}\n"
        + (f"upper_tokens = {p['upper_tokens']}\n" if "upper_tokens" in p else "")
        for p in asked["pools"]
    ]
    file = tmp_path / "fleet.toml"
    text = f"[workload]\nname = 'azure'\nrate = 100.0\n[fleet]\nmodel = 'kimura'\n{''.join(pools)}"
    file.write_text(text, encoding="utf-8")
    done = CliRunner().invoke(app, ["simulate", str(file), "--requests", "2000", "--json"])
    assert done.exit_code == 0, done.stderr
    said = json.loads(done.stdout)
    found = ready(client, "/api/answer", asked).json()
    close(found["analytic"], said["analytic"])
    assert found["design"] == said["design"]


def test_a_move_of_a_slider_compiles_nothing(client, monkeypatch):
    import optim._compile

    ready(client, "/api/answer", question())

    def build(*_, **__):
        raise AssertionError("a program was made")

    monkeypatch.setattr(optim._compile, "_build", build)
    for at in range(5):
        asked = question(rate_rps=80.0 + at, ttft_p99_ms=300.0 + at, usd_per_gpu_hour={"h100-80gb": 2.0 + at})
        asked["pools"][0] |= {"replicas": 5 + at, "upper_tokens": 2000.0 + at}
        found = client.post("/api/answer", json=asked)
        assert found.status_code == 200
        assert found.json()["inputs"]["rate_rps"] == {"value": 80.0 + at, "source": "given on the page"}


def test_a_curve_is_of_the_sizes_that_a_front_has(client):
    asked = question()
    found = ready(client, "/api/curve", asked).json()
    points = {p["threshold_tokens"]: p for p in found["points"]}
    chosen = [cut for cut in points if cut < 8192.0][::9]
    workload, profile = jaxsim.workload("azure"), jaxsim.profile("h100-80gb")
    slo = optim.SLO(ttft_p99_s=0.5)
    problem = optim.PlanProblem(
        workload=workload, rate=100.0, profiles=(profile,), slo=slo, max_context=8192.0, model="kimura"
    )
    front = {p.threshold: p.usd_per_hour for p in optim.pareto(problem, thresholds=chosen).points}
    compared = [cut for cut in chosen if cut in front]
    assert len(compared) >= 3
    for cut in compared:
        assert points[cut]["cost_usd_per_hour"] == pytest.approx(front[cut])
    best = found["points"][found["best"]]
    assert best["cost_usd_per_hour"] == min(p["cost_usd_per_hour"] for p in points.values() if p["feasible"])


def test_an_upload_is_answered_as_the_trace_that_it_is(client, tmp_path):
    rng = np.random.default_rng(3)
    lines = ["arrived,prompt,generated"]
    lines += [f"{at * 0.1:.1f},{rng.integers(10, 2000)},{rng.integers(1, 300)}" for at in range(200)]
    content = "\n".join(lines)
    query = {"name": "My Trace.csv", "timestamp": "arrived", "input_tokens": "prompt", "output_tokens": "generated"}
    row = client.post("/api/uploads", params=query, content=content)
    assert row.status_code == 201, row.text
    facts = client.post("/api/workload", json={"upload": row.json()["id"]}).json()
    path = tmp_path / "trace.csv"
    path.write_text(content, encoding="utf-8")
    columns = {"timestamp": "arrived", "input_tokens": "prompt", "output_tokens": "generated"}
    workload = jaxsim.Workload.from_trace(path, columns=columns)
    assert facts["name"] == "My Trace.csv"
    assert facts["rate_rps"] == pytest.approx(workload.rate)
    assert facts["total_tokens"]["longest"] == float(np.max(workload.total_tokens))
    asked = question(workload={"upload": row.json()["id"]})
    del asked["rate_rps"]
    found = ready(client, "/api/answer", asked).json()
    design = jaxsim.FleetDesign.of(jaxsim.profile("h100-80gb"), [6.0, 4.0], [2048.0, 8192.0])
    figures = jaxsim.evaluate(design, workload, workload.rate, model="kimura")
    close(found["analytic"], plain(analytic_entry(figures)))
    assert found["inputs"]["rate_rps"]["source"] == "the workload's own rate"
    assert client.delete(f"/api/uploads/{row.json()['id']}").status_code == 200
    assert client.post("/api/answer", json=asked).status_code == 404


WRONG = [
    ({"rate_rps": 0}, "rate_rps", "greater than 0"),
    ({"rate_rps": "fast"}, "rate_rps", "number"),
    ({"ttft_p99_ms": -1}, "ttft_p99_ms", "greater than 0"),
    ({"ttft_p99_ms": None}, "ttft_p99_ms", "number"),
    ({"max_context": 1}, "max_context", "at least 2|greater than or equal to 2"),
    ({"max_context": 3.0}, "pools.0.upper_tokens", "less than the longest request, 3"),
    ({"model": "best"}, "model", "step"),
    ({"rat": 5}, "rat: unknown key", "known"),
    ({"workload": {}}, "workload", "exactly one"),
    ({"workload": {"name": "azure", "upload": "0" * 32}}, "workload", "exactly one"),
    ({"workload": {"name": "azur"}}, "workload.name", "azure"),
    ({"workload": {"upload": "../../etc/passwd"}}, "workload.upload", "pattern"),
    ({"workload": {"upload": "0" * 32}}, "upload", "id of an uploaded trace"),
    ({"workload": {"name": "sharegpt"}, "rate_rps": None}, "rate_rps", "requests per second"),
    ({"pools": []}, "pools", "at least 1"),
    ({"pools": [{"profile": "h100-80gb", "replicas": 0}]}, "pools.0.replicas", "greater than or equal to 1"),
    ({"pools": [{"profile": "h100-80gb", "replicas": 1.5}]}, "pools.0.replicas", "integer"),
    ({"pools": [{"profile": "h100-81gb", "replicas": 1}]}, "profile", "h100-80gb"),
    ({"pools": [{"profile": "/etc/passwd.toml", "replicas": 1}]}, "profile", "h100-80gb"),
    ({"pools": [{"profile": "h100-80gb", "replicas": 1, "upper_tokens": 99.0}]}, "pools.0.upper_tokens", "left out"),
    ({"pools": [{"profile": "h100-80gb", "replicas": 1}] * 2}, "pools.0.upper_tokens", "whole number"),
    (
        {"pools": [{"profile": "h100-80gb", "replicas": 1, "upper_tokens": 2048.5}] * 2},
        "pools.0.upper_tokens",
        "whole number",
    ),
    ({"usd_per_gpu_hour": {"h100-80gb": -2}}, "usd_per_gpu_hour.h100-80gb", "greater than or equal to 0"),
]


@pytest.mark.parametrize(("change", "what", "allowed"), WRONG)
def test_wrong_input_is_named(client, change, what, allowed):
    found = client.post("/api/answer", json=question(**change))
    assert 400 <= found.status_code < 500
    body = found.json()
    assert set(body) == KEYS
    assert what in body["what"]
    assert any(part in body["allowed"] for part in allowed.split("|")), body
    assert "Traceback" not in found.text


def test_a_curve_is_of_two_pools(client):
    asked = question(pools=[{"profile": "h100-80gb", "replicas": 3}])
    body = client.post("/api/curve", json=asked).json()
    assert body["what"] == "pools" and body["value"] == 1


def test_choices_and_their_example_are_sound(client, tmp_path):
    found = client.get("/api/choices").json()
    assert found["workloads"] == list(jaxsim.workload_names())
    for name in (*found["presets"], found["measured"][0]):
        facts = client.get("/api/profile", params={"name": name}).json()
        assert facts["usd_per_gpu_hour"] > 0 and facts["source"]
    from optim.web.choices import resolve
    from optim.web.question import Question
    from optim.web.settings import ServerSettings
    from optim.web.store import Store
    from optim.web.uploads import Uploads

    store = Store(tmp_path)
    example = resolve(Question.model_validate(found["example"]), Uploads(store, ServerSettings(tmp_path)))
    store.close()
    assert example.upper_tokens == (4096.0, 16384.0)
    refused = client.get("/api/profile", params={"name": "llama-3.1-70b@h100-smx:tp4"}).json()
    assert "h100-sxm" in json.dumps(refused)


def test_the_default_model_is_answered(client):
    """The same figures as the plots and reports of the command line have; `evaluate` itself is a slow test above."""
    from optim.figures import figures

    asked = question(model="step")
    found = ready(client, "/api/answer", asked).json()
    design = jaxsim.FleetDesign.of(jaxsim.profile("h100-80gb"), [6.0, 4.0], [2048.0, 8192.0])
    close(found["analytic"], plain(analytic_entry(figures(design, jaxsim.workload("azure"), 100.0, model="step"))))
    assert any("model, pool" in words for words in found["warnings"])


def test_nothing_else_needs_the_extra():
    """Only the modules that serve import its packages, and nobody else imports those."""
    extra, serving = {"fastapi", "starlette", "uvicorn"}, {"app", "guard", "listen"}
    for path in sources("optim"):
        tops = {name.split(".")[0] for name in modules_imported(path)}
        if path.parent.name != "web" or path.stem not in serving:
            assert not tops & extra, path
            within = {name.removeprefix("optim.web.").split(".")[0] for name in modules_imported(path)}
            assert not within & serving or path.name == "serve.py", path


def test_without_the_extra_the_command_says_what_to_install(monkeypatch):
    from optim.cli import app
    from optim.commands import serve

    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    done = CliRunner().invoke(app, ["serve"])
    assert done.exit_code == 2
    assert "pip install 'fleetgrad[serve]'" in done.stderr
