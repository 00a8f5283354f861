"""Invariant 10: whatever the carbon sources do, all work runs by its deadline, is flagged, and settles later."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import func, select

from carbonq import ids
from carbonq.model import ChunkState, NewChunk, Signal
from carbonq.ratebook import FALLBACK_PATIENCE_S
from carbonq.services.dispatch import dispatch
from carbonq.services.plan import plan_waiting
from carbonq.services.rates import RateCache
from carbonq.services.refresh import Refresher
from carbonq.services.run import Result, run_chunk
from carbonq.services.settle import settle
from carbonq.store import chunks as chunk_rows
from carbonq.store import items as item_rows
from carbonq.store import regions
from carbonq.store.database import Database
from carbonq.store.tables import entries, placements, unsettled
from carbonq.testing import FAKE_EPOCH, FakeGrid, RecordedSignal
from carbonq.units import WINDOW, WINDOW_S, window_of
from tests.services.running import MODEL, OTHER, REGION, Bench

WINDOWS = 13
ZONES = ("FR", "SE")

#: Which sources answer in a window: (the preferred one, the fallback).
Weather = Callable[[int], tuple[bool, bool]]

WEATHERS: dict[str, Weather] = {
    "never an answer": lambda _: (False, False),
    "silence from the start, back at the end": lambda window: (window >= WINDOWS - 2, False),
    "the fallback alone": lambda _: (False, True),
    "flapping": lambda window: (window % 5 == 0, window % 3 == 0),
}


class World(Bench):
    """Regions whose rates come from two sources that can go away."""

    def __init__(self, db: Database, root: Path) -> None:
        super().__init__(db, root)
        start = FAKE_EPOCH - timedelta(days=1)
        self.grids = [
            FakeGrid(
                [RecordedSignal(zone, start, [100 * (n + 1) + i % 50 for i in range(900)]) for zone in ZONES],
                name=name,
                horizon=24,
            )
            for n, name in enumerate(("first", "second"))
        ]
        self.refresher = Refresher(db, {(zone, Signal.MOER): tuple(self.grids) for zone in ZONES}, self.clock)
        self.rates = RateCache([REGION, OTHER])
        self.site = replace(self.site, rates=self.rates.book)
        with db.write() as tx:
            regions.register_worker(
                tx,
                worker_id="w",
                region="fr",
                host="h",
                pid=1,
                slots=1,
                software_version="0",
                hardware="cpu",
            )

    def wait_chunk(self, minutes: int) -> str:
        """Make a job of three items whose chunk waits for a plan; finished by ``minutes`` from the start."""
        job_id = self.job(3, prefix=f"m{minutes}-")
        with self.db.write() as tx:
            found = item_rows.unchunked(tx, [job_id])
            new = NewChunk(
                chunk_id=ids.new("chk"),
                tenant="acme",
                model=MODEL.name,
                endpoint=MODEL.endpoint,
                regions=None,
                release_at=FAKE_EPOCH,
                deadline_at=FAKE_EPOCH + timedelta(minutes=minutes),
                item_ids=[item_id for item_id, _, _ in found],
                est_tokens=6,
                est_duration_s=30.0,
                est_energy_uj=3000,
                baseline_region="se",
                baseline_window_at=window_of(FAKE_EPOCH),
            )
            chunk_rows.insert_many(tx, [new], created_at=self.clock.now())
        return new.chunk_id

    def window(self, weather: tuple[bool, bool]) -> list[str]:
        """Live through one window and return the chunks that ran in it."""
        for grid, answers in zip(self.grids, weather, strict=True):
            grid.is_down = not answers
        ran: list[str] = []
        until = window_of(self.clock.now()) + WINDOW
        self.refresher.run()
        self.rates.refresh(self.db, self.clock.now())
        while self.clock.now() < until:
            plan_waiting(self.db, self.clock, worker_alive_s=3600)
            dispatch(self.db, self.tickets, self.clock, redispatch_after_s=3600, worker_alive_s=3600)
            while self.tickets.sent:
                _, chunk_id = self.tickets.sent.pop(0)
                assert run_chunk(self.site, chunk_id, threading.Event()) is Result.DONE
                ran.append(chunk_id)
            self.clock.set(self.clock.now() + timedelta(seconds=WINDOW_S / 2))
        self.clock.set(until)
        return ran


@pytest.mark.parametrize("name", WEATHERS)
def test_all_work_runs_by_its_deadline_is_flagged_and_settles_later(
    name: str, sqlite_database: Database, tmp_path: Path
) -> None:
    world = World(sqlite_database, tmp_path)
    deadlines = {world.wait_chunk(minutes): FAKE_EPOCH + timedelta(minutes=minutes) for minutes in (15, 30, 60)}
    ended = {}
    for number in range(WINDOWS):
        for chunk_id in world.window(WEATHERS[name](number)):
            ended[chunk_id] = world.clock.now()  # the end of the window, so at the latest
    assert ended.keys() == deadlines.keys()
    assert all(ended[chunk_id] <= deadlines[chunk_id] + WINDOW for chunk_id in deadlines)
    assert all(world.one(chunk_id).state is ChunkState.DONE for chunk_id in deadlines)

    statuses = {row.moer_status for row in world.rows(entries)}
    reasons = {row.reason for row in world.rows(placements)}
    if name == "never an answer":
        assert statuses == {"missing"} and reasons == {"overlay"}
        assert {row.emission_g for row in world.rows(entries)} == {None}  # missing, never 0
    else:
        assert statuses <= {"missing", "provisional", "settled"}

    # All sources are back, some hours later; what is still open settles.
    world.clock.advance(2 * 3600)
    world.window((True, True))
    world.clock.advance(FALLBACK_PATIENCE_S)
    while settle(sqlite_database, world.clock.now(), settle_after_s=0):
        pass
    with sqlite_database.read() as tx:
        # The other book has no source, so it stays open.
        assert tx.execute(select(unsettled.c.signal).distinct()).scalars().all() == [Signal.AER.value]
        newest = select(entries.c.entry_id, func.max(entries.c.revision).label("last")).group_by(entries.c.entry_id)
        last = newest.subquery()
        joined = entries.join(last, (entries.c.entry_id == last.c.entry_id) & (entries.c.revision == last.c.last))
        final = {(row.moer_status, row.emission_g is None) for row in tx.execute(select(entries).select_from(joined))}
    assert final == {("settled", False)}
