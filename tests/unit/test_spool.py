"""The spool keeps records whole and in order, and sets aside what it cannot read."""

from __future__ import annotations

from pathlib import Path

import pytest

from carbonq.errors import StoreUnavailable
from carbonq.spool import Spool


def test_records_come_back_in_order_until_they_are_done(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    assert list(spool.records()) == []
    for number in range(20):
        spool.put({"number": number, "text": "é\n"})
    found = list(Spool(tmp_path / "spool").records())
    assert [record["number"] for _, record in found] == list(range(20))
    spool.done(found[0][0])
    spool.done(found[0][0])
    assert len(list(spool.records())) == 19


def test_a_torn_record_is_set_aside(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    path = spool.put({"number": 1})
    path.write_text('{"numb')
    spool.put({"number": 2})
    assert [record["number"] for _, record in spool.records()] == [2]
    assert path.with_suffix(".bad").exists()


def test_what_the_disk_refuses_stays_in_memory_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "spool"
    root.write_text("")  # a file where the folder should be
    spool = Spool(root)
    kept = spool.put({"number": 1})
    assert "cannot spool" in caplog.text and "12 bytes are in memory" in caplog.text
    monkeypatch.setattr("carbonq.spool.MAX_IN_MEMORY_BYTES", 20)
    with pytest.raises(StoreUnavailable, match="cannot spool"):
        spool.put({"number": 2})
    root.unlink()
    spool.put({"number": 3})
    assert [record["number"] for _, record in spool.records()] == [3, 1]
    spool.done(kept)
    assert [record["number"] for _, record in spool.records()] == [3]
    assert list(root.glob("*.part")) == []


def test_of_two_workers_of_a_host_one_replays(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for number in range(3):
        spool.put({"number": number})
    first = Spool(tmp_path).records()
    path, record = next(first)
    assert record == {"number": 0}
    assert list(Spool(tmp_path).records()) == [], "the other one is at it"
    spool.done(path)
    assert [record["number"] for _, record in first] == [1, 2]
    assert len(list(Spool(tmp_path).records())) == 2, "it has finished, so whatever is left is anybody's"
