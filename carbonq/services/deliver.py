"""Send events to webhooks: write down what each endpoint is to get, then send it, again and again until it is taken.

What is to be sent is stored before it is sent, with its id and body, so a process may be killed at any instant: it is
sent twice then, with the same id, and never lost. One thread sends to one endpoint at a time, oldest first; a receiver
that hangs holds up itself alone. All times are machine times.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Protocol

import orjson

from carbonq import events, telemetry
from carbonq.clock import Clock
from carbonq.errors import StoreUnavailable
from carbonq.store import events as event_rows
from carbonq.store import webhooks
from carbonq.store.database import Database, Tx
from carbonq.store.events import Event, Mark, NewEvent
from carbonq.store.webhooks import Due, Endpoint, NewDelivery
from carbonq.webhooks import schedule
from carbonq.webhooks.schedule import Outcome

logger = logging.getLogger(__name__)

#: Threads that send at once, in all and for one tenant, whose hanging receivers must leave room for others'.
MAX_THREADS = 16
TENANT_THREADS = 4

#: How long the right to send to an endpoint lasts unless renewed, in seconds: longer than one attempt and its record.
LEASE_S = 60.0

#: Events looked at in one transaction, and in one tick.
ROUTE_PAGE = 1_000
ROUTE_PAGES = 20

#: How long a thread sends to one endpoint before the next one has its turn, in seconds.
TURN_S = 20.0


class Sends(Protocol):
    """What is needed of ``webhooks.sender.Sender``."""

    def send(self, url: str, message_id: str, body: bytes, secrets: Sequence[str], at: datetime) -> Outcome:
        """Send one message and return what came of it."""
        ...


class Deliverer:
    """Sends what endpoints are to get; ``run`` is the tick and returns at once, threads go on."""

    def __init__(
        self,
        db: Database,
        sender: Sends,
        clock: Clock,
        *,
        chance: Callable[[], float] = random.random,
        max_threads: int = MAX_THREADS,
        tenant_threads: int = TENANT_THREADS,
    ) -> None:
        """Prepare; ``chance`` gives the jitter in [0, 1)."""
        self._db = db
        self._sender = sender
        self._clock = clock
        self._chance = chance
        self._max_threads = max_threads
        self._tenant_threads = tenant_threads
        self._mark: Mark | None = None
        self._active: dict[str, str] = {}  # webhook_id: tenant
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._is_closing = threading.Event()

    def run(self) -> int:
        """Store what new events mean for endpoints and begin to send what is due; return how many were stored.

        Raises StoreUnavailable.
        """
        stored = 0
        for _ in range(ROUTE_PAGES):
            found, has_more = self._route()
            stored += found
            if not has_more:
                break
        with self._db.read() as tx:
            due = webhooks.waiting(tx)
        random.shuffle(due)  # whoever got no thread this time may get one next time
        for tenant, webhook_id in due:
            self._begin(tenant, webhook_id)
        return stored

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no thread sends; False when that took longer."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._active, timeout_s)

    def close(self, timeout_s: float = 3.0) -> None:
        """Begin nothing more and wait shortly for what is under way; what is cut off is sent again by the next."""
        self._is_closing.set()
        self.wait_idle(timeout_s)

    # --- from events to messages ------------------------------------------------------------------------------

    def _route(self) -> tuple[int, bool]:
        """Look at a page of events; return how many messages came of it, and whether there are more events."""
        with self._db.read() as tx:
            self._mark = event_rows.advance(tx, self._mark)
            settled, before = self._mark.settled, webhooks.routed_up_to(tx)
        if settled is None or (before is not None and settled <= before):
            return 0, False
        with self._db.write() as tx:
            before, earliest = webhooks.routed_up_to(tx), webhooks.earliest(tx)
            if before is not None and settled <= before:
                return 0, False  # another process looked at them
            found: list[Event] = []
            if earliest is not None:
                # The first time, what was there before any endpoint is passed over.
                found = event_rows.between(tx, earliest if before is None else before, settled, limit=ROUTE_PAGE)
            upto = found[-1].event_id if len(found) == ROUTE_PAGE else settled
            if not webhooks.advance(tx, before, upto):
                return 0, False
            return webhooks.add(tx, list(_messages(tx, found))), upto < settled

    # --- from messages to receivers ---------------------------------------------------------------------------

    def _begin(self, tenant: str, webhook_id: str) -> None:
        with self._lock:
            if self._is_closing.is_set() or webhook_id in self._active or len(self._active) >= self._max_threads:
                return
            if Counter(self._active.values())[tenant] >= self._tenant_threads:
                return
            self._active[webhook_id] = tenant
        # A daemon: a receiver that hangs must not keep the process from ending.
        threading.Thread(target=self._send_all, args=(webhook_id,), name="webhook", daemon=True).start()

    def _send_all(self, webhook_id: str) -> None:
        try:
            self._take_turn(webhook_id)
        except StoreUnavailable as away:
            logger.warning("webhook %s is sent to later: %s", webhook_id, away.message)
        except Exception:  # a process loop: the next tick tries again
            logger.exception("sending to webhook %s failed", webhook_id)
        finally:
            with self._idle:
                del self._active[webhook_id]
                self._idle.notify_all()

    def _take_turn(self, webhook_id: str) -> None:
        until = time.monotonic() + TURN_S
        with self._db.write() as tx:
            token = webhooks.take(tx, webhook_id, lease_s=LEASE_S)
            if token is None:
                return  # another process sends to it
            due = self._next(tx, webhook_id, token)
        while due is not None:
            outcome = self._send(due)
            is_over = self._is_closing.is_set() or time.monotonic() > until
            with self._db.write() as tx:
                self._record(tx, due, outcome)
                due = None if is_over else self._next(tx, webhook_id, token)
                if is_over:
                    webhooks.release(tx, webhook_id, token)

    def _next(self, tx: Tx, webhook_id: str, token: int) -> Due | None:
        due = webhooks.next_due(tx, webhook_id, token, lease_s=LEASE_S)
        if due is None:
            webhooks.release(tx, webhook_id, token)
        return due

    def _send(self, due: Due) -> Outcome:
        endpoint, delivery = due.endpoint, due.delivery
        with telemetry.WEBHOOK_SECONDS.time():
            return self._sender.send(
                endpoint.url, delivery.message_id, delivery.body.encode(), endpoint.secrets(due.now), due.now
            )

    def _record(self, tx: Tx, due: Due, outcome: Outcome) -> None:
        endpoint, delivery = due.endpoint, due.delivery
        if outcome.is_accepted:
            webhooks.record(tx, delivery, status=outcome.status, error=None, again_s=None, pause_s=0.0)
            telemetry.WEBHOOK_ATTEMPTS.labels("delivered").inc()
            return
        is_gone = outcome.status == schedule.GONE
        step = schedule.step(delivery.attempts + 1, outcome, jitter=self._chance())
        again_s = None if is_gone else step.again_s
        webhooks.record(tx, delivery, status=outcome.status, error=outcome.why, again_s=again_s, pause_s=step.pause_s)
        telemetry.WEBHOOK_ATTEMPTS.labels("failed" if again_s is None else "retried").inc()
        if is_gone:
            self._disable(tx, endpoint, "it answered 410: nobody is there any more")
        elif again_s is None and schedule.is_hopeless(endpoint.failing_since, due.now):
            days = schedule.PATIENCE_S // 86_400
            self._disable(tx, endpoint, f"it has taken nothing for {days} days; last: {outcome.why}")

    def _disable(self, tx: Tx, endpoint: Endpoint, reason: str) -> None:
        if not webhooks.disable(tx, endpoint.webhook_id, reason):
            return
        data = {"id": endpoint.webhook_id, "reason": reason}
        event_rows.append_many(tx, [NewEvent("webhook.disabled", self._clock.now(), endpoint.tenant, data=data)])
        logger.warning("webhook %s of tenant %s is disabled: %s", endpoint.webhook_id, endpoint.tenant, reason)


def _messages(tx: Tx, found: Sequence[Event]) -> Iterator[NewDelivery]:
    endpoints: dict[str, list[Endpoint]] = defaultdict(list)
    for one in webhooks.enabled(tx, sorted({event.tenant for event in found if event.tenant is not None})):
        endpoints[one.tenant].append(one)
    for event in found:
        # A batch speaks for its jobs.
        if event.job_id is not None and event.batch_id is not None:
            continue
        body = None
        for endpoint in endpoints.get(event.tenant or "", ()):
            if event.type not in endpoint.event_types or event.event_id <= endpoint.since_event_id:
                continue
            name = events.event_name(event.event_id, event.recorded_at)
            if body is None:
                body = orjson.dumps(events.message(name, event.at, event.type, event_rows.told(event))).decode()
            yield NewDelivery(endpoint.webhook_id, name, event.type, body)
