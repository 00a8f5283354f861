"""What the dashboard's overview costs beside much work: ``python -m tests.bench.dashboard [JOBS] [ENTRIES]``.

Fills an SQLite database, serves it, loads the page in Chromium and prints one line of JSON: CPU seconds of the page on
the server, bytes transferred and the browser's first paint (with a cold cache), and the queries' number.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from playwright.sync_api import sync_playwright
from sqlalchemy import event, update

from carbonq import web
from carbonq.bench import ledger_fill
from carbonq.store import keys, regions, sessions
from carbonq.store.tables import chunks, jobs
from tests.api.harness import REGIONS, Harness, build_harness, serving
from tests.api.inprocess import in_process
from tests.api.test_jobs import chunk_up, finish
from tests.databases import opened
from tests.web.world import World, app_of, submit

#: How often the page is asked for its CPU.
_TIMES = 20

#: How often it is loaded; the quickest counts, for other work on the machine only makes it slower.
_LOADS = 5


def main(job_count: int, entries: int) -> None:
    """Fill, serve, measure, print."""
    with tempfile.TemporaryDirectory(prefix="carbonq-dashboard-") as name:
        url = f"sqlite:///{Path(name) / 'bench.db'}"
        ledger_fill.fill(url, entries, batch_items=200)
        db = opened(url)
        with db.write() as tx:
            regions.sync(tx, REGIONS)
        harness = build_harness(db, Path(name) / "blobs")
        world = World(harness)
        _more_jobs(harness, world, job_count)
        found = _on_the_server(world) | _in_a_browser(world)
        db.dispose()
    sys.stdout.write(json.dumps({"jobs": job_count, "entries": entries, **found}) + "\n")


def _more_jobs(harness: Harness, world: World, count: int) -> None:
    now = harness.clock.now()
    for number in range(count):
        job_id = submit(world.app, world.key, count=2)
        chunk_up(harness, job_id, window_in_s=300 * (number % 280))
        if number % 2:
            finish(harness, job_id, b"{}\n")
            with harness.db.write() as tx:
                at = now - timedelta(seconds=300 * (number % 70))
                done = {"state": "done", "finished_at": now, "window_at": at}
                tx.execute(update(chunks).where(chunks.c.chunk_id == f"chunk_of_{job_id}").values(**done))
        with harness.db.write() as tx:
            tx.execute(update(jobs).where(jobs.c.job_id == job_id).values(is_chunked=True))


def _session(world: World) -> str:
    with world.harness.db.write() as tx:
        return sessions.begin(tx, keys.hash_key(world.key))


def _on_the_server(world: World) -> dict[str, Any]:
    queries = 0

    def note(*_args: object) -> None:
        nonlocal queries
        queries += 1

    with in_process(app_of(world.harness), {"cookie": f"carbonq_session={_session(world)}"}) as client:
        client.ask("GET", "/")
        engine = world.harness.db._engine  # pyright: ignore[reportPrivateUsage]
        event.listen(engine, "before_cursor_execute", note)
        size = len(client.ask("GET", "/").body)
        event.remove(engine, "before_cursor_execute", note)
        began = time.process_time()
        for _ in range(_TIMES):
            assert client.ask("GET", "/").status == 200
        cpu_s = (time.process_time() - began) / _TIMES
    return {"page_cpu_s": round(cpu_s, 4), "page_bytes": size, "page_queries": queries}


def _in_a_browser(world: World) -> dict[str, Any]:
    def with_pages(app: FastAPI) -> FastAPI:
        web.install(app)
        return app

    program = shutil.which("chromium")
    with serving(world.harness.api, background=[], wrap=with_pages) as address, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        loads = [_load(browser, world, address) for _ in range(_LOADS)]
        browser.close()
    paint_ms, size = min(loads)
    return {"first_paint_s": round(paint_ms / 1000, 3), "transferred_bytes": size}


def _load(browser: Any, world: World, address: str) -> tuple[float, int]:
    """Load the overview with an empty cache; return milliseconds to the first paint, and bytes of everything."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.add_cookies([{"name": "carbonq_session", "value": _session(world), "url": address}])
    page = context.new_page()
    page.goto(address + "/")
    page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length > 0")
    paint_ms = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    size = page.evaluate(
        "['navigation', 'resource'].flatMap((k) => performance.getEntriesByType(k))"
        ".reduce((sum, one) => sum + one.transferSize, 0)"
    )
    context.close()
    return paint_ms, size


if __name__ == "__main__":
    main(*(int(text) for text in (sys.argv[1:3] if len(sys.argv) > 2 else ("1000", "200000"))))
