"""Prefer: wait, ETags and the items of a job."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator

import pytest
from sqlalchemy import update

from carbonq.api import waiting
from carbonq.api.app import create_app
from carbonq.api.waiting import Finals, Preference, preference
from carbonq.errors import StoreUnavailable
from carbonq.model import ItemState, JobState
from carbonq.store.tables import items as item_rows
from carbonq.store.tables import jobs as job_rows
from tests.api.harness import Harness
from tests.api.inprocess import InProcess, in_process
from tests.api.test_jobs import NDJSON, chunk_up, lines

SUBMIT = "/v1/jobs?endpoint=/v1/embeddings&model=wordllama-256&deadline=6h"


@pytest.fixture
def near(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcess]:
    monkeypatch.setattr(Finals, "period_s", 0.005)
    app = create_app(harness.api, background=[])
    with in_process(app, harness.headers()) as client:
        yield client


def finish(harness: Harness, job_id: str) -> None:
    with harness.db.write() as tx:
        final = {"state": JobState.COMPLETED.value, "finished_at": harness.clock.now()}
        tx.execute(update(job_rows).where(job_rows.c.job_id == job_id).values(**final))


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([], Preference()),
        (["respond-async"], Preference(None, True)),
        (["respond-async, wait=10"], Preference(10, True)),
        (["wait=3", "wait=9, Respond-Async"], Preference(3, True)),
        (['wait="7"; x=y, foo'], Preference(7)),
        (["wait=99999999999999"], Preference(waiting.MAX_WAIT_S)),
        (["wait=0"], Preference(0)),
        (["wait=-1", "wait=1.5", "wait=²", "wait"], Preference()),
    ],
)
def test_preferences(headers: list[str], found: Preference) -> None:
    assert preference(headers) == found


def test_a_submit_waits_for_its_end(harness: Harness, near: InProcess) -> None:
    plain = near.ask("POST", SUBMIT, body=lines(1), headers=NDJSON)
    assert plain.status == 202 and "preference-applied" not in plain.headers and plain.headers["retry-after"] == "1"
    at_once = near.ask("POST", SUBMIT, body=lines(1), headers={**NDJSON, "Prefer": "respond-async"})
    assert (at_once.status, at_once.headers["preference-applied"]) == (202, "respond-async")
    late = near.ask("POST", SUBMIT, body=lines(1), headers={**NDJSON, "Prefer": "wait=0"})
    assert (late.status, late.headers["preference-applied"]) == (202, "wait=0")

    async def both() -> None:
        key = {**NDJSON, "Idempotency-Key": "k", "Prefer": "wait=30"}
        waits = asyncio.create_task(near.send("POST", SUBMIT, body=lines(1), headers=key))
        seen = await near.send("GET", "/v1/jobs")
        while len(seen.json()["data"]) < 4:
            seen = await near.send("GET", "/v1/jobs")
        job_id = seen.json()["data"][0]["id"]
        finish(harness, job_id)
        answer = await waits
        assert (answer.status, answer.headers["preference-applied"]) == (200, "wait=30")
        assert answer.headers["location"] == f"/v1/jobs/{job_id}"
        assert answer.json()["state"] == "completed" and answer.json()["placement"]["chunks"] == 0

    near.run(both())


def test_a_look_waits_too_and_a_final_job_is_told_at_once(harness: Harness, near: InProcess) -> None:
    path = near.ask("POST", SUBMIT, body=lines(1), headers=NDJSON).headers["location"]
    assert near.ask("GET", path, headers={"Prefer": "wait=0"}).json()["state"] == "waiting"
    finish(harness, path.rpartition("/")[2])
    final = near.ask("GET", path, headers={"Prefer": "wait=30"})
    assert final.status == 200 and "preference-applied" not in final.headers and "retry-after" not in final.headers
    for known in (final.headers["etag"], f'"x", W/{final.headers["etag"]}', "*"):
        same = near.ask("GET", path, headers={"If-None-Match": known})
        assert (same.status, same.body, same.headers["etag"]) == (304, b"", final.headers["etag"])
    assert near.ask("GET", path, headers={"If-None-Match": '"x"'}).status == 200
    assert near.ask("GET", "/v1/jobs/job_none", headers={"Prefer": "wait=30"}).status == 404


def test_who_goes_away_waits_no_more(harness: Harness, near: InProcess) -> None:
    path = near.ask("POST", SUBMIT, body=lines(1), headers=NDJSON).headers["location"]
    finals: Finals = near._app.state.finals  # type: ignore[attr-defined] # pyright: ignore

    async def leave() -> None:
        gone = asyncio.Event()
        waits = asyncio.create_task(near.send("GET", path, headers={"Prefer": "wait=60"}, gone=gone))
        while not finals.count:
            await asyncio.sleep(0)
        gone.set()
        await waits
        assert finals.count == 0

    near.run(leave())


def test_many_waiters_cost_one_query_at_a_time() -> None:
    asked: list[Collection[str]] = []

    def look(job_ids: Collection[str]) -> Collection[str]:
        asked.append(set(job_ids))
        if len(asked) == 1:
            raise StoreUnavailable("away")
        return {"b"} if len(asked) == 2 else set(job_ids)

    async def run() -> None:
        finals = Finals(look)
        finals.period_s, finals.most = 0.001, 500
        waits = [asyncio.create_task(finals.wait(name, 30)) for name in "ab" for _ in range(250)]
        await asyncio.sleep(0)
        assert finals.is_full
        assert all(await asyncio.gather(*waits))
        assert asked == [{"a", "b"}, {"a", "b"}, {"a"}]
        assert finals.count == 0 and not finals.is_full
        assert await finals.wait("c", 0) is False
        assert finals.count == 0

    asyncio.run(run())


def test_a_full_house_is_answered_at_once(near: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Finals, "is_full", True)
    answer = near.ask("POST", SUBMIT, body=lines(1), headers={**NDJSON, "Prefer": "wait=30"})
    assert (answer.status, answer.headers["preference-applied"]) == (202, "respond-async")


def test_items_are_paged_and_filtered(harness: Harness, near: InProcess) -> None:
    path = near.ask("POST", SUBMIT, body=lines(5), headers=NDJSON).headers["location"] + "/items"
    with harness.db.write() as tx:
        values = {"state": ItemState.FAILED.value, "error_code": "engine_error", "finished_at": harness.clock.now()}
        tx.execute(update(item_rows).where(item_rows.c.custom_id.in_(["a-2", "a-5"])).values(**values))
    first = near.ask("GET", f"{path}?limit=3").json()
    assert [item["custom_id"] for item in first["data"]] == ["a-1", "a-2", "a-3"]
    assert first["has_more"] and first["last_id"] == "a-3" and first["data"][2]["index"] == 2
    second = near.ask("GET", f"{path}?limit=3&after=a-3").json()
    assert [item["custom_id"] for item in second["data"]] == ["a-4", "a-5"] and not second["has_more"]
    failed = near.ask("GET", f"{path}?state=failed&limit=1").json()
    assert [item["error_code"] for item in failed["data"]] == ["engine_error"] and failed["has_more"]
    assert near.ask("GET", f"{path}?state=failed&state=waiting").json()["last_id"] == "a-5"
    assert near.ask("GET", f"{path}?after=x").status == 400 and near.ask("GET", f"{path}?state=odd").status == 400
    with harness.db.write() as tx:
        tx.execute(update(job_rows).values(state=JobState.COMPLETED, finished_at=harness.clock.now()))
        tx.execute(update(job_rows).values(retired_at=harness.clock.now()))
    gone = near.ask("GET", path)
    assert (gone.status, gone.code) == (410, "results_removed")


def test_chunks_are_paged_like_all_lists(harness: Harness, near: InProcess) -> None:
    made = [near.ask("POST", SUBMIT, body=lines(1), headers=NDJSON).headers["location"] for _ in range(3)]
    for path in made:
        chunk_up(harness, path.rpartition("/")[2])
    with harness.db.write() as tx:  # all in one job
        tx.execute(
            update(item_rows).values(
                job_id=made[0].rpartition("/")[2], custom_id=item_rows.c.chunk_id, idx=item_rows.c.item_id
            )
        )
    whole = near.ask("GET", f"{made[0]}/chunks").json()
    assert len(whole["data"]) == 3 and not whole["has_more"]
    first = near.ask("GET", f"{made[0]}/chunks?limit=2").json()
    assert first["data"] == whole["data"][:2] and first["has_more"]
    second = near.ask("GET", f"{made[0]}/chunks?limit=2&after={first['last_id']}").json()
    assert second["data"] == whole["data"][2:] and not second["has_more"]
    assert near.ask("GET", f"{made[0]}/chunks?after=x").status == 400
