"""The Files API: uploads checked as they stream, paging, Range, deletion; and that nothing bad stays."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from carbonq.api import multipart
from carbonq.api.multipart import Form
from carbonq.blobs.folder import FolderStore
from carbonq.errors import InvalidRequest
from carbonq.store import admin_log, files
from tests.api.batching import line, lines, upload
from tests.api.harness import Harness, serving, until

NAME = "requests.jsonl"


def kept(harness: Harness) -> list[str]:
    """All files on the disk, those being written too."""
    root = Path(harness.api.blobs.name)
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def rows(harness: Harness) -> list[files.File]:
    with harness.db.read() as tx:
        return files.page(tx, "acme", harness.clock.now(), after=None, limit=100)


def post(http: httpx.Client, *parts: tuple[str, Any]) -> httpx.Response:
    return http.post("/v1/files", files=list(parts))


def refused(answer: httpx.Response, status: int, param: str | None, words: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["param"] == param, error
    assert words in error["message"], error
    return error


def test_an_upload_is_there_as_it_was_sent(harness: Harness, http: httpx.Client) -> None:
    data = b"\xef\xbb\xbf" + lines(3).replace(b"\n", b"\r\n") + b"\n"
    made = upload(http, data, "été 1.jsonl")
    now = int(harness.clock.now().timestamp())
    assert made == {
        "id": made["id"],
        "object": "file",
        "bytes": len(data),
        "created_at": now,
        "expires_at": now + 30 * 86_400,
        "filename": "été 1.jsonl",
        "purpose": "batch",
        "status": "processed",
        "status_details": None,
        "lines": 3,
    }
    assert made["id"].startswith("file-")
    assert http.get(f"/v1/files/{made['id']}").json() == made
    whole = http.get(f"/v1/files/{made['id']}/content")
    assert whole.content == data
    assert whole.headers["content-disposition"] == 'attachment; filename="_t__1.jsonl"'
    part = http.get(f"/v1/files/{made['id']}/content", headers={"Range": "bytes=5-9"})
    assert (part.status_code, part.content) == (206, data[5:10])


def test_nested_fields_are_spelled_with_brackets(harness: Harness, http: httpx.Client) -> None:
    fields = {
        "expires_after[anchor]": "created_at",
        "expires_after[seconds]": "3600",
        "carbon[deadline]": "6h",
        "carbon[regions][]": ["fr", "se"],
    }
    headers = {"X-Carbonq-Workload": "w", "X-Carbonq-Deadline": "9h", "X-Carbonq-Slo-Ms": "5"}
    answer = http.post(
        "/v1/files", data={"purpose": "batch", **fields}, files={"file": (NAME, line())}, headers=headers
    )
    made = answer.json()
    assert made["expires_at"] == made["created_at"] + 3600
    assert made["carbon"] == {"deadline": "6h", "regions": ["fr", "se"], "workload": "w"}
    harness.clock.advance(3600)
    assert http.get(f"/v1/files/{made['id']}").status_code == 404


PURPOSE = ("purpose", (None, "batch"))
FILE = ("file", (NAME, line()))


WRONG: list[tuple[list[Any], str | None, str]] = [
    ([FILE], "purpose", "is missing"),
    ([("purpose", (None, "assistants")), FILE], "purpose", "'assistants'"),
    ([PURPOSE, PURPOSE, FILE], "purpose", "given twice"),
    ([PURPOSE, FILE, FILE], "file", "given twice"),
    ([PURPOSE], "file", "is missing"),
    ([PURPOSE, ("file", (None, line().decode()))], "file", "needs a file name"),
    ([PURPOSE, ("file", ("x" * 256, line()))], "file", "1 to 255 printable"),
    ([PURPOSE, FILE, ("purpos", (None, "batch"))], "purpos", "is not known"),
    ([PURPOSE, FILE, ("expires_after[seconds]", (None, "3600"))], "expires_after", "created_at"),
    (
        [
            PURPOSE,
            FILE,
            ("expires_after[seconds]", (None, "3599")),
            ("expires_after[anchor]", (None, "created_at")),
        ],
        "expires_after.seconds",
        "3,600 to 2,592,000",
    ),
    ([PURPOSE, FILE, ("carbon[deadlin]", (None, "6h"))], "carbon.deadlin", "did you mean 'deadline'"),
    ([PURPOSE, FILE, ("carbon[deadline]", (None, "soon"))], "carbon.deadline", "neither a span"),
    ([PURPOSE, ("file", (NAME, line() + b"{}x\n"))], None, "line 2 is not JSON"),
    ([PURPOSE, ("file", (NAME, b"\x1f\x8bgz"))], None, "looks like a gzip file"),
    ([PURPOSE, ("file", (NAME, b"\n"))], None, "has no items"),
    ([("x" * 256, (None, "1")), FILE], None, "1 to 255 characters"),
    ([("long", (None, "x" * (multipart.MAX_FIELD_BYTES + 1))), FILE], "long", "only file may be long"),
    ([*[("n", (None, "1"))] * multipart.MAX_PARTS, FILE], None, "more than 64 parts"),
]


def test_what_is_wrong_with_a_form_is_named_and_nothing_stays(harness: Harness, http: httpx.Client) -> None:
    for parts, param, words in WRONG:
        refused(post(http, *parts), 400, param, words)
        assert kept(harness) == [], parts
    assert rows(harness) == []


def test_bodies_that_are_no_form_are_refused(harness: Harness, http: httpx.Client) -> None:
    refused(http.post("/v1/files", json={"purpose": "batch"}), 415, "Content-Type", "multipart/form-data")
    refused(
        http.post("/v1/files", content=b"x", headers={"Content-Type": "multipart/form-data"}),
        415,
        "Content-Type",
        "send",
    )
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    refused(http.post("/v1/files", content=b"nothing of the kind", headers=headers), 400, None, "no multipart form")
    cut = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + line()
    error = refused(http.post("/v1/files", content=cut, headers=headers), 400, None, "cut off")
    assert error["code"] == "incomplete_upload"
    many = b"--b\r\n" + b"".join(b"x-%d: 1\r\n" % n for n in range(20)) + b"\r\n\r\n--b--"
    refused(http.post("/v1/files", content=many, headers=headers), 400, None, "no multipart form")
    assert kept(harness) == []


@contextlib.contextmanager
def small(harness: Harness, tmp_path: Path, **limits: Any) -> Iterator[httpx.Client]:
    api = replace(harness.api, blobs=FolderStore(tmp_path / "small"), limits=replace(harness.api.limits, **limits))
    with serving(api) as url, httpx.Client(base_url=url, headers=harness.headers(), trust_env=False) as http:
        yield http


def test_limits_hold_at_the_limit(harness: Harness, tmp_path: Path) -> None:
    size = len(lines(3))
    with small(harness, tmp_path, max_items=3, max_input_bytes=size, max_line_bytes=1024) as http:
        assert upload(http, lines(3))["lines"] == 3
        too_long = post(http, PURPOSE, ("file", (NAME, lines(4)[: size + 1])))
        assert refused(too_long, 413, "file", f"more than {size:,} bytes")["code"] == "request_too_large"
        far_too_long = post(http, PURPOSE, ("file", (NAME, lines(1000))))
        refused(far_too_long, 413, "file", f"more than {size:,} bytes")
        too_many = post(http, PURPOSE, ("file", (NAME, b"{}\n" * 4)))
        assert refused(too_many, 400, "file", "line 4: the file has more than 3")["code"] == "too_many_tasks"
    assert len([path for path in (tmp_path / "small").rglob("*") if path.is_file()]) == 1


def test_a_client_that_goes_away_leaves_nothing(harness: Harness, url: str) -> None:
    place = urlsplit(url)
    head = (
        f"POST /v1/files HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {harness.acme}\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 100000\r\n\r\n"
        '--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    )
    with socket.create_connection((str(place.hostname), int(place.port or 0)), timeout=10) as connection:
        connection.sendall(head.encode() + line())
        until(lambda: kept(harness), "the upload to begin")
    until(lambda: not kept(harness), "the upload to be dropped")
    assert rows(harness) == []


def test_files_are_listed_page_by_page(harness: Harness, http: httpx.Client) -> None:
    made: list[str] = []
    for _ in range(5):
        made.append(upload(http, line())["id"])
        harness.clock.advance(1)
    found: list[str] = []
    after: str | None = None
    while True:
        page = http.get("/v1/files", params={"limit": 2, **({"after": after} if after else {})}).json()
        found += [one["id"] for one in page["data"]]
        assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
        after = page["last_id"]
        if not page["has_more"]:
            break
    assert found == made[::-1]
    assert [one["id"] for one in http.get("/v1/files", params={"order": "asc"}).json()["data"]] == made
    assert http.get("/v1/files", params={"order": "asc", "after": made[3]}).json()["data"][0]["id"] == made[4]
    assert http.get("/v1/files", params={"purpose": "batch_output"}).json()["data"] == []
    refused(http.get("/v1/files", params={"purpose": "fine-tune"}), 400, "purpose", "batch, batch_output")
    refused(http.get("/v1/files", params={"after": "file-none"}), 400, "after", "there is no file")
    refused(http.get("/v1/files", params={"limit": 10_001}), 400, "limit", "10000")


def test_a_deleted_file_is_gone_at_once(harness: Harness, http: httpx.Client) -> None:
    file_id = upload(http, line())["id"]
    assert http.delete(f"/v1/files/{file_id}").json() == {"id": file_id, "object": "file", "deleted": True}
    for answer in (
        http.delete(f"/v1/files/{file_id}"),
        http.get(f"/v1/files/{file_id}"),
        http.get(f"/v1/files/{file_id}/content"),
    ):
        refused(answer, 404, None, "there is no file")
    assert http.get("/v1/files").json()["data"] == []
    with harness.db.read() as tx:
        (action,) = admin_log.page(tx, tenant="acme", limit=10)
    assert (action.action, action.subject) == ("file.deleted", file_id)


def test_a_form_is_read_in_whatever_pieces_it_comes() -> None:
    body = (
        b'preamble\r\n--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\nContent-Type: x\r\n\r\n'
        b"one\r\n--not the end\r\n\r\n--b--\r\n"
    )
    for size in (1, 3, 50, len(body)):
        form, taken = Form("multipart/form-data; boundary=b"), b""
        for start in range(len("preamble\r\n"), len(body), size):
            form.feed(body[start : start + size])
            taken += form.take()
        assert (form.fields, form.filename, form.is_whole) == ([("purpose", "batch")], "a.jsonl", True)
        assert taken == b"one\r\n--not the end\r\n"
    wrong = Form("multipart/form-data; boundary=b")
    with pytest.raises(InvalidRequest, match="UTF-8"):
        wrong.feed(b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n\xff\r\n--b--')
