"""Event streams: in order, resumable at any event, bounded, and gone when the server stops."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from httpx_sse import EventSource, ServerSentEvent
from sqlalchemy import update

from carbonq import ids
from carbonq.api import events as routes
from carbonq.api import feed as feeds
from carbonq.api.feed import Feed, Topic
from carbonq.api.server import GRACE_S
from carbonq.errors import QuotaExceeded
from carbonq.model import Endpoint, JobState
from carbonq.store import batches, events
from carbonq.store.database import Database
from carbonq.store.events import NewEvent
from carbonq.store.tables import jobs as job_rows
from tests.api.harness import Harness, serving, until
from tests.store.rows import T0, store_job

pytestmark = pytest.mark.timeout(60)


def happen(db: Database, *types: str, job_id: str | None = "job_1", tenant: str = "acme", **data: Any) -> None:
    with db.write() as tx:
        events.append_many(tx, [NewEvent(one, T0, tenant, job_id, data) for one in types])


def store_batch(db: Database) -> str:
    values: dict[str, Any] = dict.fromkeys(name for name in batches.Batch.__dataclass_fields__ if name[0] != "_")
    values |= {"batch_id": ids.new("batch"), "tenant": "acme", "state": batches.BatchState.IN_PROGRESS}
    values |= {"endpoint": Endpoint.EMBEDDINGS, "input_file_id": "file-1", "completion_window": "6h", "terms": {}}
    values |= {"created_at": T0, "expires_at": T0}
    with db.write() as tx:
        batches.insert_batch(tx, batches.Batch(**values), batches.Origin(T0, "f"))
    return str(values["batch_id"])


@contextmanager
def stream(http: httpx.Client, path: str, **headers: str) -> Iterator[Iterator[ServerSentEvent]]:
    with http.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no"
        yield EventSource(response).iter_sse()


def seen(found: ServerSentEvent) -> tuple[str, str]:
    return found.event, found.id


def told(found: ServerSentEvent) -> Mapping[str, Any]:
    value: Mapping[str, Any] = json.loads(found.data)
    return value


def test_a_jobs_stream_begins_with_it_and_ends_with_done(harness: Harness, http: httpx.Client) -> None:
    job = store_job(harness.db, tenant="acme")
    happen(harness.db, "job.created", job_id=job.job_id, items=3)
    happen(harness.db, "job.created", job_id="job_other")
    with stream(http, f"/v1/jobs/{job.job_id}/events") as found:
        first = next(found)
        assert (seen(first), first.retry) == (("job.created", "1"), 3000)
        message = told(first)
        assert message["id"].startswith("evt_")
        assert (message["object"], message["created_at"]) == ("event", int(T0.timestamp()))
        assert message["data"] == {"id": job.job_id, "items": 3}
        happen(harness.db, "job.progress", "chunk.lost", job_id=job.job_id, succeeded=1)
        assert seen(next(found)) == ("job.progress", "3")
        happen(harness.db, "job.completed", job_id=job.job_id)
        assert seen(next(found)) == ("job.completed", "5")
        last = next(found)
        assert (seen(last), told(last)) == (("done", "5"), {"id": job.job_id, "state": "completed"})
        assert next(found, None) is None
    with stream(http, f"/v1/jobs/{job.job_id}/events", **{"Last-Event-ID": "3"}) as found:
        assert [seen(one) for one in found] == [("job.completed", "5"), ("done", "5")]
    assert http.get(f"/v1/jobs/{job.job_id}/events", headers={"Last-Event-ID": "5"}).status_code == 204
    until(lambda: harness.api.feed.is_empty, "streams to be counted off")


def test_a_job_whose_events_are_gone_is_done_too(harness: Harness, http: httpx.Client) -> None:
    job = store_job(harness.db, tenant="acme")
    with harness.db.write() as tx:
        tx.execute(update(job_rows).values(state=JobState.FAILED, finished_at=T0))
    with stream(http, f"/v1/jobs/{job.job_id}/events") as found:
        assert [(one.event, told(one)["state"]) for one in found] == [("done", "failed")]


def test_a_tenants_stream_is_its_own_and_begins_now(harness: Harness, http: httpx.Client) -> None:
    happen(harness.db, "job.created", "job.running")
    with stream(http, "/v1/events") as found:
        until(lambda: harness.api.feed.cursor == 2, "the feed to begin")
        until(lambda: Topic("acme") in harness.api.feed._readers, "the stream to have joined")
        happen(harness.db, "job.completed", tenant="rival")
        happen(harness.db, "job.completed")
        assert seen(next(found)) == ("job.completed", "4")
    with stream(http, "/v1/events?last_event_id=0") as found:
        assert [seen(next(found)) for _ in range(3)] == [
            ("job.created", "1"),
            ("job.running", "2"),
            ("job.completed", "4"),
        ]


def test_what_was_missed_is_read_page_by_page_and_nothing_comes_twice(
    harness: Harness, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "PAGE", 3)
    happen(harness.db, *["job.progress"] * 10)
    with stream(http, "/v1/events", **{"Last-Event-ID": "1"}) as found:
        read = [next(found).id for _ in range(9)]
        happen(harness.db, *["job.progress"] * 5)
        read += [next(found).id for _ in range(5)]
    assert read == [str(number) for number in range(2, 16)]


def test_where_to_go_on_must_be_a_number(http: httpx.Client) -> None:
    for wrong in ("x", "-1", "1.5", "9" * 19, "1" * 1000):
        answer = http.get("/v1/events", headers={"Last-Event-ID": wrong})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Last-Event-ID")


def test_streams_above_a_limit_are_refused_and_leave_nothing(harness: Harness) -> None:
    feed = Feed(harness.db, limit=3, limit_per_key=2)
    api = harness.api
    object.__setattr__(api, "feed", feed)
    rival = harness.headers("rival")
    with serving(api) as url, httpx.Client(base_url=url, headers=harness.headers(), trust_env=False) as http:
        with stream(http, "/v1/events"), stream(http, "/v1/events"):
            refused = http.get("/v1/events")
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_streams")
            assert refused.headers["retry-after"] == "10"
            assert "this key has 2" in refused.json()["detail"]
            with http.stream("GET", "/v1/events", headers=rival) as third:
                assert third.status_code == 200
                refused = http.get("/v1/events", headers=rival)
                assert "this server has 3" in refused.json()["detail"]
                for _ in range(10_000):
                    with pytest.raises(QuotaExceeded):
                        feed.enter("key")
                assert dict(feed._open).keys() == {"key"} or feed._open.total() == 3
        until(lambda: feed.is_empty, "streams to be counted off")
        assert feed._task is not None
        until(feed._task.done, "the looks to end with the last stream")


def test_a_stream_that_falls_behind_is_ended_and_goes_on_where_it_was(
    harness: Harness, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "BACKLOG", 4)
    with stream(http, "/v1/events") as found:
        until(lambda: Topic("acme") in harness.api.feed._readers, "the stream to have joined")
        happen(harness.db, *["job.progress"] * 20)
        read = [one.id for one in found]  # it ends by itself
    assert read == ["1", "2", "3", "4"]
    until(lambda: harness.api.feed.is_empty, "the stream to be counted off")
    with stream(http, "/v1/events", **{"Last-Event-ID": "4"}) as found:
        assert [next(found).id for _ in range(16)] == [str(number) for number in range(5, 21)]


def test_the_server_stops_within_its_grace_with_streams_open(harness: Harness) -> None:
    server = serving(harness.api)
    url = server.__enter__()
    with (
        httpx.Client(base_url=url, headers=harness.headers(), trust_env=False) as http,
        http.stream("GET", "/v1/events") as response,
    ):
        lines = response.iter_lines()
        assert next(lines) == ": carbonq"
        began = time.monotonic()
        server.__exit__(None, None, None)
        assert time.monotonic() - began < GRACE_S - 2
        assert [line for line in lines if line] == []  # it ended as it should, not in the middle


def test_a_client_that_does_not_read_is_cut_off(
    harness: Harness, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(routes, "SEND_TIMEOUT_S", 0.3)
    happen(harness.db, *["job.progress"] * 120, text="x" * 65_536)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", int(url.rpartition(":")[2])))
        head = f"GET /v1/events?last_event_id=0 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {harness.acme}"
        client.sendall(f"{head}\r\n\r\n".encode())
        feed = harness.api.feed
        until(lambda: feed._open, "the stream to begin")
        until(lambda: feed.is_empty, "the stream to be cut off")
        read = b"".join(iter(lambda: client.recv(1 << 20), b""))
    assert len(read) < 120 * 65_536, "what the kernel held, and no more"
    assert not read.endswith(b"0\r\n\r\n"), "the client can tell that this is not the end"
    assert [record.levelname for record in caplog.records if record.levelno > logging.INFO] == []


def test_a_look_at_the_table_is_one_however_many_streams(
    harness: Harness, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[int] = []
    real = events.between

    def between(*arguments: Any, **named: Any) -> Any:
        pages.append(1)
        return real(*arguments, **named)

    monkeypatch.setattr(events, "between", between)
    with stream(http, "/v1/events") as one, stream(http, "/v1/events") as two, stream(http, "/v1/events") as three:
        until(lambda: len(harness.api.feed._readers.get(Topic("acme"), ())) == 3, "the streams to have joined")
        happen(harness.db, "job.created")
        assert [seen(next(each)) for each in (one, two, three)] == [("job.created", "1")] * 3
    assert len(pages) == 1


def test_a_batchs_stream_has_its_jobs_and_ends_with_itself(harness: Harness, http: httpx.Client) -> None:
    batch_id = store_batch(harness.db)
    job = store_job(harness.db, tenant="acme")
    with harness.db.write() as tx:
        tx.execute(update(job_rows).values(batch_id=batch_id))
    happen(harness.db, "job.created", "job.completed", job_id=job.job_id)
    with stream(http, f"/v1/batches/{batch_id}/events") as found:
        read = [next(found) for _ in range(2)]
        assert told(read[0])["data"] == {"id": job.job_id, "batch_id": batch_id}
        happen(harness.db, "batch.completed", job_id=None, id=batch_id)
        read += list(found)
    assert [one.event for one in read] == ["job.created", "job.completed", "batch.completed", "done"]
    assert told(read[-1]) == {"id": batch_id, "state": "completed"}
    assert http.get(f"/v1/batches/{batch_id}/events", headers={"Last-Event-ID": "3"}).status_code == 204
    assert http.get("/v1/batches/batch_none/events").status_code == 404
