"""What a region worker does beside its work: say that it lives, book its idle energy, and empty its spool."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from carbonq import ids, ledger
from carbonq.booking import Booking, EngineBatch
from carbonq.errors import StoreUnavailable
from carbonq.meters.protocol import IdleWindow
from carbonq.model import WorkClass
from carbonq.services import commit, weighing, writebehind
from carbonq.services.site import Site
from carbonq.store import regions
from carbonq.store.dialect import machine_now

logger = logging.getLogger(__name__)


def beat(site: Site, *, host: str, pid: int) -> None:
    """Say that the worker lives; enters it when the database does not know it (yet). Raises StoreUnavailable."""
    with site.db.write() as tx:
        site.machine.sync(machine_now(tx))
        site.weighed.hear(weighing.in_force(tx, site.models, site.region.hardware))
        if not regions.worker_seen(tx, site.worker_id):
            regions.register_worker(
                tx,
                worker_id=site.worker_id,
                region=site.region.name,
                host=host,
                pid=pid,
                slots=site.region.slots,
                software_version=site.software_version,
                hardware=site.region.hardware,
                settings_digest=site.settings_digest,
                clock_offset_s=site.clock_offset_s,
                gpus=[device for device in site.hub.info().device_ids if device.startswith("GPU-")],
            )


def stop(site: Site) -> None:
    """Say that the worker ends, so that nobody waits for it to fall silent. Raises StoreUnavailable."""
    with site.db.write() as tx:
        regions.worker_stopped(tx, site.worker_id)


def book_idle(site: Site, windows: Sequence[IdleWindow], keep: Callable[[Booking], None]) -> None:
    """Book idle windows, one entry each, nobody's; so is what others used of a device while nothing of ours ran."""
    for window in windows:
        batch = EngineBatch(
            engine_batch_id=ids.new("eb"),
            worker_id=site.worker_id,
            work_class=WorkClass.FLEXIBLE,
            fact=site.fact,
            info=window.info,
            parts=(window.part,),
            items=(),
            model=None,
            engine=None,
            engine_version=None,
            software_version=site.software_version,
            clock=site.clock.kind,
        )
        booked = ledger.book_overhead(
            batch,
            site.rates(),
            window.kind,
            outcome=None,
            recorded_at=site.machine.now(),
            recorded_by=site.worker_id,
        )
        keep(booked)


def replay_spool(site: Site) -> int:
    """Bring what was spooled into the database, oldest first; return how many records. Stops while it is away."""
    replayed = 0
    for path, record in site.spool.records():
        try:
            if record.get("kind") == "bookings":
                writebehind.replay(site.db, record)
            else:
                commit.replay(site, record)
        except StoreUnavailable:
            return replayed
        except Exception as error:  # whatever is wrong with it: it must not hold up those behind it for ever
            logger.error("spooled record %s is of no use: %r", path, error)
            site.spool.set_aside(path)
            continue
        site.spool.done(path)
        replayed += 1
    return replayed
