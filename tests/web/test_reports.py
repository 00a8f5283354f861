"""The report from the dashboard and in a real browser: whose it is, that it shows and prints, and for everybody."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from carbonq.render.html import html
from tests.api.inprocess import InProcess
from tests.conftest import require
from tests.unit.rendered import HARD
from tests.unit.reports import example
from tests.web.test_browser import chromium, tab, url
from tests.web.test_pages import session
from tests.web.world import World

__all__ = ["chromium", "url"]

MONTH = "2026-01"


@pytest.fixture
def browser(world: World) -> Iterator[InProcess]:
    with world.client(session(world, world.key)) as client:
        yield client


def test_the_months_are_listed_with_their_files(world: World, browser: InProcess) -> None:
    listed = browser.ask("GET", "/reports").body.decode()
    paths = re.findall(r'href="(/reports/[^"]+)"', listed)
    assert paths == [f"/reports/{MONTH}", *(f"/reports/{MONTH}?fmt={fmt}" for fmt in ("json", "csv", "html", "pdf"))]
    for path, begins in zip(paths, (b"<!doctype", b"{", b"section,", b"<!doctype", b"%PDF-"), strict=True):
        answer = browser.ask("GET", path)
        assert answer.status == 200 and answer.body.startswith(begins), path
        for word in (b"undisclosed", b"rival", world.theirs.encode()):
            assert word not in answer.body, path
    report = browser.ask("GET", f"/reports/{MONTH}?fmt=json").json()
    assert (report["head"]["tenant"], report["totals"]["entries"]) == ("acme", len(world.entries))


def test_a_report_takes_a_session_and_the_scope(world: World) -> None:
    for path in ("/reports", f"/reports/{MONTH}", f"/reports/{MONTH}?fmt=pdf"):
        with world.client() as stranger:
            answer = stranger.ask("GET", path)
            assert (answer.status, answer.headers["location"].startswith("/login")) == (303, True), path
        with world.client(session(world, world.reader)) as reader:
            assert reader.ask("GET", path).status == 403, path


def test_what_cannot_be_reported_is_a_page_that_says_so(browser: InProcess) -> None:
    for path in ("/reports/2026-13", "/reports/2999-01"):
        answer = browser.ask("GET", path)
        assert answer.status == 400 and "That did not work" in answer.body.decode(), path


def test_a_report_has_a_policy_of_its_own(browser: InProcess) -> None:
    answer = browser.ask("GET", f"/reports/{MONTH}")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src" not in policy
    assert "no-store" in answer.headers["cache-control"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports as files, as somebody gets them by mail."""
    folder = tmp_path_factory.mktemp("reports")
    made = {"example": example(), **HARD}
    for name, report in made.items():
        (folder / f"{name}.html").write_text(html(report), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in made}


def test_the_page_shows_under_its_policy(chromium: Any, world: World, url: str) -> None:
    one = tab(chromium, world, url)
    page = one.open("/reports")
    page.get_by_role("link", name=MONTH, exact=True).click()
    page.get_by_role("heading", name="Carbon report, January 2026").wait_for()
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(244, 246, 245)"  # the style sheet is in force, so its hash is right
    assert page.locator("main section").count() > 4 and one.said == []
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["example", "hostile", "empty"])
def test_everybody_can_read_it(chromium: Any, files: dict[str, Path], name: str, scheme: str) -> None:
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        require("no axe-playwright-python")
        return
    context = chromium.new_context(color_scheme=scheme, viewport={"width": 1100, "height": 900})
    page = context.new_page()
    page.goto(files[name].as_uri())
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"][:200]) for each in found] == []
    context.close()


@pytest.mark.parametrize("name", ["example", *HARD])
def test_it_is_readable_on_a_phone_and_runs_nothing(chromium: Any, files: dict[str, Path], name: str) -> None:
    context = chromium.new_context(viewport={"width": 360, "height": 740}, java_script_enabled=True)
    page = context.new_page()
    said: list[str] = []
    page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    page.on("console", lambda message: said.append(message.text))
    page.on("request", lambda request: said.append(request.url) if not request.url.startswith("file:") else None)
    page.goto(files[name].as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate("document.querySelectorAll('script, img, iframe, [onerror]').length") == 0
    assert said == []
    context.close()


def test_drawings_are_seen(chromium: Any, files: dict[str, Path]) -> None:
    context = chromium.new_context(viewport={"width": 1100, "height": 900})
    page = context.new_page()
    page.goto(files["example"].as_uri())
    colours = set[str]()
    for kind in ("impact", "impact-provisional", "inventory", "baseline", "saved", "measured", "estimated"):
        mark = page.locator(f"figure svg[role=img] rect.{kind}").first
        box = mark.bounding_box()
        assert box is not None and box["width"] > 3 and box["height"] > 3, kind
        colours.add(mark.evaluate("node => getComputedStyle(node).fill"))
    assert "rgb(0, 0, 0)" not in colours and len(colours) >= 5
    context.close()


def test_it_prints_on_pages_in_black_on_white(chromium: Any, files: dict[str, Path]) -> None:
    context = chromium.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(files["example"].as_uri())
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF-")
    context.close()
