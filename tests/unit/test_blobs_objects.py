"""What only a bucket does: few requests, cut connections, wrong buckets, keys that are never shown."""

from __future__ import annotations

import itertools
import logging
import random
import socket
import time
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carbonq import config, wiring
from carbonq.blobs import open_store, opening
from carbonq.blobs.extents import cut, merge
from carbonq.blobs.folder import FolderStore
from carbonq.blobs.objects import GAP_BYTES, ObjectStore
from carbonq.errors import ConfigError, NotFound, StoreUnavailable
from tests.buckets import ACCESS_KEY, new_bucket, open_bucket, server_url, wire

MIB = 1 << 20


SPANS = st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 300)), max_size=40)


@given(SPANS, st.integers(0, 500), st.integers(1, 400))
def test_extents_cover_every_span_in_few_requests(spans: list[tuple[int, int]], gap: int, most: int) -> None:
    extents = merge(spans, gap=gap)
    for offset, length in spans:
        assert sum(start <= offset and offset + length <= stop for start, stop in extents) == 1
    assert all(stop + gap < start for (_, stop), (start, _) in itertools.pairwise(extents))
    wanted = {at for offset, length in spans for at in range(offset, offset + length)}
    assert all(start in wanted and stop - 1 in wanted for start, stop in extents)
    parts = list(cut(extents, most=most))
    assert all(0 < stop - start <= most for start, stop in parts)
    assert [at for start, stop in parts for at in range(start, stop)] == [
        at for start, stop in extents for at in range(start, stop)
    ]


def test_a_chunk_of_lines_takes_few_requests(tmp_path: Path) -> None:
    """Items of a chunk are scattered over the input; a request for each of them would take minutes."""
    bucket = new_bucket()
    line, count = b"x" * 2000, 5000
    open_bucket(bucket, tmp_path).put("input", line * count)
    with wire() as between:
        blobs = open_bucket(bucket, tmp_path, endpoint=between.url)
        spans = [(index * 2000, 2000) for index in range(0, count, 5)]
        random.Random(3).shuffle(spans)
        ranges = blobs.ranges("input", spans)
        assert len(between.requests) == 1
        assert all(ranges.read(*span) == line for span in spans)
        ranges.close()
        between.requests.clear()
        far = blobs.ranges("input", [(0, 10), (10 + GAP_BYTES, 10), (MIB, 10)])
        assert len(between.requests) == 2, "neighbours share a request, what lies far apart is not read along"
        far.close()


def test_a_connection_that_breaks_once_is_tried_again(tmp_path: Path) -> None:
    bucket = new_bucket()
    data = random.Random(4).randbytes(9 * MIB)
    with wire() as between:
        blobs = open_bucket(bucket, tmp_path, endpoint=between.url)
        between.cut_at, between.cuts_left = 0, 1
        blobs.put("small", data[:1000])
        assert between.cuts_left < 0, "nothing was cut"
        between.cut_at, between.cuts_left = 0, 1
        blobs.put("big", iter([data]))
        assert between.cuts_left < 0
        between.cut_at, between.cuts_left = 100_000, 1
        assert b"".join(blobs.pieces("big")) == data
        assert between.cuts_left < 0
        between.cut_at, between.cuts_left = 100_000, 1
        ranges = blobs.ranges("big", [(0, len(data))])
        assert between.cuts_left < 0
        assert ranges.read(0, len(data)) == data
        ranges.close()


def test_a_connection_that_always_breaks_gives_no_half_blob(tmp_path: Path) -> None:
    bucket = new_bucket()
    sound = open_bucket(bucket, tmp_path)
    sound.put("old", b"0" * 9 * MIB)
    sound.put("new", b"old")
    with wire() as between:
        blobs = open_bucket(bucket, tmp_path, endpoint=between.url)
        between.cut_at, between.cuts_left = 200_000, 1000
        began = time.monotonic()
        for act in (
            lambda: blobs.put("new", iter([b"1" * 9 * MIB])),
            lambda: blobs.put("new", b"1" * 9 * MIB),
            lambda: blobs.put("new", b"1" * 400_000),
            lambda: list(blobs.pieces("old")),
            lambda: blobs.ranges("old", [(0, 4 * MIB)]),
        ):
            with pytest.raises(StoreUnavailable, match=f"s3://{bucket}/some/prefix: the connection broke") as error:
                act()
            assert error.value.code == "blob_store_unavailable"
        assert time.monotonic() - began < 10
    assert b"".join(sound.pieces("new")) == b"old"
    assert list(tmp_path.iterdir()) == []


def test_a_blob_that_is_replaced_while_it_is_read_is_not_mixed(tmp_path: Path) -> None:
    blobs = open_bucket(new_bucket(), tmp_path)
    blobs.put("a", b"0" * 9 * MIB)
    pieces = blobs.pieces("a")
    next(pieces)
    blobs.put("a", b"1" * 9 * MIB)
    with pytest.raises(StoreUnavailable, match="a was replaced while it was read"):
        next(pieces)


def test_a_missing_bucket_is_not_a_missing_blob(tmp_path: Path) -> None:
    blobs = open_bucket("nowhere", tmp_path)
    staged = blobs.stage()
    staged.write(b"x")
    for act in (
        lambda: blobs.put("a", b"x"),
        lambda: blobs.info("a"),
        lambda: blobs.open("a"),
        lambda: list(blobs.pieces("a")),
        lambda: blobs.ranges("a", [(0, 1)]),
        lambda: blobs.delete_folder("a"),
        lambda: blobs.check("segments"),
        lambda: staged.publish("a"),
    ):
        with pytest.raises(StoreUnavailable, match=r"s3://nowhere/some/prefix: the server says NoSuchBucket"):
            act()


