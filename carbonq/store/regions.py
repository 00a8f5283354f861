"""Regions as configured and the workers that serve them. Times here are machine times of the database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Row, insert, select, update

from carbonq.model import Maintenance, Region, RegionState, Worker
from carbonq.store.database import Tx
from carbonq.store.dialect import machine_now
from carbonq.store.tables import regions, workers
from carbonq.units import iso, parse_iso


def sync(tx: Tx, configured: Sequence[Region]) -> None:
    """Make the table say what the settings say; an operator's pause stays, a region that left keeps its history."""
    now = machine_now(tx)
    known = {row.region for row in tx.execute(select(regions.c.region))}
    tx.execute(update(regions).values(is_configured=False))
    for region in configured:
        values = _values(region) | {"is_configured": True, "updated_at": now}
        if region.name in known:
            tx.execute(update(regions).where(regions.c.region == region.name).values(**values))
        else:
            tx.execute(insert(regions).values(region=region.name, state=RegionState.ACTIVE.value, **values))


def _values(region: Region) -> dict[str, Any]:
    return {
        "zone": region.zone,
        "slots": region.slots,
        "realtime_slots": region.realtime_slots,
        "pue": region.pue,
        "pue_source": region.pue_source,
        "hardware": region.hardware,
        "latency_ms": region.latency_ms,
        "ownership": region.ownership,
        "models": None if region.models is None else list(region.models),
        "embodied_kg": region.embodied_kg,
        "life_h": region.life_h,
        "maintenance": [
            {"start": iso(one.start_at), "end": iso(one.end_at), "slots": one.slots} for one in region.maintenance
        ],
        "transfer_kwh_per_gb": region.transfer_kwh_per_gb,
        "transfer_g_per_kwh": region.transfer_g_per_kwh,
        "price_per_kwh": region.price_per_kwh,
    }


def load_all(tx: Tx, *, worker_alive_s: float) -> list[Region]:
    """Return the configured regions by name; ``is_healthy`` says whether a live worker serves it."""
    alive = {worker.region for worker in live_workers(tx, worker_alive_s=worker_alive_s)}
    rows = tx.execute(select(regions).where(regions.c.is_configured.is_(True)).order_by(regions.c.region))
    return [_region(row, is_healthy=row.region in alive) for row in rows]


def find(tx: Tx, name: str) -> Region | None:
    """Return a region, configured or not any more; None if there never was one. ``is_healthy`` says nothing here."""
    row = tx.execute(select(regions).where(regions.c.region == name)).one_or_none()
    return None if row is None else _region(row, is_healthy=False)


def _region(row: Row[Any], *, is_healthy: bool) -> Region:
    return Region(
        name=row.region,
        zone=row.zone,
        slots=row.slots,
        pue=row.pue,
        pue_source=row.pue_source,
        hardware=row.hardware,
        realtime_slots=row.realtime_slots,
        latency_ms=row.latency_ms,
        ownership=row.ownership,
        models=None if row.models is None else tuple(row.models),
        embodied_kg=row.embodied_kg,
        life_h=row.life_h,
        state=RegionState(row.state),
        is_healthy=is_healthy,
        maintenance=tuple(
            Maintenance(parse_iso(one["start"]), parse_iso(one["end"]), one["slots"]) for one in row.maintenance or ()
        ),
        transfer_kwh_per_gb=row.transfer_kwh_per_gb,
        transfer_g_per_kwh=row.transfer_g_per_kwh,
        price_per_kwh=row.price_per_kwh,
    )


def state_of(tx: Tx, region: str) -> RegionState:
    """Return what the operator said of a region; active for one that is unknown."""
    state = tx.execute(select(regions.c.state).where(regions.c.region == region)).scalar_one_or_none()
    return RegionState.ACTIVE if state is None else RegionState(state)


def set_state(tx: Tx, region: str, state: RegionState) -> bool:
    """Pause, drain or reactivate a region; False when there is none of that name."""
    changed = tx.execute(
        update(regions).where(regions.c.region == region).values(state=state.value, updated_at=machine_now(tx))
    )
    return changed.rowcount == 1


def register_worker(
    tx: Tx,
    *,
    worker_id: str,
    region: str,
    host: str,
    pid: int,
    slots: int,
    software_version: str,
    hardware: str,
    settings_digest: str | None = None,
    clock_offset_s: float | None = None,
    gpus: Sequence[str] = (),
) -> None:
    """Enter a region worker that has just started; ``clock_offset_s`` is its host's clock minus the database's."""
    now = machine_now(tx)
    tx.execute(
        insert(workers).values(
            worker_id=worker_id,
            region=region,
            host=host,
            pid=pid,
            slots=slots,
            started_at=now,
            last_seen_at=now,
            software_version=software_version,
            hardware=hardware,
            settings_digest=settings_digest,
            clock_offset_s=clock_offset_s,
            gpus=list(gpus),
        )
    )


def worker_seen(tx: Tx, worker_id: str) -> bool:
    """Note that a worker is alive; False when it is not entered (the database was restored: register again)."""
    changed = tx.execute(
        update(workers).where(workers.c.worker_id == worker_id).values(last_seen_at=machine_now(tx), stopped_at=None)
    )
    return changed.rowcount == 1


def worker_claimed(tx: Tx, worker_id: str) -> None:
    """Note that a worker claimed a chunk, for the watchdog that looks for deaf workers."""
    now = machine_now(tx)
    tx.execute(update(workers).where(workers.c.worker_id == worker_id).values(last_claimed_at=now, last_seen_at=now))


def worker_stopped(tx: Tx, worker_id: str) -> None:
    """Note that a worker ended in order; it counts as gone at once."""
    tx.execute(update(workers).where(workers.c.worker_id == worker_id).values(stopped_at=machine_now(tx)))


def live_workers(tx: Tx, *, worker_alive_s: float) -> list[Worker]:
    """Return the workers heard of within ``worker_alive_s`` machine seconds and not stopped, oldest first."""
    since = machine_now(tx) - timedelta(seconds=worker_alive_s)
    rows = tx.execute(
        select(workers)
        .where(workers.c.last_seen_at >= since, workers.c.stopped_at.is_(None))
        .order_by(workers.c.started_at, workers.c.worker_id)
    )
    return [
        Worker(
            worker_id=row.worker_id,
            region=row.region,
            host=row.host,
            pid=row.pid,
            slots=row.slots,
            started_at=row.started_at,
            last_seen_at=row.last_seen_at,
            last_claimed_at=row.last_claimed_at,
            software_version=row.software_version,
            hardware=row.hardware,
            settings_digest=row.settings_digest,
            clock_offset_s=row.clock_offset_s,
            gpus=tuple(row.gpus or ()),
        )
        for row in rows
    ]
