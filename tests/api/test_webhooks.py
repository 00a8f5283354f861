"""/v1/webhooks: made, changed, rotated, tested; what arrives verifies with OpenAI's SDK and the standard's library."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import openai
import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from carbonq.api.app import create_app
from carbonq.model import Scope
from carbonq.services import webhooks as services
from carbonq.services.deliver import Deliverer
from carbonq.store import admin_log, events, keys
from carbonq.store.events import NewEvent
from carbonq.webhooks.sender import Sender
from tests.api.harness import Harness, serving
from tests.api.inprocess import in_process
from tests.api.test_contract import strays
from tests.store.rows import T0

pytestmark = pytest.mark.timeout(60)

URL = "https://example.com/hook"
SECRET = "whsec_MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0"


@pytest.fixture
def admin(harness: Harness, http: httpx.Client) -> httpx.Client:
    """The client of tenant acme with a key that may change webhooks."""
    with harness.db.write() as tx:
        _, key = keys.create(tx, "acme", "ops", False, scopes=frozenset(Scope))
    http.headers["Authorization"] = f"Bearer {key}"
    return http


def make(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = http.post("/v1/webhooks", json={"url": URL, **fields})
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


def test_an_endpoint_is_made_shown_changed_and_deleted(harness: Harness, admin: httpx.Client) -> None:
    made = make(admin)
    secret = made.pop("signing_secret")
    assert secret.startswith("whsec_") and secret.endswith(made["signing_secret_hint"][-5:])
    assert (made["object"], made["name"], made["state"]) == ("webhook_endpoint", "example.com", "enabled")
    assert "batch.completed" in made["event_types"] and "job.created" not in made["event_types"]
    path = f"/v1/webhooks/{made['id']}"
    assert admin.get(path).json() == made
    assert secret not in admin.get("/v1/webhooks").text
    changed = admin.post(path, json={"name": "ours", "event_types": ["job.created"], "state": "disabled"}).json()
    assert (changed["name"], changed["event_types"], changed["state"]) == ("ours", ["job.created"], "disabled")
    assert changed["url"] == URL
    assert admin.post(path, json={}).status_code == 400
    refused = admin.post(f"{path}/test")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "webhook_disabled")
    assert admin.delete(path).json() == {"id": made["id"], "object": "webhook_endpoint.deleted", "deleted": True}
    assert admin.get(path).status_code == 404
    with harness.db.read() as tx:
        done = admin_log.page(tx, tenant="acme", limit=10)
    assert [one.action for one in done] == ["webhook.deleted", "webhook.changed", "webhook.created"]
    assert secret not in str(done)


def test_a_tenants_endpoints_are_its_own_and_changing_needs_admin(harness: Harness, admin: httpx.Client) -> None:
    path = f"/v1/webhooks/{make(admin)['id']}"
    rival = harness.headers("rival")
    for method, rest in (("GET", ""), ("GET", "/deliveries"), ("GET", "/deliveries/evt_1")):
        assert admin.request(method, path + rest, headers=rival).status_code == 404
    assert admin.get("/v1/webhooks", headers=rival).json()["data"] == []
    usual = harness.headers()
    for method, rest in (("POST", ""), ("DELETE", ""), ("POST", "/rotate_secret"), ("POST", "/test")):
        assert admin.request(method, path + rest, headers=usual, json={}).status_code == 403
    assert admin.get(path, headers=usual).status_code == 200


#: What is sent beside a good URL, and the field that is then named. One server for all: starting it takes longest.
WRONG: Sequence[tuple[Mapping[str, Any], str]] = [
    ({"url": "http://example.com/"}, "url"),
    ({"url": "https://user:pass@example.com/"}, "url"),
    ({"url": "https://example.com/#x"}, "url"),
    ({"url": "ftp://example.com/"}, "url"),
    ({"url": "https:///x"}, "url"),
    ({"url": "https://[::1"}, "url"),
    ({"url": "https://example.com:99999/"}, "url"),
    ({"url": "https://exämple.com/"}, "url"),
    ({"url": "https://127.0.0.1/"}, "url"),
    ({"url": "https://[::ffff:10.0.0.1]/"}, "url"),
    ({"url": "https://169.254.169.254/latest"}, "url"),
    ({"url": "https://localhost/"}, "url"),
    ({"url": "https://example.com/" + "x" * 2029}, "url"),
    ({"url": None}, "url"),
    ({"url": 7}, "url"),
    ({"name": ""}, "name"),
    ({"name": "x" * 256}, "name"),
    ({"event_types": []}, "event_types"),
    ({"event_types": ["job.progress"]}, "event_types"),
    ({"event_types": "job.created"}, "event_types"),
    ({"secret": "whsec_short"}, "secret"),
    ({"secret": "whsec_" + "A" * 88}, "secret"),  # 66 bytes
    ({"secret": "no prefix"}, "secret"),
    ({"colour": "red"}, "colour"),
]


def test_what_is_wrong_is_named(admin: httpx.Client) -> None:
    for fields, param in WRONG:
        answer = admin.post("/v1/webhooks", json={"url": URL, **fields})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), fields


def test_what_is_just_allowed_is_taken(admin: httpx.Client) -> None:
    longest = "whsec_" + "A" * 84 + "AA=="  # 64 bytes
    made = make(admin, url="https://example.com/" + "x" * 2028, name="x" * 255, secret=longest)
    assert made["signing_secret"] == longest
    for _ in range(services.MAX_ENDPOINTS - 1):
        make(admin)
    refused = admin.post("/v1/webhooks", json={"url": URL})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "too_many_webhooks")
    page = admin.get("/v1/webhooks", params={"limit": 15}).json()
    rest = admin.get("/v1/webhooks", params={"limit": 15, "after": page["last_id"]}).json()
    assert (page["has_more"], rest["has_more"], len(rest["data"])) == (True, False, 5)
    assert admin.get("/v1/webhooks", params={"after": "wh_none"}).status_code == 400


@dataclass
class Receiver:
    """A real receiver on loopback."""

    url: str
    status: int = 200
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            made.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(made.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made = Receiver(f"http://127.0.0.1:{server.server_port}/hook")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    server.shutdown()
    server.server_close()
    thread.join(10)


@pytest.fixture
def deliverer(harness: Harness) -> Iterator[Deliverer]:
    object.__setattr__(harness.api.limits, "webhooks_may_be_private", True)
    sender = Sender(may_be_private=True)
    yield Deliverer(harness.db, sender, harness.clock)
    sender.close()


def deliver(deliverer: Deliverer) -> None:
    deliverer.run()
    assert deliverer.wait_idle(20)


def test_what_arrives_verifies_with_openais_sdk_and_the_standards_library(
    harness: Harness, admin: httpx.Client, receiver: Receiver, deliverer: Deliverer
) -> None:
    made = make(admin, url=receiver.url, secret=SECRET)
    carbon = {"gco2e": 1.25, "region": "fr"}
    with harness.db.write() as tx:
        done = NewEvent("batch.completed", T0, "acme", data={"id": "batch_1", "carbon": carbon})
        events.append_many(tx, [done, NewEvent("job.failed", T0, "acme", "job_1", {"failed": 3})])
    deliver(deliverer)
    (headers, body), (other_headers, other_body) = receiver.got
    client = openai.OpenAI(api_key="none", webhook_secret=SECRET)
    event = client.webhooks.unwrap(body, headers)
    assert event.type == "batch.completed"
    assert (event.id, event.data.id, event.created_at) == (headers["webhook-id"], "batch_1", int(T0.timestamp()))
    assert event.data.model_extra == {"carbon": carbon}
    told = Webhook(SECRET).verify(other_body, other_headers)
    assert (told["type"], told["data"]) == ("job.failed", {"id": "job_1", "failed": 3})
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.unwrap(body.replace(b"batch_1", b"batch_2"), headers)
    with pytest.raises(WebhookVerificationError):
        Webhook("whsec_" + "A" * 32).verify(body, headers)
    page = admin.get(f"/v1/webhooks/{made['id']}/deliveries").json()
    assert [(one["event_type"], one["state"], one["last_status"]) for one in page["data"]] == [
        ("job.failed", "delivered", 200),
        ("batch.completed", "delivered", 200),
    ]
    one = admin.get(f"/v1/webhooks/{made['id']}/deliveries", params={"after": page["first_id"], "limit": 1}).json()
    assert [each["id"] for each in one["data"]] == [headers["webhook-id"]]


def test_both_secrets_sign_for_a_day(
    harness: Harness, admin: httpx.Client, receiver: Receiver, deliverer: Deliverer
) -> None:
    made = make(admin, url=receiver.url)
    path = f"/v1/webhooks/{made['id']}"
    rotated = admin.post(f"{path}/rotate_secret").json()
    again = admin.post(f"{path}/rotate_secret", json={"secret": SECRET}).json()
    assert again["signing_secret"] == SECRET
    assert admin.post(f"{path}/test").status_code == 202
    deliver(deliverer)
    headers, body = receiver.got[0]
    assert len(headers["webhook-signature"].split()) == 3
    for secret in (made["signing_secret"], rotated["signing_secret"], SECRET):
        assert Webhook(secret).verify(body, headers)["type"] == "webhook.test"
    admin.post(f"{path}/rotate_secret", json={"keep_old_secret_active_for_24_hours": False})
    admin.post(f"{path}/test", json={"event_type": "batch.expired"})
    deliver(deliverer)
    headers, body = receiver.got[1]
    assert len(headers["webhook-signature"].split()) == 1
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(body, headers)
    assert json.loads(body)["type"] == "batch.expired"
    assert json.loads(body)["data"]["is_test"] is True


def test_a_test_nudges_the_tick_and_its_delivery_tells_what_came_of_it(
    harness: Harness, admin: httpx.Client, receiver: Receiver, deliverer: Deliverer
) -> None:
    receiver.status = 500
    path = f"/v1/webhooks/{make(admin, url=receiver.url)['id']}"
    sent = admin.post(f"{path}/test").json()
    assert (sent["state"], sent["attempts"], sent["last_status"]) == ("pending", 0, None)
    deliver(deliverer)
    found = admin.get(f"{path}/deliveries/{sent['id']}").json()
    assert (found["state"], found["attempts"], found["last_status"]) == ("pending", 1, 500)
    assert found["last_error"] == "it answered 500" and found["next_attempt_at"]
    assert admin.get(f"{path}/deliveries", params={"state": "failed"}).json()["data"] == []
    assert admin.get(f"{path}/deliveries", params={"state": "odd"}).status_code == 400
    assert admin.get(f"{path}/deliveries/evt_none").status_code == 404
    assert admin.post(f"{path}/test", json={"event_type": "job.progress"}).status_code == 400


def test_openais_sdk_makes_endpoints(harness: Harness) -> None:
    with harness.db.write() as tx:
        _, key = keys.create(tx, "acme", "ops", False, scopes=frozenset(Scope))
    with serving(harness.api) as url, openai.OpenAI(base_url=f"{url}/v1", api_key=key) as client:
        made = client.webhooks.create(name="ours", url=URL, event_types=["batch.completed", "batch.failed"])
        assert made.signing_secret.startswith("whsec_")
        assert [one.id for one in client.webhooks.list()] == [made.id]
        changed = client.webhooks.update(made.id, name="theirs")
        assert (changed.name, changed.event_types) == ("theirs", ["batch.completed", "batch.failed"])
        assert client.webhooks.rotate_secret(made.id).signing_secret != made.signing_secret
        assert client.webhooks.delete(made.id).deleted
        with pytest.raises(openai.NotFoundError):
            client.webhooks.retrieve(made.id)


def test_answers_are_as_described(harness: Harness) -> None:
    app = create_app(harness.api, background=[])
    document = app.openapi()
    with harness.db.write() as tx:
        _, key = keys.create(tx, "acme", "ops", False, scopes=frozenset(Scope))
    example = document["paths"]["/v1/webhooks"]["post"]["requestBody"]["content"]["application/json"]["example"]
    with in_process(app, {"Authorization": f"Bearer {key}"}) as near:

        def ask(method: str, template: str, body: Any = None, **ids: str) -> dict[str, Any]:
            raw = b"" if body is None else json.dumps(body).encode()
            answer = near.ask(method, template.format(**ids), body=raw, headers={"Content-Type": "application/json"})
            assert not strays(document, method, template, answer), f"{method} {template}"
            assert answer.status < 300
            value: dict[str, Any] = answer.json()
            return value

        one = "/v1/webhooks/{webhook_id}"
        webhook_id = ask("POST", "/v1/webhooks", example)["id"]
        message_id = ask("POST", f"{one}/test", webhook_id=webhook_id)["id"]
        for path in ("/v1/webhooks", "/v1/webhook_endpoints", one, f"{one}/deliveries"):
            ask("GET", path, webhook_id=webhook_id)
        ask("GET", f"{one}/deliveries/{{message_id}}", webhook_id=webhook_id, message_id=message_id)
        ask("POST", one, {"state": "disabled"}, webhook_id=webhook_id)
        ask("POST", f"{one}/rotate_secret", webhook_id=webhook_id)
        ask("DELETE", one, webhook_id=webhook_id)
