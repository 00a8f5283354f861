"""The worker process of one region: its queues, engines and meters, on the machine that does the work."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from celery.signals import worker_ready, worker_shutting_down

from carbonq import __version__, ids, telemetry, wiring
from carbonq.booking import Fact
from carbonq.clock import Clock
from carbonq.config import Settings
from carbonq.errors import ConfigError, InvalidRequest
from carbonq.liveness import SignOfLife, worker_name
from carbonq.meters.hub import Hub
from carbonq.meters.protocol import Component, Meter, MeterKind
from carbonq.services import blob_place, installation
from carbonq.services.rates import RateCache
from carbonq.services.site import Limits, Site
from carbonq.services.writebehind import WriteBehind
from carbonq.spool import Spool
from carbonq.tickets import flexible_queue, make_celery, realtime_queue

from . import app as celery_app
from . import tasks
from .devices import Devices, pin
from .engines import Engines
from .lifecycle import Life
from .presence import Presence

logger = logging.getLogger(__name__)

#: How long a thread keeps the interpreter, in seconds: realtime p99 is 10 ms instead of 54 ms beside pure Python work.
SWITCH_INTERVAL_S = 0.0005

#: Longest wait for the next attempt, in machine seconds, and never more than a lease: a full disk costs no more than a
#: worker that died.
BACKOFF_CAP_S = 60.0


def main(settings: Settings, region_name: str) -> None:
    """Run the worker of a region until a stop signal: the engine batch in progress ends, the rest is given back.

    Raises ConfigError, InvalidRequest (unknown region) and StoreUnavailable before it serves.
    """
    telemetry.set_up_logging(settings.log_level)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    runtime = wiring.open_runtime(settings, pool_size=8)
    blob_place.check_at_start(runtime.db, runtime.blobs)
    regions = {region.name: region for region in runtime.regions}
    if region_name not in regions:
        raise InvalidRequest(f"unknown region {region_name!r}; known regions: {', '.join(sorted(regions))}")
    region = regions[region_name]
    worker_id = ids.new("wrk")
    traces = wiring.make_traces(settings, "worker", worker_id)
    # GPUs before models: one that is not there is said at once, not after a model of some GB was loaded.
    loaded: list[Engines] = []
    metering = Metering(settings, region_name, lambda: loaded[0].pids() if loaded else ())
    engines = Engines(settings, list(runtime.models.values()), region)
    loaded.append(engines)
    rates = RateCache(runtime.regions, settle_after_s=settings.settle_after_s, max_stale_s=settings.max_stale_s)

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
        hub=metering.begin(runtime.clock),
        rates=rates.book,
        region=region,
        facts={name: Fact.of(one) for name, one in regions.items()},
        models=runtime.models,
        engine_of=engines.of,
        worker_id=worker_id,
        expect=expect,
        software_version=__version__,
        traces=traces,
        settings_digest=wiring.make_shared(settings).digest,
        clock_offset_s=installation.clock_offset_s(runtime.db),
        limits=Limits(
            lease_s=settings.lease_s,
            renew_s=settings.renew_s,
            max_attempts=settings.max_attempts,
            checkpoint_items=settings.checkpoint_items,
            checkpoint_s=settings.checkpoint_s,
            backoff_cap_s=min(BACKOFF_CAP_S, settings.lease_s),
        ),
    )
    behind = WriteBehind(runtime.db, spool)
    stop = threading.Event()

    def shutting_down(**_values: object) -> None:
        stop.set()

    worker_shutting_down.connect(shutting_down, weak=False)
    app = make_celery(wiring.broker_url(settings), queue_prefix=settings.queue_prefix, has_replies=True)
    tasks.register(app, site, behind, stop)
    name = worker_name(region_name)
    try:
        with (
            telemetry.served(settings.metrics_host, settings.metrics_port, settings.data_dir, name),
            Life(site, rates, behind, SignOfLife(settings.data_dir, name)) as life,
        ):

            def ready(**_values: object) -> None:
                life.announce()

            worker_ready.connect(ready, weak=False)
            celery_app.run(
                app,
                name=region_name,
                queues=[settings.queue_prefix + queue(region_name) for queue in (flexible_queue, realtime_queue)],
                concurrency=region.slots + region.realtime_slots,
            )
            stop.set()
    finally:
        traces.close()
        metering.close()
        engines.close()
        tickets.close()
        runtime.close()


class Metering:
    """The meters of this worker; it gives RAPL up as soon as another worker comes to its host."""

    def __init__(self, settings: Settings, region: str, pids: Callable[[], Sequence[int]]) -> None:
        """Open the meters. Raises ConfigError for GPUs that were named and are not there, or are another worker's."""
        gpus = settings.regions[region].gpus
        self._presence = Presence(settings.lock_dir)
        self._make = partial(wiring.make_meters, settings, region, pids=pids)
        self._devices = Devices(settings.lock_dir)
        self._meters = self._devices.keep(self._make(may_use_rapl=self._presence.is_alone), is_named=bool(gpus))
        # Before any engine: CUDA reads it once, when its library is loaded.
        pin(gpus, self._meters)

    def begin(self, clock: Clock) -> Hub:
        """Begin to count."""
        hub = Hub(self._meters, clock)
        hub.watch()
        if any(meter.kind is MeterKind.RAPL for meter in self._meters):
            self._presence.watch(lambda: self._give_rapl_up(hub))
        else:
            self._presence.share()
        return hub

    def _give_rapl_up(self, hub: Hub) -> None:
        logger.warning("another worker runs on this host: CPU energy is estimated from now on, RAPL would count both")
        given_up = {meter.component for meter in self._meters if meter.kind is MeterKind.RAPL}
        instead: dict[Component, Meter] = {}
        try:
            made = self._make(may_use_rapl=False)
        except ConfigError as error:  # given up it must be all the same, or the other one waits
            logger.error("CPU energy is unknown from now on: %s", error)
            made = []
        for meter in made:
            if meter.component in given_up:
                instead[meter.component] = meter
            else:
                meter.close()
        for component in sorted(given_up):
            hub.exchange(component, instead.get(component))

    def close(self) -> None:
        """Leave the host to others; the hub closes its meters."""
        self._presence.close()
