"""The control worker processes: queue ``control`` for what must be prompt, ``control.slow`` for solver and network."""

from __future__ import annotations

import sys

from carbonq import ids, telemetry, wiring
from carbonq.config import Settings
from carbonq.liveness import SignOfLife
from carbonq.services import blob_place
from carbonq.tickets import CONTROL, CONTROL_SLOW, TICK_QUEUES, make_celery, wait_for_broker

from . import app as celery_app
from . import ticks

#: As in region workers: a long pure-Python turn of one tick must not hold up the others.
SWITCH_INTERVAL_S = 0.0005

#: How long the broker may take to answer at the start, in machine seconds.
BROKER_S = 30.0


def main(settings: Settings, *, slow: bool = False) -> None:
    """Run the ticks of one control queue until a stop signal.

    Raises ConfigError, StoreUnavailable and BrokerUnavailable before the first.
    """
    telemetry.set_up_logging(settings.log_level)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    queue = CONTROL_SLOW if slow else CONTROL
    runtime = wiring.open_runtime(settings, pool_size=8)
    blob_place.check_at_start(runtime.db, runtime.blobs)
    tickets = wiring.make_tickets(settings)
    name = "control-slow" if slow else "control"
    instance = ids.new("ctl")
    traces = wiring.make_traces(settings, name, instance)
    alive = SignOfLife(settings.data_dir, name)
    try:
        wait_for_broker(tickets, BROKER_S)
        app = make_celery(wiring.broker_url(settings), queue_prefix=settings.queue_prefix)
        celery_app.purge(app, [settings.queue_prefix + queue])
        acts = ticks.register(app, ticks.Context(runtime, tickets, instance, traces), queue, alive.touch)
        # Rates before the first plan: without them it would take every job for one that has no signal to wait for.
        for tick in sorted(acts, key=lambda name: name != "refresh"):
            acts[tick]()
        # One thread for each of its ticks, so that a long one holds up no other.
        count = sum(1 for home in TICK_QUEUES.values() if home == queue)
        with telemetry.served(settings.metrics_host, settings.metrics_port, settings.data_dir, name):
            celery_app.run(app, name=queue, queues=[settings.queue_prefix + queue], concurrency=count)
    finally:
        alive.close()
        traces.close()
        tickets.close()
        runtime.close()
