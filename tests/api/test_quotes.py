"""Quotes by HTTP: what a job would cause, from lines, texts or counts, and that nothing of it is stored."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select, update

from carbonq.model import RegionState, Signal
from carbonq.services.refresh import refresh
from carbonq.store import regions as region_rows
from carbonq.store.tables import baseline_slots, chunks, items, jobs, placements, plans
from carbonq.testing import FakeGrid, RecordedSignal
from carbonq.units import iso
from tests.api.harness import CHATTER, EMBEDDER, Harness
from tests.api.test_jobs import NDJSON, QUERY, lines, submit
from tests.services.planning import add_chunks, place

HOUR = timedelta(hours=1)


def feed(harness: Harness) -> None:
    """Rates that fall for hours: fr from 400 on by 1 a window, se half of that."""
    start = harness.clock.now() - 3 * HOUR
    recorded = {
        zone: RecordedSignal(zone, start, [share * (436 - i) for i in range(400)])
        for zone, share in (("ZONE_FR", 1.0), ("ZONE_SE", 0.5))
    }
    grids = {(zone, Signal.MOER): (FakeGrid([one], name="grid"),) for zone, one in recorded.items()}
    refresh(harness.db, grids, harness.clock)


@pytest.fixture
def fed(harness: Harness) -> Harness:
    feed(harness)
    return harness


def quote(http: httpx.Client, **changes: Any) -> dict[str, Any]:
    body = {"kind": "summarize", "model": CHATTER, "items": 100, "tokens": 100_000, **changes}
    response = http.post("/v1/quotes", json={name: value for name, value in body.items() if value is not None})
    assert response.status_code == 200, response.text
    return response.json()


def curve(found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [one for one in found["curve"] if one["set"] == name]


def test_counts_are_quoted_over_deadlines_and_regions(fed: Harness, http: httpx.Client) -> None:
    found = quote(http, deadline="6h")
    assert (found["object"], found["items"], found["est_tokens"], found["signal"]) == ("quote", 100, 100_000, "moer")
    base, asked = found["baseline"], found["asked"]
    assert (base["region"], base["start_at"]) == ("fr", iso(fed.clock.now()))
    assert asked["deadline_at"] == iso(fed.clock.now() + 6 * HOUR) and asked["is_met"]
    assert 0 < asked["gco2e"] < base["gco2e"] and asked["baseline_gco2e"] == pytest.approx(base["gco2e"])
    assert asked["saved_gco2e"] == pytest.approx(asked["baseline_gco2e"] - asked["gco2e"], rel=1e-4)
    assert asked["placed"] == {"se": found["chunks"]} and asked["regions"] == ["fr", "se"]
    assert {one["set"] for one in found["curve"]} == {"home", "se", "all"}
    for name in ("home", "se", "all"):
        grams = [one["gco2e"] for one in curve(found, name)]
        assert grams == sorted(grams, reverse=True)  # a later deadline is never worse
    assert [one["after_s"] for one in curve(found, "home")] == [None, 3600, 10800, 21600, 43200, 86400, 172800]
    assert curve(found, "home")[0]["gco2e"] == pytest.approx(base["gco2e"], rel=0.01)  # nothing else is accepted
    assert [one["is_learned"] for one in found["regions"]] == [False, False]
    assert any("starting value" in note for note in found["notes"])
    assert found["known_until_at"] > iso(fed.clock.now() + 29 * HOUR)


def test_lines_and_texts_are_read_as_a_submit_reads_them_and_nothing_stays(fed: Harness, http: httpx.Client) -> None:
    query = {name: value for name, value in QUERY.items() if name != "deadline"}
    streamed = http.post("/v1/quotes", params=query, content=lines(30), headers=NDJSON)
    assert streamed.status_code == 200, streamed.text
    found = streamed.json()
    assert (found["items"], found["asked"]) == (30, None)
    inline = quote(http, kind="embeddings", model=EMBEDDER, items=[f"text {n}" for n in range(1, 31)], tokens=None)
    assert inline["est_tokens"] == found["est_tokens"] and inline["curve"] == found["curve"]
    with fed.db.read() as tx:
        for table in (jobs, items, chunks, plans, placements, baseline_slots):
            assert tx.execute(select(func.count()).select_from(table)).scalar_one() == 0
    assert [one for one in (fed.api.blobs.root).rglob("*") if one.is_file()] == []  # type: ignore[attr-defined]
    job = submit(http, 30)
    assert job["est_tokens"] == found["est_tokens"]


def test_accepted_work_keeps_its_slots(fed: Harness, http: httpx.Client) -> None:
    before = quote(http, deadline="2h", regions=["se"])
    now = fed.clock.now()
    theirs = {"regions": ("se",), "release_at": now, "deadline_at": now + 9 * HOUR}
    for number, name in enumerate(add_chunks(fed.db, 10, **theirs)):
        place(fed.db, name, "se", now + timedelta(minutes=5 * number + 60))
    after = quote(http, deadline="2h", regions=["se"])
    assert before["asked"]["is_met"] and after["asked"]["is_met"]
    assert after["asked"]["gco2e"] > before["asked"]["gco2e"]
    for number, name in enumerate(add_chunks(fed.db, 40, prefix="w", **theirs)):
        place(fed.db, name, "se", now + timedelta(minutes=5 * (number % 24)))
    full = quote(http, deadline="2h", regions=["se"])
    assert not full["asked"]["is_met"] and full["asked"]["late_chunks"] == full["chunks"]
    # What is there has nine hours: plans would make room.
    assert full["asked"]["is_met_by_moving"] and full["asked"]["shortage"] is None
    with fed.db.write() as tx:
        tx.execute(update(chunks).values(deadline_at=now + 2 * HOUR))
    urgent = quote(http, deadline="2h", regions=["se"])["asked"]
    assert not urgent["is_met_by_moving"] and "beside the work already accepted" in urgent["shortage"]
    alone = quote(http, deadline="7m", regions=["se"])["asked"]
    assert not alone["is_met_by_moving"] and "all slots of its regions to itself" in alone["shortage"]
    assert full["asked"]["finish_at"] > full["asked"]["deadline_at"]


def test_a_region_that_takes_no_work_is_not_counted_on(fed: Harness, http: httpx.Client) -> None:
    with fed.db.write() as tx:
        region_rows.set_state(tx, "se", RegionState.PAUSED)
    fed.api.directory.refresh()
    found = quote(http, deadline="6h")
    assert {one["set"] for one in found["curve"]} == {"home"} and found["asked"]["placed"] == {"fr": found["chunks"]}
    assert any("paused or without a live worker: se" in note for note in found["notes"])


def test_without_rates_no_grams_are_said(harness: Harness, http: httpx.Client) -> None:
    found = quote(http, deadline="6h")
    assert found["known_until_at"] is None and found["baseline"]["gco2e"] is None
    asked = found["asked"]
    assert (asked["gco2e"], asked["saved_gco2e"], asked["is_met"]) == (None, None, True)
    assert asked["unrated_chunks"] == found["chunks"] and [one["after_s"] for one in found["curve"]] == [None] * 3
    assert any("no rate is known of fr, se" in note for note in found["notes"])


def test_what_is_wrong_is_named(fed: Harness, http: httpx.Client) -> None:
    def refused(**changes: Any) -> dict[str, Any]:
        body = {"kind": "summarize", "model": CHATTER, "items": 100, "tokens": 100_000, **changes}
        response = http.post("/v1/quotes", json=body)
        assert response.status_code == 400, response.text
        return response.json()["error"]

    assert refused(items=0)["param"] == "items" and "1 to 50,000" in refused(items=0)["message"]
    assert refused(items=60_000)["param"] == "items"
    for tokens in (None, 99, "many", 1e6, True, 10**13):
        assert refused(tokens=tokens)["param"] == "tokens"
    assert refused(items=["a"], tokens=5)["param"] == "tokens"
    for given in ("many", 5.0, 10**30, True, None, {}):
        assert refused(items=given)["param"] == "items"
        assert "a whole number from 1 to 50,000 beside tokens" in refused(items=given)["message"]
    assert refused(model="gpt-9")["code"] == "model_not_found"
    assert refused(regions=["mars"])["code"] == "region_not_found"
    assert refused(deadline="yesterday")["param"] == "deadline"
    assert "did you mean 'model'" in refused(modle="x")["message"]
    bad = http.post("/v1/quotes", params=QUERY, content=lines(2) + b"{}\n", headers=NDJSON)
    assert bad.status_code == 400 and bad.json()["error"]["line"] == 3
    assert http.post("/v1/quotes", content=b"x", headers={"Content-Type": "image/png"}).status_code == 415
    assert httpx.post(str(http.base_url) + "/v1/quotes", json={}, trust_env=False).status_code == 401


def test_a_quote_tells_nothing_of_other_tenants_but_what_room_is_left(fed: Harness, http: httpx.Client) -> None:
    now = fed.clock.now()
    for name in add_chunks(fed.db, 3, prefix="secret", tenant="rival", release_at=now, deadline_at=now + 9 * HOUR):
        place(fed.db, name, "se", now + HOUR)
    text = json.dumps(quote(http, deadline="6h"))
    assert "secret" not in text and "rival" not in text
