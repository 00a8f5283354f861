"""Whatever a client sends, or fails to send: a clear answer, nothing left behind, nothing grown."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psutil
import pytest
from fastapi import FastAPI

from carbonq import jsonl
from carbonq.api import body, guard
from carbonq.api.app import create_app
from carbonq.api.connection import MAX_HEAD_BYTES, Connection
from carbonq.errors import StoreUnavailable
from carbonq.store.database import Database
from carbonq.units import iso
from tests.api.harness import EMBEDDER, Harness, serving, until
from tests.api.inprocess import Answer, InProcess, in_process, mighty
from tests.api.test_jobs import NDJSON, assert_nothing_stays, finish, lines

SUBMIT = "/v1/jobs?endpoint=/v1/embeddings&model=wordllama-256&deadline=6h"
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def app(harness: Harness) -> FastAPI:
    return create_app(harness.api, background=[])


@pytest.fixture
def near(harness: Harness, app: FastAPI) -> Iterator[InProcess]:
    with in_process(app, mighty(harness)) as client:
        yield client


def job(**fields: Any) -> dict[str, Any]:
    return {"kind": "embeddings", "model": EMBEDDER, "deadline": "6h", "items": ["x"], **fields}


def refused(answer: Answer, status: int, code: str, *words: str) -> None:
    assert (answer.status, answer.code) == (status, code), answer.body[:500]
    assert len(answer.body) < 20_000
    for word in words:
        assert word in answer.json()["detail"], answer.json()["detail"]
    assert answer.headers["x-request-id"] and answer.headers["content-type"] == "application/problem+json"


def test_compressed_bodies_are_refused_unread(harness: Harness, app: FastAPI, near: InProcess) -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    assert len(bomb) < 60_000
    for path, methods in app.openapi()["paths"].items():
        if "post" in methods:
            answer = near.ask("POST", path, body=bomb, headers={**JSON, "Content-Encoding": "gzip"})
            refused(answer, 415, "unsupported_encoding", "gzip")
            assert answer.headers["accept-encoding"] == "identity"
    assert near.ask("POST", SUBMIT, body=lines(1), headers={**NDJSON, "Content-Encoding": "identity"}).status == 202
    answer = near.ask("POST", SUBMIT, body=gzip.compress(lines(1)), headers=NDJSON)
    refused(answer, 400, "invalid_json_line", "gzip file; unpack it first")


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def test_deep_nesting_is_refused_above_its_limit(harness: Harness, near: InProcess) -> None:
    most = jsonl.MAX_DEPTH

    def inline(value: str) -> Answer:
        text = json.dumps(job(items=[{"custom_id": "a", "body": {"input": "x", "extra": "HERE"}}]))
        return near.ask("POST", "/v1/jobs", body=text.replace('"HERE"', value).encode(), headers=JSON)

    # Around it are the body, its list of items, the item and its body.
    assert inline(nested(most - 4)).status == 202
    refused(inline(nested(most - 3)), 400, "invalid_json", f"{most} levels")
    for deep in (nested(most), nested(900), nested(100_000)):
        refused(near.ask("POST", "/v1/embeddings", body=f'{{"input":{deep}}}'.encode()), 400, "invalid_json")
        line = f'{{"custom_id":"a","body":{{"input":"x","extra":{deep}}}}}'.encode()
        refused(near.ask("POST", SUBMIT, body=line, headers=NDJSON), 400, "invalid_json_line")
    line = f'{{"custom_id":"a","body":{{"input":"x","extra":{nested(most - 2)}}}}}'.encode()
    assert near.ask("POST", SUBMIT, body=line, headers=NDJSON).status == 202


LONG = "x" * 1_000_000


@pytest.mark.parametrize(
    ("method", "target", "sent", "status", "code"),
    [
        ("GET", f"/v1/jobs/{LONG}", None, 414, "target_too_long"),
        ("GET", f"/v1/jobs?after={LONG}", None, 414, "target_too_long"),
        ("GET", "/v1/jobs/" + "x" * 8_000, None, 404, "not_found"),
        ("GET", "/v1/jobs?after=" + "x" * 8_000, None, 400, "invalid_request"),
        ("GET", "/v1/jobs?limit=" + "1" * 8_000, None, 400, "invalid_request"),
        ("POST", "/v1/jobs", job(model=LONG), 400, "model_not_found"),
        ("POST", "/v1/jobs", job(kind=LONG), 400, "invalid_request"),
        ("POST", "/v1/jobs", job(regions=[LONG]), 400, "region_not_found"),
        ("POST", "/v1/jobs", job(deadline=LONG), 400, "invalid_request"),
        ("POST", "/v1/jobs", job(deadline="9" * 1_000_000 + "h"), 400, "invalid_request"),
        ("POST", "/v1/jobs", job(product_line=LONG), 400, "invalid_request"),
        ("POST", "/v1/jobs", job(max_carbon_g="9" * 1_000_000), 400, "invalid_request"),
        ("POST", "/v1/jobs", job(metadata={LONG: "x"}), 400, "invalid_request"),
        ("POST", "/v1/jobs", job(**{LONG: "x"}), 400, None),
        ("POST", "/v1/jobs", job(items=[{"custom_id": LONG, "body": {"input": "x"}}]), 400, "invalid_value"),
        ("POST", "/v1/quotes", job(items=int("9" * 300), tokens=1), 400, None),
        ("POST", "/v1/embeddings", {"model": LONG, "input": "x"}, 400, "model_not_found"),
        ("POST", "/v1/embeddings", {"model": EMBEDDER, "input": "x", "carbon": {LONG: 1}}, 400, None),
        ("POST", "/v1/embeddings", {"model": EMBEDDER, "input": "x", "carbon": {"regions": [LONG]}}, 400, None),
        ("POST", "/v1/embeddings", {"model": EMBEDDER, "input": "x", "carbon": {"session": LONG}}, 400, None),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_endless_ids_and_values(
    harness: Harness, near: InProcess, method: str, target: str, *, sent: Any, status: int, code: str | None
) -> None:
    answer = near.ask(method, target, body=b"" if sent is None else json.dumps(sent).encode(), headers=JSON)
    refused(answer, status, code or answer.code)
    assert_nothing_stays(harness)


def test_the_limit_of_targets(near: InProcess) -> None:
    path = "/v1/jobs/"
    fits = near.ask("GET", path + "x" * (guard.MAX_TARGET_BYTES - len(path)))
    assert fits.status == 404
    refused(near.ask("GET", path + "x" * (guard.MAX_TARGET_BYTES - len(path) + 1)), 414, "target_too_long", "8,192")


def test_content_types_that_no_route_takes(harness: Harness, near: InProcess) -> None:
    for target in (SUBMIT, "/v1/quotes", "/v1/embeddings", "/v1/chat/completions"):
        for media_type in ("application/xml", "multipart/form-data; boundary=x", "image/png", "text/csv"):
            answer = near.ask("POST", target, body=b"<x/>", headers={"Content-Type": media_type})
            refused(answer, 415, "unsupported_media_type", media_type.partition(";")[0], "application/json")
    assert_nothing_stays(harness)
    call = json.dumps({"model": EMBEDDER, "input": "x"}).encode()
    fine = ("application/json; charset=utf-8", "APPLICATION/JSON", "application/vnd.x+json", "text/plain", "")
    for media_type in fine:
        assert near.ask("POST", "/v1/embeddings", body=call, headers={"Content-Type": media_type}).status == 200


def test_what_is_no_utf8(near: InProcess) -> None:
    refused(near.ask("POST", "/v1/jobs", body=b'{"kind":"\xff"}', headers=JSON), 400, "invalid_json")
    refused(near.ask("POST", "/v1/jobs", body=b'{"kind":"\\ud800"}', headers=JSON), 400, "invalid_json")
    line = b'{"custom_id":"a","body":{"input":"\xff"}}'
    refused(near.ask("POST", SUBMIT, body=line, headers=NDJSON), 400, "invalid_json_line", "not UTF-8", "0xff")
    refused(near.ask("GET", "/v1/jobs?after=%ff%fe"), 400, "invalid_request")
    refused(near.ask("GET", "/v1/jobs", headers={"Authorization": "Bearer cq_ÿ"}), 401, "invalid_api_key")
    odd = {**NDJSON, "Idempotency-Key": "\x85"}
    refused(near.ask("POST", SUBMIT, body=lines(1), headers=odd), 400, "invalid_request", "Idempotency-Key")


def test_nul_characters(app: FastAPI, near: InProcess) -> None:
    for target in ("/v1/jobs/a\0b", "/v1/jobs?after=%00", "/v1/ledger?job_id=a%00b"):
        refused(near.ask("GET", target), 400, "invalid_request", "NUL")
    sent = json.dumps(job(product_line="a\0b")).encode()
    refused(near.ask("POST", "/v1/jobs", body=sent, headers=JSON), 400, "invalid_request", "product_line")


def test_of_a_name_that_comes_twice_the_last_one_counts(near: InProcess) -> None:
    text = json.dumps(job()).replace('"deadline"', '"workload": "first", "workload": "second", "deadline"')
    assert near.ask("POST", "/v1/jobs", body=text.encode(), headers=JSON).json()["workload"] == "second"
    refused(near.ask("POST", f"{SUBMIT}&deadline=7h", body=lines(1), headers=NDJSON), 400, "invalid_request", "twice")


def test_a_cut_upload_leaves_nothing(harness: Harness, near: InProcess) -> None:
    for target, headers in ((SUBMIT, NDJSON), ("/v1/jobs", JSON), ("/v1/quotes?model=x", NDJSON)):
        near.ask("POST", target, body=[b"{" * 10, b"x" * 2_000_000], headers=headers, is_cut=True)
    assert_nothing_stays(harness)


@pytest.mark.parametrize(("name", "said"), [("IDLE_S", "paused for 0.01 s"), ("WHOLE_S", "more than 0.01 s")])
def test_a_body_that_does_not_come(
    harness: Harness, near: InProcess, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.setattr(body, name, 0.01)
    for target, headers in ((SUBMIT, NDJSON), ("/v1/jobs", JSON), ("/v1/embeddings", JSON)):

        async def slow(target: str = target, headers: Mapping[str, str] = headers) -> Answer:
            return await near.send("POST", target, body=[b'{"a":'], headers=headers, is_slow=True)

        refused(near.run(slow()), 408, "request_timeout", said)
    assert_nothing_stays(harness)


@contextmanager
def away(*_: Any) -> Iterator[None]:
    raise StoreUnavailable("the database does not answer: connection refused")
    yield


#: Routes that work from memory.
WITHOUT_DATABASE = {"/healthz", "/metrics", "/v1/models", "/v1/models/{name}", "/v1/embeddings", "/v1/chat/completions"}


UPLOAD = (
    b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n{}\r\n--x--\r\n'
)


def test_while_the_database_is_away(
    harness: Harness, app: FastAPI, near: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert near.ask("GET", "/v1/jobs").status == 200  # the key is known from now on
    for name in ("read", "write"):
        monkeypatch.setattr(Database, name, away)
    answered = set[str]()
    for path, methods in app.openapi()["paths"].items():
        for method, described in methods.items():
            wanted = {"zone": "ZONE_FR", "since": "2026-01-01T00:00:00Z"}
            named = {one["name"] for one in described.get("parameters", []) if one["in"] == "query"}
            query = "&".join(f"{name}={value}" for name, value in wanted.items() if name in named)
            content = described.get("requestBody", {}).get("content", {})
            media_type = "application/json" if "application/json" in content else next(iter(content), "")
            example = content[media_type]["example"] if media_type.endswith("/json") else None
            how: dict[str, Any] = {} if example is None else {"body": json.dumps(example).encode()}
            if media_type.startswith("multipart/"):
                media_type += "; boundary=x"
                how["body"] = UPLOAD
            filled = path.replace("{name}", EMBEDDER).replace("{month}", "2026-01")
            target = filled.replace("{", "").replace("}", "") + (query and f"?{query}")
            answer = near.ask(method.upper(), target, headers={"Content-Type": media_type}, **how)
            if path in WITHOUT_DATABASE:
                assert answer.status == 200, f"{method} {path}: {answer.body[:300]!r}"
                answered.add(path)
                continue
            assert answer.status == 503, f"{method} {path}: {answer.status} {answer.body[:300]!r}"
            assert int(answer.headers["retry-after"]) > 0, f"{method} {path}"
            assert path == "/readyz" or answer.code == "store_unavailable", f"{method} {path}: {answer.code}"
    assert answered == WITHOUT_DATABASE
    unknown = near.ask("GET", "/v1/models", headers={"Authorization": "Bearer cq_unknown"})
    assert (unknown.status, unknown.code) == (503, "store_unavailable")  # nobody can say whether it is wrong
    monkeypatch.undo()
    assert near.ask("GET", "/v1/jobs").json()["data"] == []


def test_clocks_that_differ(harness: Harness, near: InProcess) -> None:
    """A client's clock is behind: the refusal shows ours. A second API's clock differs: no page loses or doubles."""
    behind = harness.clock.now() - timedelta(minutes=7)
    answer = near.ask("POST", "/v1/jobs", body=json.dumps(job(deadline=iso(behind))).encode(), headers=JSON)
    refused(answer, 400, "deadline_in_the_past", iso(behind), iso(harness.clock.now()), "6h")
    made = list[str]()
    for drift_s in (0, -90, 120, -90, 3, 0):
        harness.clock.advance(drift_s)
        made.append(near.ask("POST", SUBMIT, body=lines(1), headers=NDJSON).json()["id"])
    seen, after = list[str](), ""
    while True:
        page = near.ask("GET", f"/v1/jobs?limit=2{after}").json()
        seen += [one["id"] for one in page["data"]]
        if not page["has_more"]:
            break
        after = f"&after={page['last_id']}"
    assert sorted(seen) == sorted(made)


def test_a_thousand_bad_requests_leave_nothing(harness: Harness, near: InProcess) -> None:
    count = itertools.count()
    bomb, deep = gzip.compress(b" " * 100_000), f'{{"a":{nested(200)}}}'.encode()

    def bad() -> None:
        number = next(count)
        for method, target, how in (
            ("GET", f"/v1/nothing/{number}", {}),
            ("GET", f"/v1/jobs/job_{number}", {}),
            ("GET", "/v1/jobs/a\0b", {}),
            ("BREW", "/v1/jobs", {}),
            ("GET", "/v1/jobs", {"headers": {"Authorization": f"Bearer cq_{number}"}}),
            ("POST", "/v1/jobs", {"body": deep, "headers": JSON}),
            ("POST", "/v1/jobs", {"body": bomb, "headers": {"Content-Encoding": "gzip"}}),
            ("POST", SUBMIT, {"body": lines(2) + b"{" + b"x" * 70_000, "headers": NDJSON}),
            ("POST", SUBMIT, {"body": [b"x" * 70_000], "headers": NDJSON, "is_cut": True}),
            ("POST", SUBMIT, {"body": lines(1), "headers": {"Content-Type": f"image/{number}"}}),
        ):
            assert not 200 <= near.ask(method, target, **how).status < 300

    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    for _ in range(30):
        bad()
    before, resident = held(), psutil.Process().memory_info().rss
    for _ in range(70):
        bad()
    # Seven hundred requests of ten kinds: a kind that leaves something leaves seventy. Pools grow by a few under load.
    assert all(now < first + 20 for now, first in zip(held(), before, strict=True))
    grown = psutil.Process().memory_info().rss - resident
    assert grown < 8 * 1024 * 1024, f"{grown:,} bytes more after 700 bad requests"
    assert_nothing_stays(harness)


@pytest.fixture
def impatient(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """A real server that waits 0.2 s for headers, and for readers."""
    monkeypatch.setattr(Connection, "head_s", 0.2)
    monkeypatch.setattr(Connection, "stalled_s", 0.2)
    with serving(harness.api, background=[]) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        yield host, int(port)


def heard(connection: socket.socket) -> bytes:
    connection.settimeout(20)
    return b"".join(iter(lambda: connection.recv(65_536), b""))


def test_connections_are_bounded_in_time_and_size(harness: Harness, impatient: tuple[str, int]) -> None:
    with socket.create_connection(impatient) as silent, socket.create_connection(impatient) as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost:")
        assert heard(silent) == b""
        head, _, told = heard(slow).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 Request Timeout")
        assert json.loads(told)["error"]["code"] == "request_timeout"
    with socket.create_connection(impatient) as odd:
        odd.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        head, _, told = heard(odd).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400") and json.loads(told)["error"]["code"] == "invalid_http"
    with socket.create_connection(impatient) as endless:
        endless.sendall(b"GET /healthz HTTP/1.1\r\nX: " + b"x" * (MAX_HEAD_BYTES + 1))
        head, _, told = heard(endless).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 431") and json.loads(told)["error"]["code"] == "headers_too_large"
        assert b"application/problem+json" in head
    with socket.create_connection(impatient) as refused_already:
        refused_already.settimeout(20)
        refused_already.sendall(b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\nx")
        told = b""
        while b"method_not_allowed" not in told:
            told += refused_already.recv(65_536)
        refused_already.sendall(b"x")
        heard(refused_already)
    with socket.create_connection(impatient) as second:
        second.settimeout(20)
        for _ in range(2):
            second.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            told = b""
            while b'"ok"' not in told:
                told += second.recv(65_536)
        second.sendall(b"GET /healthz HTTP/1.1\r\nHo")
        assert heard(second).startswith(b"HTTP/1.1 408")


def test_who_does_not_read_is_let_go(harness: Harness, near: InProcess, impatient: tuple[str, int]) -> None:
    job_id = near.ask("POST", SUBMIT, body=lines(1), headers=NDJSON).json()["id"]
    finish(harness, job_id, b"x" * 40_000_000)
    blob = str(harness.api.blobs.root)

    def is_open() -> bool:
        return any(one.path.startswith(blob) for one in psutil.Process().open_files())

    asked = f"GET /v1/jobs/{job_id}/results HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {harness.acme}\r\n\r\n"
    with socket.create_connection(impatient) as lazy:
        lazy.sendall(asked.encode())
        lazy.settimeout(20)
        until(is_open, "the download to begin")
        until(lambda: not is_open(), "the download to be given up")
