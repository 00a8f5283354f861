"""Segments and what runs know of jobs, on both databases."""

from __future__ import annotations

from pathlib import Path

from carbonq.store import results
from carbonq.store.database import Database
from carbonq.store.results import Segment
from tests.services.running import Bench


def test_segments_come_back_in_order_and_by_kind(database: Database, tmp_path: Path) -> None:
    bench = Bench(database, tmp_path)
    job_id = bench.job(2)
    made = [Segment(job_id, "chk_1", "output", f"segments/{i}", 10, 1) for i in range(3)]
    wrong = Segment(job_id, "chk_1", "error", "segments/e", 5, 1)
    with database.write() as tx:
        results.insert_segments(tx, [])
        results.insert_segments(tx, [made[0], wrong])
        results.insert_segments(tx, made[1:])
    with database.read() as tx:
        assert results.segments_of(tx, job_id, "output") == made
        assert results.segments_of(tx, job_id, "error") == [wrong]


def test_infos_tell_what_a_run_needs(database: Database, tmp_path: Path) -> None:
    bench = Bench(database, tmp_path)
    one, two = bench.job(1), bench.job(1)
    with database.read() as tx:
        infos = results.job_infos(tx, [one, two, "job_unknown"])
    assert set(infos) == {one, two}
    assert (infos[one].tenant, infos[one].product_line, infos[one].is_cancel_requested) == ("acme", "search", False)
