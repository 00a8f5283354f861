"""The client against a scripted server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from carbonq import errors
from carbonq.client import Client

Handler = Callable[[httpx.Request], httpx.Response]


def client(handler: Handler, api_key: str | None = "cq-key") -> Client:
    return Client("http://carbonq.test/", api_key, transport=httpx.MockTransport(handler))


def problem(status: int, headers: dict[str, str] | None = None, **error: Any) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": "a sentence", **error}}, headers=headers)


def test_submit_streams_lines_and_fields() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        request.read()
        seen.append(request)
        return httpx.Response(202, json={"id": "job_1"})

    with client(handler) as carbonq:
        job = carbonq.submit(
            iter([b'{"a":1}', b'{"b":2}\n']),
            endpoint="/v1/embeddings",
            model="m",
            deadline="6h",
            regions=("fr", "se"),
            max_carbon_g="0.5",
            product_line="search",
            idempotency_key="k",
        )
    assert job == {"id": "job_1"}
    (request,) = seen
    assert request.content == b'{"a":1}\n{"b":2}\n'
    assert request.url.params.get_list("region") == ["fr", "se"]
    assert request.url.params["max_carbon_g"] == "0.5" and "workload" not in request.url.params
    assert request.headers["authorization"] == "Bearer cq-key"
    assert request.headers["idempotency-key"] == "k"
    assert request.headers["content-type"] == "application/x-ndjson"
    assert request.headers["transfer-encoding"] == "chunked"


class _Sink(httpx.BaseTransport):
    """Reads the request as a server does, piece by piece."""

    def __init__(self) -> None:
        self.pieces: list[int] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.SyncByteStream)
        self.pieces.extend(len(piece) for piece in request.stream)
        return httpx.Response(202, json={})


def test_submit_sends_large_input_in_pieces() -> None:
    sink = _Sink()
    lines = (b"x" * 999 + b"\n" for _ in range(2_000))
    Client("http://carbonq.test", transport=sink).submit(lines, endpoint="e", model="m", deadline="6h")
    assert sum(sink.pieces) == 2_000_000 and 5 < len(sink.pieces) < 12 and max(sink.pieces) < 300_000


@pytest.mark.parametrize("sizes", [[], [b"one\ntwo\n"], [b"on", b"e\nt", b"wo", b"\nthree"], [b"\n", b"\n"]])
def test_results_come_line_by_line(sizes: list[bytes]) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        def stream() -> Iterator[bytes]:
            yield from sizes

        return httpx.Response(200, content=stream())

    whole = b"".join(sizes)
    assert list(client(handler).results("job_1")) == whole.splitlines(keepends=True)


def test_jobs_pages_by_cursor_and_stops() -> None:
    asked: list[str | None] = []

    def handler(request: httpx.Request) -> httpx.Response:
        after = request.url.params.get("after")
        asked.append(after)
        start = 0 if after is None else int(after) + 1
        data = [{"id": str(number)} for number in range(start, start + 2)]
        return httpx.Response(200, json={"data": data, "last_id": data[-1]["id"], "has_more": start < 4})

    assert [job["id"] for job in client(handler).jobs()] == ["0", "1", "2", "3", "4", "5"]
    assert asked == [None, "1", "3"]


@pytest.mark.parametrize(
    ("response", "kind", "fields"),
    [
        (problem(400, param="model", code="model_not_found"), errors.InvalidRequest, {"param": "model"}),
        (problem(400, line=7), errors.InvalidRequest, {"line": 7}),
        (problem(413), errors.InvalidRequest, {}),
        (problem(422), errors.InvalidRequest, {}),
        (problem(400, best="by noon", param="deadline"), errors.Infeasible, {"best": "by noon"}),
        (problem(401), errors.NotAuthenticated, {}),
        (problem(404), errors.NotFound, {}),
        (problem(409, code="job_not_final"), errors.Conflict, {"code": "job_not_final"}),
        (problem(429, {"Retry-After": "3"}), errors.QuotaExceeded, {"retry_after_s": 3.0}),
        (problem(503, {"Retry-After": "9"}, code="store_unavailable"), errors.Unavailable, {"retry_after_s": 9.0}),
        (problem(500, code="internal_error"), errors.Unavailable, {"code": "internal_error"}),
    ],
)
def test_errors_come_back_as_classes(
    response: httpx.Response, kind: type[errors.CarbonqError], fields: dict[str, Any]
) -> None:
    with pytest.raises(kind, match="a sentence") as raised:
        client(lambda request: response).job("job_1")
    assert type(raised.value) is kind
    for name, value in fields.items():
        assert getattr(raised.value, name) == value


def test_something_that_is_not_carbonq() -> None:
    for response in (httpx.Response(502, text="<html>"), httpx.Response(200, text="<html>")):
        with pytest.raises(errors.Unavailable, match="is it carbonq"):
            client(lambda request, answer=response: answer).job("job_1")


def test_nobody_there() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(errors.Unavailable, match="carbonq up"):
        client(refuse).jobs().__next__()
    with pytest.raises(errors.Unavailable, match="carbonq up"):
        list(client(refuse).results("job_1"))
    with pytest.raises(errors.Unavailable, match="carbonq up"):
        client(refuse).health()


def test_wait_goes_through_a_restart_and_shows_progress() -> None:
    answers: list[httpx.Response | Exception] = [
        httpx.Response(200, json={"state": "waiting"}),
        httpx.ConnectError("restarting"),
        httpx.Response(200, json={"state": "running"}),
        httpx.Response(200, json={"state": "completed"}),
    ]

    def handler(request: httpx.Request) -> httpx.Response:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    seen: list[str] = []
    job = client(handler).wait("job_1", poll_s=0, on_progress=lambda job: seen.append(job["state"]))
    assert job["state"] == "completed" and seen == ["waiting", "running", "completed"]


def test_a_long_wait_looks_ever_more_seldom_and_never_late_by_much(monkeypatch: pytest.MonkeyPatch) -> None:
    now, gaps = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        assert seconds <= max(0.05, 0.02 * now[0])
        now[0] += seconds
        gaps.append(seconds)

    monkeypatch.setattr("carbonq.client.time.sleep", sleep)
    monkeypatch.setattr("carbonq.client.time.monotonic", lambda: now[0])
    states = client(lambda _: httpx.Response(200, json={"state": "completed" if now[0] >= 300 else "running"}))
    states.wait("job_1", poll_s=0.05)
    assert gaps == sorted(gaps) and (gaps[0], gaps[-1]) == (0.05, 2.0)
    assert len(gaps) < 400  # and not 6,000


def test_wait_gives_up_and_says_so() -> None:
    waiting = client(lambda request: httpx.Response(200, json={"state": "waiting"}))
    with pytest.raises(errors.Unavailable, match="did not end"):
        waiting.wait("job_1", poll_s=0, timeout_s=0)


def test_realtime_bodies() -> None:
    seen: list[Any] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(json.loads(request.content))
        return httpx.Response(200, json={"data": []})

    carbonq = client(handler)
    carbonq.embeddings(("a", "b"), model="m", dimensions=64)
    carbonq.chat([{"role": "user", "content": "x"}], model="m", max_tokens=5)
    assert seen[0] == {"model": "m", "input": ["a", "b"], "dimensions": 64}
    assert seen[1]["max_tokens"] == 5


@pytest.mark.parametrize("url", ["nonsense", "ftp://x", "http://", "http://[::1", "127.0.0.1:8750", ""])
def test_what_is_no_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(errors.ConfigError, match="CARBONQ_API_URL"):
        Client(url)


@pytest.mark.parametrize("key", ["w\u00f6rd", "a\nb"])
def test_a_key_that_no_header_can_carry_is_refused_at_once(key: str) -> None:
    with pytest.raises(errors.ConfigError, match="CARBONQ_API_KEY"):
        Client(api_key=key)


@pytest.mark.parametrize("job_id", ["../x", "a/b?c=1", "a b", ""])
def test_an_id_that_would_be_another_route_is_no_job(job_id: str) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise AssertionError(request.url)

    with client(handler) as carbonq:
        calls: list[Callable[[str], object]] = [carbonq.job, carbonq.cancel, carbonq.chunks]
        calls += [lambda name: list(carbonq.results(name)), lambda name: list(carbonq.errors(name))]
        for call in calls:
            with pytest.raises(errors.NotFound, match="carbonq jobs list"):
                call(job_id)
