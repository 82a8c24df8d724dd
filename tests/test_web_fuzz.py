"""`fleetgrad serve`: hundreds of bad requests leave no error of the server, no file elsewhere and no job that hangs."""

import json
import random

import pytest
from serving_page import KEYS, open_client, question, ready, stand_in, wait_for

REQUESTS = 400

STRANGE = [
    None,
    True,
    0,
    -1,
    1.5,
    1e308,
    -1e308,
    10**400,
    float("nan"),
    float("inf"),
    "",
    "x",
    "..",
    "../../etc/passwd",
    "\x00",
    "\ud800",
    "🦉" * 200,
    "a" * 3_000,
    "azure",
    "h100-80gb",
    "llama-3.1-70b@h100-sxm:tp4:fp8:vllm",
    "llama-3.1-70b@h100-sxm:tp0",
    "llama-3.1-70b@h100-sxm:tp99999999999999999999:pp-1:fp8",
    "@:::@",
    "0" * 32,
    [],
    {},
    [[]],
    {"name": "azure"},
    ["h100-80gb"] * 3,
    {"h100-80gb": 1e999},
    [{"profile": "h100-80gb", "replicas": 10**9}],
    [{"profile": "h100-80gb", "replicas": 1, "upper_tokens": 2.0}] * 7,
]
"""Values that may stand where another is expected."""

PATHS = [
    "answer",
    "curve",
    "jobs",
    "workload",
    "uploads",
    "profile",
    "choices",
    "jobs/x",
    "jobs/x/cancel",
    "nothing",
    "",
]
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "BREW"]


def spoiled(rng, value):
    """The same with one thing in it that is strange, missing or new."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        rest = {k: v for k, v in value.items() if k != key}
        act = rng.random()
        if act < 0.15:
            return rest
        if act < 0.25:
            return value | {rng.choice(["", "x", "__class__", "\x00", "seed "]): rng.choice(STRANGE)}
        return value | {key: spoiled(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], spoiled(rng, value[at]), *value[at + 1 :]]
    return rng.choice(STRANGE)


def body(rng, asked):
    """Bytes that are JSON, nearly JSON, or nothing like it."""
    act = rng.random()
    if act < 0.75:
        return json.dumps(spoiled(rng, asked)).encode()
    text = json.dumps(asked).encode()
    if act < 0.85:
        at = rng.randrange(len(text))
        return text[:at] + bytes([rng.randrange(256)]) + text[at + rng.randrange(3) :]
    return rng.choice([b"", b"[" * 5_000, b"{" * 100, b"\xff\xfe", b"null", b"9" * 6_000, text * 30, b'{"a":1,"a":2}'])


def a_request(rng):
    """Method, path, headers and body."""
    kind = rng.random()
    asked = question()
    if kind < 0.55:
        path = rng.choice(["answer", "answer", "curve", "jobs", "workload"])
        asked = {"kind": rng.choice(["plan", "verify"]), "question": asked} if path == "jobs" else asked
        asked = asked["workload"] if path == "workload" else asked
        return "POST", f"/api/{path}", {"content-type": "application/json"}, body(rng, asked)
    if kind < 0.75:
        name = rng.choice(
            ["a.csv", "../a.csv", "a.json.gz", "a.parquet", "/etc/x.jsonl", "", "a.csv\x00", "é.tsv", "a.exe"]
        )
        content = rng.choice(
            [b"", b"\x1f\x8b" + rng.randbytes(50), b"a,b\n1,2\n", b"input_tokens,output_tokens\n-1,1e9\n"]
        )
        more = rng.choice(["", "&failed=maybe", "&time_unit=years", "&input_tokens=b", "&x=1", "&name=b.csv"])
        from urllib.parse import quote

        return "POST", f"/api/uploads?name={quote(name)}{more}", {}, rng.choice([content, rng.randbytes(300)])
    path = rng.choice(PATHS)
    other = rng.choice(["", "/", "/..", "/%2e%2e%2fserve.sqlite", "?name=%00", "?name=" + "x" * 5_000, "?view=maybe"])
    headers = rng.choice(
        [{}, {"content-type": "text/html"}, {"content-length": "-5"}, {"accept": "\x7f"}, {"range": "x"}]
    )
    return rng.choice(METHODS), f"/api/{path}{other}", headers, body(rng, asked) if rng.random() < 0.5 else b""


def test_bad_requests_do_no_harm(tmp_path, monkeypatch):
    pytest.importorskip("fastapi", reason="fleetgrad serve needs its extra")
    from optim.web import jobs

    folder = tmp_path / "data"
    monkeypatch.setattr(jobs, "COMMAND", stand_in(tmp_path))
    outside = {p for p in tmp_path.rglob("*") if folder not in p.parents}
    rng = random.Random(20_261_201)
    statuses: dict[int, int] = {}
    with open_client(folder, body_bytes=6_000, queued=1_000, kept=1_000) as client:
        ready(client, "/api/answer", question())
        ready(client, "/api/curve", question())
        for _ in range(REQUESTS):
            method, path, headers, content = a_request(rng)
            found = client.request(method, path, headers=headers, content=content)
            statuses[found.status_code] = statuses.get(found.status_code, 0) + 1
            assert found.status_code < 500, (method, path, content[:500], found.text)
            assert "Traceback" not in found.text and str(tmp_path) not in found.text
            if found.status_code >= 400 and method != "HEAD":
                assert set(found.json()) == KEYS, (method, path, found.text)
        listed = client.get("/api/jobs").json()["jobs"]
        for row in listed:  # a few questions were sound
            if row["state"] in ("queued", "running") and row["question"].get("seed", 0) == 1:
                client.post(f"/api/jobs/{row['id']}/cancel")
            state = wait_for(client, row["id"], "done", "failed", "cancelled")
            assert state["ended"] is not None
        kept = {row["id"] for row in client.get("/api/uploads").json()["uploads"]}
        assert ready(client, "/api/answer", question()).status_code == 200
    assert sum(number for status, number in statuses.items() if 400 <= status < 500) > 0.7 * REQUESTS
    assert {p.name[:32] for p in (folder / "uploads").iterdir()} == kept
    assert {p for p in tmp_path.rglob("*") if p != folder and folder not in p.parents} - outside <= {folder}
    assert {p.name for p in folder.iterdir()} <= {
        "jobs",
        "uploads",
        "serve.sqlite",
        "owner.sqlite",
        "owner.sqlite-journal",
        "serve.sqlite-journal",
    }
