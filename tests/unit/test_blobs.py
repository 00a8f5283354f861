"""What every store of blobs must do, whether it is a folder or a bucket: blobs are whole or absent."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest

from carbonq.blobs import BlobStore
from carbonq.blobs.folder import FolderStore
from carbonq.blobs.objects import ObjectStore
from carbonq.errors import NotFound
from tests.buckets import new_bucket, open_bucket

MIB = 1 << 20


@pytest.fixture(params=["folder", "objects"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    if request.param == "folder":
        return FolderStore(tmp_path / "blobs")
    return open_bucket(new_bucket(), tmp_path / "tmp")


def keys(blobs: BlobStore) -> list[str]:
    """All that the store holds, also what has no key yet."""
    if isinstance(blobs, FolderStore):
        return sorted(str(path.relative_to(blobs.root)) for path in blobs.root.rglob("*") if path.is_file())
    assert isinstance(blobs, ObjectStore)
    assert not blobs.spool.exists() or not list(blobs.spool.iterdir())
    return sorted(meta["path"] for page in obstore.list(blobs.bucket) for meta in page)


def content(blobs: BlobStore, key: str, start: int = 0, stop: int | None = None) -> bytes:
    return b"".join(blobs.pieces(key, start, stop))


def test_what_was_put_comes_back(blobs: BlobStore) -> None:
    assert blobs.put("jobs/j/a.jsonl", b"one\n") == 4
    assert blobs.put("jobs/j/b.jsonl", iter([b"two\n", b"", b"three\n"])) == 10
    assert blobs.concatenate(["jobs/j/a.jsonl", "jobs/j/b.jsonl"], "jobs/j/all") == 14
    with blobs.open("jobs/j/all") as stream:
        assert list(stream) == [b"one\n", b"two\n", b"three\n"]
    assert content(blobs, "jobs/j/all") == b"one\ntwo\nthree\n"
    assert content(blobs, "jobs/j/all", 4) == b"two\nthree\n"
    assert content(blobs, "jobs/j/all", 4, 7) == b"two"
    assert content(blobs, "jobs/j/all", 8, 99) == b"three\n"
    assert content(blobs, "jobs/j/all", 14) == content(blobs, "jobs/j/all", 3, 3) == b""
    assert blobs.info("jobs/j/all").size == 14
    blobs.delete("jobs/j/all")
    blobs.delete("jobs/j/all")
    assert keys(blobs) == ["jobs/j/a.jsonl", "jobs/j/b.jsonl"]
    free = blobs.free_bytes()
    assert free is None or free > 0


def test_an_empty_blob_is_a_blob(blobs: BlobStore) -> None:
    assert blobs.put("a", b"") == blobs.put("b", iter([])) == 0
    assert blobs.info("a").size == 0
    assert content(blobs, "a") == content(blobs, "b") == b""
    with blobs.open("a") as stream:
        assert stream.read() == b""


def test_a_tag_changes_with_the_bytes(blobs: BlobStore) -> None:
    blobs.put("a", b"one")
    first = blobs.info("a")
    assert blobs.info("a") == first and first.tag.isprintable() and '"' not in first.tag
    assert first.modified_at.utcoffset() is not None
    blobs.put("a", b"two!")
    assert blobs.info("a").tag != first.tag


def test_a_big_blob_passes_in_pieces(blobs: BlobStore) -> None:
    data = random.Random(1).randbytes(11 * MIB + 17)
    assert blobs.put("big", (data[at : at + 700_001] for at in range(0, len(data), 700_001))) == len(data)
    sizes = [len(piece) for piece in blobs.pieces("big")]
    assert sum(sizes) == len(data) and max(sizes) <= 4 * MIB
    assert content(blobs, "big", 3 * MIB - 5, 9 * MIB + 5) == data[3 * MIB - 5 : 9 * MIB + 5]
    with blobs.open("big") as stream:
        assert stream.read(5 * MIB) == data[: 5 * MIB]
        assert stream.read() == data[5 * MIB :]


def test_a_folder_goes_with_all_that_is_in_it(blobs: BlobStore) -> None:
    for key in ("segments/j/a", "segments/j/b", "segments/jj/a"):
        blobs.put(key, b"line\n")
    blobs.delete_folder("segments/j")
    blobs.delete_folder("segments/j")
    assert keys(blobs) == ["segments/jj/a"]
    with pytest.raises(ValueError, match="no blob key"):
        blobs.delete_folder("../j")


def test_an_unknown_key_is_named(blobs: BlobStore) -> None:
    blobs.put("jobs/j/a", b"")
    asks = (blobs.open, blobs.info, lambda key: list(blobs.pieces(key)), lambda key: blobs.ranges(key, [(0, 1)]))
    for ask in asks:
        for key in ("jobs/x", "jobs/j"):
            with pytest.raises(NotFound, match=f"'{key}'"):
                ask(key)
    with pytest.raises(NotFound):
        blobs.concatenate(["jobs/j/a", "jobs/x"], "jobs/all")
    assert keys(blobs) == ["jobs/j/a"]


@pytest.mark.parametrize(
    "key", ["", "/etc/passwd", "../a", "a/../b", "a//b", ".staging/x", "a/.x", "a\0", "a/", "ä", "a" * 600]
)
def test_unsafe_keys_are_refused(blobs: BlobStore, key: str) -> None:
    staged = blobs.stage()
    for act in (
        lambda: blobs.put(key, b"x"),
        lambda: blobs.put(key, iter([b"x"])),
        lambda: staged.prepare(key),
        lambda: staged.publish(key),
        lambda: blobs.info(key),
        lambda: blobs.open(key),
        lambda: blobs.delete(key),
        lambda: blobs.ranges(key, [(0, 1)]),
    ):
        with pytest.raises(ValueError, match="no blob key"):
            act()
    staged.discard()
    assert keys(blobs) == []


def test_a_staged_blob_has_no_key_until_it_is_published(blobs: BlobStore) -> None:
    staged = blobs.stage()
    staged.write(b"hello ")
    staged.write(b"there")
    staged.sync()
    assert staged.size == 11
    for _ in range(2):
        with staged.open() as stream:
            assert stream.read(6) == b"hello "
            assert stream.read() == b"there"
    with pytest.raises(NotFound):
        blobs.info("a/b")
    staged.write(b"!")
    staged.publish("a/b")
    staged.discard()
    staged.sync()
    assert keys(blobs) == ["a/b"]
    assert content(blobs, "a/b") == b"hello there!"


def test_what_was_prepared_is_published_or_goes(blobs: BlobStore) -> None:
    with blobs.stage() as staged:
        staged.write(b"kept")
        staged.prepare("jobs/j1/input")
        with staged.open() as stream:
            assert stream.read() == b"kept"
        staged.publish("jobs/j1/input")
    with blobs.stage() as staged:
        staged.write(b"refused")
        staged.prepare("jobs/j2/input")
    assert keys(blobs) == ["jobs/j1/input"]
    assert content(blobs, "jobs/j1/input") == b"kept"
    if isinstance(blobs, FolderStore):
        assert [path.name for path in (blobs.root / "jobs").iterdir()] == ["j1"]


def test_a_discarded_blob_leaves_nothing(blobs: BlobStore) -> None:
    with pytest.raises(RuntimeError), blobs.stage() as staged:
        staged.write(b"x")
        raise RuntimeError
    assert keys(blobs) == []


def test_a_failing_stream_leaves_the_old_blob(blobs: BlobStore) -> None:
    blobs.put("a", b"old")

    def pieces() -> Iterator[bytes]:
        yield b"new" * 4 * MIB
        raise RuntimeError

    with pytest.raises(RuntimeError):
        blobs.put("a", pieces())
    assert content(blobs, "a") == b"old"
    assert keys(blobs) == ["a"]


def test_ranges_are_read_in_any_order(blobs: BlobStore) -> None:
    chance = random.Random(2)
    data = chance.randbytes(6 * MIB)
    blobs.put("input", data)
    spans = [(chance.randrange(0, 5 * MIB), chance.randrange(1, 5000)) for _ in range(300)]
    spans += [(0, 1), (len(data) - 1, 1), (MIB, 5 * MIB)]
    ranges = blobs.ranges("input", spans)
    chance.shuffle(spans)
    for offset, length in spans:
        assert ranges.read(offset, length) == data[offset : offset + length]
    with pytest.raises(ValueError, match="not asked for"):
        ranges.read(len(data) - 1, 2)
    ranges.close()
    ranges.close()
    assert keys(blobs) == ["input"]
    blobs.ranges("input", []).close()


def test_a_check_leaves_nothing(blobs: BlobStore) -> None:
    blobs.check("segments/check")
    assert keys(blobs) == []
    assert blobs.name and "secret" not in blobs.name
