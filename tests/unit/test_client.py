"""Both clients against a scripted server, through the same tests: what is asked, what comes of it, what is repeated."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest

import carbonq
from carbonq import client, errors
from carbonq.client import patience
from carbonq.client.answers import Answer

Handler = Callable[[httpx.Request], httpx.Response]

JOB: dict[str, Any] = {
    "id": "job_1",
    "state": "waiting",
    "phase": "planned",
    "endpoint": "/v1/embeddings",
    "model": "m",
    "created_at": "2026-11-29T10:00:00.000000Z",
    "deadline_at": "2026-11-29T16:00:00.000000Z",
    "progress": {"total": 2, "ended": 0, "succeeded": 0, "failed": 0, "expired": 0, "cancelled": 0},
    "max_carbon_g": "0.10",
    "carbon": None,
}
RUNNING, DONE = JOB | {"state": "running"}, JOB | {"state": "completed"}


class Both:
    """One of the two clients, behind calls that return values and lists."""

    def __init__(self, kind: type[client.Client] | type[client.AsyncClient], handler: Handler, **options: Any) -> None:
        self.made: Any = kind(
            "http://carbonq.test/",
            options.pop("api_key", "cq-key"),
            transport=httpx.MockTransport(_fresh(handler)),
            **options,
        )

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            found = getattr(self.made, name)(*given, **more)
            if inspect.isawaitable(found):
                return asyncio.run(_awaited(found))
            if isinstance(found, AsyncIterator):
                return asyncio.run(_listed(found))
            return list(found) if isinstance(found, Iterator) else found

        return call


def _fresh(handler: Handler) -> Handler:
    """Answer with a copy: a response that one client has read is none for the other."""

    def answer(request: httpx.Request) -> httpx.Response:
        given = handler(request)
        if not hasattr(given, "_content"):
            return given
        return httpx.Response(given.status_code, headers=given.headers, content=given.content)

    return answer


async def _awaited(found: Any) -> Any:
    return await found


async def _listed(found: AsyncIterator[Any]) -> list[Any]:
    return [one async for one in found]


Make = Callable[..., Both]


@pytest.fixture(params=[client.Client, client.AsyncClient], ids=["blocking", "awaiting"])
def make(request: pytest.FixtureRequest) -> Make:
    return lambda handler, **options: Both(request.param, handler, **options)


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses are not waited for, but noted."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("carbonq.client.blocking.time.sleep", pauses.append)
    monkeypatch.setattr("carbonq.client.awaiting.asyncio.sleep", sleep)
    monkeypatch.setattr("carbonq.client.flows.random.random", lambda: 0.0)
    return pauses


def problem(status: int, headers: dict[str, str] | None = None, **error: Any) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": "a sentence", **error}}, headers=headers)


def answering(*answers: httpx.Response | Exception | dict[str, Any]) -> tuple[Handler, list[httpx.Request]]:
    """Return a handler that gives these answers in turn and repeats the last, and what it was asked."""
    left, seen = list(answers), list[httpx.Request]()

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(200, json=answer) if isinstance(answer, dict) else answer

    return handler, seen


class Cut(httpx.SyncByteStream, httpx.AsyncByteStream):
    """An answer that breaks off."""

    def __init__(self, *blocks: bytes) -> None:
        self.blocks = blocks

    def __iter__(self) -> Iterator[bytes]:
        yield from self.blocks
        raise httpx.RemoteProtocolError("peer closed connection")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for block in self:
            yield block


# --- the surface ------------------------------------------------------------------------------------------------


def test_the_public_surface_is_what_is_written_down() -> None:
    assert set(carbonq.__all__) >= {"AsyncClient", "Client", "__version__"}
    assert carbonq.Client is client.Client and carbonq.AsyncClient is client.AsyncClient
    assert client.__all__ == sorted(client.__all__, key=lambda name: (not name.isupper(), name))
    for name in client.__all__:
        assert getattr(client, name).__doc__, name
    with pytest.raises(AttributeError, match="nothing"):
        carbonq.nothing  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_importing_carbonq_imports_no_client() -> None:
    """A worker that only wants the version must not pay for HTTP."""
    import subprocess
    import sys

    code = "import carbonq, sys; assert 'httpx' not in sys.modules and 'pydantic' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def _public(kind: type) -> dict[str, inspect.Signature]:
    return {name: inspect.signature(one) for name, one in vars(kind).items() if not name.startswith("_")}


def test_the_two_clients_offer_the_same() -> None:
    blocking, awaiting = _public(client.Client), _public(client.AsyncClient)
    assert list(blocking) == list(awaiting)
    for name, signature in blocking.items():
        assert list(signature.parameters) == list(awaiting[name].parameters), name
        assert getattr(client.Client, name).__doc__ and getattr(client.AsyncClient, name).__doc__, name


# --- submit -----------------------------------------------------------------------------------------------------


def test_submit_streams_lines_and_terms(make: Make) -> None:
    bodies: list[bytes] = []

    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(202, json=JOB)

    seen: list[httpx.Request] = []
    job = make(lambda request: (bodies.append(_read(request)), seen.append(request), handler(request))[2]).submit(
        iter([b'{"a":1}', b'{"b":2}\n']),
        endpoint="/v1/embeddings",
        model="m",
        deadline="6h",
        regions=("fr", "se"),
        max_carbon_g="0.5",
        product_line="search",
        idempotency_key="k",
    )
    assert (job.id, job.max_carbon_g, job["max_carbon_g"]) == ("job_1", Decimal("0.10"), "0.10")
    (request,) = seen
    assert bodies == [b'{"a":1}\n{"b":2}\n']
    assert request.url.params.get_list("region") == ["fr", "se"]
    assert request.url.params["max_carbon_g"] == "0.5" and "workload" not in request.url.params
    assert request.headers["authorization"] == "Bearer cq-key"
    assert request.headers["idempotency-key"] == "k"
    assert request.headers["content-type"] == "application/x-ndjson"
    assert request.headers["transfer-encoding"] == "chunked"


def _read(request: httpx.Request) -> bytes:
    # MockTransport has read it already, for either client.
    return request.content


def test_items_of_every_kind_become_openai_lines(make: Make) -> None:
    handler, seen = answering(httpx.Response(202, json=JOB))
    line = {"custom_id": "d", "method": "POST", "url": "/v1/embeddings", "body": {"input": "four"}}
    items = ["one", {"id": "b", "text": "two"}, {"id": 3, "text": "three"}, line, json.dumps(line).encode()]
    make(handler).submit(items, kind="embeddings", model="m", deadline=timedelta(hours=6))
    lines = [json.loads(one) for one in seen[0].content.splitlines()]
    assert [one["custom_id"] for one in lines] == ["item-1", "b", "3", "d", "d"]
    assert lines[0]["body"] == {"model": "m", "input": "one"} and lines[3] == lines[4] == line
    assert seen[0].url.params["deadline"] == "21600.000s"


def test_a_deadline_may_be_a_time(make: Make) -> None:
    handler, seen = answering(httpx.Response(202, json=JOB))
    make(handler).submit(["a"], kind="chat", model="m", deadline=datetime(2026, 12, 1, 6, tzinfo=UTC))
    assert seen[0].url.params["deadline"].startswith("2026-12-01T06:00:00")
    assert seen[0].url.params["endpoint"] == "/v1/chat/completions"


@pytest.mark.parametrize(
    ("items", "more", "sentence"),
    [
        ([3], {}, "item 1 is of type int"),
        (["a", {"title": "x"}], {}, "item 2 has neither a text nor a body"),
        ([{"id": "", "text": "x"}], {}, "is empty"),
        ([{"body": {1}}], {}, "item 1 cannot be written as JSON"),
        (['{"custom_id": "a"}'], {}, "give it as bytes"),
        (["a"], {"kind": "poems"}, "kind 'poems' is not one of"),
        (["a"], {"endpoint": "/v1/x"}, "endpoint '/v1/x' is not one of"),
        (["a"], {"endpoint": "/v1/embeddings", "kind": "chat"}, "give either endpoint"),
        (["a"], {"kind": "chat", "max_carbon": 1}, "'max_carbon' is no term of a job"),
        (["a"], {"kind": "chat", "deadline": datetime(2026, 12, 1)}, "no time zone"),
    ],
)
def test_what_is_no_item_or_term_is_named(make: Make, items: list[Any], more: dict[str, Any], sentence: str) -> None:
    terms = {"kind": "embeddings"} if not {"kind", "endpoint"} & set(more) else {}
    with pytest.raises(errors.InvalidRequest, match=sentence):
        make(answering(JOB)[0]).submit(items, **{"model": "m", "deadline": "6h", **terms, **more})


@pytest.mark.parametrize("items", ["one text", b"one line", {"id": "a", "text": "b"}])
def test_a_single_item_is_no_iterable_of_them(make: Make, items: Any) -> None:
    with pytest.raises(TypeError, match="an iterable of them"):
        make(answering(JOB)[0]).submit(items, kind="embeddings", model="m", deadline="6h")


async def _coming(*items: Any) -> AsyncIterator[Any]:
    for item in items:
        yield item


def test_items_that_come_asynchronously_need_the_awaiting_client() -> None:
    handler, seen = answering(httpx.Response(202, json=JOB))
    Both(client.AsyncClient, handler).submit(_coming("a", "b"), kind="embeddings", model="m", deadline="6h")
    assert seen[0].content.count(b"\n") == 2
    with pytest.raises(TypeError, match=r"carbonq\.AsyncClient"):
        Both(client.Client, handler).submit(_coming("a"), kind="embeddings", model="m", deadline="6h")


class Sink(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Reads requests as a server does, piece by piece; breaks the first ``cuts`` off after one piece."""

    def __init__(self, cuts: int = 0) -> None:
        self.tries: list[tuple[str, list[bytes]]] = []
        self.cuts = cuts

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        pieces = self._begun(request)
        assert isinstance(request.stream, httpx.SyncByteStream)
        for piece in request.stream:
            self._took(pieces, piece)
        return httpx.Response(202, json=JOB)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        pieces = self._begun(request)
        assert isinstance(request.stream, httpx.AsyncByteStream)
        async for piece in request.stream:
            self._took(pieces, piece)
        return httpx.Response(202, json=JOB)

    def _begun(self, request: httpx.Request) -> list[bytes]:
        self.tries.append((request.headers["idempotency-key"], []))
        return self.tries[-1][1]

    def _took(self, pieces: list[bytes], piece: bytes) -> None:
        pieces.append(piece)
        if len(self.tries) <= self.cuts:
            raise httpx.WriteError("broken pipe")


