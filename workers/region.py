"""The worker process of one region: its queues, engines and meters, on the machine that does the work."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Sequence
from datetime import datetime

from celery.signals import worker_ready, worker_shutting_down

from carbonq import __version__, ids, telemetry, wiring
from carbonq.booking import Fact
from carbonq.config import Settings
from carbonq.errors import InvalidRequest
from carbonq.meters.hub import Hub
from carbonq.services.rates import RateCache
from carbonq.services.site import Limits, Site
from carbonq.services.writebehind import WriteBehind
from carbonq.spool import Spool
from carbonq.tickets import flexible_queue, make_celery, realtime_queue

from . import app as celery_app
from . import tasks
from .devices import Devices
from .engines import Engines
from .lifecycle import Life

logger = logging.getLogger(__name__)

#: How long a thread keeps the interpreter, in seconds: realtime p99 is 10 ms instead of 54 ms beside pure Python work.
SWITCH_INTERVAL_S = 0.0005


def main(settings: Settings, region_name: str) -> None:
    """Run the worker of a region until a stop signal: the engine batch in progress ends, the rest is given back.

    Raises ConfigError, InvalidRequest (unknown region) and StoreUnavailable before it serves.
    """
    telemetry.set_up_logging(settings.log_level)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    runtime = wiring.open_runtime(settings, pool_size=8)
    regions = {region.name: region for region in runtime.regions}
    if region_name not in regions:
        raise InvalidRequest(f"unknown region {region_name!r}; known regions: {', '.join(sorted(regions))}")
    region = regions[region_name]
    engines = Engines(settings, list(runtime.models.values()), region)
    devices = Devices()
    # RAPL counts the whole host, so it can only be one worker's.
    meters = devices.keep(
        wiring.make_meters(settings, region_name, pids=engines.pids, may_use_rapl=len(regions) == 1),
        is_named=bool(settings.regions[region_name].gpus),
    )
    rates = RateCache(runtime.regions, settle_after_s=settings.settle_after_s)

    def expect(baselines: Sequence[tuple[str, datetime]]) -> None:
        if rates.watch(baselines):
            rates.refresh(runtime.db, runtime.clock.now())

    spool = Spool(settings.data_dir / "spool" / region_name)
    tickets = wiring.make_tickets(settings)
    site = Site(
        db=runtime.db,
        blobs=runtime.blobs,
        spool=spool,
        tickets=tickets,
        clock=runtime.clock,
        hub=Hub(meters, runtime.clock),
        rates=rates.book,
        region=region,
        facts={name: Fact.of(one) for name, one in regions.items()},
        models=runtime.models,
        engine_of=engines.of,
        worker_id=ids.new("wrk"),
        expect=expect,
        software_version=__version__,
        limits=Limits(
            lease_s=settings.lease_s,
            renew_s=settings.renew_s,
            max_attempts=settings.max_attempts,
            checkpoint_items=settings.checkpoint_items,
            checkpoint_s=settings.checkpoint_s,
        ),
    )
    behind = WriteBehind(runtime.db, spool)
    stop = threading.Event()

    def shutting_down(**_values: object) -> None:
        stop.set()

    worker_shutting_down.connect(shutting_down, weak=False)
    app = make_celery(wiring.broker_url(settings), has_replies=True)
    tasks.register(app, site, behind, stop)
    try:
        with Life(site, rates, behind) as life:

            def ready(**_values: object) -> None:
                life.announce()

            worker_ready.connect(ready, weak=False)
            celery_app.run(
                app,
                name=region_name,
                queues=[flexible_queue(region_name), realtime_queue(region_name)],
                concurrency=region.slots + region.realtime_slots,
            )
            stop.set()
    finally:
        engines.close()
        tickets.close()
        runtime.close()
