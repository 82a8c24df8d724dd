"""`fleetgrad serve`: who may ask, how much may be sent, and what no client can reach."""

import gzip
import io

import numpy as np
import polars as pl
import pytest
from serving_page import KEYS, ORIGIN, open_client, question

LIMIT = 20_000
TRACE = "input_tokens,output_tokens\n" + "100,10\n" * 50


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("outside") / "data"


@pytest.fixture(scope="module")
def client(folder):
    limits = {"upload_bytes": LIMIT, "unpacked_bytes": 50_000, "body_bytes": 5_000, "uploads": 3}
    with open_client(folder, trace_requests=1_000, **limits) as found:
        yield found


def refused(found, status, what):
    assert found.status_code == status, found.text
    assert set(found.json()) == KEYS
    assert what in found.json()["what"]


HOSTS = [
    "evil.example",
    "evil.example:8765",
    "127.0.0.1.evil.example",
    "127.0.0.1@evil.example",
    "",
    "127.0.0.1:x",
    "[",
]


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("path", ["/", "/api/jobs", "/static/app.js", "/nothing"])
def test_a_name_that_is_not_this_machine_is_refused(client, host, path):
    refused(client.get(path, headers={"host": host}), 421, "Host header")


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:8765", "LOCALHOST"])
def test_names_of_this_machine_are_answered(client, host):
    assert client.get("/", headers={"host": host}).status_code == 200


ORIGINS = ["http://evil.example", "null", "http://127.0.0.1:9999", "http://localhost:8765", "file://127.0.0.1:8765", ""]


@pytest.mark.parametrize("origin", ORIGINS)
def test_what_changes_something_must_come_from_the_page(client, origin):
    headers = {"origin": origin}
    for path in ("/api/jobs", "/api/answer", "/api/uploads?name=a.csv", "/api/jobs/x/cancel"):
        refused(client.post(path, headers=headers, content="{}"), 403, "Origin header")
    refused(client.delete("/api/jobs/x", headers=headers), 403, "Origin header")


def test_the_page_itself_and_programs_are_answered(client):
    for headers in ({"origin": ORIGIN, "sec-fetch-site": "same-origin"}, {}):
        assert client.post("/api/workload", json={"name": "azure"}, headers=headers).status_code == 200
    asked = {"sec-fetch-site": "cross-site"}
    refused(client.post("/api/workload", json={"name": "azure"}, headers=asked), 403, "Sec-Fetch-Site")


def test_a_form_of_another_site_cannot_speak_json(client):
    found = client.post("/api/workload", content='{"name": "azure"}', headers={"content-type": "text/plain"})
    assert found.status_code == 422 and set(found.json()) == KEYS


def test_no_answer_lets_another_site_read_it(client):
    for path in ("/", "/api/choices", "/nothing"):
        headers = client.get(path, headers={"origin": "http://evil.example"}).headers
        assert not [name for name in headers if name.startswith("access-control")]
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert client.options("/api/jobs", headers={"origin": ORIGIN}).status_code == 405


def test_the_page_names_no_other_machine(client):
    from optim.web.app import ASSETS

    page = client.get("/").text
    for name in ASSETS:
        found = client.get(f"/static/{name}")
        assert found.status_code == 200
        page += found.text.replace("http://www.w3.org/2000/svg", "")  # a name, never fetched
    assert "http://" not in page and "https://" not in page
    assert "innerHTML" not in page and "eval(" not in page


def test_a_body_that_is_too_long_is_refused(client):
    refused(client.post("/api/answer", content=b"x" * 6_000), 413, "body")

    def streamed():
        for _ in range(10):
            yield b"x" * 1_000

    found = client.post("/api/answer", content=streamed(), headers={"content-type": "application/json"})
    assert found.status_code == 413 and set(found.json()) == KEYS


def files(folder):
    """All files beside and below the data folder but those of the database."""
    return {p.relative_to(folder.parent) for p in folder.parent.rglob("*") if p.is_file() and "sqlite" not in p.name}


