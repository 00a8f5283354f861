"""Events as they happen, by server-sent events: of a tenant, a job or a batch, from any point on.

``id:`` is the event's number, and ``Last-Event-ID`` (a header, or ``last_event_id`` in the query) goes on after it. The
stream of a job or batch begins with its first event and ends with ``event: done``.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any

import anyio
import anyio.to_thread
import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from carbonq import events, telemetry
from carbonq.api import problems
from carbonq.api.auth import Caller, needs
from carbonq.api.context import Api, ApiDep, CallerDep
from carbonq.api.feed import PAGE, Topic
from carbonq.api.openapi import Answer, Parameter, operation, sends
from carbonq.errors import CarbonqError, InvalidRequest
from carbonq.model import Scope
from carbonq.store import batches, jobs
from carbonq.store import events as event_rows
from carbonq.store.database import Tx
from carbonq.store.events import Event

logger = logging.getLogger(__name__)

#: How long a client waits before it connects again, in ms.
RETRY_MS = 3_000

#: How often a quiet stream says that it lives, and how long a client may leave what is sent unread, in seconds.
PING_S = 15
SEND_TIMEOUT_S = 30.0

#: Largest event number there can be.
_MAX_ID = 2**63 - 1

#: The state of a job or batch that is final; None of one that is not.
Ending = Callable[[Tx], str | None]

_EVENTS = sends(
    "text/event-stream",
    "Events, each with its number as `id`, its type as `event` and its JSON as `data`; `: ping` in between.",
    headers=("X-Accel-Buffering",),
)
_AFTER = (
    Parameter(
        "last_event_id",
        "as the header `Last-Event-ID`, for clients that cannot send it",
        {"type": "integer", "minimum": 0, "maximum": _MAX_ID},
        17,
    ),
)
_OVER = Answer("It is final, and you have seen all of it: do not connect again.")

router = APIRouter(dependencies=[needs(Scope.READ)])


@router.get(
    "/v1/events",
    **operation(
        "stream_events",
        "events",
        answers={200: _EVENTS},
        errors=("too_many_streams",),
        headers=("Last-Event-ID",),
        parameters=_AFTER,
    ),
)
async def all_events(request: Request, api: ApiDep, caller: CallerDep) -> Response:
    """Stream what happens to your jobs and batches, from now on or after ``Last-Event-ID`` (0: all that is kept)."""
    after = _after(request)
    await anyio.to_thread.run_sync(_check_there, api)
    return _Stream(api, caller, Topic(caller.tenant), after, None)


def _check_there(api: Api) -> None:
    """Raise StoreUnavailable: better than a stream in which nothing can come."""
    with api.db.read():
        return


@router.get(
    "/v1/jobs/{job_id}/events",
    **operation(
        "stream_job_events",
        "events",
        answers={200: _EVENTS, 204: _OVER},
        errors=("not_found", "too_many_streams"),
        headers=("Last-Event-ID",),
        parameters=_AFTER,
    ),
)
async def job_events(request: Request, job_id: str, api: ApiDep, caller: CallerDep) -> Response:
    """Stream what happens to a job, from its beginning or after ``Last-Event-ID``, until ``event: done``."""

    def ending(tx: Tx) -> str | None:
        job = jobs.get(tx, job_id, caller.tenant)
        return job.state.value if job.is_final else None

    return await _of_one(api, caller, Topic(caller.tenant, job_id=job_id), ending, _after(request))


@router.get(
    "/v1/batches/{batch_id}/events",
    **operation(
        "stream_batch_events",
        "events",
        answers={200: _EVENTS, 204: _OVER},
        errors=("not_found", "too_many_streams"),
        headers=("Last-Event-ID",),
        parameters=_AFTER,
    ),
)
async def batch_events(request: Request, batch_id: str, api: ApiDep, caller: CallerDep) -> Response:
    """Stream what happens to a batch and its jobs, from its beginning or after ``Last-Event-ID``, until ``done``."""

    def ending(tx: Tx) -> str | None:
        batch = batches.get(tx, batch_id, caller.tenant)
        return batch.state.value if batch.is_final else None

    return await _of_one(api, caller, Topic(caller.tenant, batch_id=batch_id), ending, _after(request))


async def _of_one(api: Api, caller: Caller, topic: Topic, ending: Ending, after: int | None) -> Response:
    def is_over() -> bool:
        with api.db.read() as tx:
            ending(tx)  # not to say anything of what is not there, or another tenant's
            if after is None:
                return False
            final = event_rows.final_of(tx, topic.tenant, job_id=topic.job_id, batch_id=topic.batch_id)
            return final is not None and final <= after

    if await anyio.to_thread.run_sync(is_over):
        return Response(status_code=204)
    return _Stream(api, caller, topic, after or 0, ending)


def _after(request: Request) -> int | None:
    """Read where to go on: the header, which browsers send by themselves, before the query."""
    given = request.headers.get("last-event-id", request.query_params.get("last_event_id"))
    return None if given is None else _number(given)


def _number(given: str) -> int:
    if not (given.isascii() and given.isdigit() and len(given) < 20 and int(given) <= _MAX_ID):
        raise InvalidRequest(
            f"Last-Event-ID must be the id of an event, a whole number; got {given[:50]!r}", param="Last-Event-ID"
        )
    return int(given)


class _Stream(EventSourceResponse):
    """A counted stream: it is counted when it begins, and off however it ends."""

    def __init__(self, api: Api, caller: Caller, topic: Topic, after: int | None, ending: Ending | None) -> None:
        self._feed = api.feed
        self._key = caller.api_key_id or f"tenant {caller.tenant}"
        super().__init__(
            _sent(api, topic, after, ending),
            ping=PING_S,
            ping_message_factory=lambda: ServerSentEvent(comment="ping"),
            send_timeout=SEND_TIMEOUT_S,
            sep="\n",
        )

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Stream, or answer 429 where there are too many."""
        try:
            self._feed.enter(self._key)
        except CarbonqError as refused:
            await problems.answer(refused, scope["path"])(scope, receive, send)
            return
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            telemetry.EVENT_STREAMS_ENDED.labels("slow").inc()
            logger.info("an event stream was cut off: its client took nothing for %g s", SEND_TIMEOUT_S)
            await _cut_off(receive)
        finally:
            self._feed.leave(self._key)


