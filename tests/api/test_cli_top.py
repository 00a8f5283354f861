"""``carbonq top`` on a real API and a real database, once on a real terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import sys
import threading
from datetime import timedelta
from typing import Any

import httpx
import pytest
from rich.console import Console
from sqlalchemy import update
from typer.testing import CliRunner

from carbonq.cli import main, top, top_frame
from carbonq.model import ChunkState
from carbonq.store.dialect import machine_now
from carbonq.store.tables import chunks
from carbonq.units import iso
from tests.api.harness import Harness
from tests.api.test_jobs import chunk_up, submit
from tests.api.test_regions import grid, refresh


@pytest.fixture
def job_id(harness: Harness, url: str, http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> str:
    """A job of three items, due in six hours, whose only chunk runs in region se ten minutes from now."""
    monkeypatch.setenv("CARBONQ_API_URL", url)
    monkeypatch.setenv("CARBONQ_API_KEY", harness.acme)
    refresh(harness, grid(harness, "ZONE_FR"), "ZONE_FR")
    made = submit(http)["id"]
    chunk_up(harness, made)
    return made


def frame() -> Any:
    found = CliRunner().invoke(main.app, ["top", "--json"])
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def test_a_frame_has_rates_slots_queues_and_slack(harness: Harness, http: httpx.Client, job_id: str) -> None:
    shown = frame()
    fr, se = shown["regions"]
    assert (fr["name"], fr["moer_g_per_kwh"], fr["live_workers"], fr["slots"]) == ("fr", "111.50", 1, 2)
    assert se["moer_g_per_kwh"] is None, "unknown is never 0"
    assert [(one["slots_taken"], one["your_chunks_queued"]) for one in (fr, se)] == [(0, 0), (0, 1)]
    regions, plan = http.get("/v1/regions").json(), http.get("/v1/plan", params={"hours": 1}).json()
    plan["chunks"][0]["state"] = "running"
    runs = top_frame.make(regions, plan, [], None)["regions"][1]
    assert (runs["your_chunks_running"], runs["your_chunks_queued"]) == (1, 0)
    (job,) = shown["jobs"]
    window = harness.clock.now() + timedelta(minutes=10)
    assert (job["id"], job["items"], job["items_ended"], job["next_window_at"]) == (job_id, 3, 0, iso(window))
    assert job["due_in_s"] - job["slack_s"] == 15 * 60, "the window begins in ten minutes and lasts five"
    assert shown["events"] is None

    with harness.db.write() as tx:
        tx.execute(update(chunks).values(dispatched_at=machine_now(tx)))  # a ticket is out: it holds a slot
    se = frame()["regions"][1]
    assert (se["slots_taken"], se["your_chunks_running"], se["your_chunks_queued"]) == (1, 0, 1)
    assert [one["slots_taken"] for one in http.get("/v1/regions").json()["data"]] == [0, 1]

    with harness.db.write() as tx:
        tx.execute(update(chunks).values(state=ChunkState.WAITING, region=None, window_at=None, dispatched_at=None))
    assert frame()["jobs"][0]["slack_s"] is None, "what has no window may end at any time"
    half = {**http.get(f"/v1/jobs/{job_id}").json(), "placement": {"last_window_at": iso(window), "states": {}}}
    half["placement"]["states"] = {"waiting": 1, "placed": 1}
    assert top_frame.make(regions, plan, [half], None)["jobs"][0]["slack_s"] is None, "a part of it has none yet"


def test_one_frame_as_text(job_id: str) -> None:
    shown = CliRunner().invoke(main.app, ["top", "--once"], env={"COLUMNS": "140"})
    assert shown.exit_code == 0, shown.output
    rows = {line.split()[0]: line for line in shown.stdout.splitlines() if line.strip()}
    assert "0/2" in rows["fr"] and "112" in rows["fr"]
    assert "unknown" in rows["se"] and "0/3" in rows[job_id] and "planned" in rows[job_id]
    none = CliRunner().invoke(main.app, ["top", "--once", "--jobs", "0"])
    assert "no open job" in none.stdout


def test_on_a_terminal_it_goes_on_until_q(job_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    drawn = bytearray()

    def sit_there() -> None:
        # The second frame: the first is drawn before any key is read.
        while drawn.count(b"q ends") < 2:
            drawn.extend(os.read(master, 65536))
        os.write(master, b"q")
        while True:
            try:
                os.read(master, 65536)
            except OSError:
                return

    person = threading.Thread(target=sit_there, daemon=True)
    with os.fdopen(slave, "r", closefd=False) as keys, os.fdopen(slave, "w", closefd=False) as screen:
        monkeypatch.setattr(sys, "stdin", keys)
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "140")
        monkeypatch.setenv("LINES", "40")
        person.start()
        top.top(once=False, every=0.5, jobs=10, as_json=False)
        monkeypatch.undo()
    os.close(slave)
    os.close(master)
    assert job_id.encode() in drawn and b"slots taken" in drawn


def test_events_and_an_overlay_are_drawn() -> None:
    clock = {"now": "2026-01-01T12:00:00Z", "kind": "scaled", "factor": 60.0}
    event = {"type": "job.completed", "created_at": "2026-01-01T11:59:58Z", "of": "job_1"}
    plan = {"plan": {"is_overlay": True}, "placements": [], "chunks": []}
    made = top_frame.make({"clock": clock, "decides_by": "moer", "data": []}, plan, [], [event])
    console = Console(width=100, file=io.StringIO())
    console.print(top_frame.render(made, "q ends"))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "job.completed" in text and "no signal" in text and "60 times as fast" in text and "q ends" in text
