"""Jobs' carbon sums, remembered in proportion to what they cost: a job is polled, and its sums span all its entries.

While a job runs, its figures may be some seconds old; once it is final they are never older than its last item.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from carbonq.model import Job
from carbonq.services import summary
from carbonq.store.database import Tx

#: Sums are recomputed so seldom that it takes at most this share of one core for each job that is polled.
_SHARE = 0.05

#: Sums younger than this are good enough in any case, in seconds.
_FRESH_S = 0.5

#: Jobs remembered at most.
_MAX_JOBS = 1_000

Sums = Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class _Known:
    sums: Sums
    items_ended: int
    at: float
    good_for_s: float


class JobSums:
    """The memory; thread-safe."""

    def __init__(
        self, compute: Callable[[Tx, str], Sums] = summary.of_job, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin empty; ``compute`` adds a job's entries up."""
        self._compute = compute
        self._monotonic = monotonic
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()

    def of(self, tx: Tx, job: Job) -> Sums:
        """Return a job's sums; None before anything of it has run. Raises what ``compute`` raises."""
        with self._lock:
            known = self._known.get(job.job_id)
        # A final job's last items must be in, or its result would be told with a part of its energy.
        may_lag = known is not None and (not job.is_final or known.items_ended == job.items_total)
        if known is not None and may_lag and self._monotonic() - known.at < known.good_for_s:
            return known.sums
        began = self._monotonic()
        sums = self._compute(tx, job.job_id)
        ended = self._monotonic()
        good_for_s = max(_FRESH_S, (ended - began) / _SHARE)
        with self._lock:
            self._known.pop(job.job_id, None)
            self._known[job.job_id] = _Known(sums, job.items_ended, ended, good_for_s)
            while len(self._known) > _MAX_JOBS:
                del self._known[next(iter(self._known))]
        return sums