def test_submit_sends_large_input_in_pieces(make: Make) -> None:
    sink, carbonq = Sink(), make(answering(JOB)[0])
    carbonq.made._http._transport = sink
    carbonq.submit((b"x" * 999 + b"\n" for _ in range(2_000)), endpoint="/v1/embeddings", model="m", deadline="6h")
    sizes = [len(piece) for piece in sink.tries[0][1]]
    assert sum(sizes) == 2_000_000 and 5 < len(sizes) < 12 and max(sizes) < 300_000


@pytest.mark.parametrize("is_list", [True, False])
def test_a_broken_upload_is_sent_again_whole_and_as_the_same_job(make: Make, is_list: bool) -> None:
    sink, carbonq = Sink(cuts=2), make(answering(JOB)[0])
    carbonq.made._http._transport = sink
    lines = [f"{number:0999}".encode() for number in range(1_000)]
    assert carbonq.submit(lines if is_list else iter(lines), kind="embeddings", model="m", deadline="6h").id == "job_1"
    whole = b"".join(line + b"\n" for line in lines)
    keys, tries = zip(*sink.tries, strict=True)
    assert len(set(keys)) == 1 and len(keys) == 3
    assert b"".join(tries[2]) == whole and all(whole.startswith(b"".join(one)) for one in tries)


