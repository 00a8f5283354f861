"""Keys: none, wrong, revoked, cached, and the database away."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

import httpx
import pytest
from sqlalchemy import text

from carbonq.api.auth import KeyRing, check_exposure, is_loopback
from carbonq.errors import ConfigError, StoreUnavailable, Unavailable
from carbonq.model import Scope
from carbonq.services import keys as key_service
from carbonq.store import keys
from carbonq.store.database import Database
from carbonq.store.dialect import machine_now
from tests.api.harness import EMBEDDER, Harness


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, "missing_api_key"),
        ("", "missing_api_key"),
        ("Bearer", "missing_api_key"),
        ("Basic abc", "missing_api_key"),
        ("Bearer cq-wrong", "invalid_api_key"),
    ],
)
def test_every_v1_route_wants_a_key(url: str, header: str | None, code: str) -> None:
    headers = {} if header is None else {"Authorization": header}
    with httpx.Client(base_url=url, headers=headers, trust_env=False) as client:
        routes = client.get("/openapi.json").json()["paths"]
        assert len(routes) > 10
        for path, methods in routes.items():
            if not path.startswith("/v1/"):
                continue
            for method in methods:
                response = client.request(method, path)
                assert response.status_code == 401, (method, path)
                assert response.json()["error"]["code"] == code
                assert response.headers["www-authenticate"] == "Bearer"


def test_health_is_open(url: str) -> None:
    assert httpx.get(f"{url}/healthz").json() == {"status": "ok"}
    assert httpx.get(f"{url}/readyz").status_code == 200
    assert httpx.get(f"{url}/metrics").status_code == 200


def test_a_fresh_key_works_at_once_and_a_revoked_one_not_after_a_refresh(harness: Harness, http: httpx.Client) -> None:
    with harness.db.write() as tx:
        key_id, plaintext = keys.create(tx, "acme", "late", False)
    headers = {"Authorization": f"Bearer {plaintext}"}
    assert http.get("/v1/models", headers=headers).status_code == 200
    with harness.db.write() as tx:
        keys.revoke(tx, key_id)
    harness.api.keyring.refresh()
    assert http.get("/v1/models", headers=headers).status_code == 401


def test_known_keys_stay_good_while_the_database_is_away(tmp_path: object, sqlite_database: Database) -> None:
    with sqlite_database.write() as tx:
        key_id, plaintext = keys.create(tx, "acme", "ci", False)
    ring = KeyRing(sqlite_database, settings_key=None, settings_tenant="default")
    ring.refresh()
    with sqlite_database.write() as tx:
        tx.execute(text("ALTER TABLE api_keys RENAME TO away"))
    with pytest.raises(StoreUnavailable):
        ring.refresh()
    caller = ring.known(keys.hash_key(plaintext))
    assert caller is not None and (caller.tenant, caller.api_key_id) == ("acme", key_id)


def test_a_wrong_key_costs_one_query_only(sqlite_database: Database) -> None:
    ring = KeyRing(sqlite_database, settings_key=None, settings_tenant="default")
    assert ring.find("unknown") is None
    with sqlite_database.write() as tx:
        tx.execute(text("ALTER TABLE api_keys RENAME TO away"))
    assert ring.find("unknown") is None  # remembered: no query, so no error


def test_a_flood_of_made_up_keys_asks_the_database_seldom(sqlite_database: Database) -> None:
    now = [1000.0]
    ring = ring_of(sqlite_database, now)
    for number in range(20):
        assert ring.find(f"made-up-{number}") is None
    with pytest.raises(Unavailable, match="too many unknown API keys") as refused:
        ring.find("made-up-20")
    assert refused.value.retry_after_s == 2.0
    now[0] += 1
    assert ring.find("made-up-20") is None


def test_the_key_of_the_settings_needs_no_row(sqlite_database: Database) -> None:
    ring = KeyRing(sqlite_database, settings_key="secret", settings_tenant="team")
    ring.refresh()
    caller = ring.known(keys.hash_key("secret"))
    assert caller is not None and (caller.tenant, caller.api_key_id) == ("team", None)
    assert caller.scopes == keys.USUAL_SCOPES  # whoever may set it is not yet an administrator


def test_an_open_address_needs_a_key_of_its_own() -> None:
    for host in ("127.0.0.1", "127.8.0.1", "::1", "[::1]", "localhost"):
        assert is_loopback(host)
        check_exposure(host, has_shared_key=False)
    for host in ("0.0.0.0", "::", "10.0.0.5", "host.example"):
        assert not is_loopback(host)
        with pytest.raises(ConfigError, match="carbonq keys create"):
            check_exposure(host, has_shared_key=False)
        check_exposure(host, has_shared_key=True)


def ring_of(database: Database, now: list[float]) -> KeyRing:
    made = KeyRing(database, settings_key=None, settings_tenant="default", monotonic=lambda: now[0])
    made.refresh()
    return made


def test_a_key_ends_by_the_monotonic_clock_also_while_the_database_is_away(database: Database) -> None:
    now = [1000.0]
    with database.write() as tx:
        _, secret = keys.create(tx, "acme", "ci", False, expires_at=machine_now(tx) + timedelta(seconds=60))
        sha = keys.hash_key(secret)
    asking = KeyRing(database, settings_key=None, settings_tenant="default", monotonic=lambda: now[0])
    rings = [ring_of(database, now), asking]
    assert asking.find(sha) is not None
    now[0] += 59
    assert all(ring.known(sha) is not None for ring in rings)
    now[0] += 1
    assert all(ring.known(sha) is None for ring in rings)


def test_both_secrets_of_a_rotated_key_open_the_same(database: Database) -> None:
    now = [1000.0]
    key, first = key_service.create(database, "acme", "ci", actor="anna@host", scopes=frozenset({Scope.READ}))
    _, second = key_service.rotate(database, key.key_id, overlap=timedelta(hours=1), actor="anna@host")
    ring = ring_of(database, now)
    callers = [ring.known(keys.hash_key(secret)) for secret in (first, second)]
    assert callers[0] == callers[1]
    assert callers[0] is not None and (callers[0].api_key_id, callers[0].scopes) == (key.key_id, {Scope.READ})
    now[0] += 3600
    assert ring.known(keys.hash_key(first)) is None
    assert ring.known(keys.hash_key(second)) is not None


def test_a_hash_is_compared_to_its_last_digit(database: Database) -> None:
    with database.write() as tx:
        _, secret = keys.create(tx, "acme", "ci", False)
    ring, sha = ring_of(database, [0.0]), keys.hash_key(secret)
    assert ring.known(sha) is not None
    assert ring.known(sha[:16] + "0" * 48) is None  # found by its beginning, refused by the rest


def test_last_uses_are_written_together_and_later(database: Database) -> None:
    now = [1000.0]
    with database.write() as tx:
        made = [keys.create(tx, "acme", "ci", False) for _ in range(3)]
    ring = ring_of(database, now)
    for _, secret in made[:2]:
        caller = ring.known(keys.hash_key(secret))
        assert caller is not None
        ring.note_use(caller)
    now[0] += 30
    assert not any(last_uses(database).values())  # nothing on the way of a request
    ring.write_uses()
    used = last_uses(database)
    first, second, third = (used[key_id] for key_id, _ in made)
    assert third is None and first is not None and first == second
    with database.read() as tx:
        assert 29 < (machine_now(tx) - first).total_seconds() < 35  # when it was used, not when it was written
    ring.write_uses()
    assert last_uses(database) == used


def last_uses(database: Database) -> dict[str, datetime | None]:
    with database.read() as tx:
        return {key.key_id: key.last_used_at for key in keys.page(tx)}


def test_uses_that_cannot_be_written_are_written_later(sqlite_database: Database) -> None:
    with sqlite_database.write() as tx:
        key_id, secret = keys.create(tx, "acme", "ci", False)
    ring = ring_of(sqlite_database, [0.0])
    caller = ring.known(keys.hash_key(secret))
    assert caller is not None
    ring.note_use(caller)
    with sqlite_database.write() as tx:
        tx.execute(text("ALTER TABLE api_keys RENAME TO away"))
    with pytest.raises(StoreUnavailable):
        ring.write_uses()
    with sqlite_database.write() as tx:
        tx.execute(text("ALTER TABLE away RENAME TO api_keys"))
    ring.write_uses()
    assert last_uses(sqlite_database)[key_id] is not None


def test_a_secret_is_in_no_answer_and_no_log(http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = "cq_hush-hush-nobody-may-see-this"
    for path in ("/v1/jobs", "/v1/jobs/none", "/v1/embeddings", "/v1/none"):
        for method in ("GET", "POST"):
            answer = http.request(method, path, headers={"Authorization": f"Bearer {wrong}"})
            assert wrong not in answer.text + repr(answer.headers)
    assert wrong not in caplog.text
    assert keys.hash_key(wrong) not in caplog.text


def test_a_keys_defaults_reach_its_work(harness: Harness, url: str) -> None:
    defaults = {"product_line": "search", "workload": "nightly"}
    _, secret = key_service.create(harness.db, "acme", "ci", actor="anna@host", defaults=defaults)
    call = {"model": EMBEDDER, "input": "x", "carbon": {"workload": "now"}}
    answer = httpx.post(f"{url}/v1/embeddings", json=call, headers={"Authorization": f"Bearer {secret}"})
    assert answer.status_code == 200, answer.text
    _, payload = harness.tickets.realtime_calls[-1]
    assert (payload["product_line"], payload["workload"]) == ("search", "now")
