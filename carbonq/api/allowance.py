"""What tenants may hold and have used of their day, in memory: realtime calls ask here, and never the database."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from carbonq.clock import Clock
from carbonq.model import Quota
from carbonq.services import quota
from carbonq.store import quotas
from carbonq.store.database import Database


class Allowance:
    """The limits of tenants, and the tokens of realtime calls until they are written. Thread-safe.

    Tokens of other API processes and of jobs are known as of the last ``refresh``, so that what runs at once may pass a
    day's limit by what was asked for within seconds; the next call is refused.
    """

    def __init__(self, db: Database, clock: Clock, *, defaults: Quota = quota.UNLIMITED) -> None:
        """Know the ``defaults`` at once; tenants' own limits come with the first ``refresh``."""
        self._db = db
        self._clock = clock
        self._defaults = defaults
        self._limits: Mapping[str, Quota] = {}
        self._used: Mapping[str, int] = {}
        self._day = ""
        self._pending: dict[tuple[str, str], int] = {}  # (tenant, day) -> tokens that are not written yet
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Write the tokens of realtime calls, and reread limits and what was used today. Raises StoreUnavailable."""
        self._write()
        day = quota.day_of(self._clock.now())
        with self._db.read() as tx:
            own = quotas.all_limits(tx)
            used = quotas.tokens_by_tenant(tx, day)
        self._limits = {tenant: quota.merged(self._defaults, limits) for tenant, limits in own.items()}
        with self._lock:
            self._used, self._day = used, day

    def of(self, tenant: str) -> Quota:
        """Return a tenant's limits."""
        return self._limits.get(tenant, self._defaults)

    def check_tokens(self, tenant: str) -> None:
        """Raise QuotaExceeded where a tenant's tokens of the day are used up."""
        limit = self.of(tenant).tokens_per_day
        if limit is None:
            return
        now = self._clock.now()
        day = quota.day_of(now)
        with self._lock:
            used = (self._used.get(tenant, 0) if day == self._day else 0) + self._pending.get((tenant, day), 0)
        if used >= limit:
            raise quota.tokens_refusal(tenant, used, 0, limit, now=now, factor=self._clock.factor)

    def count_tokens(self, tenant: str, tokens: int) -> None:
        """Count the tokens of a realtime call that was answered."""
        if tokens <= 0 or self.of(tenant).tokens_per_day is None:
            return
        key = (tenant, quota.day_of(self._clock.now()))
        with self._lock:
            self._pending[key] = self._pending.get(key, 0) + tokens

    def _write(self) -> None:
        with self._lock:
            taken = dict(self._pending)
        if not taken:
            return
        with self._db.write() as tx:
            for (tenant, day), tokens in sorted(taken.items()):
                quota.add_realtime(tx, tenant, tokens, day)
        with self._lock:
            for (tenant, day), tokens in taken.items():
                left = self._pending[tenant, day] - tokens
                if left:
                    self._pending[tenant, day] = left
                else:
                    del self._pending[tenant, day]
                if day == self._day:
                    self._used = {**self._used, tenant: self._used.get(tenant, 0) + tokens}
