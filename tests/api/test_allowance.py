"""Tokens of realtime calls count toward the day, and a used-up day refuses calls without the database."""

from __future__ import annotations

import httpx
import pytest
from sqlalchemy import text

from carbonq.api.allowance import Allowance
from carbonq.api.background import Refresh
from carbonq.errors import QuotaExceeded, StoreUnavailable
from carbonq.model import Quota
from carbonq.services import admin, finish, quota
from carbonq.store import quotas
from carbonq.store.database import Database
from carbonq.testing import FakeClock
from tests.api import batching
from tests.api.harness import EMBEDDER, Harness, serving


def used(database: Database, clock: FakeClock) -> int | None:
    with database.read() as tx:
        return quotas.tokens_of(tx, "acme", quota.day_of(clock.now()))


def test_calls_are_counted_in_memory_and_written_behind(database: Database) -> None:
    clock = FakeClock()
    one, other = (Allowance(database, clock, defaults=Quota(tokens_per_day=100)) for _ in range(2))
    one.count_tokens("acme", 60)
    one.check_tokens("acme")
    assert used(database, clock) is None
    one.refresh()
    one.refresh()  # not twice
    assert used(database, clock) == 60
    other.count_tokens("acme", 40)
    other.check_tokens("acme")  # it has not heard of the others' yet
    other.refresh()
    assert used(database, clock) == 100
    one.refresh()
    for ring in (one, other):
        with pytest.raises(QuotaExceeded, match=r"used 100 tokens since .* limit is 100 a day") as refused:
            ring.check_tokens("acme")
        assert refused.value.code == "token_limit_exceeded"
        ring.check_tokens("rival")
    clock.advance(86_400)
    one.check_tokens("acme")


def test_while_the_database_is_away_calls_are_kept_and_still_bounded(sqlite_database: Database) -> None:
    clock = FakeClock()
    allowance = Allowance(sqlite_database, clock, defaults=Quota(tokens_per_day=100))
    allowance.refresh()
    with sqlite_database.write() as tx:
        tx.execute(text("ALTER TABLE token_days RENAME TO away"))
    allowance.count_tokens("acme", 100)
    with pytest.raises(StoreUnavailable):
        allowance.refresh()
    with pytest.raises(QuotaExceeded):
        allowance.check_tokens("acme")
    with sqlite_database.write() as tx:
        tx.execute(text("ALTER TABLE away RENAME TO token_days"))
    allowance.refresh()
    assert used(sqlite_database, clock) == 100
    with pytest.raises(QuotaExceeded):
        allowance.check_tokens("acme")


def test_a_used_up_day_refuses_calls_and_jobs(harness: Harness) -> None:
    admin.limit_tenant(harness.db, "acme", {"tokens_per_day": 5}, actor="anna@host")
    harness.api.allowance.refresh()
    still = [Refresh("nothing", 60.0, lambda: None)]
    with serving(harness.api, background=still) as url, httpx.Client(base_url=url, headers=harness.headers()) as client:
        call = {"model": EMBEDDER, "input": "x"}
        assert client.post("/v1/embeddings", json=call).status_code == 200  # three tokens, says the harness's engine
        assert client.post("/v1/embeddings", json=call).status_code == 200  # at two of five left, as nobody knew
        refused = client.post("/v1/embeddings", json=call)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "token_limit_exceeded")
        assert int(refused.headers["retry-after"]) > 0
        harness.api.allowance.refresh()
        job = client.post(
            "/v1/jobs",
            params={"kind": "embeddings", "model": EMBEDDER, "deadline": "6h"},
            content=b'{"custom_id":"a","body":{"input":"one two three"}}\n',
        )
        assert (job.status_code, job.json()["error"]["code"]) == (429, "token_limit_exceeded")
        assert client.get("/v1/jobs").json()["data"] == []


def test_a_quota_is_refused_at_create_on_every_way_in(harness: Harness) -> None:
    admin.limit_tenant(harness.db, "acme", {"items_waiting": 2}, actor="anna@host")
    harness.api.allowance.refresh()
    still = [Refresh("nothing", 60.0, lambda: None)]
    with serving(harness.api, background=still) as url, httpx.Client(base_url=url, headers=harness.headers()) as client:
        query = {"kind": "embeddings", "model": EMBEDDER, "deadline": "6h"}
        first = client.post("/v1/jobs", params=query, content=b'{"custom_id":"a","body":{"input":"x"}}\n')
        assert first.status_code == 202
        lines = b"".join(b'{"custom_id":"%d","body":{"input":"x"}}\n' % number for number in range(2))
        file = batching.upload(client, batching.lines(2))
        refused = [
            client.post("/v1/jobs", params=query, content=lines),
            client.post("/v1/jobs", params=query, content=iter([lines])),  # streamed: no small one
            client.post("/v1/jobs", json={**query, "items": ["x", "y"]}),
            client.post("/v1/batches", json={"input_file_id": file["id"], **batching.EMBED}),
        ]
        for answer in refused:
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "quota_exceeded"), answer.text
            assert "has 1 items waiting and this would add 2; its limit is 2" in answer.json()["detail"]
            assert answer.headers["retry-after"] == "60"
        assert [one["id"] for one in client.get("/v1/jobs").json()["data"]] == [first.json()["id"]]
        assert client.get("/v1/batches").json()["data"] == []
        client.post(f"/v1/jobs/{first.json()['id']}/cancel")
        finish.finish_jobs(harness.db, harness.api.blobs, harness.clock)
        assert client.post("/v1/jobs", params=query, content=lines).status_code == 202
