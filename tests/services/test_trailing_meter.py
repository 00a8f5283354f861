"""A worker whose meter trails, as a GPU's counter does: nobody waits for it while working, and no energy is lost."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from carbonq.booking import Booking
from carbonq.meters.hub import Hub
from carbonq.meters.protocol import SHARED_DEVICE, Component, MeterKind
from carbonq.model import EntryKind, Quality
from carbonq.services import heartbeat, realtime
from carbonq.services.run import Result, run_chunk
from carbonq.services.site import Site
from carbonq.store.database import Database
from carbonq.testing import FakeMeter
from tests.services.running import ITEM_UJ, Bench
from tests.services.test_realtime import payload

LAG_S = 0.05


class Trailing:
    """A site with a card behind its counter."""

    def __init__(self, db: Database, root: Path, lag_s: float) -> None:
        self.bench = Bench(db, root)
        self.card = self.bench.meter = FakeMeter(
            Component.GPU, kind=MeterKind.NVML_COUNTER, quality=Quality.MEASURED, lag_s=lag_s
        )
        self.cpu = FakeMeter()
        self.hub = Hub([self.card, self.cpu], self.bench.clock, time.monotonic)
        self.hub.watch()
        self.site: Site = replace(self.bench.site, hub=self.hub)
        self.kept: list[Booking] = []


@pytest.fixture
def trailing(sqlite_database: Database, tmp_path: Path) -> Iterator[Trailing]:
    made = Trailing(sqlite_database, tmp_path, LAG_S)
    yield made
    made.hub.close()


def test_a_run_books_in_full_what_the_counter_shows_later(trailing: Trailing) -> None:
    bench = trailing.bench
    job_id = bench.job(10)
    assert run_chunk(trailing.site, bench.chunk(job_id), threading.Event()) is Result.DONE
    bench.check_once(job_id)
    bench.check_shares()
    heartbeat.book_idle(trailing.site, trailing.hub.flush(), trailing.kept.append)
    idle = sum(row["gpu_uj"] or 0 for booked in trailing.kept for row in booked.engine_batches)
    assert bench.energy_uj("item") > 0
    assert bench.energy_uj("item") + idle == 10 * ITEM_UJ


def test_a_realtime_answer_does_not_wait_and_its_entry_is_exact(sqlite_database: Database, tmp_path: Path) -> None:
    trailing = Trailing(sqlite_database, tmp_path, 1_000.0)
    answer = realtime.answer(trailing.site, payload(), trailing.kept.append)
    carbon = json.loads(answer["carbon_json"])
    assert (answer["status_code"], answer["energy_uj"], carbon["energy_wh"]) == (200, None, None)
    assert trailing.kept == []
    idle = trailing.hub.flush()
    (booked,) = trailing.kept
    (entry,) = booked.entries
    assert carbon["entry_ids"] == [entry["entry_id"]]
    assert entry["gpu_uj"] + sum(one.part.gpu_uj or 0 for one in idle) == ITEM_UJ
    trailing.hub.close()


def test_what_others_use_is_booked_as_theirs(trailing: Trailing) -> None:
    trailing.hub.flush()
    trailing.card.burn(77)
    trailing.card.next_marks = (SHARED_DEVICE,)
    heartbeat.book_idle(trailing.site, trailing.hub.flush(), trailing.kept.append)
    entries = [entry for booked in trailing.kept for entry in booked.entries]
    assert [(entry["kind"], entry["gpu_uj"]) for entry in entries if entry["gpu_uj"]] == [
        (EntryKind.HOST_OTHER.value, 77)
    ]
    (row,) = [row for booked in trailing.kept for row in booked.engine_batches if row["gpu_uj"]]
    assert (row["quality"], row["device_ids"]) == ("estimated", ["fake-0", "fake-0", SHARED_DEVICE])
