"""Every second: send tickets for chunks whose time has come, as many as there are free slots.

A chunk's time comes with its window, or with its latest safe start: then it runs whatever the plan says, so that a dead
planner means "run by the deadline" and never "never run".
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

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
        sent = _choose(tx, regions, now, clock.factor)
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


class _Slots:
    """The free slots of each region that takes work, now and as long as a chunk runs."""

    def __init__(self, regions: Mapping[str, Region], taken: Mapping[str, int], now: datetime, factor: float) -> None:
        self._open = {name: region for name, region in regions.items() if is_open(region)}
        self._taken = {name: taken[name] for name in self._open}
        self._now, self._factor = now, factor

    def free(self) -> dict[str, int]:
        """Return how many slots each region has free at this moment."""
        moment = timedelta(microseconds=1)
        return {name: self._left(region, moment) for name, region in self._open.items()}

    def has_room(self, name: str, chunk: Due) -> bool:
        """Say whether a chunk that starts now keeps its slot until it ends: no maintenance begins under it."""
        region = self._open.get(name)
        length = timedelta(seconds=max(chunk.est_duration_s * self._factor, 1e-6))
        return region is not None and self._left(region, length) > 0

    def take(self, name: str) -> None:
        self._taken[name] += 1

    def _left(self, region: Region, length: timedelta) -> int:
        return max(0, region.least_slots(self._now, self._now + length) - self._taken[region.name])


def _choose(tx: Tx, regions: Mapping[str, Region], now: datetime, factor: float) -> list[Sent]:
    """Fill the free slots: what must start now first, wherever it may, then each region's own due chunks."""
    slots_of = _Slots(regions, rows.occupied(tx), now, factor)
    free = slots_of.free()
    sent: list[Sent] = []
    slots = sum(free.values())
    if not slots:
        return sent
    # More than there are slots: the first may be bound to regions that are full.
    for chunk in rows.urgent(tx, now, limit=4 * slots + 100):
        region = _region_for(chunk, regions, slots_of)
        if region is None:
            continue
        slots_of.take(region)
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
    for name, count in slots_of.free().items():
        if not count:
            continue
        # More than there are slots: the first may be too long to end before a maintenance.
        for one in rows.due(tx, name, now, limit=4 * count + len(done)):
            if one.chunk_id in done or not slots_of.has_room(name, one):
                continue
            slots_of.take(name)
            sent.append(Sent(one.chunk_id, name, one.window_at or window_of(now), None))
    return sent


def _region_for(chunk: Due, regions: Mapping[str, Region], slots_of: _Slots) -> str | None:
    """Return where an urgent chunk starts: its own region if that has a slot free, else the nearest that has one."""
    usable = [
        region
        for name, region in regions.items()
        if slots_of.has_room(name, chunk)
        and (chunk.regions is None or name in chunk.regions)
        and may_start(region, chunk.model)
    ]
    if any(region.name == chunk.region for region in usable):
        return chunk.region
    nearest = nearest_region(usable, chunk.model)
    return None if nearest is None else nearest.name