def test_an_upload_that_is_too_large_is_refused_before_it_is_kept(client, folder):
    before = files(folder)
    refused(client.post("/api/uploads?name=a.csv", content=b"x" * (LIMIT + 1)), 413, "upload")
    taken = []

    def streamed():
        for _ in range(1_000):
            taken.append(1)
            yield b"x" * 1_000

    refused(client.post("/api/uploads?name=a.csv", content=streamed()), 413, "upload")
    assert files(folder) == before
    packed = gzip.compress(b"input_tokens,output_tokens\n" + b"100,10\n" * 20_000)
    assert len(packed) < LIMIT
    refused(client.post("/api/uploads?name=a.csv.gz", content=packed), 413, "upload")
    table = io.BytesIO()
    ones = np.ones(2_000, dtype=np.int64)
    pl.DataFrame({"input_tokens": ones, "output_tokens": ones}).write_parquet(table)
    refused(client.post("/api/uploads?name=a.parquet", content=table.getvalue()), 413, "upload")
    assert files(folder) == before


BROKEN = [
    ("a.csv", b"", "empty"),
    ("a.csv", b"prompt,words\n1,2\n", "a.csv"),
    ("a.csv", b"input_tokens,output_tokens\n100,ten\n", "a.csv"),
    ("a.csv.gz", b"not gzip", ""),
    ("a.csv.gz", gzip.compress(b"input_tokens,output_tokens\n" + b"1,1\n" * 9)[:-12], ""),
    ("a.parquet", b"PAR1 but not", ""),
    ("a.jsonl", b"{", "a.jsonl"),
    ("a.json", b"[[[[", "a.json"),
    ("a.csv", b"\xff\xfe\x00\x00", ""),
]


@pytest.mark.parametrize(("name", "content", "said"), BROKEN)
def test_a_file_that_is_no_trace_is_refused_and_not_kept(client, folder, name, content, said):
    before = files(folder)
    found = client.post("/api/uploads", params={"name": name}, content=content)
    assert 400 <= found.status_code < 500, found.text
    assert set(found.json()) == KEYS
    assert said in found.json()["what"]
    assert str(folder) not in found.text and "Traceback" not in found.text
    assert files(folder) == before


NAMES = [
    "../../escape.csv",
    "/etc/cron.d/x.csv",
    "..\\..\\x.csv",
    "a/b/../../../c.csv",
    "nul\x00.csv",
    "~/x.csv",
    "🦉.csv",
]


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_an_upload_is_a_label_and_no_path(client, folder, name):
    before = files(folder)
    found = client.post("/api/uploads", params={"name": name}, content=TRACE)
    assert found.status_code == 201, found.text
    row = found.json()
    assert "/" not in row["label"] and "\\" not in row["label"]
    new = files(folder) - before
    assert {str(p) for p in new} == {f"data/uploads/{row['id']}.csv"}
    assert client.delete(f"/api/uploads/{row['id']}").status_code == 200
    assert files(folder) == before


@pytest.mark.parametrize("name", ["", "a", ".csv", "a.exe", "a.csv.exe", "csv", "a.csv/"])
def test_other_endings_are_refused(client, name):
    refused(client.post("/api/uploads", params={"name": name}, content=TRACE), 422, "name")


def test_only_so_many_uploads_are_kept(client):
    rows = [client.post("/api/uploads?name=a.csv", content=TRACE).json() for _ in range(3)]
    refused(client.post("/api/uploads?name=a.csv", content=TRACE), 409, "uploads")
    for row in rows:
        client.delete(f"/api/uploads/{row['id']}")


PATHS = [
    "/static/../app.py",
    "/static/..%2fapp.py",
    "/static/%2e%2e/%2e%2e/pyproject.toml",
    "/static/index.html",
    "/api/jobs/..%2f..%2fserve.sqlite/files/report.html",
    "/api/jobs/x/files/..%2f..%2fserve.sqlite",
    "/api/uploads/..%2fserve.sqlite",
    "//etc/passwd",
    "/docs",
    "/openapi.json",
]


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leads_to_another_file(client, path):
    found = client.get(path)
    assert found.status_code in (404, 405) and set(found.json()) == KEYS


def test_a_second_server_does_not_take_the_folder(client, folder):
    from optim.web.store import BusyError, Store

    with pytest.raises(BusyError, match="in use by another server"):
        Store(folder)


def test_a_job_of_a_question_that_is_wrong_is_not_queued(client):
    asked = {"kind": "plan", "question": question(profiles=["../x.toml"])}
    refused(client.post("/api/jobs", json=asked), 422, "profile")
    assert client.get("/api/jobs").json()["jobs"] == []