def test_two_submits_are_two_jobs(make: Make) -> None:
    handler, seen = answering(httpx.Response(202, json=JOB))
    for _ in range(2):
        make(handler).submit(["a"], kind="embeddings", model="m", deadline="6h")
    assert len({request.headers["idempotency-key"] for request in seen}) == 2


# --- trying again -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trouble",
    [httpx.ConnectError("refused"), httpx.ReadError("reset"), problem(503), problem(429, {"Retry-After": "1"})],
    ids=str,
)
def test_what_passes_is_tried_again_with_growing_pauses(make: Make, trouble: Any, slept: list[float]) -> None:
    handler, seen = answering(trouble, trouble, JOB)
    told: list[str] = []
    assert make(handler, on_retry=told.append).job("job_1").state == "waiting"
    assert len(seen) == 3 and slept == [max(slept[0], 0.5), 1.0]
    assert len(told) == 2 and told[1].endswith("; trying again in 1.0 s")


def test_retry_after_is_waited_for(make: Make, slept: list[float]) -> None:
    handler, _ = answering(problem(503, {"Retry-After": "7"}), JOB)
    make(handler).job("job_1")
    assert slept == [7.0]


@pytest.mark.parametrize(
    "trouble",
    [
        problem(429),  # it will be no other the next time
        problem(503, {"Retry-After": "61"}),  # longer than anybody should sit in a call
        problem(503, {"X-Should-Retry": "false"}),
        problem(500, code="internal_error"),
        problem(404),
        httpx.ReadTimeout("silent"),  # it has the request
    ],
    ids=lambda trouble: str(getattr(trouble, "status_code", trouble)),
)
def test_what_will_not_pass_is_told_at_once(make: Make, trouble: Any, slept: list[float]) -> None:
    handler, seen = answering(trouble)
    with pytest.raises(errors.CarbonqError):
        make(handler).job("job_1")
    assert len(seen) == 1 and not slept


