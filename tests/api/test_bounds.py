"""Each bound on what one request may bring, at the bound and one beyond it; what is refused leaves nothing."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from carbonq.api import jobs as job_routes
from carbonq.api.app import create_app
from tests.api.harness import EMBEDDER, Harness, build_harness
from tests.api.inprocess import Answer, InProcess
from tests.databases import opened

#: Bytes of a line, items of a job and bytes of an input here.
LINE, ITEMS, INPUT = 1024, 5, 3000

QUERY = f"kind=embeddings&model={EMBEDDER}&deadline=6h"


@pytest.fixture
def harness(sqlite_template: Path, tmp_path: Path) -> Iterator[Harness]:
    shutil.copy(sqlite_template, tmp_path / "api.db")
    database = opened(f"sqlite:///{tmp_path / 'api.db'}")
    yield build_harness(database, tmp_path / "blobs", max_line_bytes=LINE, max_items=ITEMS, max_input_bytes=INPUT)
    database.dispose()


@pytest.fixture
def client(harness: Harness) -> Iterator[InProcess]:
    with asyncio.Runner() as runner:
        yield InProcess(create_app(harness.api), harness.headers(), runner)


def line(number: int, size: int = 0) -> bytes:
    """Return a line without its end, padded to ``size`` bytes."""
    value = {"custom_id": f"a-{number}", "body": {"model": EMBEDDER, "input": ""}}
    value["body"] = {"model": EMBEDDER, "input": "x " * (max(0, size - len(orjson.dumps(value))) // 2)}
    made = orjson.dumps(value)
    return made.replace(b'"}}', b" " * (size - len(made)) + b'"}}') if size else made


def submit(client: InProcess, body: bytes) -> Answer:
    headers = {"content-type": "application/x-ndjson", "content-length": str(len(body))}
    return client.ask("POST", f"/v1/jobs?{QUERY}", body=body, headers=headers)


def check(client: InProcess, fits: Answer, beyond: Answer, expected: tuple[int, str], words: str) -> None:
    assert fits.status in {200, 202}, fits.body
    assert (beyond.status, beyond.code) == expected, beyond.body
    assert words in beyond.json()["detail"]
    assert len(client.ask("GET", "/v1/jobs").json()["data"]) <= 1


def test_bytes_of_a_line(client: InProcess) -> None:
    assert len(line(1, LINE)) == LINE
    fits, beyond = (submit(client, line(1, size) + b"\n") for size in (LINE, LINE + 1))
    check(client, fits, beyond, (400, "line_too_long"), "1,024")


def test_items_of_a_job(client: InProcess) -> None:
    fits, beyond = (
        submit(client, b"".join(line(number) + b"\n" for number in range(count))) for count in (ITEMS, ITEMS + 1)
    )
    check(client, fits, beyond, (400, "too_many_tasks"), "more than 5 items")


@pytest.mark.parametrize("is_small", [True, False])
def test_bytes_of_an_input(client: InProcess, is_small: bool) -> None:
    """Small inputs are checked in memory, others on their way to the disk."""
    body = b"".join(line(number, 1000 - 1) + b"\n" for number in range(3))
    assert len(body) == INPUT
    if is_small:
        fits, beyond = submit(client, body), submit(client, body + b"\n")
    else:  # without a stated length it is no small one
        fits, beyond = (
            client.ask("POST", f"/v1/jobs?{QUERY}", body=one, headers={"content-type": "application/x-ndjson"})
            for one in ([body], [body, b"\n"])
        )
    check(client, fits, beyond, (413, beyond.code), "3,000")
    assert beyond.code in {"request_too_large", "input_too_large"}


def test_bytes_of_an_inline_body(client: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"kind": "embeddings", "model": EMBEDDER, "deadline": "6h", "items": ["x"]}
    body = json.dumps(value).encode()
    monkeypatch.setattr(job_routes, "MAX_INLINE_BYTES", len(body))
    headers = {"content-type": "application/json"}
    fits, beyond = (client.ask("POST", "/v1/jobs", body=one, headers=headers) for one in (body, body + b" "))
    check(client, fits, beyond, (413, "request_too_large"), f"{len(body):,}")


def test_bytes_of_a_realtime_call(client: InProcess) -> None:
    body = json.dumps({"model": EMBEDDER, "input": "x"}).encode()
    headers = {"content-type": "application/json"}
    fits, beyond = (
        client.ask("POST", "/v1/embeddings", body=body.ljust(size), headers=headers) for size in (LINE, LINE + 1)
    )
    check(client, fits, beyond, (413, "request_too_large"), "1,024")


def test_bytes_of_a_file(client: InProcess) -> None:
    def upload(data: bytes) -> Answer:
        parts = (
            b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n' + data + b"\r\n--b--\r\n"
        )
        headers = {"content-type": "multipart/form-data; boundary=b"}
        return client.ask("POST", "/v1/files", body=parts, headers=headers)

    whole = b'{"custom_id":"%d","method":"POST","url":"/v1/embeddings","body":{"model":"%s","input":"%s"}}'
    empty = len(whole % (1, EMBEDDER.encode(), b""))
    lines = [whole % (number, EMBEDDER.encode(), b"x" * (1000 - 1 - empty)) for number in range(3)]
    data = b"\n".join(lines) + b"\n"
    assert len(data) == INPUT
    fits, beyond = upload(data), upload(data + b"\n")
    assert fits.status == 200, fits.body
    assert (beyond.status, beyond.code) == (413, beyond.code), beyond.body
    assert "3,000" in beyond.json()["detail"]
    assert len(client.ask("GET", "/v1/files").json()["data"]) == 1
