"""Every second: send tickets for chunks whose time has come, as many as there are free slots.

A chunk's time comes with its window, or with its latest safe start: then it runs whatever the plan says, so that a dead
planner means "run by the deadline" and never "never run". A region whose workers live and take nothing keeps its
tickets for as long as deadlines allow; then they go elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from carbonq import ids
from carbonq.clock import Clock
from carbonq.model import Region
from carbonq.plan.planner import Reason
from carbonq.plan.policy import is_open, may_start, nearest_region
from carbonq.store import deaf
from carbonq.store import dispatch as rows
from carbonq.store import regions as region_rows
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import serialise
from carbonq.store.dispatch import Due, Sent
from carbonq.tickets import TicketPublisher, shown_ticket
from carbonq.units import window_of

logger = logging.getLogger(__name__)


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
        world = _World.of(tx, now, clock.factor, worker_alive_s=worker_alive_s)
        resent, moved = _resend(tx, world, redispatch_after_s)
        sent = moved + _choose(tx, world)
        pairs = resent + [(one.region, one.chunk_id) for one in sent]
        rows.mark_sent(tx, sent, now=now, reason=Reason.DEADLINE.value)
        if pairs:
            # Published before the commit: a doubled ticket is harmless, a lost one costs redispatch_after_s.
            tickets.flexible(pairs, _shown(tx, pairs))
    return len(pairs)


def _shown(tx: Tx, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Say what each chunk is, for those who watch the queues."""
    sizes = rows.sizes(tx, [chunk_id for _, chunk_id in pairs])
    return {
        chunk_id: shown_ticket(region, model=sizes[chunk_id][0], items=sizes[chunk_id][1])
        for region, chunk_id in pairs
        if chunk_id in sizes
    }


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


@dataclass(frozen=True, slots=True)
class _World:
    """The regions with their slots; ``silent`` are those whose live workers all leave their tickets alone."""

    now: datetime
    regions: Mapping[str, Region]
    silent: frozenset[str]
    slots: _Slots

    @classmethod
    def of(cls, tx: Tx, now: datetime, factor: float, *, worker_alive_s: float) -> _World:
        regions = {region.name: region for region in region_rows.load_all(tx, worker_alive_s=worker_alive_s)}
        silent = deaf.regions_of(tx, region_rows.live_workers(tx, worker_alive_s=worker_alive_s))
        return cls(now, regions, silent, _Slots(regions, rows.occupied(tx), now, factor))

    def region_for(self, chunk: Due) -> str | None:
        """Return where an urgent chunk starts: its own region if that has a slot free, else the nearest that has one.

        One that hears comes before a silent one, whichever is nearer.
        """
        usable = [
            region
            for name, region in self.regions.items()
            if self.slots.has_room(name, chunk)
            and (chunk.regions is None or name in chunk.regions)
            and may_start(region, chunk.model)
        ]
        hearing = [region for region in usable if region.name not in self.silent] or usable
        if any(region.name == chunk.region for region in hearing):
            return chunk.region
        nearest = nearest_region(hearing, chunk.model)
        return None if nearest is None else nearest.name


def _resend(tx: Tx, world: _World, redispatch_after_s: float) -> tuple[list[tuple[str, str]], list[Sent]]:
    """Mark unclaimed tickets as sent again; those of a region that takes nothing any more go back to the planner.

    Where nobody hears them and their deadline presses, they go to another region that has a slot free: returned last.
    """
    again: dict[str, str] = {}
    lost: list[str] = []
    for name, chunk_id in rows.unclaimed(tx, redispatch_after_s=redispatch_after_s):
        region = world.regions.get(name)
        if region is not None and is_open(region):
            again[chunk_id] = name
        else:
            lost.append(chunk_id)
    moved = _move(tx, world, [chunk_id for chunk_id, name in again.items() if name in world.silent])
    for one in moved:
        again.pop(one.chunk_id)
    if again:
        rows.mark_resent(tx, list(again))
    if lost or moved:
        rows.withdraw(tx, lost + [one.chunk_id for one in moved])
    return [(name, chunk_id) for chunk_id, name in again.items()], moved


def _move(tx: Tx, world: _World, unheard: Sequence[str]) -> list[Sent]:
    moved: list[Sent] = []
    for chunk in rows.pressing(tx, world.now, unheard) if unheard else ():
        region = world.region_for(chunk)
        if region is None or region in world.silent:
            continue
        logger.warning(
            "nobody takes chunk %s in %s and its deadline presses: sent to %s", chunk.chunk_id, chunk.region, region
        )
        world.slots.take(region)
        moved.append(Sent(chunk.chunk_id, region, window_of(world.now), ids.new("plc")))
    return moved


def _choose(tx: Tx, world: _World) -> list[Sent]:
    """Fill the free slots: what must start now first, wherever it may, then each region's own due chunks."""
    sent: list[Sent] = []
    slots = sum(world.slots.free().values())
    if not slots:
        return sent
    # More than there are slots: the first may be bound to regions that are full.
    for chunk in rows.urgent(tx, world.now, limit=4 * slots + 100):
        region = world.region_for(chunk)
        if region is None:
            continue
        world.slots.take(region)
        is_as_planned = region == chunk.region and chunk.window_at is not None
        sent.append(
            Sent(
                chunk_id=chunk.chunk_id,
                region=region,
                window_at=chunk.window_at if is_as_planned and chunk.window_at is not None else window_of(world.now),
                placement_id=None if is_as_planned else ids.new("plc"),
            )
        )
    done = {one.chunk_id for one in sent}
    for name, count in world.slots.free().items():
        if not count:
            continue
        # More than there are slots: the first may be too long to end before a maintenance.
        for one in rows.due(tx, name, world.now, limit=4 * count + len(done)):
            if one.chunk_id in done or not world.slots.has_room(name, one):
                continue
            world.slots.take(name)
            sent.append(Sent(one.chunk_id, name, one.window_at or window_of(world.now), None))
    return sent
