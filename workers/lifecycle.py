"""What a region worker's threads do beside running: heartbeat, meters at window edges, rates, spool."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable

from carbonq.clock import machine_s
from carbonq.errors import CarbonqError, StoreUnavailable
from carbonq.liveness import SignOfLife
from carbonq.model import Signal
from carbonq.services import heartbeat
from carbonq.services.rates import RateCache
from carbonq.services.site import Site
from carbonq.services.writebehind import WriteBehind
from carbonq.units import WINDOW, window_of

logger = logging.getLogger(__name__)

#: Machine seconds between signs of life.
HEARTBEAT_S = 2.0

#: Machine seconds between looks into the spool.
SPOOL_S = 2.0


class Life:
    """The threads of one region worker; a context that begins and ends them in order."""

    def __init__(self, site: Site, rates: RateCache, behind: WriteBehind, alive: SignOfLife) -> None:
        """Prepare; nothing runs before the context is entered."""
        self._site = site
        self._rates = rates
        self._behind = behind
        self._alive = alive
        self._over = threading.Event()
        self._host = socket.gethostname()
        self._heartbeat = self._thread("heartbeat", lambda: HEARTBEAT_S, self._beat)
        self._threads = [
            self._thread("rates", self._refresh_s, self._refresh),
            self._thread("spool", lambda: SPOOL_S, self._replay),
            self._thread("meters", self._to_window_edge, self._tick),
        ]

    def __enter__(self) -> Life:
        self._refresh()
        self._behind.start()
        for thread in self._threads:
            thread.start()
        return self

    def announce(self) -> None:
        """Say that the worker lives, from now on: its queues are being served. Raises StoreUnavailable."""
        try:
            self._beat()
        finally:
            self._heartbeat.start()  # a database that is away just now must not leave the worker unseen for ever

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        for thread in (*self._threads, self._heartbeat):
            if thread.ident is not None:
                thread.join()
        heartbeat.book_idle(self._site, self._site.hub.flush(), self._behind.put)
        self._behind.close()
        self._site.hub.close()
        try:
            heartbeat.stop(self._site)
        except CarbonqError as error:
            logger.warning("stop not noted: %s", error)
        self._alive.close()

    def _thread(self, name: str, period_s: Callable[[], float], act: Callable[[], None]) -> threading.Thread:
        def loop() -> None:
            while not self._over.wait(period_s()):
                try:
                    act()
                except CarbonqError as error:
                    logger.warning("%s: %s", name, error)
                except Exception:  # a process loop: one bad turn must not end it
                    logger.exception("%s failed", name)

        return threading.Thread(target=loop, name=name, daemon=True)

    def _beat(self) -> None:
        try:
            heartbeat.beat(self._site, host=self._host, pid=os.getpid())
        except StoreUnavailable:
            self._alive.touch()  # it is the database that is away: the loop turns
            raise
        self._alive.touch()

    def _refresh_s(self) -> float:
        now = self._site.clock.now()
        rate, _ = self._rates.book().lookup(Signal.MOER, self._site.region.zone, window_of(now))
        # A new installation has no rates in its first seconds: look again soon.
        return max(1.0, 60.0 / self._site.clock.factor) if rate is not None else 2.0

    def _refresh(self) -> None:
        self._rates.refresh(self._site.db, self._site.clock.now())

    def _replay(self) -> None:
        replayed = heartbeat.replay_spool(self._site)
        if replayed:
            logger.info("%d spooled records replayed", replayed)

    def _to_window_edge(self) -> float:
        now = self._site.clock.now()
        return max(0.001, machine_s(self._site.clock, window_of(now) + WINDOW - now))

    def _tick(self) -> None:
        self._site.hub.tick()
        heartbeat.book_idle(self._site, self._site.hub.drain_idle(), self._behind.put)