def test_it_gives_up_after_so_many_tries(make: Make, slept: list[float]) -> None:
    handler, seen = answering(problem(503, code="store_unavailable"))
    with pytest.raises(errors.Unavailable, match="a sentence"):
        make(handler, retries=2).job("job_1")
    assert len(seen) == 3 and slept == [0.5, 1.0]


def test_a_realtime_call_is_sent_again_only_where_nothing_was_done(make: Make) -> None:
    for trouble, tries in (
        (problem(503), 2),
        (httpx.ConnectError("x"), 2),
        (httpx.ReadError("x"), 1),
        (problem(502), 1),
    ):
        handler, seen = answering(trouble, {"data": []})
        with contextlib.suppress(errors.Unavailable):
            make(handler).embeddings("a", model="m")
        assert len(seen) == tries, trouble


def test_a_server_that_never_answered_may_be_given_up_at_once(make: Make, slept: list[float]) -> None:
    handler, seen = answering(httpx.ConnectError("refused"))
    with pytest.raises(errors.Unavailable, match="carbonq up"):
        make(handler, awaits_start=False).job("job_1")
    assert len(seen) == 1 and not slept


def test_pauses_double_up_to_a_limit_and_are_spread() -> None:
    def pause(repeated: int, jitter: float) -> float | None:
        answer = Answer("u", 503, {})
        return patience.pause_after_answer(answer, repeated=repeated, is_repeatable=True, jitter=jitter)

    assert [pause(repeated, 0.0) for repeated in (0, 1, 2, 3, 4, 5, 60)] == [0.5, 1, 2, 4, 8, 8, 8]
    assert pause(1, 0.5) == 0.75


# --- errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("response", "kind", "fields"),
    [
        (problem(400, param="model", code="model_not_found"), errors.InvalidRequest, {"param": "model"}),
        (problem(400, line=7), errors.InvalidRequest, {"line": 7}),
        (problem(413), errors.InvalidRequest, {}),
        (problem(422), errors.InvalidRequest, {}),
        (problem(400, best="by noon", param="deadline"), errors.Infeasible, {"best": "by noon"}),
        (problem(401), errors.NotAuthenticated, {}),
        (problem(403, scopes=["submit"]), errors.Forbidden, {"scopes": ("submit",)}),
        (problem(404), errors.NotFound, {}),
        (problem(410, code="results_removed"), errors.NotFound, {"code": "results_removed"}),
        (problem(409, code="job_not_final"), errors.Conflict, {"code": "job_not_final"}),
        (problem(429, {"Retry-After": "3"}, code="rate"), errors.QuotaExceeded, {"retry_after_s": 3.0, "code": "rate"}),
        (problem(503, {"Retry-After": "9"}, code="store_unavailable"), errors.Unavailable, {"retry_after_s": 9.0}),
        (problem(500, code="internal_error"), errors.Unavailable, {"code": "internal_error"}),
    ],
)
def test_errors_come_back_as_classes(
    make: Make, response: httpx.Response, kind: type[errors.CarbonqError], fields: dict[str, Any]
) -> None:
    response.headers["X-Request-Id"] = "req_1"
    with pytest.raises(kind, match="a sentence") as raised:
        make(lambda _: response, retries=0).job("job_1")
    assert type(raised.value) is kind and raised.value.request_id == "req_1"
    for name, value in fields.items():
        assert getattr(raised.value, name) == value


@pytest.mark.parametrize(
    "response",
    [httpx.Response(502, text="<html>"), httpx.Response(200, text="<html>"), httpx.Response(200, json={"id": "x"})],
)
def test_something_that_is_not_carbonq(make: Make, response: httpx.Response) -> None:
    with pytest.raises(errors.Unavailable, match="carbonq"):
        make(lambda _: response, retries=0).job("job_1")


def test_nobody_there(make: Make) -> None:
    for ask in ("jobs", "health"):
        with pytest.raises(errors.Unavailable, match="carbonq up"):
            getattr(make(answering(httpx.ConnectError("refused"))[0], retries=0), ask)()
    with pytest.raises(errors.Unavailable, match="carbonq up"):
        make(answering(httpx.ConnectError("refused"))[0], retries=0).results("job_1")


