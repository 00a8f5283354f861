"""What the client does, as generators that yield what must happen next: the blocking and the awaiting one alike."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import httpx
import orjson

from carbonq.client import calls, patience
from carbonq.client.answers import Answer, parsed, problem, unreachable
from carbonq.client.calls import Call
from carbonq.client.records import Budget, Chunk, Entry, Event, Job, Json, Result
from carbonq.client.rows import Lines, Rows
from carbonq.client.steps import Flow, Give, Manner, Open, Read, Send, Sleep, Tell
from carbonq.errors import Conflict, Unavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Part of the time waited so far that may pass until the next look: a long wait is told at most this much later.
_LATER = 0.02

#: First and longest time between two looks at a job, in seconds.
_FIRST_POLL_S = 0.5
_MAX_POLL_S = 2.0

#: How long an API that went away is waited for where no time limit was given, in seconds.
_RESTART_S = 60.0

#: Shortest time between two looks at a job with many events, and how often its stream may break off.
_EVENT_PAUSE_S = 0.25
_MOST_BREAKS = 3

#: A job is looked at this often even where its stream of events says nothing, in seconds.
_DOUBT_S = 10.0


def call(manner: Manner, asked: Call[T]) -> Flow[T]:
    """Send a call, again if need be, and return what its answer says. Raises classes of ``carbonq.errors``."""
    try:
        answer: Answer = yield from _persistent(manner, asked, Send(asked))
    finally:
        if asked.upload is not None:
            asked.upload.close()
    return asked.read(parsed(answer if asked.is_checked else replace(answer, status=200)))


def content(manner: Manner, asked: Call[Any]) -> Flow[bytes]:
    """Send a call, again if need be, and return its answer as it came. Raises classes of ``carbonq.errors``."""
    answer: Answer = yield from _persistent(manner, asked, Send(asked))
    if answer.is_error:
        raise problem(answer)
    return answer.content


def _persistent(manner: Manner, asked: Call[Any], step: Send | Open) -> Flow[Answer]:
    """Take a step until its answer stands. Raises Unavailable."""
    retries = manner.retries if asked.is_patient else 0
    for repeated in range(retries + 1):
        is_last = repeated == retries
        try:
            answer: Answer = yield step
        except httpx.HTTPError as error:
            pause_s = patience.pause_after_break(
                error, repeated=repeated, is_repeatable=asked.is_repeatable, jitter=random.random()
            )
            if is_last or pause_s is None or (not manner.awaits_start and isinstance(error, httpx.ConnectError)):
                raise unreachable(manner.url, error) from error
            why = str(unreachable(manner.url, error))
        else:
            pause_s = patience.pause_after_answer(
                answer, repeated=repeated, is_repeatable=asked.is_repeatable, jitter=random.random()
            )
            if is_last or pause_s is None:
                return answer
            why = f"{manner.url} answered {answer.status}"
        yield from _pause(manner, pause_s, why)
    raise AssertionError("the last try returns or raises")


def _pause(manner: Manner, pause_s: float, why: str) -> Flow[None]:
    """Say that something is tried again, and wait until then."""
    message = f"{why}; trying again in {pause_s:.1f} s"
    logger.info("%s", message)
    if manner.on_retry is not None:
        yield Tell(manner.on_retry, message)
    yield Sleep(pause_s)


def pages(
    manner: Manner, page: Callable[[str | None], Call[Json]], read: Callable[[Json], T], limit: int | None
) -> Flow[None]:
    """Give the items of a list, page by page, at most ``limit``."""
    left, after = limit, None
    while left is None or left > 0:
        found = yield from call(manner, page(after))
        data: Sequence[Json] = found["data"] if left is None else found["data"][:left]
        for one in data:
            yield Give(read(one))
        if not found["has_more"]:
            return
        after = found["last_id"]
        left = None if left is None else left - len(data)


def jobs(manner: Manner, *, limit: int | None, states: Sequence[str]) -> Flow[None]:
    """Give jobs, newest first."""
    size = 100 if limit is None else max(1, min(100, limit))
    return pages(manner, lambda after: calls.jobs(after=after, limit=size, states=states), Job.of, limit)


def chunks(manner: Manner, job_id: str) -> Flow[None]:
    """Give a job's chunks."""
    return pages(manner, lambda after: calls.chunks(job_id, after=after, limit=1000), Chunk.of, None)


