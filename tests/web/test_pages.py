"""The dashboard without a browser: who may see what, forms, headers, and that its figures are the API's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select, update

from carbonq.store import keys, sessions, tables
from carbonq.store.database import Database
from carbonq.web import assets
from tests.api.harness import build_harness
from tests.api.inprocess import Answer, InProcess
from tests.web.world import FORM, World, cookies_of, log_in, submit


@pytest.fixture
def browser(world: World) -> Iterator[InProcess]:
    """A client that is logged in with the key that may do all."""
    with world.client(session(world, world.key)) as client:
        yield client


def session(world: World, key: str) -> str:
    with world.harness.db.write() as tx:
        return f"carbonq_session={sessions.begin(tx, keys.hash_key(key))}"


def csrf_in(answer: Answer) -> str:
    return answer.body.decode().partition('name="csrf" value="')[2].partition('"')[0]


def pages(world: World) -> list[str]:
    """Every page there is, with ids of acme's."""
    ids = {"job_id": world.planned, "entry_id": world.entries[0], "name": "x"}
    found: list[str] = []
    for route in web_routes(world):
        path: str = route.path
        if "GET" in (route.methods or ()) and not path.startswith(("/static", "/login", "/events", "/reports/")):
            found.append(re.sub(r"\{(\w+)\}", lambda match: ids[match[1]], path))
    assert len(found) == 7
    return found


def web_routes(world: World) -> list[Any]:
    from carbonq import web

    return [route for router in web.ROUTERS for route in router.routes]


def test_nothing_is_seen_without_a_session(world: World) -> None:
    with world.client() as stranger, world.client("carbonq_session=made-up") as forger:
        for client in (stranger, forger):
            for path in pages(world):
                answer = client.ask("GET", path)
                assert (answer.status, answer.headers["location"].startswith("/login")) == (303, True), path
            assert client.ask("GET", "/events").status == 401
            for path in ("/logout", f"/jobs/{world.planned}/cancel"):
                assert client.ask("POST", path, body=b"csrf=x", headers=FORM).headers["location"] == "/login"
    with world.client() as stranger:
        target = stranger.ask("GET", "/jobs?state=waiting").headers["location"]
        assert target == "/login?next=%2Fjobs%3Fstate%3Dwaiting"


def test_pages_are_no_part_of_the_api(world: World) -> None:
    """A route would be in /openapi.json unless it says otherwise, as each of these does."""
    routes = web_routes(world)
    assert len(routes) >= 10 and not [route.path for route in routes if route.include_in_schema]


