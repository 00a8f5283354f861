"""What costs as much as a job has items, remembered in proportion to its cost: jobs are polled, often by many.

While a job runs, its carbon sums may be some seconds old; once it is final they are never older than its last item.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from carbonq.services import summary
from carbonq.store import overview
from carbonq.store.database import Tx

#: A value is computed again so seldom that it takes at most this share of one core for each job that is polled.
_SHARE = 0.05

#: A value younger than this is good enough in any case, in seconds.
_FRESH_S = 0.5

#: Jobs remembered at most.
_MAX_JOBS = 1_000

Sums = Mapping[str, Any] | None

Value = TypeVar("Value")


class Counted(Protocol):
    """What is summed up: a job, or a batch of jobs; ``job_id`` is its id, whichever it is."""

    @property
    def job_id(self) -> str:
        """What it is called."""
        ...

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen to it."""
        ...

    @property
    def items_ended(self) -> int:
        """How many of its items have ended."""
        ...

    @property
    def items_total(self) -> int:
        """How many it has."""
        ...


@dataclass(frozen=True, slots=True)
class _Known(Generic[Value]):
    value: Value
    items_ended: int
    at: float
    good_for_s: float


class JobMemory(Generic[Value]):
    """A memory of one value for each job; thread-safe."""

    def __init__(self, compute: Callable[[Tx, str], Value], monotonic: Callable[[], float] = time.monotonic) -> None:
        """Begin empty; ``compute`` makes a job's value."""
        self._compute = compute
        self._monotonic = monotonic
        self._known: dict[str, _Known[Value]] = {}
        self._lock = threading.Lock()

    def of(self, tx: Tx, job: Counted) -> Value:
        """Return a job's value, computed now or remembered. Raises what ``compute`` raises."""
        with self._lock:
            known = self._known.get(job.job_id)
        # A final job's last items must be in, or its result would be told with a part of its energy.
        may_lag = known is not None and (not job.is_final or known.items_ended == job.items_total)
        if known is not None and may_lag and self._monotonic() - known.at < known.good_for_s:
            return known.value
        began = self._monotonic()
        value = self._compute(tx, job.job_id)
        ended = self._monotonic()
        good_for_s = max(_FRESH_S, (ended - began) / _SHARE)
        with self._lock:
            self._known.pop(job.job_id, None)
            self._known[job.job_id] = _Known(value, job.items_ended, ended, good_for_s)
            while len(self._known) > _MAX_JOBS:
                del self._known[next(iter(self._known))]
        return value

    def forget(self, job_id: str) -> None:
        """Compute a job's value at the next call, whatever its age."""
        with self._lock:
            self._known.pop(job_id, None)


class JobSums(JobMemory[Sums]):
    """Jobs' carbon sums; None before anything of a job has run. One pass over its entries."""

    def __init__(
        self, compute: Callable[[Tx, str], Sums] = summary.of_job, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin empty; ``compute`` adds a job's entries up."""
        super().__init__(compute, monotonic)


class JobChunks:
    """The chunks of jobs as they are now. Which those are is remembered: asking takes a pass over a job's items."""

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        chunk_ids: Callable[[Tx, str], Sequence[str]] = overview.chunk_ids,
        is_chunked: Callable[[Tx, str], bool] = overview.is_chunked,
    ) -> None:
        """Begin empty; the functions find the chunks of a job, or of a batch of jobs."""
        self._ids: JobMemory[Sequence[str]] = JobMemory(chunk_ids, monotonic)
        self._chunk_ids, self._is_chunked = chunk_ids, is_chunked

    def of(self, tx: Tx, job: Counted) -> list[overview.PlacedChunk]:
        """Return a job's chunks by window, those without one last; one that was cut in two may be told some s late."""
        if not self._is_chunked(tx, job.job_id):  # not yet, or some items were taken out of theirs
            self._ids.forget(job.job_id)
            return overview.placed(tx, self._chunk_ids(tx, job.job_id))
        return overview.placed(tx, self._ids.of(tx, job))