def test_health_answers_for_a_server_that_is_not_ready(make: Make, slept: list[float]) -> None:
    handler, seen = answering(httpx.Response(503, json={"status": "not ready"}))
    assert make(handler).health() == {"status": "not ready"}
    assert len(seen) == 1 and not slept


# --- lists ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "count", "pages"), [(None, 6, [None, "1", "3"]), (3, 3, [None, "1"]), (0, 0, [])])
def test_jobs_pages_by_cursor_and_stops(make: Make, limit: int | None, count: int, pages: list[str | None]) -> None:
    asked: list[str | None] = []

    def handler(request: httpx.Request) -> httpx.Response:
        after = request.url.params.get("after")
        asked.append(after)
        assert request.url.params.get_list("state") == ["running"]
        start = 0 if after is None else int(after) + 1
        data = [JOB | {"id": str(number)} for number in range(start, start + 2)]
        return httpx.Response(200, json={"data": data, "last_id": data[-1]["id"], "has_more": start < 4})

    found = make(handler).jobs(limit=limit, states=["running"])
    assert [job.id for job in found] == [str(number) for number in range(count)]
    assert asked == pages


# --- waiting ----------------------------------------------------------------------------------------------------


def test_wait_goes_through_a_restart_and_shows_progress(make: Make) -> None:
    handler, _ = answering(JOB, httpx.ConnectError("restarting"), RUNNING, RUNNING, DONE)
    seen: list[str] = []
    job = make(handler, retries=0).wait("job_1", poll_s=0, on_progress=lambda job: seen.append(job.state))
    assert job.state == "completed" and job.is_final and seen == ["waiting", "running", "completed"]


def test_progress_may_be_told_to_a_coroutine() -> None:
    seen: list[str] = []

    async def tell(job: client.Job) -> None:
        seen.append(job.state)

    Both(client.AsyncClient, answering(JOB, DONE)[0]).wait("job_1", poll_s=0, on_progress=tell)
    assert seen == ["waiting", "completed"]