def budgets(manner: Manner, *, level: str | None) -> Flow[None]:
    """Give budgets, by level and name."""
    return pages(manner, lambda after: calls.budgets(after=after, limit=1000, level=level), Budget.of, None)


def entries(manner: Manner, *, job_id: str | None) -> Flow[None]:
    """Give the current ledger entries."""
    return pages(manner, lambda after: calls.entries(job_id=job_id, after=after, limit=1000), Entry.of, None)


# --- waiting ----------------------------------------------------------------------------------------------------


def wait(
    manner: Manner,
    job_id: str,
    *,
    poll_s: float | None,
    timeout_s: float | None,
    on_progress: Callable[[Job], Any] | None,
) -> Flow[Job]:
    """Return a job once it is final: told by its events where the API offers them, else by looking again and again."""
    began = heard = time.monotonic()
    watch = _Watch(is_offered=poll_s is None)
    shown: Any = None
    while True:
        job: Job | None = None
        try:
            job = yield from call(manner, calls.job(job_id))
        except Unavailable:
            if timeout_s is None and time.monotonic() - heard > _RESTART_S:
                raise
        now = time.monotonic()
        if job is not None:
            heard = now
            if on_progress is not None and job.raw != shown:
                shown = job.raw
                yield Tell(on_progress, job)
            if job.is_final:
                return job
        left_s = None if timeout_s is None else timeout_s - (now - began)
        if left_s is not None and left_s <= 0:
            raise Unavailable(f"job {job_id} did not end within {timeout_s:g} s; it goes on without this client")
        if watch.is_offered and job is not None and (left_s is None or left_s > calls.EVENT_SILENCE_S):
            yield from _next_event(watch, job_id)
        else:
            pause_s = max(_FIRST_POLL_S if poll_s is None else poll_s, min(_MAX_POLL_S, _LATER * (now - began)))
            yield Sleep(pause_s if left_s is None else min(pause_s, left_s))


@dataclass(slots=True)
class _Watch:
    """A job's stream of events: whether the API offers one, whether it is open now, how often it broke off."""

    is_offered: bool
    is_open: bool = False
    breaks: int = 0


def _next_event(watch: _Watch, job_id: str) -> Flow[None]:
    """Return when a job is worth another look; without a stream ``watch`` says so, and looking goes on by time."""
    began = time.monotonic()
    try:
        if not watch.is_open:
            answer: Answer = yield Open(calls.events(job_id, is_parsed=False))
            watch.is_open = watch.is_offered = answer.status == 200
            return  # what happened before it was open has no event: look once more
        while (block := (yield Read())) is not None:
            waited_s = time.monotonic() - began
            if b"data:" in block:
                yield Sleep(max(0.0, _EVENT_PAUSE_S - waited_s))
                return
            if waited_s > _DOUBT_S:
                return
    except httpx.HTTPError:
        pass
    watch.is_open = False
    watch.breaks += 1
    watch.is_offered = watch.breaks < _MOST_BREAKS
    yield Sleep(_EVENT_PAUSE_S)


def events(manner: Manner, job_id: str | None, *, after: int | None) -> Flow[None]:
    """Give events as they happen, those of a job until it is final; a stream that breaks goes on behind its last."""
    breaks = 0
    while True:
        answer = yield from _opened(manner, calls.events(job_id, after=after))
        if answer.is_error:
            raise problem(answer)
        if answer.status == 204:
            return  # all has been seen
        try:
            while (said := (yield Read())) is not None:
                if said.event == "done":
                    return
                event = Event.of({**orjson.loads(said.data), "number": int(said.id)})
                after, breaks = event.number, 0
                yield Give(event)
            broken: httpx.HTTPError = httpx.RemoteProtocolError("the stream of events ended")
        except httpx.HTTPError as error:
            broken = error
        yield from _after_break(manner, broken, breaks)
        breaks += 1


# --- downloads --------------------------------------------------------------------------------------------------


