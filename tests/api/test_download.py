"""Downloads go on where they broke, from a folder as from a bucket."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest
from fastapi.responses import Response, StreamingResponse

from carbonq.api.download import Unsatisfiable, download, parse_range
from carbonq.blobs import BlobStore
from carbonq.blobs.folder import FolderStore
from carbonq.errors import NotFound
from tests.buckets import new_bucket, open_bucket


@pytest.mark.parametrize(
    ("header", "span"),
    [
        (None, None),
        ("bytes=0-", (0, 100)),
        ("bytes=10-19", (10, 20)),
        ("bytes=99-99", (99, 100)),
        ("bytes=90-5000", (90, 100)),
        ("bytes=-7", (93, 100)),
        ("bytes=-5000", (0, 100)),
        ("bytes=-", None),
        ("bytes=20-10", None),
        ("bytes=0-1,5-6", None),
        ("items=0-1", None),
        ("bytes=a-b", None),
        ("bytes=" + "9" * 30 + "-", None),
    ],
)
def test_a_range_is_understood_or_ignored(header: str | None, span: tuple[int, int] | None) -> None:
    assert parse_range(header, 100) == span


@pytest.mark.parametrize(("header", "size"), [("bytes=100-", 100), ("bytes=-0", 100), ("bytes=0-", 0)])
def test_a_range_behind_the_end_is_refused(header: str, size: int) -> None:
    with pytest.raises(Unsatisfiable):
        parse_range(header, size)


@pytest.fixture(params=["folder", "objects"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    if request.param == "folder":
        return FolderStore(tmp_path / "blobs")
    return open_bucket(new_bucket(), tmp_path / "tmp")


def send(blobs: BlobStore, asked: str | None = None, if_range: str | None = None) -> tuple[int, dict[str, str], bytes]:
    response = download(
        blobs, "out", filename="j.results.jsonl", media_type="application/x-ndjson", asked=asked, if_range=if_range
    )
    return response.status_code, dict(response.headers), asyncio.run(_body(response))


async def _body(response: Response) -> bytes:
    if not isinstance(response, StreamingResponse):
        return bytes(response.body)
    return b"".join([bytes(piece) async for piece in response.body_iterator])


def test_whole_part_and_beyond(blobs: BlobStore) -> None:
    blobs.put("out", b"0123456789")
    status, headers, body = send(blobs)
    assert (status, body, headers["content-length"], headers["accept-ranges"]) == (200, b"0123456789", "10", "bytes")
    assert headers["content-disposition"] == 'attachment; filename="j.results.jsonl"'
    assert headers["last-modified"].endswith(" GMT")
    tag, date = headers["etag"], headers["last-modified"]
    for if_range in (None, tag, date):
        status, headers, body = send(blobs, "bytes=4-6", if_range)
        assert (status, body, headers["content-length"]) == (206, b"456", "3")
        assert headers["content-range"] == "bytes 4-6/10"
    status, headers, body = send(blobs, "bytes=10-")
    assert (status, headers["content-range"]) == (416, "bytes */10")
    assert orjson.loads(body)["error"]["message"] == "Range bytes=10- begins behind the end: there are 10 bytes"
    blobs.put("out", b"another file")
    status, _, body = send(blobs, "bytes=4-6", tag)
    assert (status, body) == (200, b"another file")


def test_a_missing_file_is_said_before_anything_is_sent(blobs: BlobStore) -> None:
    with pytest.raises(NotFound, match="'out'"):
        send(blobs)