def test_every_page_forbids_what_is_not_ours_and_has_nothing_inline(world: World, browser: InProcess) -> None:
    for path in [*pages(world), f"/ledger?q={world.ended}", "/login", "/jobs/nothing"]:
        answer = browser.ask("GET", path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy, path
        assert answer.headers["cache-control"] == "no-store"
        text = answer.body.decode()
        assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son[a-z]+=|https?://(?!127)", text), path
        assert text.count("<main") == 1 and '<html lang="en">' in text


def test_the_form_of_the_login(world: World) -> None:
    with world.client() as client:
        shown = client.ask("GET", "/login?next=//evil.example/")
        assert 'name="next" value="/"' in shown.body.decode()
        cookie, csrf = cookies_of(shown), csrf_in(shown)

        def post(body: str, **headers: str) -> Answer:
            return client.ask("POST", "/login", body=body.encode(), headers={"cookie": cookie, **FORM, **headers})

        wrong = post(f"csrf={csrf}&key=cq_wrong")
        assert wrong.status == 401 and "wrong, expired or revoked" in wrong.body.decode()
        assert "carbonq_session" not in wrong.headers["set-cookie"]
        assert post(f"csrf=x&key={world.key}").status == 403
        assert post(f"csrf={csrf}&key={world.key}", cookie="").status == 403
        assert post(f"csrf={csrf}&key={world.key}", **{"sec-fetch-site": "cross-site"}).status == 403
        assert post("key=" + "x" * 20_000).status == 413
        good = post(f"csrf={csrf}&key=%20{world.key}%0A&next=/jobs")
        assert (good.status, good.headers["location"]) == (303, "/jobs")
        astray = post(f"csrf={csrf}&key={world.key}&next=//evil.example/")
        assert astray.headers["location"] == "/"
        parts = good.headers["set-cookie"].lower().split("; ")
        assert {"httponly", "samesite=strict", "path=/", "max-age=43200"} <= set(parts) and "secure" not in parts


def test_a_session_ends_by_logging_out_and_with_its_key(world: World) -> None:
    harness = world.harness
    with harness.db.write() as tx:
        key_id, key = keys.create(tx, "acme", "short", False)
    harness.api.keyring.refresh()
    with world.client() as client:
        first, second = log_in(client, key), log_in(client, key)
    with world.client(first) as client:
        csrf = csrf_in(client.ask("GET", "/"))
        assert client.ask("POST", "/logout", body=b"csrf=x", headers=FORM).status == 403
        assert client.ask("GET", "/").status == 200
        assert client.ask("POST", "/logout", body=f"csrf={csrf}".encode(), headers=FORM).status == 303
        assert client.ask("GET", "/").status == 303
    with world.client(second) as client:
        assert client.ask("GET", "/").status == 200
        with harness.db.write() as tx:
            keys.revoke(tx, key_id)
        harness.api.keyring.refresh()
        assert client.ask("GET", "/").status == 303


def test_a_link_opens_once_and_by_a_button_only(world: World) -> None:
    with world.harness.db.write() as tx:
        link = sessions.make_link(tx, keys.hash_key(world.key))
    with world.client() as client:
        shown = [client.ask("GET", f"/login?link={link}") for _ in range(2)][-1]
        body = f"csrf={csrf_in(shown)}&link={link}".encode()
        headers = {"cookie": cookies_of(shown), **FORM}
        opened = client.ask("POST", "/login", body=body, headers=headers)
        assert opened.status == 303
        assert client.ask("GET", "/", headers={"cookie": cookies_of(opened)}).status == 200
        again = client.ask("POST", "/login", body=body, headers=headers)
        assert again.status == 401 and "used before" in again.body.decode()


def test_attempts_to_log_in_are_few_a_minute(world: World) -> None:
    from carbonq.api.limits import RateLimits
    from carbonq.web import login

    object.__setattr__(world.harness.api, "rate_limits", RateLimits(wall=lambda: 1_000_000.0))
    with world.client() as client:
        shown = client.ask("GET", "/login")
        headers = {"cookie": cookies_of(shown), **FORM}
        body = f"csrf={csrf_in(shown)}&key=cq_wrong".encode()
        statuses = [client.ask("POST", "/login", body=body, headers=headers).status for _ in range(login.ATTEMPTS + 1)]
    object.__setattr__(world.harness.api, "rate_limits", RateLimits())
    # Beside this limit stands that on unknown keys, which an unknown key asks the database for once in two seconds.
    assert statuses == [401] * login.ATTEMPTS + [429]


def test_what_is_anothers_is_as_what_does_not_exist(world: World, browser: InProcess) -> None:
    def shown(path: str, name: str) -> tuple[int, str]:
        answer = browser.ask("GET", path)
        return answer.status, answer.body.decode().replace(name, "ID")

    entry = world.their_entries[0]
    for theirs, none in ((world.theirs, world.theirs[:-2] + "zz"), (entry, entry[:-1] + "7")):
        for path in ("/jobs/{}", "/ledger/{}", "/ledger?q={}", "/jobs?after={}"):
            assert shown(path.format(theirs), theirs) == shown(path.format(none), none), path
            assert shown(path.format(theirs), theirs)[0] in {303, 400, 404}
    csrf = csrf_in(browser.ask("GET", "/"))
    assert browser.ask("POST", f"/jobs/{world.theirs}/cancel", body=f"csrf={csrf}".encode(), headers=FORM).status == 404
    for path in (*pages(world), "/ledger?from=2020-01-01T00:00Z"):
        text = browser.ask("GET", path).body.decode()
        for word in ("secret", "undisclosed", "rival", world.theirs, *world.their_entries):
            assert word not in text, (path, word)


def test_scopes_hold_here_too(world: World) -> None:
    with world.client(session(world, world.reader)) as client:
        for path in ("/ledger", f"/ledger/{world.entries[0]}", f"/ledger?q={world.ended}"):
            assert client.ask("GET", path).status == 403, path
        page = client.ask("GET", f"/jobs/{world.ended}").body.decode()
        assert "no scope export" in page and world.entries[0] not in page
        csrf = csrf_in(client.ask("GET", "/"))
        refused = client.ask("POST", f"/jobs/{world.planned}/cancel", body=f"csrf={csrf}".encode(), headers=FORM)
        assert refused.status == 403


def test_cancelling_takes_a_form_of_ours(world: World, browser: InProcess) -> None:
    job_id = submit(world.app, world.key)
    path = f"/jobs/{job_id}/cancel"
    csrf = csrf_in(browser.ask("GET", f"/jobs/{job_id}"))
    assert browser.ask("POST", path, body=b"csrf=", headers=FORM).status == 403
    assert "Cancel what has not run" in browser.ask("GET", f"/jobs/{job_id}").body.decode()
    assert browser.ask("POST", path, body=f"csrf={csrf}".encode(), headers=FORM).status == 303
    assert "Cancel what has not run" not in browser.ask("GET", f"/jobs/{job_id}").body.decode()


def test_a_page_of_a_job_has_the_apis_figures(world: World, browser: InProcess) -> None:
    bearer = {"authorization": f"Bearer {world.key}", "cookie": ""}
    job = browser.ask("GET", f"/v1/jobs/{world.ended}", headers=bearer).json()
    text = browser.ask("GET", f"/jobs/{world.ended}").body.decode()
    assert job["carbon"]["status"] == "provisional" and "provisional" in text
    micrograms = float(job["carbon"]["emission_g"]) * 1e6
    assert f"{micrograms:.0f} µg" in text and f"{job['carbon']['energy_uj'] / 3.6e3:.0f} µWh" in text
    assert "No entry can be compared with a baseline" in text  # and not 0 g saved
    entry = browser.ask("GET", f"/v1/ledger/{world.entries[0]}", headers=bearer).json()
    page = browser.ask("GET", f"/ledger/{world.entries[0]}").body.decode()
    assert f'<strong id="recomputed">{entry["recomputed_emission_g"]}</strong>' in page and "consistent" in page


def test_the_search_of_the_ledger(world: World, browser: InProcess) -> None:
    assert browser.ask("GET", f"/ledger?q={world.entries[1]}").headers["location"] == f"/ledger/{world.entries[1]}"
    assert browser.ask("GET", "/ledger?q=../jobs").headers["location"] == "/ledger/..%2Fjobs"
    by_job = browser.ask("GET", f"/ledger?q={world.ended}").body.decode()
    by_time = browser.ask("GET", "/ledger?from=2026-01-01T12:00&to=2026-01-01T12:05").body.decode()
    for entry in world.entries:
        assert entry in by_job and entry in by_time
    assert "No entry matches" in browser.ask("GET", "/ledger?from=2025-01-01&to=2025-01-02").body.decode()
    assert browser.ask("GET", "/ledger?from=yesterday").status == 400


def test_the_overview_reads_no_entries(world: World, browser: InProcess) -> None:
    """However many there are: 200,000 must not be felt here."""
    asked: list[str] = []

    def note(*args: Any) -> None:
        asked.append(args[2])

    engine = world.harness.db._engine  # pyright: ignore[reportPrivateUsage]
    event.listen(engine, "before_cursor_execute", note)
    try:
        assert browser.ask("GET", "/").status == 200
    finally:
        event.remove(engine, "before_cursor_execute", note)
    assert asked and not [one for one in asked if re.search(r"\bentries\b", one)]


def test_pages_on_postgresql(postgresql: Database, tmp_path: Path) -> None:
    world = World(build_harness(postgresql, tmp_path / "blobs"))
    with world.client() as client:
        cookie = log_in(client, world.key)
    with world.client(cookie) as client:
        for path in [*pages(world), f"/jobs/{world.ended}", f"/ledger?q={world.ended}"]:
            assert client.ask("GET", path).status == 200, path
        text = client.ask("GET", "/").body.decode()
        assert 'class="bar run"' in text and 'class="bar planned"' in text and "134 µg" in text


def test_files_are_kept_by_browsers_for_as_long_as_they_are_the_same(browser: InProcess) -> None:
    path = assets.path_of("carbonq.css")
    answer = browser.ask("GET", path, headers={"cookie": ""})
    assert answer.status == 200 and "immutable" in answer.headers["cache-control"]
    assert answer.headers["content-type"].startswith("text/css")
    assert browser.ask("GET", "/static/carbonq.css").status == 404


def test_a_job_says_how_many_items_a_smaller_model_runs(world: World, browser: InProcess) -> None:
    assert "on a smaller one" not in browser.ask("GET", f"/jobs/{world.planned}").body.decode()
    with world.harness.db.write() as tx:
        mine = select(tables.items.c.chunk_id).where(tables.items.c.job_id == world.planned)
        change = update(tables.chunks).where(tables.chunks.c.chunk_id.in_(mine))
        tx.execute(change.values(model="short", downgraded="budget"))
    page = browser.ask("GET", f"/jobs/{world.planned}").body.decode()
    assert "items on a smaller one: budget" in page
    assert "instead of wordllama-256" in page
