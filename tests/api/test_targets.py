"""/v1/targets: set, shown, removed; exact grams; what is wrong is named; nobody sees another's."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import httpx
import pytest

from carbonq import events as kinds
from carbonq.api.app import create_app
from carbonq.model import Scope
from carbonq.services import targets, targets_admin
from carbonq.store import admin_log, events, keys
from carbonq.units import plain
from tests.api.harness import Harness
from tests.api.inprocess import in_process, mighty
from tests.api.test_contract import strays
from tests.api.test_ledger import book

pytestmark = pytest.mark.timeout(60)

Json = dict[str, Any]


@pytest.fixture
def admin(harness: Harness, http: httpx.Client) -> httpx.Client:
    with harness.db.write() as tx:
        _, key = keys.create(tx, "acme", "ops", False, scopes=frozenset(Scope))
    http.headers["Authorization"] = f"Bearer {key}"
    return http


def put(http: httpx.Client, **fields: Any) -> Json:
    answer = http.put("/v1/targets", json={"g_per_1k_tokens": "0.5", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_target_from_beginning_to_end(harness: Harness, admin: httpx.Client) -> None:
    made = put(admin, model="wordllama-256")
    assert made["id"].startswith("tgt_") and made["object"] == "target"
    assert (made["tenant"], made["model"], made["book"]) == ("acme", "wordllama-256", "impact")
    assert made["status"]["value"] is None and made["status"]["state"] == "unknown"
    entry_ids = book(harness, "eb_1", tenant="acme")
    book(harness, "eb_2", tenant="rival")
    targets.tick(harness.db, harness.clock)
    grams = [Decimal(admin.get(f"/v1/ledger/{one}").json()["emission_g"]) for one in entry_ids]
    found = admin.get(f"/v1/targets/{made['id']}").json()
    now = found["status"]
    assert Decimal(now["grams"]) == sum(grams) and now["provisional_share"] == 1.0
    assert Decimal(now["value"]) == round(sum(grams) * 1_000 / now["tokens"], 15)
    assert now["forecast"]["ran_tokens"] == now["tokens"] and now["forecast"]["method"]
    assert admin.get("/v1/targets").json()["data"] == [found]
    again = put(admin, model="wordllama-256", g_per_1k_tokens=0.1, book="inventory")
    assert (again["id"], again["g_per_1k_tokens"], again["book"]) == (made["id"], "0.1", "inventory")
    assert again["status"]["unknown_entries"] == len(entry_ids)  # there is no average rate
    gone = admin.delete(f"/v1/targets/{made['id']}").json()
    assert gone == {"id": made["id"], "object": "target.deleted", "deleted": True}
    assert admin.get(f"/v1/targets/{made['id']}").status_code == 404
    with harness.db.read() as tx:
        actions = [one.action for one in admin_log.page(tx, tenant="acme", action="target")]
    assert actions == ["target.removed", "target.set", "target.set"]


def test_a_list_has_pages_and_is_the_callers_alone(harness: Harness, admin: httpx.Client) -> None:
    for model in ("b", None, "a"):
        put(admin, model=model)
    targets_admin.set_target(harness.db, harness.clock, "rival", g_per_1k_tokens="1", actor="me")
    first = admin.get("/v1/targets", params={"limit": 2}).json()
    assert [one["model"] for one in first["data"]] == [None, "a"] and first["has_more"]
    rest = admin.get("/v1/targets", params={"limit": 2, "after": first["last_id"]}).json()
    assert [one["model"] for one in rest["data"]] == ["b"] and not rest["has_more"]
    assert admin.get("/v1/targets", params={"after": "tgt_none"}).status_code == 400


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "g_per_1k_tokens"),
        ({"g_per_1k_tokens": None}, "g_per_1k_tokens"),
        ({"g_per_1k_tokens": True}, "g_per_1k_tokens"),
        ({"g_per_1k_tokens": "0"}, "g_per_1k_tokens"),
        ({"g_per_1k_tokens": "1e-16"}, "g_per_1k_tokens"),
        ({"g_per_1k_tokens": "0.5", "book": "both"}, "book"),
        ({"g_per_1k_tokens": "0.5", "model": ""}, "model"),
        ({"g_per_1k_tokens": "0.5", "model": 7}, "model"),
        ({"g_per_1k_tokens": "0.5", "tenant": "rival"}, "tenant"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_kept(admin: httpx.Client, body: Json, param: str) -> None:
    answer = admin.put("/v1/targets", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert admin.get("/v1/targets").json()["data"] == []


def test_as_many_as_a_tenant_may_have(admin: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets_admin, "MAX_TARGETS", 1)
    put(admin)
    answer = admin.put("/v1/targets", json={"g_per_1k_tokens": "1", "model": "a"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "too_many_targets")


def test_answers_are_as_described(harness: Harness) -> None:
    app = create_app(harness.api, background=[])
    document = app.openapi()
    with in_process(app, mighty(harness)) as near:
        made = near.ask("PUT", "/v1/targets", body=b'{"g_per_1k_tokens": "0.5"}')
        assert not strays(document, "PUT", "/v1/targets", made)
        book(harness, "eb_1", tenant="acme")
        targets.tick(harness.db, harness.clock)
        one = f"/v1/targets/{made.json()['id']}"
        for path, asked in (("/v1/targets", "/v1/targets"), ("/v1/targets/{target_id}", one)):
            assert not strays(document, "GET", path, near.ask("GET", asked))
        assert not strays(document, "DELETE", "/v1/targets/{target_id}", near.ask("DELETE", one))


def test_an_alarm_reaches_whoever_listens(harness: Harness, admin: httpx.Client) -> None:
    made = put(admin)
    book(harness, "eb_1", tenant="acme")
    targets.tick(harness.db, harness.clock)
    value = Decimal(admin.get(f"/v1/targets/{made['id']}").json()["status"]["value"])
    put(admin, g_per_1k_tokens=plain(round(value * Decimal("0.9"), 12)))
    targets.tick(harness.db, harness.clock)
    with harness.db.read() as tx:
        (event,) = (one for one in events.between(tx, 0, 10**6, limit=100) if one.type in kinds.TARGET)
        told = events.told(event)
    assert (event.type, event.tenant, told["id"]) == ("target.at_risk", "acme", made["id"])
    assert set(kinds.TARGET) <= set(kinds.DELIVERABLE)
    hook = {"url": "https://93.184.215.14/hook", "event_types": list(kinds.TARGET)}
    assert admin.post("/v1/webhooks", json=hook).status_code == 200
