"""Celery's scheduler with one change: a broker that goes away is said in one line, and is found again when it is back.

Celery keeps one connection for all entries. When RabbitMQ closes it, every later tick fails for ever, each with a
traceback, twice a second. Here each tick takes a connection from the application's pool, as all other tickets do.
"""

from __future__ import annotations

import logging
from typing import Any

from celery.beat import ScheduleEntry, Scheduler, SchedulingError

from carbonq.liveness import SignOfLife

logger = logging.getLogger(__name__)


class TickScheduler(Scheduler):
    """Sends due ticks; one that cannot be sent is dropped, because the next one does its work."""

    #: None lets ``send_task`` take a producer from the pool.
    producer: Any = None
    #: Touched at each tick that was sent; Celery makes the scheduler itself, so this cannot be an argument.
    alive: SignOfLife | None = None
    _is_away = False

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:
        """Send one tick."""
        try:
            self.apply_async(entry, producer=producer, advance=False)
        except SchedulingError as error:
            if not self._is_away:
                logger.warning("the broker does not answer, no ticks until it is back: %s", error)
            self._is_away = True
        else:
            if self._is_away:
                logger.warning("the broker answers again")
            self._is_away = False
            if self.alive is not None:
                self.alive.touch()

    def close(self) -> None:
        """End in order: no sign of life is left behind."""
        super().close()
        if self.alive is not None:
            self.alive.close()
