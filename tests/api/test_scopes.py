"""What each key may do: every route asks for a scope, and only keys that have it pass."""

from __future__ import annotations

import itertools

import httpx
import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from carbonq.api import app
from carbonq.api.auth import scopes_of
from carbonq.model import Scope
from carbonq.store import keys
from tests.api.harness import Harness


def asked(dependant: Dependant) -> list[tuple[Scope, ...]]:
    """Return what the scope checks of a route ask for."""
    found = [scopes for one in dependant.dependencies if (scopes := scopes_of(one.call)) is not None]
    return found + [scopes for one in dependant.dependencies for scopes in asked(one)]


def routes() -> list[tuple[str, str, tuple[Scope, ...]]]:
    """Return every method and path of the API with the scopes of which one is enough."""
    found: list[tuple[str, str, tuple[Scope, ...]]] = []
    for route in itertools.chain.from_iterable(router.routes for router in app._ROUTERS):
        assert isinstance(route, APIRoute)
        checks = asked(route.dependant)
        assert len(checks) == (1 if route.path.startswith("/v1/") else 0), (route.path, checks)
        for method in sorted(route.methods):
            path = route.path.replace(":path}", "}")  # a name that may have slashes
            found += [(method, path, scopes) for scopes in checks]
    return found


def test_a_key_opens_the_routes_of_its_scopes_only(harness: Harness, url: str) -> None:
    every = routes()
    described = {
        (method.upper(), path)
        for path, methods in httpx.get(f"{url}/openapi.json").json()["paths"].items()
        for method in methods
        if path.startswith("/v1/")
    }
    assert {(method, path) for method, path, _ in every} == described  # none is served past the check above
    assert {scope for _, _, scopes in every for scope in scopes} == set(Scope)
    with harness.db.write() as tx:
        secrets = {scope: keys.create(tx, "acme", scope, False, scopes=frozenset({scope}))[1] for scope in Scope}
    with httpx.Client(base_url=url, trust_env=False, timeout=30) as client:
        for method, path, scopes in every:
            for scope, secret in secrets.items():
                if scope in scopes:
                    continue  # what happens then is for the tests of the route
                response = client.request(method, path, headers={"Authorization": f"Bearer {secret}"})
                assert response.status_code == 403, (method, path, scope)
                body = response.json()
                assert body["error"]["code"] == "insufficient_scope"
                assert body["scopes"] == list(scopes)
                assert all(one in body["detail"] for one in scopes)
                assert 'error="insufficient_scope"' in response.headers["www-authenticate"]


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "/v1/jobs", Scope.READ),
        ("GET", "/v1/ledger.csv", Scope.EXPORT),
        ("GET", "/v1/admin/log", Scope.ADMIN),
        ("GET", "/v1/models", Scope.SUBMIT),
    ],
)
def test_the_scope_is_enough(harness: Harness, url: str, method: str, path: str, scope: Scope) -> None:
    with harness.db.write() as tx:
        _, secret = keys.create(tx, "acme", "one", False, scopes=frozenset({scope}))
    response = httpx.request(method, url + path, headers={"Authorization": f"Bearer {secret}"})
    assert response.status_code == 200, response.text


def test_a_usual_key_and_one_from_before_scopes_may_do_all_but_admin(harness: Harness, url: str) -> None:
    response = httpx.get(f"{url}/v1/admin/log", headers=harness.headers())
    assert (response.status_code, response.json()["error"]["code"]) == (403, "insufficient_scope")
    for path in ("/v1/jobs", "/v1/ledger", "/v1/models"):
        assert httpx.get(url + path, headers=harness.headers()).status_code == 200
