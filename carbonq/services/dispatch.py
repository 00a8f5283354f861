"""Every second: send tickets for chunks whose time has come, as many as there are free slots.

A chunk's time comes with its window, or with its latest safe start: then it runs whatever the plan says, so that a dead
planner means "run by the deadline" and never "never run".
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from carbonq import ids
from carbonq.clock import Clock
from carbonq.model import Region
from carbonq.plan.planner import Reason
from carbonq.plan.policy import is_open, may_start, nearest_region
from carbonq.store import dispatch as rows
from carbonq.store import regions as region_rows
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import serialise
from carbonq.store.dispatch import Due, Sent
from carbonq.tickets import TicketPublisher
from carbonq.units import window_of


def dispatch(
    db: Database,
    tickets: TicketPublisher,
    clock: Clock,
    *,
    redispatch_after_s: float,
    worker_alive_s: float,
) -> int:
    """Send what is due and what nobody took within ``redispatch_after_s`` machine seconds; return how many tickets.

    Idempotent: a ticket that goes out twice is harmless. Raises BrokerUnavailable (nothing is marked as sent then; some
    tickets may be out) and StoreUnavailable.
    """
    with db.read() as tx:
        if not rows.is_anything_due(tx, clock.now(), redispatch_after_s=redispatch_after_s):
            return 0
    with db.write() as tx:
        serialise(tx, "dispatch")  # two at once would both fill the same free slots
        now = clock.now()
        regions = {region.name: region for region in region_rows.load_all(tx, worker_alive_s=worker_alive_s)}
        resent = _resend(tx, regions, redispatch_after_s)
        sent = _choose(tx, regions, now)
        pairs = resent + [(one.region, one.chunk_id) for one in sent]
        rows.mark_sent(tx, sent, now=now, reason=Reason.DEADLINE.value)
        if pairs:
            # Published before the commit: a doubled ticket is harmless, a lost one costs redispatch_after_s.
            tickets.flexible(pairs)
    return len(pairs)


def _resend(tx: Tx, regions: Mapping[str, Region], redispatch_after_s: float) -> list[tuple[str, str]]:
    """Mark unclaimed tickets as sent again; those of a region that takes nothing any more go back to the planner."""
    again: list[tuple[str, str]] = []
    lost: list[str] = []
    for name, chunk_id in rows.unclaimed(tx, redispatch_after_s=redispatch_after_s):
        region = regions.get(name)
        if region is not None and is_open(region):
            again.append((name, chunk_id))
        else:
            lost.append(chunk_id)
    if again:
        rows.mark_resent(tx, [chunk_id for _, chunk_id in again])
    if lost:
        rows.withdraw(tx, lost)
    return again


def _choose(tx: Tx, regions: Mapping[str, Region], now: datetime) -> list[Sent]:
    """Fill the free slots: what must start now first, wherever it may, then each region's own due chunks."""
    taken = rows.occupied(tx)
    free = {name: max(0, region.slots - taken[name]) for name, region in regions.items() if is_open(region)}
    sent: list[Sent] = []
    slots = sum(free.values())
    if not slots:
        return sent
    # More than there are slots: the first may be bound to regions that are full.
    for chunk in rows.urgent(tx, now, limit=4 * slots + 100):
        region = _region_for(chunk, regions, free)
        if region is None:
            continue
        free[region] -= 1
        is_as_planned = region == chunk.region and chunk.window_at is not None
        sent.append(
            Sent(
                chunk_id=chunk.chunk_id,
                region=region,
                window_at=chunk.window_at if is_as_planned and chunk.window_at is not None else window_of(now),
                placement_id=None if is_as_planned else ids.new("plc"),
            )
        )
    done = {one.chunk_id for one in sent}
    for name, count in free.items():
        if not count:
            continue
        found = [chunk for chunk in rows.due(tx, name, now, limit=count + len(done)) if chunk.chunk_id not in done]
        sent.extend(Sent(one.chunk_id, name, one.window_at or window_of(now), None) for one in found[:count])
    return sent


def _region_for(chunk: Due, regions: Mapping[str, Region], free: Mapping[str, int]) -> str | None:
    """Return where an urgent chunk starts: its own region if that has a slot free, else the nearest that has one."""
    usable = [
        region
        for name, region in regions.items()
        if free.get(name, 0) > 0 and (chunk.regions is None or name in chunk.regions) and may_start(region, chunk.model)
    ]
    if any(region.name == chunk.region for region in usable):
        return chunk.region
    nearest = nearest_region(usable, chunk.model)
    return None if nearest is None else nearest.name
