"""GET /v1/plan with the outlook, and ``carbonq plan show`` on it."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import insert, update
from typer.testing import CliRunner, Result

from carbonq.cli import main
from carbonq.store.tables import placements, plans
from carbonq.units import iso
from tests.api.harness import Harness
from tests.api.test_jobs import chunk_up, submit
from tests.api.test_quotes import feed
from tests.services.planning import add_chunks, place


@pytest.fixture
def api(harness: Harness, url: str, monkeypatch: pytest.MonkeyPatch) -> Harness:
    monkeypatch.setenv("CARBONQ_API_URL", url)
    monkeypatch.setenv("CARBONQ_API_KEY", harness.acme)
    monkeypatch.setenv("COLUMNS", "100")
    feed(harness)
    return harness


def run(*words: str) -> Result:
    return CliRunner().invoke(main.app, ["plan", "show", *words])


def plan_row(harness: Harness, **changes: Any) -> None:
    now = harness.clock.now()
    values: dict[str, Any] = {
        "plan_id": "plan_1",
        "created_at": now,
        "recorded_at": now,
        "chunks": 777,
        "moved": 0,
        "late": 555,
        "objective_g": 2.0,
        "lower_bound_g": 1.9,
        "is_overlay": False,
        "duration_s": 0.1,
        "note": "555 chunks cannot be finished by their deadline",
    }
    with harness.db.write() as tx:
        tx.execute(insert(plans).values(**(values | changes)))


def test_the_outlook_comes_with_the_callers_chunks_counted_by_cell(api: Harness, http: httpx.Client) -> None:
    for seconds in (600, 600, 900):
        chunk_up(api, submit(http)["id"], window_in_s=seconds)
    now = api.clock.now()
    for name in add_chunks(api.db, 3, prefix="secret", tenant="rival", release_at=now, deadline_at=now):
        place(api.db, name, "se", now + timedelta(seconds=600))
    found = http.get("/v1/plan", params={"hours": 2}).json()
    at = iso(now + timedelta(seconds=600)), iso(now + timedelta(seconds=900))
    assert found["placements"] == [
        {"region": "se", "window_at": at[0], "chunks": 2},
        {"region": "se", "window_at": at[1], "chunks": 1},
    ]
    outlook = found["outlook"]
    assert (outlook["signal"], outlook["unit"], outlook["step_s"], outlook["start_at"]) == (
        "moer",
        "gCO2e/kWh",
        300,
        iso(now),
    )
    assert [one["region"] for one in outlook["regions"]] == ["fr", "se"]
    for one in outlook["regions"]:
        assert len(one["values"]) == len(one["basis"]) == len(one["spread"]) == 24
        assert set(one["basis"]) == {"held", "forecast"}
    assert "secret" not in json.dumps(found)
    assert "outlook" not in http.get("/v1/plan").json()
    for hours in (0, -1, 169, "x"):
        assert http.get("/v1/plan", params={"hours": hours}).status_code == 400


def test_the_plan_says_how_good_it_is_and_nothing_of_others(api: Harness, http: httpx.Client) -> None:
    plan_row(api)
    text = http.get("/v1/plan", params={"hours": 2}).text
    assert "555" not in text and "777" not in text
    assert json.loads(text)["plan"]["note"] is None
    chunk_id = chunk_up(api, submit(http)["id"])
    with api.db.write() as tx:
        tx.execute(update(placements).where(placements.c.chunk_id == chunk_id).values(reason="late"))
    assert http.get("/v1/plan").json()["plan"]["note"] == "1 of your chunks cannot be finished by their deadline"
    shown = run()
    assert "at most 5.0 % above the optimum" in shown.stderr and "note: 1 of your chunks" in shown.stderr


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"is_overlay": True}, "no marginal rate is known"),
        ({"is_overlay": True, "signal": "aer"}, "no average rate is known"),
        ({"signal": "aer"}, "decided by average rates"),
    ],
)
def test_notes_of_the_signal(api: Harness, http: httpx.Client, changes: dict[str, Any], words: str) -> None:
    plan_row(api, **changes)
    assert words in http.get("/v1/plan").json()["plan"]["note"]
    assert ("no carbon signal" in run().stderr) == bool(changes.get("is_overlay"))


def test_show_draws_the_map_and_lists_few_chunks(api: Harness, http: httpx.Client) -> None:
    empty = run()
    assert "no chunk of yours is placed" in empty.stdout and "nothing has been planned yet" in empty.stderr
    chunk_id = chunk_up(api, submit(http)["id"])
    shown = run("--hours", "3")
    lines = shown.stdout.splitlines()
    assert shown.exit_code == 0 and "\x1b" not in shown.stdout
    assert lines[0].startswith("marginal rates (MOER), gCO2e/kWh") and lines[1].split()[0] == "12:00"
    assert lines[2].startswith("fr ") and lines[4].startswith("se ") and lines[6].startswith("  chunks")
    assert lines[6].split() == ["chunks", "1"]
    assert chunk_id in shown.stdout and "Thu 12:10Z" in shown.stdout
    assert all(len(line) <= 100 for line in lines[1:7])
    data = json.loads(run("--json", "--hours", "1").stdout)
    assert len(data["outlook"]["regions"][0]["values"]) == 12 and data["chunks"][0]["id"] == chunk_id


def test_many_chunks_are_listed_only_when_asked_for(api: Harness, http: httpx.Client) -> None:
    for number in range(13):
        chunk_id = chunk_up(api, submit(http)["id"], window_in_s=300 * number)
    shown = run()
    assert chunk_id not in shown.stdout and "13 chunks; --list shows each" in shown.stderr
    listed = run("--list")
    assert chunk_id in listed.stdout and "marginal rates" not in listed.stdout
    assert listed.stdout.splitlines()[0].split()[:4] == ["id", "state", "model", "region"]
    assert run("--hours", "200").exit_code == 2
