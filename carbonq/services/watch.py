"""Watch over workers that live and take nothing: every few seconds, said once for each and once when it is over."""

from __future__ import annotations

import logging

from carbonq.store import deaf, regions
from carbonq.store.database import Database

logger = logging.getLogger(__name__)


class Watch:
    """Remembers of whom it has spoken; each control process watches by itself."""

    def __init__(self, db: Database, *, worker_alive_s: float) -> None:
        """Have spoken of nobody."""
        self._db = db
        self._worker_alive_s = worker_alive_s
        self._said: set[str] = set()

    def look(self) -> list[deaf.Deaf]:
        """Log an error for each worker that is newly deaf, and return all that are. Raises StoreUnavailable."""
        with self._db.read() as tx:
            found = deaf.find(tx, regions.live_workers(tx, worker_alive_s=self._worker_alive_s))
        for one in found:
            if one.worker_id not in self._said:
                logger.error("%s", one)
        now = {one.worker_id for one in found}
        for worker_id in sorted(self._said - now):
            logger.warning("worker %s is deaf no longer, or gone", worker_id)
        self._said = now
        return found
