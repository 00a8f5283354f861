"""/v1/budgets: set, shown, removed; exact grams; what is wrong is named; nobody sees another's."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx
import openai
import pytest

from carbonq import client, events
from carbonq.api import problems
from carbonq.api.app import create_app
from carbonq.client import answers
from carbonq.clock import ClockKind, GridClock
from carbonq.errors import CarbonBudgetExceeded, Forbidden, InvalidRequest, NotFound
from carbonq.model import Scope
from carbonq.services import budget as core
from carbonq.services import budget_alarms, budgets_admin
from carbonq.services.budget_alarms import Thresholds
from carbonq.services.budget_room import Gate
from carbonq.services.deliver import Deliverer
from carbonq.store import admin_log, clocks, keys
from tests.api import batching
from tests.api.harness import Harness
from tests.api.inprocess import in_process
from tests.api.test_contract import strays
from tests.api.test_ledger import book
from tests.services.test_deliver import Receivers

pytestmark = pytest.mark.timeout(60)

Json = dict[str, Any]

SEARCH: Json = {"level": "product_line", "name": "=search", "cap_g": "5000"}


def run_clock(harness: Harness) -> None:
    """Write the clock of the installation: budgets count the entries of its kind only."""
    with harness.db.write() as tx:
        clocks.ensure(tx, GridClock(datetime.now(UTC), harness.clock.now(), 1.0, ClockKind.SIMULATED))


@pytest.fixture
def key(harness: Harness) -> str:
    """A key of tenant acme that may do everything."""
    run_clock(harness)
    with harness.db.write() as tx:
        return keys.create(tx, "acme", "ops", False, scopes=frozenset(Scope))[1]


@pytest.fixture
def admin(http: httpx.Client, key: str) -> httpx.Client:
    http.headers["Authorization"] = f"Bearer {key}"
    return http


def put(http: httpx.Client, **fields: Any) -> Json:
    answer = http.put("/v1/budgets", json={**SEARCH, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_budget_is_set_shown_changed_and_removed(harness: Harness, admin: httpx.Client) -> None:
    made = put(admin, book="inventory", action="queue")
    assert made["id"].startswith("bgt_") and (made["period"], made["cap_g"]) == ("month", "5000")
    assert (made["book"], made["action"], made["tenant"]) == ("inventory", "queue", "acme")
    assert made["status"]["started_at"][8:] == "01T00:00:00.000000Z"
    assert (made["status"]["spent_g"], made["status"]["left_g"]) == ("0", "5000")
    assert admin.get("/v1/budgets").json()["data"] == [made] == [admin.get(f"/v1/budgets/{made['id']}").json()]
    harness.clock.advance(3600)
    changed = put(admin, cap_g="0.000000000000001")
    assert changed["cap_g"] == "0.000000000000001", "no digit is lost"
    assert (changed["id"], changed["book"], changed["action"]) == (made["id"], "inventory", "queue"), (
        "what is out stays"
    )
    assert changed["created_at"] == made["created_at"] and changed["updated_at"] > made["updated_at"]
    gone = admin.delete(f"/v1/budgets/{made['id']}")
    assert gone.json() == {"id": made["id"], "object": "budget.deleted", "deleted": True}
    assert admin.get(f"/v1/budgets/{made['id']}").status_code == 404
    assert admin.delete(f"/v1/budgets/{made['id']}").status_code == 404
    with harness.db.read() as tx:
        done = admin_log.page(tx, tenant="acme", action="budget", limit=10)
    assert [one.action for one in done] == ["budget.removed", "budget.set", "budget.set"]
    assert done[1].before is not None and done[1].after is not None and done[2].before is None
    assert (done[1].before["cap_g"], done[1].after["cap_g"]) == ("5000", "0.000000000000001")


def test_the_largest_cap_is_counted_to_the_last_digit(harness: Harness, admin: httpx.Client) -> None:
    put(admin, cap_g="999999999999.999999999999999")
    book(harness, "eb_1", tenant="acme")
    now = admin.get("/v1/budgets").json()["data"][0]["status"]
    # As text: sums of Decimal are rounded to 28 digits.
    assert int(now["left_g"].replace(".", "")) + int(now["spent_g"].replace(".", "")) == 10**27 - 1
    assert put(admin, cap_g="1e12")["cap_g"] == "1000000000000"


def test_setting_it_twice_does_nothing_more(harness: Harness, admin: httpx.Client) -> None:
    made = put(admin)
    assert (made["book"], made["action"]) == ("impact", "warn"), "what nobody asked for holds nothing back"
    harness.clock.advance(60)
    again = put(admin, cap_g=5000.0)
    assert (again["id"], again["updated_at"]) == (made["id"], made["updated_at"])
    with harness.db.read() as tx:
        assert len(admin_log.page(tx, tenant="acme", action="budget", limit=10)) == 1


def test_what_the_ledger_has_is_spent_to_the_last_digit(harness: Harness, admin: httpx.Client) -> None:
    put(admin, cap_g="1")
    book(harness, "eb_1", tenant="acme")
    book(harness, "eb_2", tenant="rival")  # of the same product line, and not ours
    entries = admin.get("/v1/ledger").json()["data"]
    (found,) = admin.get("/v1/budgets").json()["data"]
    spent = sum(Decimal(one["emission_g"]) for one in entries)
    assert Decimal(found["status"]["spent_g"]) == spent > 0
    assert Decimal(found["status"]["provisional_g"]) == spent, "nothing of it is settled"
    assert Decimal(found["status"]["left_g"]) == 1 - spent
    other = put(admin, book="inventory", cap_g="1")
    assert (other["status"]["spent_g"], other["status"]["unknown_entries"]) == ("0", len(entries)), "no rate is known"


def test_levels_pages_and_items(admin: httpx.Client) -> None:
    for number in range(5):
        put(admin, level="workload", name=f"w{number}")
    item = put(admin, level="item", name="*", cap_g="0.01")
    assert (item["period"], item["action"]) == ("item", "reject")
    nothing = {name: None for name in item["status"] if name != "waiting_chunks"}
    assert item["status"] == nothing | {"waiting_chunks": 0}, "an item's budget has no period to sum up"
    names: list[str] = []
    page: Json = {"has_more": True, "last_id": None}
    while page["has_more"]:
        asked = {"level": "workload", "limit": 2} | ({"after": page["last_id"]} if page["last_id"] else {})
        page = admin.get("/v1/budgets", params=asked).json()
        names += [one["name"] for one in page["data"]]
    assert names == [f"w{number}" for number in range(5)]
    assert admin.get("/v1/budgets", params={"after": "bgt_none"}).json()["error"]["param"] == "after"
    assert admin.get("/v1/budgets", params={"level": "month"}).status_code == 400


#: What is sent beside a good budget, and the field that is then named. One server for all: starting it takes longest.
WRONG: Sequence[tuple[Mapping[str, Any], str]] = [
    ({"level": "month"}, "level"),
    ({"level": None}, "level"),
    ({"level": ["item"]}, "level"),
    ({"name": None}, "name"),
    ({"name": ""}, "name"),
    ({"name": 7}, "name"),
    ({"name": "x" * 256}, "name"),
    ({"name": "a\nb"}, "name"),
    ({"name": "*"}, "name"),
    ({"cap_g": None}, "cap_g"),
    ({"cap_g": "0"}, "cap_g"),
    ({"cap_g": -1}, "cap_g"),
    ({"cap_g": "-0.5"}, "cap_g"),
    ({"cap_g": True}, "cap_g"),
    ({"cap_g": "NaN"}, "cap_g"),
    ({"cap_g": "Infinity"}, "cap_g"),
    ({"cap_g": "1e99"}, "cap_g"),
    ({"cap_g": "1000000000001"}, "cap_g"),
    ({"cap_g": "١٢"}, "cap_g"),
    ({"cap_g": "1e-16"}, "cap_g"),
    ({"cap_g": "1.0000000000000001"}, "cap_g"),
    ({"cap_g": "5 kg"}, "cap_g"),
    ({"cap_g": ["5"]}, "cap_g"),
    ({"book": "both"}, "book"),
    ({"action": "stop"}, "action"),
    ({"action": {}}, "action"),
    ({"level": "item", "action": "warn"}, "action"),
    ({"colour": "red"}, "colour"),
    ({"tenant": "rival"}, "tenant"),
]


def test_what_is_wrong_is_named_and_changes_nothing(admin: httpx.Client) -> None:
    for fields, param in WRONG:
        answer = admin.put("/v1/budgets", json={**SEARCH, **fields})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), (fields, answer.text)
    assert admin.get("/v1/budgets").json()["data"] == []
    assert admin.put("/v1/budgets", content=b"[1]").json()["error"]["code"] == "invalid_json"


def test_any_printable_name_is_one(admin: httpx.Client) -> None:
    names = ["a/b", "..", "*x", "Zürich 🌍", "=1+1", "%2e", "x" * 255, "'; DROP TABLE budgets; --"]
    made = [put(admin, name=name)["id"] for name in names]
    assert {one["name"] for one in admin.get("/v1/budgets").json()["data"]} == set(names)
    assert all(admin.delete(f"/v1/budgets/{one}").status_code == 200 for one in made)


def test_a_tenants_budgets_are_its_own_and_changing_needs_admin(harness: Harness, admin: httpx.Client) -> None:
    made = put(admin)
    path = f"/v1/budgets/{made['id']}"
    rival, usual = harness.headers("rival"), harness.headers()
    assert admin.get(path, headers=rival).status_code == 404
    assert admin.get("/v1/budgets", headers=rival).json()["data"] == []
    for headers in (rival, usual):
        assert admin.put("/v1/budgets", headers=headers, json=SEARCH).status_code == 403
        assert admin.delete(path, headers=headers).status_code == 403
    assert admin.get(path, headers=usual).json() == made
    with harness.db.write() as tx:
        _, theirs = keys.create(tx, "rival", "ops", False, scopes=frozenset(Scope))
    boss = {"Authorization": f"Bearer {theirs}"}
    assert admin.delete(path, headers=boss).status_code == 404
    other = admin.put("/v1/budgets", headers=boss, json={**SEARCH, "cap_g": "7"}).json()
    assert other["id"] != made["id"] and admin.get(path).json()["cap_g"] == "5000"


def test_there_is_a_limit(harness: Harness, admin: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets_admin, "MAX_BUDGETS", 2)
    put(admin, name="a")
    put(admin, name="b")
    refused = admin.put("/v1/budgets", json={**SEARCH, "name": "c"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "too_many_budgets")
    assert put(admin, name="b", cap_g="7")["cap_g"] == "7", "one that is there may change"


def test_many_that_set_one_at_once_make_one(harness: Harness, admin: httpx.Client) -> None:
    made: list[Json] = []

    def set_to(number: int) -> None:
        made.append(put(admin, cap_g=str(number)))

    threads = [threading.Thread(target=set_to, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(made) == 8 and len({one["id"] for one in made}) == 1
    (found,) = admin.get("/v1/budgets").json()["data"]
    assert found["cap_g"] in {str(number) for number in range(1, 9)}


def test_answers_are_as_described(harness: Harness, key: str) -> None:
    app = create_app(harness.api, background=[])
    document = app.openapi()
    with in_process(app, {"Authorization": f"Bearer {key}"}) as near:
        for body in (SEARCH, {**SEARCH, "level": "item", "name": "*"}, {**SEARCH, "cap_g": 0.5, "level": "workload"}):
            made = near.ask("PUT", "/v1/budgets", body=json.dumps(body).encode())
            assert made.status == 200 and not strays(document, "PUT", "/v1/budgets", made), made.body
        budget_id = made.json()["id"]
        for method, path in (("GET", ""), ("GET", "/{budget_id}"), ("DELETE", "/{budget_id}"), ("GET", "/{budget_id}")):
            answer = near.ask(method, f"/v1/budgets{path}".format(budget_id=budget_id))
            assert not strays(document, method, f"/v1/budgets{path}", answer), answer.body
        wrong = near.ask("PUT", "/v1/budgets", body=b"{}")
        assert wrong.status == 400 and not strays(document, "PUT", "/v1/budgets", wrong)


def test_the_client_sets_shows_and_removes(harness: Harness, url: str, key: str) -> None:
    with client.Client(url, key) as carbonq:
        made = carbonq.set_budget(level="workload", name="nightly", cap_g=Decimal("0.1"), action="reject")
        assert (made.cap_g, made.action, made.status.left_g) == (Decimal("0.1"), "reject", Decimal("0.1"))
        carbonq.set_budget(level="item", name="*", cap_g=0.1)
        assert [one.level for one in carbonq.budgets()] == ["item", "workload"]
        (found,) = carbonq.budgets(level="workload")
        assert found == made.model_copy(update={"status": found.status})
        assert found.status.ends_at is not None and found.status.started_at is not None
        assert found.status.ends_at - found.status.started_at == timedelta(days=1)
        carbonq.remove_budget(found.id)
        with pytest.raises(NotFound):
            carbonq.remove_budget(found.id)
        with pytest.raises(InvalidRequest) as wrong:
            carbonq.set_budget(level="workload", name="nightly", cap_g="0")
        assert wrong.value.param == "cap_g"
    with client.Client(url, harness.acme) as usual, pytest.raises(Forbidden):
        usual.set_budget(level="workload", name="nightly", cap_g=1)


def test_alarms_come_by_stream_and_webhook(harness: Harness, admin: httpx.Client, url: str, key: str) -> None:
    """From the ledger to whoever listens: what is booked uses the budget up, and the tenant is told."""
    hook = {"url": "https://example.com/hook", "event_types": list(events.BUDGET)}
    assert admin.post("/v1/webhooks", json=hook).status_code == 200
    other = {**hook, "url": "https://example.org/jobs", "event_types": ["job.completed"]}
    assert admin.post("/v1/webhooks", json=other).status_code == 200
    made = put(admin, cap_g="0.00001")
    book(harness, "eb_1", tenant="acme")
    now = harness.clock.now()
    assert budget_alarms.tell(harness.db, now, core.statuses(harness.db, now), Thresholds()) == 1
    with client.Client(url, key) as carbonq:
        event = next(iter(carbonq.events(after=0)))
    assert (event.type, event.data["id"], event.created_at) == ("budget.exhausted", made["id"], now)
    assert Decimal(event.data["left_g"]) < 0
    receivers = Receivers()
    deliverer = Deliverer(harness.db, receivers, harness.clock)
    deliverer.run()
    assert deliverer.wait_idle(20)
    assert receivers.got == [(hook["url"], event.id, "budget.exhausted")], "whoever asked for it, and nobody else"


def refusal(**changes: Any) -> CarbonBudgetExceeded:
    given: Json = {
        "budget_id": "bgt_1",
        "cap_g": Decimal("5000"),
        "spent_g": Decimal("4999.000000000000001"),
        "reserved_g": Decimal("0.5"),
        "adds_g": Decimal("1"),
        "ends_at": datetime(2026, 4, 1, tzinfo=UTC),
    }
    return CarbonBudgetExceeded("no room", **{**given, **changes})


@pytest.mark.parametrize("changes", [{}, {"adds_g": None}, {"ends_at": None, "line": 7}])
def test_a_refusal_comes_back_as_it_went_out(changes: Json) -> None:
    error = refusal(**changes)
    sent = problems.answer(error, "/v1/jobs")
    assert sent.status_code == 403
    assert json.loads(bytes(sent.body))["cap_g"] == "5000", "for those who read RFC 9457's members, too"
    back = answers.problem(answers.Answer("u", sent.status_code, dict(sent.headers), bytes(sent.body)))
    assert isinstance(back, CarbonBudgetExceeded)
    assert vars(back) == vars(error) | {"request_id": None}


def test_a_batch_that_a_budget_refuses_is_told_as_the_openai_sdk_knows_it(
    harness: Harness, admin: httpx.Client, url: str, key: str
) -> None:
    put(admin, cap_g="0.00001", action="reject")
    book(harness, "eb_1", tenant="acme")
    gate = Gate(harness.db, harness.clock, harness.api.models, max_stale_s=7200.0)
    created = batching.create(admin, batching.line(), headers={"X-Carbonq-Product-Line": "=search"})
    batching.read_inputs(harness, gate=gate)
    with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as sdk:
        batch = sdk.batches.retrieve(created["id"])
    assert batch.status == "failed" and batch.errors is not None and batch.errors.data is not None
    (error,) = batch.errors.data
    assert error.code == "carbon_budget_exceeded" and "have the cap raised" in (error.message or "")
    other = batching.create(admin, batching.line(), headers={"X-Carbonq-Product-Line": "other"})
    batching.read_inputs(harness, gate=gate)
    assert batching.look(admin, other)["status"] == "in_progress", "a budget is for its own product line"
