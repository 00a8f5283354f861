"""The dashboard in a real browser: it loads, says what the API says, follows events, and everybody can use it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import update

from carbonq import web
from carbonq.store import events, keys, sessions
from carbonq.store.events import NewEvent
from carbonq.store.tables import jobs
from tests.api.harness import serving
from tests.conftest import require
from tests.web.world import World

#: Enough for a machine that is busy with all other tests.
PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def chromium(world: World) -> Iterator[Any]:
    """One browser for all tests: Debian's, so that nothing is downloaded.

    Its driver keeps an event loop running in this thread, so nothing else here may want one while it lives.
    """
    program = shutil.which("chromium") or shutil.which("chromium-browser") or os.environ.get("CARBONQ_CHROMIUM")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        require("no playwright")
        return
    if program is None:
        require("no chromium on PATH")
        return
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def url(world: World) -> Iterator[str]:
    """The world's API on a port, with the dashboard."""

    def with_pages(app: FastAPI) -> FastAPI:
        web.install(app)
        return app

    with serving(world.harness.api, background=[], wrap=with_pages) as address:
        yield address


class Tab:
    """A page of a browser that is logged in, and what its console said."""

    def __init__(self, page: Any, url: str) -> None:
        self.page, self.url = page, url
        self.said: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", self._note_message)
        page.on("pageerror", self._note_error)

    def _note_message(self, message: Any) -> None:
        self.said.append(message.text)

    def _note_error(self, error: Any) -> None:
        self.said.append(str(error))

    def open(self, path: str) -> Any:
        self.page.goto(self.url + path)
        return self.page


def tab(chromium: Any, world: World, url: str, **how: Any) -> Tab:
    with world.harness.db.write() as tx:
        token = sessions.begin(tx, keys.hash_key(world.key))
    context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, **how})
    context.add_cookies([{"name": "carbonq_session", "value": token, "url": url}])
    return Tab(context.new_page(), url)


def paths(world: World) -> list[str]:
    found = ["/", "/jobs", f"/jobs/{world.planned}", f"/ledger?q={world.ended}", f"/ledger/{world.entries[0]}"]
    return [*found, "/reports"]


def test_a_person_logs_in_looks_around_and_logs_out(chromium: Any, world: World, url: str) -> None:
    one = Tab(chromium.new_context().new_page(), url)
    page = one.open("/jobs")
    page.get_by_label("API key").fill(world.key)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/jobs")
    page.get_by_role("link", name=world.ended).click()
    page.get_by_role("heading", name="Why there and then").wait_for()
    page.get_by_role("link", name=world.entries[0], exact=True).click()
    page.get_by_text("consistent", exact=True).wait_for()
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/login")
    assert page.context.cookies() == [] or all(c["name"] != "carbonq_session" for c in page.context.cookies())
    assert one.said == []
    page.context.close()


def test_the_overview_has_the_apis_figures_and_follows_events(chromium: Any, world: World, url: str) -> None:
    one = tab(chromium, world, url)
    page = one.open("/")
    bearer = {"Authorization": f"Bearer {world.key}"}
    for region in page.request.get(f"{url}/v1/regions", headers=bearer).json()["data"]:
        row = page.locator("#regions tbody tr", has=page.locator("th", has_text=region["id"])).first
        assert f"{float(region['moer']['g_per_kwh']):.0f}" in row.inner_text()
        assert "unknown" in row.inner_text()  # the average rate, which nobody told
    plan = page.request.get(f"{url}/v1/plan?hours=24", headers=bearer).json()
    for region in plan["outlook"]["regions"]:
        card = page.locator("figure.chart", has_text=region["zone"])
        assert card.locator(".big").inner_text() == f"{float(region['values'][0]):.0f}"
    page.locator("#d-map summary").click()
    planned = page.locator("#map tbody tr td:nth-child(5)").all_inner_texts()
    assert sum(map(int, planned)) == sum(cell["chunks"] for cell in plan["placements"]) == 1
    # Live: what happens shows without a new load, and what is open stays open.
    page.locator("#live[data-state=live]").wait_for()
    due = page.locator("#due tbody tr").first
    assert "11 / 40" in due.inner_text()
    with world.harness.db.write() as tx:
        tx.execute(update(jobs).where(jobs.c.job_id == world.planned).values(items_succeeded=23))
        at = world.harness.clock.now() + timedelta(seconds=1)
        events.append_many(tx, [NewEvent("job.progress", at, "acme", world.planned, {})])
    page.get_by_text("23 / 40").wait_for()
    assert page.locator("#d-map").get_attribute("open") is not None
    assert one.said == []
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_use_it(chromium: Any, world: World, url: str, scheme: str) -> None:
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        require("no axe-playwright-python")
        return
    # The pages' own policy refuses scripts of others, and axe is one. What is not about colours is alike in the dark.
    one = tab(chromium, world, url, color_scheme=scheme, bypass_csp=True)
    is_dark = scheme == "dark"
    options = {"resultTypes": ["violations"], **({"runOnly": ["color-contrast"]} if is_dark else {})}
    for path in [*paths(world)[::2], "/login"]:
        page = one.open(path)
        found = Axe().run(page, options=options).response["violations"]
        grave = [
            (each["id"], each["nodes"][0]["html"][:150]) for each in found if each["impact"] in {"serious", "critical"}
        ]
        assert grave == [], path
    assert one.said == []
    one.page.context.close()


def test_a_phone_is_wide_enough_and_scripts_are_not_needed(chromium: Any, world: World, url: str) -> None:
    one = tab(chromium, world, url, viewport={"width": 360, "height": 740}, java_script_enabled=False)
    for path in paths(world):
        page = one.open(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
    assert "/ 40" in one.open("/").locator("#due").inner_text()
    one.page.context.close()


def test_the_keyboard_reaches_the_content_first(chromium: Any, world: World, url: str) -> None:
    one = tab(chromium, world, url)
    page = one.open("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.context.close()


def test_the_drawings_draw(chromium: Any, world: World, url: str) -> None:
    one = tab(chromium, world, url)
    page = one.open("/")
    assert page.locator("#map rect").count() > 2 * 100 and page.locator("path.line.past").count() == 2
    for name in ("path.line.past", "#map rect.planned"):
        box = page.locator(name).first.bounding_box()
        assert box is not None and box["height"] > 2 and box["width"] > 2, name
    page.context.close()
