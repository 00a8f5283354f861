"""The page of budgets and targets: the API's figures, bars that show them, in a real browser too."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, update

from carbonq.budget import Action, Book, Budget, BudgetStatus, Level
from carbonq.services import budget, budget_spent, budgets_admin, targets, targets_admin
from carbonq.services.budget_alarms import Thresholds
from carbonq.services.settle import settle
from carbonq.store import events
from carbonq.store.events import NewEvent
from carbonq.store.tables import chunks
from carbonq.units import plain, window_of
from carbonq.web.budgets import WIDTH, cap
from carbonq.web.formats import scaled
from tests.api.harness import EMBEDDER, Harness, build_harness
from tests.api.inprocess import InProcess
from tests.api.test_budgets import run_clock
from tests.api.test_ledger import book
from tests.conftest import require
from tests.databases import opened
from tests.services.booked import observe
from tests.web.test_browser import PATIENCE_MS, chromium, tab, url
from tests.web.test_pages import session
from tests.web.world import World

__all__ = ["chromium", "url"]

DAY = timedelta(days=1)

PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 740}}


def past_days(harness: Harness) -> None:
    """Let a week of the month pass, on five days of which acme's work ran; what ran on the first three has settled."""
    harness.clock.advance(9 * DAY.total_seconds())
    for day in range(5):
        at = window_of(harness.clock.now())
        book(harness, f"eb_day{day}", tenant="acme", items=3 + day)
        if day < 3:
            observe(harness.db, "ZONE_FR", at, "380")
        harness.clock.advance(DAY.total_seconds())
    settle(harness.db, harness.clock.now(), settle_after_s=0)


def put(harness: Harness, level: Level, name: str, cap_g: str, **more: Any) -> None:
    budgets_admin.set_budget(harness.db, harness.clock, "acme", level=level, name=name, cap_g=cap_g, actor="me", **more)


def set_all(harness: Harness) -> None:
    """Set budgets and targets, of which some are on track and others are not."""
    put(harness, Level.PRODUCT_LINE, "=search", "0.0018", action=Action.QUEUE)
    put(harness, Level.PRODUCT_LINE, "support", "0.0006", action=Action.DOWNGRADE)
    put(harness, Level.PRODUCT_LINE, "internal tools with a rather long name", "5000", book=Book.INVENTORY)
    put(harness, Level.WORKLOAD, "nightly", "120.5", action=Action.REJECT)
    put(harness, Level.ITEM, "*", "0.002", action=Action.QUEUE)
    budgets_admin.set_budget(
        harness.db, harness.clock, "rival", level=Level.WORKLOAD, name="undisclosed", cap_g="1", actor="me"
    )
    budget_spent.fold(harness.db, harness.clock.now())
    targets_admin.set_target(harness.db, harness.clock, "acme", g_per_1k_tokens="50", actor="me")
    targets_admin.set_target(harness.db, harness.clock, "rival", g_per_1k_tokens="0.125", actor="me")
    while targets.sum_up(harness.db, harness.clock):
        pass
    (found,) = targets.statuses(harness.db, harness.clock.now(), "acme")
    assert found.value is not None
    for model, promise in ((EMBEDDER, found.value * Decimal("0.97")), ("smollm2-135m-instruct", Decimal("0.25"))):
        targets_admin.set_target(
            harness.db, harness.clock, "acme", model=model, g_per_1k_tokens=plain(round(promise, 6)), actor="me"
        )
    targets.tick(harness.db, harness.clock)