def test_wrong_credentials_are_said_and_not_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    blobs = open_bucket(new_bucket(), tmp_path)
    httpx.post(f"{server_url()}/moto-api/reset-auth", content=b"0", trust_env=False).raise_for_status()
    try:
        with pytest.raises(StoreUnavailable, match="the server says InvalidAccessKeyId") as error:
            blobs.put("a", b"x")
    finally:
        httpx.post(f"{server_url()}/moto-api/reset-auth", content=b"inf", trust_env=False)
    said = [record.getMessage() for record in caplog.records if record.name.startswith("carbonq")]
    shown = f"{error.value} {error.value.__cause__} {blobs.name} {blobs!r} {said}"
    assert error.value.__suppress_context__, "a traceback would print the library's text"
    assert not [secret for secret in ACCESS_KEY if secret in shown]


def test_no_credentials_at_all_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    blobs = open_store(f"s3://{new_bucket()}?endpoint={server_url()}", spool=tmp_path)
    with pytest.raises(StoreUnavailable, match="no credentials; set AWS_ACCESS_KEY_ID"):
        blobs.put("a", b"x")


def test_credentials_and_endpoint_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY[0],
        "AWS_SECRET_ACCESS_KEY": ACCESS_KEY[1],
        "AWS_ENDPOINT_URL": server_url(),
    }.items():
        monkeypatch.setenv(name, value)
    blobs = open_store(f"s3://{new_bucket()}", spool=tmp_path)
    assert blobs.put("a", b"x") == blobs.info("a").size == 1


def test_a_dead_endpoint_is_said_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = opening.RETRY_FOR_S + max(opening.CONNECT_TIMEOUT_S, opening.SILENCE_TIMEOUT_S)
    assert max(longest - opening.SILENCE_TIMEOUT_S + opening.CONNECT_TIMEOUT_S, opening.SILENCE_TIMEOUT_S) <= 10
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setattr(opening, "SILENCE_TIMEOUT_S", 1)
        monkeypatch.setattr(opening, "RETRY_FOR_S", 1)
        blobs = open_bucket("blobs", tmp_path, endpoint=f"http://127.0.0.1:{port}")
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="s3://blobs/some/prefix: it gave no answer in time"):
            blobs.put("a", b"x")
        assert time.monotonic() - began < 4
    refused = open_bucket("blobs", tmp_path, endpoint=f"http://127.0.0.1:{port}")
    with pytest.raises(StoreUnavailable, match="there is no connection to it; check the endpoint"):
        refused.info("a")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("ftp://host/x", "begins with ftp://; a folder, file:///, s3://, gs:// and az:// are known"),
        ("file://host/x", "write file:///folder"),
        ("s3:///prefix", "names no bucket"),
        ("s3://id:very-secret@bucket/x", "holds a user or password; leave them out"),
        ("s3://b?endpont=http://x", "has the option 'endpont'; did you mean endpoint"),
        ("s3://b?secret_access_key=very-secret", "Credentials do not belong there"),
        ("s3://b?endpoint=minio:9000", "the endpoint must begin with http:// or https://"),
        ("gs://b?region=x", "known are: none"),
        ("az://container/x", "cannot be used: .*Account must be specified"),
    ],
)
def test_a_bad_url_gets_its_sentence(tmp_path: Path, url: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as error:
        open_store(url, spool=tmp_path)
    assert "very-secret" not in str(error.value)


def test_a_url_chooses_the_store(tmp_path: Path) -> None:
    for url in (str(tmp_path / "my blobs"), f"file://{tmp_path}/my%20blobs"):
        store = open_store(url, spool=tmp_path)
        assert isinstance(store, FolderStore) and store.root == tmp_path / "my blobs"
    for url in ("s3://bucket/x?region=eu-north-1", "gs://bucket/x", "az://container/x?account_name=us"):
        store = open_store(url, spool=tmp_path)
        assert isinstance(store, ObjectStore) and store.name == url.partition("?")[0]
        assert store.free_bytes() is None and store.sweep(0) == 0


def test_what_was_uploaded_without_a_job_is_named_when_it_cannot_go(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = new_bucket()
    with wire() as between:
        staged = open_bucket(bucket, tmp_path, endpoint=between.url).stage()
        staged.write(b"x")
        staged.prepare("jobs/j/input")
        between.cut_at, between.cuts_left = 0, 1000
        staged.discard()
    assert "jobs/j/input stays without a job: cannot use the blob store" in caplog.text
    with pytest.raises(NotFound):
        open_bucket(bucket, tmp_path).info("jobs/k/input")


def test_settings_open_the_bucket(tmp_path: Path) -> None:
    given = {"data_dir": tmp_path, "blob_url": f"s3://{new_bucket()}/x?endpoint={server_url()}"}
    key = {"blob_access_key_id": ACCESS_KEY[0], "blob_secret_access_key": ACCESS_KEY[1]}
    blobs = wiring.make_blobs(config.load(**given, **key))
    assert isinstance(blobs, ObjectStore) and blobs.put("a", b"x") == 1
    with pytest.raises(ConfigError, match="belong together; set both or neither"):
        wiring.make_blobs(config.load(**given, blob_access_key_id=ACCESS_KEY[0]))
    folder = wiring.make_blobs(config.load(data_dir=tmp_path))
    assert isinstance(folder, FolderStore) and folder.root == tmp_path / "blobs"
