"""Keys: none, wrong, revoked, cached, and the database away."""

from __future__ import annotations

import httpx
import pytest
from sqlalchemy import text

from carbonq.api.auth import KeyRing, check_exposure, is_loopback
from carbonq.errors import ConfigError, StoreUnavailable
from carbonq.store import keys
from carbonq.store.database import Database
from tests.api.harness import Harness


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
    routes = httpx.get(f"{url}/openapi.json").json()["paths"]
    assert len(routes) > 10
    for path, methods in routes.items():
        if not path.startswith("/v1/"):
            continue
        for method in methods:
            response = httpx.request(method, url + path, headers=headers)
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


def test_the_key_of_the_settings_needs_no_row(sqlite_database: Database) -> None:
    ring = KeyRing(sqlite_database, settings_key="secret", settings_tenant="team")
    ring.refresh()
    caller = ring.known(keys.hash_key("secret"))
    assert caller is not None and (caller.tenant, caller.api_key_id) == ("team", None)


def test_an_open_address_needs_a_key_of_its_own() -> None:
    for host in ("127.0.0.1", "127.8.0.1", "::1", "[::1]", "localhost"):
        assert is_loopback(host)
        check_exposure(host, has_shared_key=False)
    for host in ("0.0.0.0", "::", "10.0.0.5", "host.example"):
        assert not is_loopback(host)
        with pytest.raises(ConfigError, match="carbonq keys create"):
            check_exposure(host, has_shared_key=False)
        check_exposure(host, has_shared_key=True)
