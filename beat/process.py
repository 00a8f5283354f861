"""The clock process: Celery beat with the schedule of ticks, nothing else. Two of them only double the ticks."""

from __future__ import annotations

import logging
import os
import signal
from typing import Any

from carbonq import telemetry, wiring
from carbonq.config import Settings
from carbonq.liveness import SignOfLife
from carbonq.tickets import TICK_QUEUES, make_celery, tick_task, wait_for_broker

from .schedule import schedule
from .scheduler import TickScheduler

#: Longest sleep between two looks at the schedule, in machine seconds.
MAX_INTERVAL_S = 1

#: How long the tick that is being sent may take after a stop signal, in machine seconds.
END_S = 5.0

#: How long the broker may take to answer at the start, in machine seconds.
BROKER_S = 30.0


def main(settings: Settings) -> None:
    """Send ticks until a stop signal. Raises ConfigError, StoreUnavailable and BrokerUnavailable before the first."""
    telemetry.set_up_logging(settings.log_level)
    runtime = wiring.open_runtime(settings)
    factor = runtime.clock.factor
    runtime.close()
    tickets = wiring.make_tickets(settings)
    try:
        wait_for_broker(tickets, BROKER_S)
    finally:
        tickets.close()
    app = make_celery(wiring.broker_url(settings), queue_prefix=settings.queue_prefix)
    app.conf.beat_schedule = schedule(factor, settings.queue_prefix)
    app.conf.worker_redirect_stdouts = False
    # Everything at once at the start: a job that waited for the stack to come up is not kept waiting for the clock.
    for tick, queue in TICK_QUEUES.items():
        app.send_task(tick_task(tick), queue=settings.queue_prefix + queue, expires=10.0)
    TickScheduler.alive = SignOfLife(settings.data_dir, "beat")
    beat = app.Beat(
        # In memory: a schedule of seconds has nothing worth keeping over a restart.
        scheduler_cls=TickScheduler,
        max_interval=MAX_INTERVAL_S,
        loglevel=logging.getLevelName(logging.getLogger().level),
        quiet=True,
    )
    beat.install_sync_handler = end_in_order
    beat.run()


def end_in_order(service: Any) -> None:
    """Let a stop signal end the loop after the tick that is being sent.

    Celery raises SystemExit where the signal falls. In the middle of a talk with the broker that leaves half a frame
    unsent or unread, and a beat then waited for RabbitMQ for ever.
    """

    def stop(_number: int, _frame: object) -> None:
        service.stop(wait=False)
        signal.setitimer(signal.ITIMER_REAL, END_S)

    signal.signal(
        signal.SIGALRM, lambda _number, _frame: os._exit(0)
    )  # a broker that is away; there is nothing to lose
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