def download(
    manner: Manner, asked: Call[Any], *, start: int = 0, each: Callable[[bytes], Iterable[Any]] = lambda block: (block,)
) -> Flow[None]:
    """Give what ``each`` makes of a file's bytes from ``start`` on; where the connection breaks, it asks for the rest.

    Raises Unavailable when nothing more comes, Conflict when the file is another one meanwhile.
    """
    at, tag, breaks = start, None, 0
    while True:
        headers = {**asked.headers, "Accept-Encoding": "identity"}  # offsets are of the file, not of a packed one
        if at:
            headers["Range"] = f"bytes={at}-"
        answer = yield from _opened(manner, replace(asked, headers=headers))
        if answer.status == 416 and answer.headers.get("content-range") == f"bytes */{at}":
            return  # all of it is here already
        if answer.is_error:
            raise problem(answer)
        if tag is not None and answer.headers.get("etag") != tag:
            raise Conflict(f"{asked.path} is another file now; read it again from its beginning")
        tag = answer.headers.get("etag")
        skipped = at if answer.status == 200 else 0  # whoever lies between may know of no ranges
        try:
            while (block := (yield Read())) is not None:
                kept, skipped = block[skipped:], max(0, skipped - len(block))
                if kept:
                    at, breaks = at + len(kept), 0
                    for value in each(kept):
                        yield Give(value)
            return
        except httpx.HTTPError as error:
            yield from _after_break(manner, error, breaks)
            breaks += 1


def _opened(manner: Manner, asked: Call[Any]) -> Flow[Answer]:
    """Open an answer; one with an error is read to its end."""
    answer = yield from _persistent(manner, asked, Open(asked))
    if not answer.is_error:
        return answer
    content = bytearray()
    try:
        while (block := (yield Read())) is not None:
            content += block
    except httpx.HTTPError as error:
        raise unreachable(manner.url, error) from error
    return replace(answer, content=bytes(content))


def _after_break(manner: Manner, error: httpx.HTTPError, breaks: int) -> Flow[None]:
    """Wait until it makes sense to go on. Raises Unavailable when it does not."""
    pause_s = patience.pause_after_break(error, repeated=breaks, is_repeatable=True, jitter=random.random())
    if pause_s is None or breaks >= manner.retries:
        raise unreachable(manner.url, error) from error
    yield from _pause(manner, pause_s, str(unreachable(manner.url, error)))


def lines(manner: Manner, asked: Call[Any], read: Callable[[bytes], Any]) -> Flow[None]:
    """Give what ``read`` makes of each line of a file."""
    cut = Lines()
    yield from download(manner, asked, each=lambda block: map(read, cut.feed(block)))
    if rest := cut.end():
        yield Give(read(rest))


def as_result(line: bytes) -> Result:
    """Read a line of an output or error file."""
    return Result.of(orjson.loads(line))


def ledger_csv(manner: Manner, **selection: Any) -> Flow[None]:
    """Give the ledger's CSV in pieces of whole rows; where the connection breaks, it goes on after the last row."""
    cut, breaks = Rows(), 0
    while True:
        more = _after_row(cut.last_row, has_revisions=selection.get("revisions") == "all")
        answer = yield from _opened(manner, calls.ledger_csv(**{**selection, **more}))
        if answer.is_error:
            raise problem(answer)
        try:
            while (block := (yield Read())) is not None:
                if whole := cut.feed(block):
                    breaks = 0
                    yield Give(whole)
            if rest := cut.end():
                yield Give(rest)
            return
        except httpx.HTTPError as error:
            yield from _after_break(manner, error, breaks)
            breaks += 1
            cut.restart()


def _after_row(row: list[str] | None, *, has_revisions: bool) -> dict[str, str]:
    """Return what asks for the rows behind one; nothing before the first."""
    if row is None:
        return {}
    if row[0] == "entry_id":  # only the header has come
        return {"header": "absent"}
    return {"after": "#".join(row[: 2 if has_revisions else 1]), "header": "absent"}


def ledger_export(manner: Manner, fmt: str, **selection: Any) -> Flow[None]:
    """Give the bytes of an export; one that is packed cannot be gone on with where it broke."""
    if fmt == "csv":
        yield from ledger_csv(manner, **selection)
        return
    yield from pieces(manner, calls.ledger_csv(**selection, format=fmt))


def pieces(manner: Manner, asked: Call[Any]) -> Flow[None]:
    """Give the bytes of an answer as they come; what broke must be begun anew."""
    answer = yield from _opened(manner, asked)
    if answer.is_error:
        raise problem(answer)
    try:
        while (block := (yield Read())) is not None:
            yield Give(block)
    except httpx.HTTPError as error:
        raise unreachable(manner.url, error) from error
