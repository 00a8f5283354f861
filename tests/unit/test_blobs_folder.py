"""What only a folder does: full disks, abandoned uploads, paths that stay inside."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carbonq.blobs.folder import FolderStaged, FolderStore
from carbonq.errors import StoreUnavailable


@pytest.fixture
def blobs(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "blobs")


def files(blobs: FolderStore) -> list[str]:
    return sorted(str(path.relative_to(blobs.root)) for path in blobs.root.rglob("*") if path.is_file())


@given(st.text(max_size=40))
def test_no_key_leaves_the_folder(key: str) -> None:
    blobs = FolderStore(Path("/nowhere/blobs"))
    try:
        path = blobs.path(key)
    except ValueError:
        return
    assert Path(os.path.normpath(path)).is_relative_to(blobs.root)


class _FullDisk:
    """A file on a disk that fills up after some bytes."""

    def __init__(self, staged: FolderStaged, left: int) -> None:
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


def test_a_full_disk_is_said_in_one_sentence_and_frees_what_was_taken(blobs: FolderStore) -> None:
    staged = blobs.stage()
    _FullDisk(staged, 5)
    staged.write(b"12345")
    with pytest.raises(StoreUnavailable, match="full; free space there or set CARBONQ_DATA_DIR") as error:
        staged.write(b"6")
    assert error.value.code == "disk_full"
    assert files(blobs) == []


@pytest.mark.parametrize("act", ["sync", "prepare", "publish"])
def test_a_disk_that_fills_up_at_the_last_moment_leaves_nothing(blobs: FolderStore, act: str) -> None:
    staged = blobs.stage()
    _FullDisk(staged, 5)
    staged.write(b"12345")
    with pytest.raises(StoreUnavailable, match="full"):
        staged.sync() if act == "sync" else getattr(staged, act)("a/b")
    assert files(blobs) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreUnavailable, match=r"cannot use .*file"):
        FolderStore(tmp_path / "file").stage()


def test_sweep_removes_only_what_was_abandoned(blobs: FolderStore) -> None:
    assert blobs.sweep(60) == 0
    old, new = blobs.stage(), blobs.stage()
    os.utime(old.path, (0, 0))
    assert blobs.sweep(60) == 1
    assert not old.path.exists()
    assert new.path.exists()
    old.discard()
    new.discard()


def test_bytes_that_were_lost_are_not_taken_for_the_line(blobs: FolderStore) -> None:
    blobs.put("input", b"0123456789")
    ranges = blobs.ranges("input", [(5, 5)])
    os.truncate(blobs.path("input"), 7)
    with pytest.raises(StoreUnavailable, match="2 of 5 are left at 5"):
        ranges.read(5, 5)
    ranges.close()
