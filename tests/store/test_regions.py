"""Regions and workers on both databases."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from sqlalchemy import update

from carbonq.model import Maintenance, Region, RegionState
from carbonq.store import regions
from carbonq.store.database import Database
from carbonq.store.dialect import machine_now
from carbonq.store.tables import workers

SPAN = Maintenance(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 2, 0, 0, 5, tzinfo=UTC), 1)
FR = Region(
    "fr",
    "FR",
    2,
    Decimal("1.20"),
    "stated",
    "l4",
    models=("m",),
    embodied_kg=Decimal("10.5"),
    maintenance=(SPAN,),
    transfer_kwh_per_gb=Decimal("0.06"),
    transfer_g_per_kwh=Decimal("250.0"),
    price_per_kwh=Decimal("0.31"),
)
SE = Region("se", "SE", 1, Decimal("1.1"), "stated", "cpu")


def enter(db: Database, worker_id: str, region: str = "fr") -> None:
    with db.write() as tx:
        regions.register_worker(
            tx, worker_id=worker_id, region=region, host="h", pid=1, slots=2, software_version="1", hardware="l4"
        )


def load(db: Database) -> dict[str, Region]:
    with db.read() as tx:
        return {region.name: region for region in regions.load_all(tx, worker_alive_s=15)}


def test_sync_stores_what_the_settings_say(database: Database) -> None:
    with database.write() as tx:
        regions.sync(tx, [FR, SE])
    assert load(database) == {"fr": replace(FR, is_healthy=False), "se": replace(SE, is_healthy=False)}


def test_a_second_sync_keeps_the_operators_pause_and_forgets_who_left(database: Database) -> None:
    with database.write() as tx:
        regions.sync(tx, [FR, SE])
        assert regions.set_state(tx, "fr", RegionState.PAUSED)
        assert not regions.set_state(tx, "nowhere", RegionState.PAUSED)
    with database.write() as tx:
        regions.sync(tx, [replace(FR, slots=3)])
    loaded = load(database)
    assert list(loaded) == ["fr"]
    assert (loaded["fr"].slots, loaded["fr"].state) == (3, RegionState.PAUSED)
    with database.read() as tx:
        gone = regions.find(tx, "se")
        assert gone is not None
        assert gone.hardware == "cpu"
        assert regions.find(tx, "nowhere") is None
        assert regions.state_of(tx, "fr") is RegionState.PAUSED
        assert regions.state_of(tx, "nowhere") is RegionState.ACTIVE


def test_a_region_is_healthy_while_a_worker_lives(database: Database) -> None:
    with database.write() as tx:
        regions.sync(tx, [FR, SE])
    enter(database, "w1")
    assert {name: region.is_healthy for name, region in load(database).items()} == {"fr": True, "se": False}
    with database.write() as tx:
        silent = machine_now(tx) - timedelta(seconds=60)
        tx.execute(update(workers).values(last_seen_at=silent))
    assert not load(database)["fr"].is_healthy
    with database.write() as tx:
        assert regions.worker_seen(tx, "w1")
        assert not regions.worker_seen(tx, "w2")
    assert load(database)["fr"].is_healthy
    with database.write() as tx:
        regions.worker_stopped(tx, "w1")
    assert not load(database)["fr"].is_healthy


def test_live_workers_are_listed_with_their_last_claim(database: Database) -> None:
    enter(database, "w1")
    with database.write() as tx:
        regions.worker_claimed(tx, "w1")
    with database.read() as tx:
        (worker,) = regions.live_workers(tx, worker_alive_s=15)
    assert (worker.worker_id, worker.region, worker.slots) == ("w1", "fr", 2)
    assert worker.last_claimed_at is not None
