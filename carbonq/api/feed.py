"""One look at the events table for all open streams: who reads what, told as it becomes settled.

A stream first reads what it missed, from the table and at its own pace, and is then told what comes. Looking costs as
much as there are new events, however many streams are open, and nothing while none is. What a stream has not taken yet
is bounded: one that falls behind is ended, and its client goes on where it stopped. Everything here runs on the event
loop of the API, except for the looks at the database. Units: machine seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio
import anyio.to_thread

from carbonq import telemetry
from carbonq.errors import QuotaExceeded, StoreUnavailable
from carbonq.store import events
from carbonq.store.database import Database
from carbonq.store.events import Event, Mark

logger = logging.getLogger(__name__)

#: How often the table is looked at while streams are open.
PERIOD_S = 0.5

#: Until it is known how far readers may go, which takes as long as the transactions that write just then.
FIRST_PERIOD_S = 0.05

#: Events that a stream may have waiting before it is ended.
BACKLOG = 256

#: Events read in one look.
PAGE = 1_000

#: When a client that was refused may try again.
RETRY_AFTER_S = 10.0


@dataclass(frozen=True, slots=True)
class Topic:
    """What a stream is about: all of a tenant, or one job or batch of it."""

    tenant: str
    job_id: str | None = None
    batch_id: str | None = None


@dataclass(slots=True, eq=False)
class Reader:
    """An open stream that has read all there was; ``waiting`` is what came since."""

    topic: Topic
    waiting: deque[Event] = field(default_factory=deque[Event])
    is_behind: bool = False
    _has_more: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, event: Event) -> None:
        """Hand an event over; a reader with too many waiting gets no more of them."""
        if len(self.waiting) >= BACKLOG:
            self.is_behind = True
        else:
            self.waiting.append(event)
        self._has_more.set()

    def wake(self) -> None:
        """Let it look whether it is to end."""
        self._has_more.set()

    async def more(self) -> list[Event]:
        """Wait for events and take them all."""
        await self._has_more.wait()
        self._has_more.clear()
        taken = list(self.waiting)
        self.waiting.clear()
        return taken


class Feed:
    """The streams of one API process."""

    def __init__(
        self, db: Database, *, limit: int = 1_000, limit_per_key: int = 100, period_s: float = PERIOD_S
    ) -> None:
        """Prepare; nothing is looked at before the first stream. ``limit`` is streams at once, in all and per key."""
        self._db = db
        self._limit = limit
        self._limit_per_key = limit_per_key
        self._period_s = period_s
        self._open: Counter[str] = Counter()
        self._readers: dict[Topic, set[Reader]] = {}
        self._mark = Mark(None)
        self._cursor = 0
        self._task: asyncio.Task[None] | None = None
        self._is_ready = asyncio.Event()
        self._is_failing = False
        self.is_closed = False

    @property
    def cursor(self) -> int:
        """The newest event that readers were told of."""
        return self._cursor

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left of any stream."""
        return not self._open and not self._readers

    def enter(self, key: str) -> None:
        """Count a stream of an API key. Raises QuotaExceeded where there are as many as may be."""
        total = self._open.total()
        if total >= self._limit:
            raise self._refusal(f"this server has {total:,} event streams open, as many as it may")
        if self._open[key] >= self._limit_per_key:
            raise self._refusal(f"this key has {self._open[key]:,} event streams open, as many as it may")
        self._open[key] += 1
        telemetry.EVENT_STREAMS.set(total + 1)

    def leave(self, key: str) -> None:
        """Count a stream off."""
        self._open[key] -= 1
        if self._open[key] <= 0:
            del self._open[key]
        telemetry.EVENT_STREAMS.set(self._open.total())

    @staticmethod
    def _refusal(why: str) -> QuotaExceeded:
        telemetry.EVENT_STREAMS_ENDED.labels("refused").inc()
        return QuotaExceeded(
            f"{why}; close some, or ask for the state by GET instead",
            code="too_many_streams",
            retry_after_s=RETRY_AFTER_S,
        )

    async def ready(self) -> None:
        """Look at the table from now on, if nobody does yet, and wait until it is known how far readers may go."""
        if self._task is None or self._task.done():
            self._is_ready = asyncio.Event()  # of the loop that it is waited for on
            self._mark = Mark(None)
            self._task = asyncio.get_running_loop().create_task(self._look_on())
        await self._is_ready.wait()

    def join(self, topic: Topic) -> Reader:
        """Let a reader that has read up to ``cursor`` be told what comes."""
        reader = Reader(topic)
        self._readers.setdefault(topic, set()).add(reader)
        return reader

    def part(self, reader: Reader) -> None:
        """Tell a reader nothing more."""
        of_topic = self._readers.get(reader.topic, set())
        of_topic.discard(reader)
        if not of_topic:
            self._readers.pop(reader.topic, None)

    def open(self) -> None:
        """Let streams begin (again)."""
        self.is_closed = False

    def close(self) -> None:
        """End all streams, and let none begin."""
        self.is_closed = True
        self._is_ready.set()
        for readers in self._readers.values():
            for reader in readers:
                reader.wake()

    async def _look_on(self) -> None:
        while self._open and not self.is_closed:
            try:
                found = await anyio.to_thread.run_sync(self._look)
            except StoreUnavailable as away:
                if not self._is_failing:
                    logger.warning("event streams wait for the database: %s", away.message)
                self._is_failing = True
                found = []
            except Exception:  # a process loop: without it no stream would ever be told of anything
                logger.exception("a look at the events failed")
                found = []
            else:
                self._is_failing = False
            self._tell(found)
            if len(found) < PAGE:
                await asyncio.sleep(self._period_s if self._is_ready.is_set() else FIRST_PERIOD_S)

    def _look(self) -> Sequence[Event]:
        """Return what became settled since the last look; in a thread."""
        with self._db.read() as tx:
            self._mark = events.advance(tx, self._mark)
            settled = self._mark.settled
            if settled is None or not self._is_ready.is_set() or settled <= self._cursor:
                return ()
            return events.between(tx, self._cursor, settled, limit=PAGE)

    def _tell(self, found: Sequence[Event]) -> None:
        for event in found:
            for topic in _topics(event):
                for reader in self._readers.get(topic, ()):
                    reader.tell(event)
        if self._mark.settled is not None:
            is_page = len(found) == PAGE
            self._cursor = found[-1].event_id if is_page else max(self._cursor, self._mark.settled)
            if not self._is_ready.is_set():
                self._cursor = self._mark.settled
                self._is_ready.set()


def _topics(event: Event) -> list[Topic]:
    tenant = event.tenant or ""
    found = [Topic(tenant)]
    if event.job_id is not None:
        found.append(Topic(tenant, job_id=event.job_id))
    if event.batch_id is not None:
        found.append(Topic(tenant, batch_id=event.batch_id))
    return found
