"""What was kept long enough goes in short transactions; the ledger and what it refers to stay."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event as listen
from sqlalchemy import func, insert, select, update

from carbonq.errors import StoreUnavailable
from carbonq.services import finish
from carbonq.services.retire import Keep, retire
from carbonq.services.run import Result, run_chunk
from carbonq.store import exports, retention
from carbonq.store.database import Database
from carbonq.store.dialect import machine_now
from carbonq.store.tables import attempts, chunks, entries, events, items, jobs, placements, plans, segments
from tests.services.running import Bench
from tests.services.test_run import GO

KEEP = Keep(results_days=30)
DAY_S = 86_400.0


def finished(bench: Bench, count: int) -> tuple[str, str]:
    """Run a job to its end as placements had it: one it left and one it ran under. Return job and chunk."""
    job_id = bench.job(count)
    chunk_id = bench.chunk(job_id)
    with bench.db.write() as tx:
        common = {"chunk_id": chunk_id, "plan_id": "plan_1", "region": "fr", "reason": "carbon"}
        times = {"window_at": bench.clock.now(), "created_at": bench.clock.now()}
        names = [{"placement_id": f"{name}_{chunk_id}"} for name in ("left", "last")]
        tx.execute(insert(placements), [common | times | name for name in names])
        tx.execute(update(chunks).where(chunks.c.chunk_id == chunk_id).values(placement_id=f"last_{chunk_id}"))
    assert run_chunk(bench.site, chunk_id, GO) is Result.DONE
    assert finish.finish_jobs(bench.db, bench.blobs, bench.clock) == 1
    return job_id, chunk_id


def count(bench: Bench, table: Any, *where: Any) -> int:
    with bench.db.read() as tx:
        return tx.execute(select(func.count()).select_from(table).where(*where)).scalar_one()


def ledger(bench: Bench) -> list[Any]:
    return [line for page in exports.pages(bench.db, exports.Selection(all_revisions=True)) for line in page]


def test_a_job_goes_and_its_ledger_stays_to_the_last_cell(database: Database, tmp_path: Path) -> None:
    bench = Bench(database, tmp_path)
    old, chunk_id = finished(bench, 5)
    before = ledger(bench)
    bench.clock.advance(20 * DAY_S)
    young, _ = finished(bench, 3)
    assert retire(database, bench.blobs, bench.clock, KEEP) == 1  # the first one's segments
    assert bench.get_job(old).retired_at is None

    bench.clock.advance(10 * DAY_S + 1)
    assert retire(database, bench.blobs, bench.clock, KEEP, batch_rows=2) == 1 + 5 + 1
    job = bench.get_job(old)
    assert (job.retired_at, job.output_blob, job.items_succeeded) == (bench.clock.now(), None, 5)
    assert not list((tmp_path / "blobs" / "jobs" / old).glob("*"))
    for table in (items, segments):
        assert count(bench, table, table.c.job_id == old) == 0
    for table in (attempts, chunks):
        assert count(bench, table, table.c.chunk_id == chunk_id) == 0
    # The placement that entries name stays, the one that was left goes.
    assert [row.placement_id for row in bench.rows(placements, placements.c.chunk_id == chunk_id)] == [
        f"last_{chunk_id}"
    ]
    assert [line for line in ledger(bench) if line in before] == before
    assert bench.get_job(young).retired_at is None
    assert count(bench, items, items.c.job_id == young) == 3
    assert retire(database, bench.blobs, bench.clock, KEEP) == 0


def test_all_placements_of_a_chunk_that_was_claimed_twice_stay(database: Database, tmp_path: Path) -> None:
    bench = Bench(database, tmp_path)
    _, chunk_id = finished(bench, 1)
    with database.write() as tx:
        tx.execute(update(chunks).where(chunks.c.chunk_id == chunk_id).values(token=3))
    bench.clock.advance(31 * DAY_S)
    retire(database, bench.blobs, bench.clock, KEEP)
    assert count(bench, chunks) == 0
    assert count(bench, placements, placements.c.chunk_id == chunk_id) == 2


def test_a_retirement_that_was_cut_off_goes_on(
    sqlite_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(sqlite_database, tmp_path)
    job_id, _ = finished(bench, 3)
    bench.clock.advance(31 * DAY_S)
    first_at = bench.clock.now()

    def away(*_arguments: object, **_options: object) -> int:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(retention, "delete_items", away)
        with pytest.raises(StoreUnavailable):
            retire(sqlite_database, bench.blobs, bench.clock, KEEP)
    assert bench.get_job(job_id).retired_at == first_at  # out of reach already, and not again later
    bench.clock.advance(60)
    assert retire(sqlite_database, bench.blobs, bench.clock, KEEP) == 3 + 1
    assert bench.get_job(job_id).retired_at == first_at
    assert count(bench, jobs, jobs.c.purged_at.is_(None)) == 0


def test_events_and_plans_go_by_machine_time_and_the_newest_plan_stays(database: Database, tmp_path: Path) -> None:
    bench = Bench(database, tmp_path)
    with database.write() as tx:
        now = machine_now(tx)
        days = (100, 95, 50, 1)
        at = [now - timedelta(days=day) for day in days]
        event = {"tenant": None, "job_id": None, "type": "t", "data": {}}
        tx.execute(insert(events), [event | {"at": when, "recorded_at": when} for when in at])
        plan = {"chunks": 0, "moved": 0, "late": 0, "is_overlay": False, "duration_s": 0.0}
        rows = [
            plan | {"plan_id": f"p{day}", "created_at": w, "recorded_at": w} for day, w in zip(days, at, strict=True)
        ]
        tx.execute(insert(plans), rows[:3])
    keep = Keep(events_days=90, plans_days=30)
    assert retire(database, bench.blobs, bench.clock, keep, batch_rows=1) == 2 + 2
    assert count(bench, events) == 2
    assert [row.plan_id for row in bench.rows(plans)] == ["p50"]


def test_nothing_is_asked_for_nothing_goes(sqlite_database: Database, tmp_path: Path) -> None:
    bench = Bench(sqlite_database, tmp_path)
    finished(bench, 2)
    bench.clock.advance(10_000 * DAY_S)
    assert retire(sqlite_database, bench.blobs, bench.clock, Keep()) == 1  # segments are copies
    assert retire(sqlite_database, bench.blobs, bench.clock, Keep()) == 0
    assert count(bench, items) == 2


def test_no_transaction_deletes_more_than_its_share(sqlite_database: Database, tmp_path: Path) -> None:
    bench = Bench(sqlite_database, tmp_path)
    finished(bench, 50)
    bench.clock.advance(31 * DAY_S)
    deleted: list[int] = []

    def note(_connection: Any, cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.startswith("DELETE"):
            deleted.append(cursor.rowcount)

    listen.listen(sqlite_database.engine, "after_cursor_execute", note)
    retire(sqlite_database, bench.blobs, bench.clock, KEEP, batch_rows=10)
    assert max(deleted) == 10
    assert count(bench, entries) == 50