def test_a_long_wait_looks_ever_more_seldom_and_never_late_by_much(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    now, gaps = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        assert seconds <= max(0.05, 0.02 * now[0])
        now[0] += seconds
        gaps.append(seconds)

    async def asleep(seconds: float) -> None:
        sleep(seconds)

    monkeypatch.setattr("carbonq.client.blocking.time.sleep", sleep)
    monkeypatch.setattr("carbonq.client.awaiting.asyncio.sleep", asleep)
    monkeypatch.setattr("carbonq.client.flows.time.monotonic", lambda: now[0])
    make(lambda _: httpx.Response(200, json=DONE if now[0] >= 300 else RUNNING)).wait("job_1", poll_s=0.05)
    assert gaps == sorted(gaps) and (gaps[0], gaps[-1]) == (0.05, 2.0)
    assert len(gaps) < 400  # and not 6,000


@pytest.mark.parametrize("poll_s", [0, None])
def test_wait_gives_up_and_says_so(make: Make, poll_s: float | None) -> None:
    with pytest.raises(errors.Unavailable, match="did not end"):
        make(answering(JOB)[0]).wait("job_1", poll_s=poll_s, timeout_s=0)


def test_a_short_wait_is_not_left_to_events(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would have to be waited for longer than it may take."""
    now = [0.0]
    monkeypatch.setattr("carbonq.client.flows.time.monotonic", lambda: now[0])
    paths: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        now[0] += 1
        paths.append(request.url.path)
        return httpx.Response(200, json=JOB)

    with pytest.raises(errors.Unavailable, match="did not end"):
        make(handler).wait("job_1", timeout_s=10)
    assert not any(path.endswith("/events") for path in paths)


def _with_events(events: httpx.Response | Exception, *jobs: dict[str, Any]) -> tuple[Handler, list[str]]:
    look, _ = answering(*jobs)
    paths: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path.rpartition("/")[2])
        if not request.url.path.endswith("/events"):
            return look(request)
        if isinstance(events, Exception):
            raise events
        return events

    return handler, paths


def test_wait_is_told_by_events(make: Make, slept: list[float]) -> None:
    blocks = [
        b": ping\n\n",
        b'id: 7\nevent: job.running\ndata: {"x": 1}\n\n',
        b'event: job.completed\ndata: {"y": 2}\n\n',
    ]

    class Stream(httpx.SyncByteStream, httpx.AsyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield from blocks

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for block in blocks:
                yield block

    stream = httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Stream())
    handler, paths = _with_events(stream, JOB, JOB, RUNNING, DONE)
    assert make(handler).wait("job_1").state == "completed"
    assert paths == ["job_1", "events", "job_1", "job_1", "job_1"]
    assert max(slept) <= 0.25  # events, and no polling


@pytest.mark.parametrize("events", [problem(404), problem(429), httpx.ConnectError("x")], ids=str)
def test_wait_looks_by_itself_where_no_events_are_offered(make: Make, events: Any) -> None:
    handler, paths = _with_events(events, JOB, JOB, RUNNING, DONE)
    assert make(handler).wait("job_1").state == "completed"
    assert paths.count("events") <= 3 and paths.count("job_1") == 4


def test_a_stream_that_keeps_breaking_is_given_up(make: Make) -> None:
    handler, paths = _with_events(httpx.Response(200, content=b""), *[JOB] * 20, DONE)
    assert make(handler).wait("job_1").state == "completed"
    assert paths.count("events") <= 4


# --- downloads --------------------------------------------------------------------------------------------------

LINES = b"".join(
    json.dumps({"custom_id": f"c{number}", "response": {"status_code": 200, "body": {"n": number}}}).encode() + b"\n"
    for number in range(50)
)


def _ranged(request: httpx.Request, *, cuts: list[int], tag: str = '"t"', ranges: bool = True) -> httpx.Response:
    """Answer like the API for LINES, breaking off after so many bytes as ``cuts`` says next."""
    asked = request.headers.get("range")
    assert request.headers["accept-encoding"] == "identity"
    start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and ranges else 0
    if start >= len(LINES):
        return problem(416, {"Content-Range": f"bytes */{len(LINES)}"})
    rest, status = LINES[start:], 206 if start else 200
    if cuts:
        return httpx.Response(status, headers={"ETag": tag}, stream=Cut(rest[: cuts.pop(0)]))
    return httpx.Response(status, headers={"ETag": tag}, content=rest)


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("cuts", [[], [10], [1000, 0, 5, 700]])
def test_results_go_on_where_the_connection_broke(make: Make, cuts: list[int], ranges: bool) -> None:
    left = list(cuts)
    found = make(lambda request: _ranged(request, cuts=left, ranges=ranges)).results("job_1")
    assert [one.custom_id for one in found] == [f"c{number}" for number in range(50)]
    assert all(one.is_ok for one in found) and not left


def test_a_download_without_any_progress_ends(make: Make, slept: list[float]) -> None:
    with pytest.raises(errors.Unavailable, match="broke"):
        make(lambda request: _ranged(request, cuts=[0]), retries=2).results("job_1")
    assert slept == [0.5, 1.0]


def test_a_file_that_changed_meanwhile_is_no_rest(make: Make) -> None:
    tags, cuts = ['"a"', '"b"'], [100]
    with pytest.raises(errors.Conflict, match="another file"):
        make(lambda request: _ranged(request, cuts=cuts, tag=tags.pop(0))).results("job_1")


@pytest.mark.parametrize("have", [0, 1, 777, len(LINES)])
def test_a_download_goes_on_from_the_part_that_is_there(make: Make, tmp_path: Any, have: int) -> None:
    (tmp_path / "out.jsonl.job_1.results.part").write_bytes(LINES[:have])
    asked: list[str | None] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers.get("range"))
        return _ranged(request, cuts=[])

    assert make(handler).download("job_1", tmp_path / "out.jsonl").read_bytes() == LINES
    assert asked == [f"bytes={have}-" if have else None]
    assert [one.name for one in tmp_path.iterdir()] == ["out.jsonl"]


def test_a_download_that_broke_keeps_its_part(make: Make, tmp_path: Any) -> None:
    cuts = [500]
    with pytest.raises(errors.Unavailable):
        make(lambda request: _ranged(request, cuts=cuts), retries=0).download("job_1", tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl.job_1.results.part").read_bytes() == LINES[:500]
    make(lambda request: _ranged(request, cuts=[])).download("job_1", tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_bytes() == LINES


@pytest.mark.parametrize("sizes", [[], [b"one\ntwo\n"], [b"on", b"e\nt", b"wo", b"\nthree"], [b"\n", b"\n"]])
def test_lines_come_whole_whatever_the_pieces(make: Make, sizes: list[bytes]) -> None:
    whole = b"".join(sizes)

    class Stream(httpx.SyncByteStream, httpx.AsyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield from sizes

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for block in sizes:
                yield block

    found = make(lambda _: httpx.Response(200, stream=Stream())).result_lines("job_1")
    assert found == whole.splitlines(keepends=True)


CSV = b"entry_id,revision,custom_id\n" + b"".join(
    f'e{number},1,"a ""quoted""\nname, {number}"\n'.encode() for number in range(40)
)


@pytest.mark.parametrize("revisions", ["current", "all"])
@pytest.mark.parametrize("cuts", [[10], [28], [30], [300, 41, 0, 200]])
def test_an_export_goes_on_after_the_last_whole_row(make: Make, tmp_path: Any, cuts: list[int], revisions: str) -> None:
    left, rows = list(cuts), CSV.split(b"\ne")

    def handler(request: httpx.Request) -> httpx.Response:
        params = request.url.params
        after, rest = params.get("after"), CSV
        if params.get("header") == "absent":
            rest = CSV.partition(b"\n")[2]
        if after is not None:
            entry, _, revision = after.partition("#")
            assert revision == ("1" if revisions == "all" else "")
            rest = b"".join(b"e" + row.removesuffix(b"\n") + b"\n" for row in rows[int(entry[1:]) + 2 :])
        if left:
            return httpx.Response(200, stream=Cut(rest[: left.pop(0)]))
        return httpx.Response(200, content=rest)

    path = make(handler).export_ledger(tmp_path / "ledger.csv", revisions=revisions)
    assert path.read_bytes() == CSV and not left


def test_a_packed_export_is_whole_or_not_there(make: Make, tmp_path: Any) -> None:
    handler, seen = answering(httpx.Response(200, stream=Cut(b"some")), httpx.Response(200, content=b"all of it"))
    with pytest.raises(errors.Unavailable):
        make(handler).export_ledger(tmp_path / "ledger.parquet", job_id="job_1")
    assert not list(tmp_path.iterdir())
    assert make(handler).export_ledger(tmp_path / "ledger.parquet").read_bytes() == b"all of it"
    assert dict(seen[0].url.params) == {"format": "parquet", "job_id": "job_1"}


# --- small things -----------------------------------------------------------------------------------------------


def test_a_result_says_what_is_in_it() -> None:
    embedded = {"data": [{"embedding": [0.5, 1.0]}], "usage": {"carbon": {"gco2e": 1}}}
    one = client.Result.of({"custom_id": "a", "response": {"status_code": 200, "body": embedded}, "error": None})
    assert one.is_ok and one.vector == [0.5, 1.0] and one.carbon == {"gco2e": 1}
    with pytest.raises(ValueError, match="'a' has no answer"):
        _ = one.text
    packed = {"data": [{"embedding": "AAAAPwAAgD8="}]}
    assert client.Result.of({"custom_id": "a", "response": {"status_code": 200, "body": packed}}).vector == [0.5, 1.0]
    said = {"choices": [{"message": {"content": "short"}}]}
    assert client.Result.of({"custom_id": "b", "response": {"status_code": 200, "body": said}}).text == "short"
    failed = client.Result.of({"custom_id": "c", "response": None, "error": {"code": "batch_expired"}})
    assert not failed.is_ok and failed.error == {"code": "batch_expired"} and failed.carbon is None
    with pytest.raises(ValueError, match="batch_expired"):
        _ = failed.vector


def test_a_record_keeps_what_it_does_not_know() -> None:
    job = client.Job.of(JOB | {"new": {"x": 1}})
    assert job["new"] == {"x": 1} == job.raw["new"] and "new" in job and job.get("old", 3) == 3
    assert job.progress["total"] == job.progress.total == 2 and job.deadline_at.tzinfo is not None
    with pytest.raises(ValueError, match="frozen"):
        job.state = "running"  # pyright: ignore[reportAttributeAccessIssue]


def test_realtime_bodies(make: Make) -> None:
    handler, seen = answering({"data": []})
    carbonq = make(handler)
    carbonq.embeddings(("a", "b"), model="m", dimensions=64)
    carbonq.chat([{"role": "user", "content": "x"}], model="m", max_tokens=5)
    assert json.loads(seen[0].content) == {"model": "m", "input": ["a", "b"], "dimensions": 64}
    assert json.loads(seen[1].content)["max_tokens"] == 5


def test_a_path_before_the_api_is_kept(make: Make) -> None:
    handler, seen = answering(JOB)
    carbonq = make(handler)
    carbonq.made._http.base_url = "https://proxy.test/tools/carbonq"
    carbonq.job("job_1")
    assert str(seen[0].url) == "https://proxy.test/tools/carbonq/v1/jobs/job_1"


@pytest.mark.parametrize("url", ["nonsense", "ftp://x", "http://", "http://[::1", "127.0.0.1:8750", ""])
def test_what_is_no_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(errors.ConfigError, match="CARBONQ_API_URL"):
        client.Client(url, "k")


@pytest.mark.parametrize("key", ["wörd", "a\nb"])
def test_a_key_that_no_header_can_carry_is_refused_at_once(key: str) -> None:
    with pytest.raises(errors.ConfigError, match="CARBONQ_API_KEY"):
        client.Client(api_key=key)


def test_the_settings_say_where_and_who(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)

    def sent(*given: str) -> tuple[str, str | None]:
        with client.Client(*given, transport=httpx.MockTransport(answering(JOB)[0])) as made:
            return made.url, made._http.headers.get("authorization")  # pyright: ignore[reportPrivateUsage]

    assert sent() == (client.DEFAULT_URL, None)
    (tmp_path / ".carbonq").mkdir()
    (tmp_path / ".carbonq" / "api-key").write_text("cq_local\n")
    assert sent() == (client.DEFAULT_URL, "Bearer cq_local")
    assert sent("https://other.test") == ("https://other.test", None), "a local key must not leave the machine"
    for near in ("http://localhost.example", "http://127.0.0.1.example", "https://127.0.0.1", "http://10.0.0.1"):
        assert sent(near) == (near, None)
    for own in ("http://localhost:1", "http://127.8.8.8", "http://[::1]:8750"):
        assert sent(own) == (own, "Bearer cq_local")
    (tmp_path / "key").write_text("cq_file\n")
    monkeypatch.setenv("CARBONQ_API_KEY_FILE", str(tmp_path / "key"))
    monkeypatch.setenv("CARBONQ_API_URL", "https://proxy.test/tools/carbonq/")
    assert sent() == ("https://proxy.test/tools/carbonq", "Bearer cq_file")
    assert sent("http://127.0.0.1:1", "") == ("http://127.0.0.1:1", None)


@pytest.mark.parametrize("job_id", ["../x", "a/b?c=1", "a b", ""])
def test_an_id_that_would_be_another_route_is_no_job(make: Make, job_id: str) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise AssertionError(request.url)

    for name in ("job", "cancel", "chunks", "why", "results", "failures", "wait"):
        with pytest.raises(errors.NotFound, match="carbonq jobs list"):
            getattr(make(handler), name)(job_id)


def _event(number: int, kind: str) -> bytes:
    told = {"id": f"evt_{number}", "type": kind, "created_at": 1_800_000_000, "data": {"id": "job_1"}}
    return f"id: {number}\nevent: {kind}\ndata: {json.dumps(told)}\n\n".encode()


def test_events_go_on_behind_the_last_one_that_was_seen(make: Make) -> None:
    streams = [
        Cut(b": carbonq\n\n", _event(3, "job.created"), b"id: 4\nevent: job.run"),
        Cut(_event(4, "job.running")),
        Cut(_event(9, "job.completed"), b"event: done\ndata: {}\n\n"),
    ]
    asked: list[str | None] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers.get("last-event-id"))
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=streams.pop(0))

    found = make(handler).events("job_1")
    assert [(one.number, one.type) for one in found] == [(3, "job.created"), (4, "job.running"), (9, "job.completed")]
    assert found[0].created_at.tzinfo is not None and found[0].data == {"id": "job_1"}
    assert asked == [None, "3", "4"]


def test_events_of_a_job_that_is_over_are_none(make: Make) -> None:
    assert make(answering(httpx.Response(204))[0]).events("job_1", after=9) == []


def test_events_that_never_come_are_given_up(make: Make) -> None:
    handler, seen = answering(httpx.Response(200, headers={"content-type": "text/event-stream"}, content=b""))
    with pytest.raises(errors.Unavailable, match="ended"):
        make(handler, retries=2).events()
    assert [request.url.path for request in seen] == ["/v1/events"] * 3


def test_no_region_at_all_is_not_every_region(make: Make) -> None:
    handler, seen = answering(httpx.Response(202, json=JOB), httpx.Response(202, json=JOB))
    client = make(handler)
    with pytest.raises(errors.InvalidRequest, match="regions names nothing"):
        client.submit(["x"], kind="embeddings", model="m", deadline="6h", regions=[])
    assert seen == []
    client.submit(["x"], kind="embeddings", model="m", deadline="6h", regions="fr")
    client.submit(["x"], kind="embeddings", model="m", deadline="6h", regions=None)
    assert [request.url.params.get_list("region") for request in seen] == [["fr"], []]