async def _cut_off(receive: Receive) -> None:
    """Break a connection whose other side does not read; closed in peace it would stay until that side goes away."""
    # The server's own object is behind ``receive``; ASGI has no word for this.
    transport: Any = getattr(getattr(receive, "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()
        await anyio.sleep(0)  # the server learns of it, and says nothing of an answer that was not completed


async def _sent(api: Api, topic: Topic, after: int | None, ending: Ending | None) -> AsyncGenerator[ServerSentEvent]:
    """Yield a stream: what was missed, from the table; then what comes, as the feed tells it."""
    feed = api.feed
    yield ServerSentEvent(comment="carbonq", sep="\n")
    await feed.ready()
    last = feed.cursor if after is None else after
    while not feed.is_closed:
        upto = feed.cursor
        page = await anyio.to_thread.run_sync(_page, api, topic, last, upto)
        for event in page:
            yield _message(event)
            if _ends(topic, event):
                yield _done(event)
                return
        last = page[-1].event_id if len(page) == PAGE else max(last, upto)
        if len(page) < PAGE and upto == feed.cursor:
            break  # and nothing is awaited before it joins
    reader = feed.join(topic)
    try:
        unseen = None if ending is None else await anyio.to_thread.run_sync(_unseen_end, api, topic, ending)
        if unseen is not None:
            yield _over(topic.job_id or topic.batch_id, unseen, None)
            return
        while not feed.is_closed and not reader.is_behind:
            for event in await reader.more():
                if event.event_id <= last:  # another API process was farther than this one
                    continue
                yield _message(event)
                if _ends(topic, event):
                    yield _done(event)
                    return
        if reader.is_behind:
            telemetry.EVENT_STREAMS_ENDED.labels("behind").inc()
    finally:
        feed.part(reader)


def _page(api: Api, topic: Topic, last: int, upto: int) -> list[Event]:
    with api.db.read() as tx:
        return event_rows.of_topic(
            tx, topic.tenant, last, upto, job_id=topic.job_id, batch_id=topic.batch_id, limit=PAGE
        )


def _unseen_end(api: Api, topic: Topic, ending: Ending) -> str | None:
    """Return how a job or batch ended whose last event is not kept any more; None where it is, or will come."""
    with api.db.read() as tx:
        state = ending(tx)
        is_kept = event_rows.final_of(tx, topic.tenant, job_id=topic.job_id, batch_id=topic.batch_id) is not None
    return None if is_kept else state


def _ends(topic: Topic, event: Event) -> bool:
    """Say whether nothing more comes: a batch's jobs end before the batch does."""
    if topic.batch_id is not None:
        return event.type in events.BATCH_FINAL
    return topic.job_id is not None and event.type in events.JOB_FINAL


def _message(event: Event) -> ServerSentEvent:
    name = events.event_name(event.event_id, event.recorded_at)
    told = events.message(name, event.at, event.type, event_rows.told(event))
    # With each event: some clients take one that says nothing else for an empty event.
    return ServerSentEvent(
        orjson.dumps(told).decode(), event=event.type, id=str(event.event_id), retry=RETRY_MS, sep="\n"
    )


def _done(event: Event) -> ServerSentEvent:
    return _over(event_rows.told(event).get("id"), event.type.partition(".")[2], str(event.event_id))


def _over(subject: str | None, state: str, number: str | None) -> ServerSentEvent:
    data = orjson.dumps({"id": subject, "state": state}).decode()
    return ServerSentEvent(data, event="done", id=number, sep="\n")