@pytest.fixture(scope="module")
def world(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The other pages' world in the middle of a month, with budgets and targets."""
    folder = tmp_path_factory.mktemp("budgets")
    shutil.copy(sqlite_template, folder / "web.db")
    database = opened(f"sqlite:///{folder / 'web.db'}")
    harness = build_harness(database, folder / "blobs")
    run_clock(harness)
    past_days(harness)
    made = World(harness)
    with database.write() as tx:  # what is planned is expected to emit something
        mine = chunks.c.chunk_id == f"chunk_of_{made.planned}"
        tx.execute(update(chunks).where(mine).values(impact_pg_per_token=9_000_000))
    set_all(harness)
    yield made
    database.dispose()


@pytest.fixture
def browser(world: World) -> Iterator[InProcess]:
    with world.client(session(world, world.key)) as client:
        yield client


def of_the_api(world: World, path: str) -> list[dict[str, Any]]:
    with world.client() as client:
        return client.ask("GET", path, headers={"authorization": f"Bearer {world.key}"}).json()["data"]


@pytest.mark.parametrize(("count", "sentence"), [(1, "1 chunk waits for it."), (2, "2 chunks wait for it.")])
def test_what_waits_is_counted_in_words_that_fit(
    browser: InProcess, monkeypatch: pytest.MonkeyPatch, count: int, sentence: str
) -> None:
    statuses = budget.statuses

    def waiting(*given: Any, **more: Any) -> list[BudgetStatus]:
        return [replace(one, waiting_chunks=count) for one in statuses(*given, **more)]

    monkeypatch.setattr(budget, "statuses", waiting)
    text = browser.ask("GET", "/budgets").body.decode()
    assert sentence in text and "1 chunks" not in text


def test_the_page_has_the_apis_figures_and_nobody_elses(world: World, browser: InProcess) -> None:
    text = browser.ask("GET", "/budgets").body.decode()
    caps = of_the_api(world, "/v1/budgets")
    assert {one["name"] for one in caps} >= {"=search", "support", "nightly", "*"}
    for one in caps:
        for name in ("spent_g", "reserved_g", "left_g") if one["level"] != "item" else ():
            assert scaled(one["status"][name], "g") in text, (one["name"], name)
            assert one["status"][name] in text, "exactly, in the table"
    search = next(one for one in caps if one["name"] == "=search")
    assert Decimal(search["status"]["spent_g"]) > Decimal(search["status"]["provisional_g"]) > 0
    assert f"{search['status']['burn_rate']:.2f} ×" in text
    for one in of_the_api(world, "/v1/targets"):
        value = one["status"]["value"]
        assert scaled(value, "g") in text and (value is None or value in text)
        if one["status"]["forecast"] is not None:
            assert scaled(one["status"]["forecast"]["value"], "g") in text
            assert one["status"]["forecast"]["low"] in text and one["status"]["forecast"]["high"] in text
    assert "undisclosed" not in text and "125 mg" not in text


def test_a_key_that_may_not_read_does_not_see_it(world: World) -> None:
    with world.client() as stranger:
        assert stranger.ask("GET", "/budgets").headers["location"].startswith("/login")
    with world.client(session(world, world.reader)) as reader:
        assert reader.ask("GET", "/budgets").status == 200


def test_the_overview_says_it_in_a_line_without_reading_entries(world: World, browser: InProcess) -> None:
    asked: list[str] = []

    def note(*args: Any) -> None:
        asked.append(args[2])

    engine = world.harness.db.engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        text = browser.ask("GET", "/").body.decode()
    finally:
        event.remove(engine, "before_cursor_execute", note)
    assert asked and not [one for one in asked if re.search(r"\bentries\b", one)]
    line = text.partition('id="budgets"')[2].partition("</section>")[0]
    assert "4 budgets" in line and "1 with nothing left" in line and "3 targets" in line and "at risk" in line


def test_flower_is_linked_where_it_is_known(world: World, browser: InProcess) -> None:
    assert "Flower" not in browser.ask("GET", "/").body.decode()
    api = world.app.state.api
    world.app.state.api = replace(api, flower_url="https://flower.example.com/")
    try:
        text = browser.ask("GET", "/").body.decode()
    finally:
        world.app.state.api = api
    assert '<a href="https://flower.example.com/" rel="noreferrer">' in text


def standing(spent_g: str, *, provisional_g: str = "0", reserved_g: str = "0", **more: Any) -> BudgetStatus:
    begin = datetime(2026, 11, 1, tzinfo=UTC)
    made = Budget("bgt_1", "acme", Level.PRODUCT_LINE, "a", Book.IMPACT, Action.WARN, Decimal(10), begin, begin)
    values: dict[str, Any] = {
        "started_at": begin,
        "ends_at": begin + 30 * DAY,
        "spent_g": Decimal(spent_g),
        "provisional_g": Decimal(provisional_g),
        "reserved_g": Decimal(reserved_g),
        "unknown_entries": 0,
        "elapsed_share": 0.5,
        "burn_rate": 1.0,
        "exhausted_at": None,
    }
    return BudgetStatus(budget=made, **values | more)


def test_bars_are_as_long_as_what_they_show() -> None:
    one = cap(standing("4", provisional_g="1", reserved_g="2"), Thresholds())
    assert [(piece.kind, piece.x, piece.width) for piece in one.pieces] == [
        ("settled", 0, 0.3 * WIDTH),
        ("provisional", 0.3 * WIDTH, 0.1 * WIDTH),
        ("reserved", 0.4 * WIDTH, 0.2 * WIDTH),
    ]
    assert (one.cap_x, one.even_x, one.word) == (WIDTH, WIDTH / 2, "on track")
    over = cap(standing("15", provisional_g="15", reserved_g="5"), Thresholds())
    assert (over.cap_x, over.word, over.colour) == (WIDTH / 2, "nothing left", "bad")
    assert [piece.kind for piece in over.pieces] == ["provisional", "reserved"]
    assert sum(piece.width for piece in over.pieces) == WIDTH
    clean = cap(standing("-1", reserved_g="0"), Thresholds())  # rates below zero
    assert list(clean.pieces) == [] and clean.word == "on track"


def test_what_is_wrong_stands_in_a_word() -> None:
    assert cap(standing("7", burn_rate=1.4), Thresholds()).word == "burns too fast"
    assert cap(standing("8"), Thresholds()).word == "nearly used up"
    assert cap(standing("1", burn_rate=9.0, elapsed_share=0.01), Thresholds()).word == "on track"  # one job's
    assert cap(standing("7", waiting_chunks=3), Thresholds()).word == "holds work back"


def test_in_a_real_browser(chromium: Any, world: World, url: str) -> None:
    one = tab(chromium, world, url)
    page = one.open("/budgets")
    search = page.locator("article", has_text="=search")
    box = search.locator("svg.capbar").bounding_box()
    parts = [search.locator(f"rect.{kind}").bounding_box() for kind in ("settled", "provisional")]
    assert box is not None and all(part is not None and part["width"] > 3 for part in parts)
    bearer = {"Authorization": f"Bearer {world.key}"}
    caps = page.request.get(f"{url}/v1/budgets", headers=bearer).json()["data"]
    (found,) = (each for each in caps if each["name"] == "=search")
    now = found["status"]
    scale = max(Decimal(found["cap_g"]), Decimal(now["spent_g"]) + Decimal(now["reserved_g"]))
    share = float((Decimal(now["spent_g"]) - Decimal(now["provisional_g"])) / scale)
    assert parts[0] is not None and abs(parts[0]["width"] / box["width"] - share) < 0.01
    page.locator("#d-caps summary").click()
    assert now["spent_g"] in page.locator("#caps tbody tr", has_text="=search").inner_text()
    # Live: a budget that is raised shows without a new load, and what is open stays open.
    page.locator("#live[data-state=live]").wait_for()
    put(world.harness, Level.WORKLOAD, "nightly", "240.25", action=Action.REJECT)
    with world.harness.db.write() as tx:
        events.append_many(tx, [NewEvent("budget.restored", world.harness.clock.now(), "acme", data={"id": "bgt_x"})])
    page.locator("article", has_text="of 240 g").wait_for(timeout=3 * PATIENCE_MS)  # a busy page looks seldom
    assert page.locator("#d-caps").get_attribute("open") is not None
    assert one.said == []
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_use_it(chromium: Any, world: World, url: str, scheme: str) -> None:
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        require("no axe-playwright-python")
        return
    one = tab(chromium, world, url, color_scheme=scheme, bypass_csp=True)
    page = one.open("/budgets")
    for each in page.locator("summary").all():
        each.click()
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    grave = [
        (each["id"], each["nodes"][0]["html"][:150]) for each in found if each["impact"] in {"serious", "critical"}
    ]
    assert grave == []
    assert one.said == []
    one.page.context.close()


def test_a_phone_is_wide_enough_and_scripts_are_not_needed(chromium: Any, world: World, url: str) -> None:
    one = tab(chromium, world, url, java_script_enabled=False, **PHONE)
    for path in ("/budgets", "/"):
        page = one.open(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
    one.page.context.close()
