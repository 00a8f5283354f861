"""Blobs are whole or absent, whatever happens on the way."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carbonq.blobs import BlobStore, Staged
from carbonq.errors import NotFound, StoreUnavailable


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def files(blobs: BlobStore) -> list[str]:
    return sorted(str(path.relative_to(blobs.root)) for path in blobs.root.rglob("*") if path.is_file())


def test_what_was_put_comes_back(blobs: BlobStore) -> None:
    assert blobs.put("jobs/j/a.jsonl", b"one\n") == 4
    assert blobs.put("jobs/j/b.jsonl", iter([b"two\n", b"", b"three\n"])) == 10
    assert blobs.concatenate(["jobs/j/a.jsonl", "jobs/j/b.jsonl"], "jobs/j/all") == 14
    with blobs.open("jobs/j/all") as stream:
        assert stream.read() == b"one\ntwo\nthree\n"
    assert b"".join(blobs.pieces("jobs/j/all")) == b"one\ntwo\nthree\n"
    assert blobs.size("jobs/j/all") == 14
    assert blobs.exists("jobs/j/all")
    blobs.delete("jobs/j/all")
    blobs.delete("jobs/j/all")
    assert not blobs.exists("jobs/j/all")
    assert blobs.free_bytes() > 0


def test_a_folder_goes_with_all_that_is_in_it(blobs: BlobStore) -> None:
    for key in ("segments/j/a", "segments/j/b", "segments/jj/a"):
        blobs.put(key, b"line\n")
    blobs.delete_folder("segments/j")
    blobs.delete_folder("segments/j")
    assert files(blobs) == ["segments/jj/a"]
    with pytest.raises(ValueError, match="no blob key"):
        blobs.delete_folder("../j")


def test_an_unknown_key_is_named(blobs: BlobStore) -> None:
    blobs.put("jobs/j/a", b"")
    for ask in (blobs.open, blobs.size):
        with pytest.raises(NotFound, match="jobs/x"):
            ask("jobs/x")
    with pytest.raises(NotFound):
        blobs.open("jobs/j")
    with pytest.raises(NotFound):
        blobs.concatenate(["jobs/j/a", "jobs/x"], "jobs/all")
    assert files(blobs) == ["jobs/j/a"]


@pytest.mark.parametrize(
    "key", ["", "/etc/passwd", "../a", "a/../b", "a//b", ".staging/x", "a/.x", "a\0", "a/", "ä", "a" * 600]
)
def test_unsafe_keys_are_refused(blobs: BlobStore, key: str) -> None:
    with pytest.raises(ValueError, match="no blob key"):
        blobs.put(key, b"x")
    assert files(blobs) == []


@given(st.text(max_size=40))
def test_no_key_leaves_the_folder(key: str) -> None:
    blobs = BlobStore(Path("/nowhere/blobs"))
    try:
        path = blobs.path(key)
    except ValueError:
        return
    assert Path(os.path.normpath(path)).is_relative_to(blobs.root)


def test_a_staged_blob_has_no_key_until_it_is_published(blobs: BlobStore) -> None:
    staged = blobs.stage()
    staged.write(b"hello ")
    staged.write(b"there")
    staged.sync()
    assert staged.size == 11
    assert staged.path.read_bytes() == b"hello there"
    assert not blobs.exists("a/b")
    staged.publish("a/b")
    staged.discard()
    assert files(blobs) == ["a/b"]
    staged.sync()


def test_a_discarded_blob_leaves_nothing(blobs: BlobStore) -> None:
    with pytest.raises(RuntimeError), blobs.stage() as staged:
        staged.write(b"x")
        raise RuntimeError
    assert files(blobs) == []


def test_a_failing_stream_leaves_the_old_blob(blobs: BlobStore) -> None:
    blobs.put("a", b"old")

    def pieces():
        yield b"new"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        blobs.put("a", pieces())
    assert b"".join(blobs.pieces("a")) == b"old"
    assert files(blobs) == ["a"]


class _FullDisk:
    """A file on a disk that fills up after some bytes."""

    def __init__(self, staged: Staged, left: int) -> None:
        self._file, self._left = staged._file, left
        staged._file = self  # type: ignore[assignment]

    def write(self, data: bytes) -> int:
        if len(data) > self._left:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._left -= len(data)
        return self._file.write(data)

    def flush(self) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    def close(self) -> None:
        self._file.close()

    closed = False


def test_a_full_disk_is_said_in_one_sentence_and_frees_what_was_taken(blobs: BlobStore) -> None:
    staged = blobs.stage()
    _FullDisk(staged, 5)
    staged.write(b"12345")
    with pytest.raises(StoreUnavailable, match="full; free space there or set CARBONQ_DATA_DIR") as error:
        staged.write(b"6")
    assert error.value.code == "disk_full"
    assert files(blobs) == []


@pytest.mark.parametrize("act", ["sync", "publish"])
def test_a_disk_that_fills_up_at_the_last_moment_leaves_nothing(blobs: BlobStore, act: str) -> None:
    staged = blobs.stage()
    _FullDisk(staged, 5)
    staged.write(b"12345")
    with pytest.raises(StoreUnavailable, match="full"):
        staged.sync() if act == "sync" else staged.publish("a")
    assert files(blobs) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreUnavailable, match=r"cannot use .*file"):
        BlobStore(tmp_path / "file").stage()


def test_sweep_removes_only_what_was_abandoned(blobs: BlobStore) -> None:
    assert blobs.sweep(60) == 0
    old, new = blobs.stage(), blobs.stage()
    os.utime(old.path, (0, 0))
    assert blobs.sweep(60) == 1
    assert not old.path.exists()
    assert new.path.exists()
    old.discard()
    new.discard()
