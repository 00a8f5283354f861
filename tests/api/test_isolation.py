"""Invariant 8: nothing outside a tenant's key can read, list or guess what is the tenant's.

Every route of /openapi.json is tried with another tenant's ids wherever an id can stand: in the path, the query,
headers and bodies. What belongs to somebody else must be answered like what does not exist, to the last word. A route
with a parameter that is neither named below as an id nor as no id fails the first test.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpx_sse import EventSource

from carbonq.model import ItemState
from carbonq.services import admin
from carbonq.store import admin_log, keys
from carbonq.testing import FAKE_EPOCH
from tests.api import batching
from tests.api.harness import Harness, build_harness, serving
from tests.api.test_jobs import chunk_up, finish, submit
from tests.api.test_ledger import book
from tests.databases import opened

#: Names of parameters that hold ids, and of what. ``after`` is the id of whatever the route lists.
IDS = {
    "api_key_id": "key",
    "batch_id": "batch",
    "budget_id": "budget",
    "entry_id": "entry",
    "file_id": "file",
    "input_file_id": "file",
    "job_id": "job",
    "message_id": "message",
    "target_id": "target",
    "webhook_id": "webhook",
}

#: What a list is of, so that ``after`` is one of it; None: of things that are everybody's.
LISTS = {
    "/v1/admin/log": "log",
    "/v1/batches": "batch",
    "/v1/budgets": "budget",
    "/v1/files": "file",
    "/v1/forecasts/issues": None,
    "/v1/jobs": "job",
    "/v1/jobs/{job_id}/chunks": "chunk",
    "/v1/jobs/{job_id}/items": "custom",
    "/v1/jobs/{job_id}/why": "chunk",
    "/v1/ledger": "entry",
    "/v1/ledger.csv": "entry",
    "/v1/targets": "target",
    "/v1/webhook_endpoints": "webhook",
    "/v1/webhooks": "webhook",
    "/v1/webhooks/{webhook_id}/deliveries": "message",
}

#: Parameters and fields that name nobody's things.
_NO_IDS = """
    action as_of at book cap_g carbon clock completion_window deadline downgrade encoding_format endpoint
    event_type event_types expires_after file format from g_per_1k_tokens head header hours input items
    keep_old_secret_active_for_24_hours kind late_policy level limit max_carbon_g max_tokens messages metadata
    model month months_back name order output_expires_after product_line purpose region regions revision
    revisions secret section signal since source state status stream stream_options to tokens url workload zone
    If-Match If-None-Match If-Range Prefer Range
"""
NO_IDS = frozenset(_NO_IDS.split())

#: Keys and positions of the caller's own making; tests of their own are below.
OWN = frozenset({"Idempotency-Key", "Last-Event-ID", "last_event_id"})

#: A word that stands in all that a tenant stores.
WORD = "confidential-{}"


@dataclass
class World:
    """All that a tenant has: ids by kind, and the words that nobody else may see."""

    tenant: str
    ids: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    @property
    def words(self) -> set[str]:
        """What is the tenant's alone."""
        return {WORD.format(self.tenant), *(one for kind, ids in self.ids.items() for one in ids if kind != "log")}


def made(harness: Harness, http: httpx.Client, tenant: str) -> World:
    """Make one of everything for a tenant."""
    word = WORD.format(tenant)
    final, waiting = (submit(http, product_line=word)["id"] for _ in range(2))
    chunks = [chunk_up(harness, job_id) for job_id in (final, waiting)]
    finish(harness, final, f"{word}\n".encode(), f"{word}\n".encode())
    batch = batching.create(http, batching.line(f"{word}-1", word), metadata={"team": word})
    batching.read_inputs(harness)
    batching.end(harness, batch, {f"{word}-1": ItemState.SUCCEEDED})
    batching.finish_all(harness)
    done = batching.look(http, batch)
    open_batch = batching.create(http, batching.line(f"{word}-2", word))
    job_ids = [*batching.job_ids(harness, batch), final, waiting]
    admin.limit_tenant(harness.db, tenant, {"open_jobs": 1000}, actor=f"{word}@host")
    hook = http.post("/v1/webhooks", json={"url": f"https://93.184.215.14/{word}", "event_types": ["job.completed"]})
    assert hook.status_code == 200, hook.text
    webhook = f"/v1/webhooks/{hook.json()['id']}"
    assert http.post(f"{webhook}/test", json={"event_type": "job.completed"}).status_code == 202
    messages = [one["id"] for one in http.get(f"{webhook}/deliveries").json()["data"]]
    target = http.put("/v1/targets", json={"g_per_1k_tokens": "0.5", "model": word})
    assert target.status_code == 200, target.text
    budget = http.put("/v1/budgets", json={"level": "product_line", "name": word, "cap_g": "5"})
    assert budget.status_code == 200, budget.text
    with harness.db.read() as tx:
        key_ids = [key.key_id for key in keys.page(tx, tenant)]
        log = [f"log_{one.log_id}" for one in admin_log.page(tx, tenant=tenant)]
    return World(
        tenant,
        {
            "batch": [batch["id"], open_batch["id"]],
            "budget": [budget.json()["id"]],
            "target": [target.json()["id"]],
            "chunk": chunks,
            "custom": [f"{word}-1"],
            "entry": book(harness, f"eb_{tenant}", tenant=tenant, job_id=final)[:1],
            "file": [done["input_file_id"], done["output_file_id"]],
            "job": job_ids,
            "key": key_ids,
            "log": log[:1],
            "message": messages[:1],
            "webhook": [hook.json()["id"]],
        },
    )


@dataclass
class Worlds:
    """Two tenants that have everything, and a client of each with every scope."""

    acme: World
    rival: World
    http: httpx.Client
    theirs: httpx.Client  # the rival's client
    api: Mapping[str, Any]

    def operations(self) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        for path, methods in self.api["paths"].items():
            if path.startswith("/v1/"):
                for method, operation in methods.items():
                    yield method.upper(), path, operation

    def resolved(self, value: Any) -> Any:
        """Follow a reference of the description."""
        while "$ref" in value:
            found: Any = self.api
            for part in value["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            value = found
        return value

    def parameters(self, operation: Mapping[str, Any], *places: str) -> list[str]:
        found = [self.resolved(one) for one in operation.get("parameters", [])]
        return [one["name"] for one in found if one["in"] in places]

    def fields(self, operation: Mapping[str, Any]) -> set[str]:
        """The fields of the bodies that an operation takes."""
        contents = self.resolved(operation.get("requestBody", {})).get("content", {}).values()
        return {name for one in contents for name in self.resolved(one.get("schema", {})).get("properties", {})}

    def filled(self, path: str, world: World) -> str:
        """Put a world's own ids into a path."""
        for name, kind in IDS.items():
            path = path.replace(f"{{{name}}}", world.ids[kind][0])
        return path.replace("{name}", "wordllama-256").replace("{month}", f"{FAKE_EPOCH:%Y-%m}")


@pytest.fixture(scope="module")
def worlds(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    """Made once: no test changes what is there, and that they do not is what they are about."""
    folder = tmp_path_factory.mktemp("isolation")
    shutil.copy(sqlite_template, folder / "api.db")
    database = opened(f"sqlite:///{folder / 'api.db'}")
    harness = build_harness(database, folder / "blobs")
    with database.write() as tx:
        secrets = [keys.create(tx, tenant, "all", False, scopes=keys.ALL_SCOPES)[1] for tenant in ("acme", "rival")]
    with serving(harness.api) as url, _client(url, secrets[0]) as http, _client(url, secrets[1]) as theirs:
        found = [made(harness, client, tenant) for client, tenant in ((http, "acme"), (theirs, "rival"))]
        yield Worlds(*found, http, theirs, httpx.get(f"{url}/openapi.json").json())
    database.dispose()


def _client(url: str, secret: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {secret}"}, trust_env=False, timeout=30)


def unlike(real: str) -> str:
    """Return an id of the same form that nobody has."""
    if real.startswith("log_"):
        return "log_999999"
    if real.startswith("eb_"):
        return real[: real.index(".") - 1] + "z" + real[real.index(".") :]  # sorts beside it
    return real[:-4] + "zzzz"


def check_alike(theirs: httpx.Response, unknown: httpx.Response, real: str, none: str, what: str) -> None:
    """Not even the wording tells an id that exists from one that does not."""
    assert theirs.status_code == unknown.status_code, (what, theirs.text, unknown.text)
    assert theirs.text.replace(real, none) == unknown.text, what


def test_every_parameter_is_an_id_or_none(worlds: Worlds) -> None:
    for method, path, operation in worlds.operations():
        names = {*worlds.parameters(operation, "path", "query", "header"), *worlds.fields(operation)}
        new = {name for name in names if not name.startswith("X-Carbonq-")}  # terms of the work, as in ``carbon``
        new -= {*IDS, *NO_IDS, *OWN, "after"}
        assert not new, f"{method} {path}: say above of what {sorted(new)} are the ids, or that they are none"
        assert "after" not in names or path in LISTS, f"{method} {path}: say above what it lists"


def test_ids_in_paths(worlds: Worlds) -> None:
    tried = 0
    for method, path, operation in worlds.operations():
        for name in worlds.parameters(operation, "path"):
            if name not in IDS:
                continue
            for real in worlds.acme.ids[IDS[name]]:
                none, what = unlike(real), f"{method} {path} with {real}"
                targets = [worlds.filled(path.replace(f"{{{name}}}", one), worlds.rival) for one in (real, none)]
                answers = [worlds.theirs.request(method, target, json={}) for target in targets]
                assert answers[0].status_code == 404, (what, answers[0].text)
                check_alike(answers[0], answers[1], real, none, what)
                tried += 1
    assert tried >= 35
    for job_id in worlds.acme.ids["job"]:
        assert not worlds.http.get(f"/v1/jobs/{job_id}").json()["is_cancel_requested"]  # the rival's POST did nothing
    for file_id in worlds.acme.ids["file"]:
        assert worlds.http.get(f"/v1/files/{file_id}/content").status_code == 200
    hook = worlds.http.get(f"/v1/webhooks/{worlds.acme.ids['webhook'][0]}").json()
    assert (hook["state"], hook["url"].endswith(WORD.format("acme"))) == ("enabled", True)
    assert worlds.http.get(f"/v1/batches/{worlds.acme.ids['batch'][1]}").json()["status"] == "in_progress"


def test_ids_in_queries(worlds: Worlds) -> None:
    tried = 0
    for method, path, operation in worlds.operations():
        for name in worlds.parameters(operation, "query"):
            kind = LISTS[path] if name == "after" else IDS.get(name)
            if kind is None:
                continue
            for real in worlds.acme.ids[kind]:
                none, what = unlike(real), f"{method} {path}?{name}={real}"
                target = worlds.filled(path, worlds.rival)
                answers = [worlds.theirs.request(method, target, params={name: one}) for one in (real, none)]
                check_alike(answers[0], answers[1], real, none, what)
                assert not any(word in answers[0].text.replace(real, "") for word in worlds.acme.words), what
                tried += 1
    assert tried >= 12


def test_ids_in_bodies(worlds: Worlds) -> None:
    tried = 0
    bodies = {"input_file_id": {**batching.EMBED}}
    for method, path, operation in worlds.operations():
        for name in worlds.fields(operation) & set(IDS):
            for real in worlds.acme.ids[IDS[name]]:
                none = unlike(real)
                answers = [
                    worlds.theirs.request(method, path, json={**bodies[name], name: one}) for one in (real, none)
                ]
                assert answers[0].status_code in {400, 404}, answers[0].text
                check_alike(answers[0], answers[1], real, none, f"{method} {path} {name}")
                tried += 1
    assert tried >= 2


def test_no_list_shows_what_is_anothers(worlds: Worlds) -> None:
    """Whatever a rival asks for without naming anything, or of its own, it sees nothing of the other's."""
    given = {"since": "2020-01-01T00:00Z", "zone": "ZONE_FR", "hours": "24"}
    shown = 0
    for method, path, operation in worlds.operations():
        if method != "GET" or path.endswith("/events"):
            continue
        params = {name: given[name] for name in worlds.parameters(operation, "query") if name in given}
        for client, other, own in (
            (worlds.theirs, worlds.acme, worlds.rival),
            (worlds.http, worlds.rival, worlds.acme),
        ):
            text = client.get(worlds.filled(path, own), params=params).text
            assert not [word for word in other.words if word in text], (path, text)
            shown += any(word in text for word in own.words)
    assert shown >= 20  # and the owner does see its own there, so that the test looks at something


def test_streams_tell_of_the_callers_own_only(worlds: Worlds) -> None:
    for header in ({"Last-Event-ID": "0"}, {}):
        params = {} if header else {"last_event_id": "0"}
        with worlds.theirs.stream("GET", "/v1/events", headers=header, params=params) as response:
            told = ""
            for event in EventSource(response).iter_sse():
                told += event.data
                if worlds.rival.ids["batch"][0] in told and worlds.rival.ids["job"][-1] in told:
                    break
        assert not [word for word in worlds.acme.words if word in told]
    # A position is a number that all tenants count together; another's tells nothing and opens nothing.
    for path in (f"/v1/jobs/{worlds.acme.ids['job'][0]}/events", f"/v1/batches/{worlds.acme.ids['batch'][0]}/events"):
        assert worlds.theirs.get(path, headers={"Last-Event-ID": "1"}).status_code == 404


def test_an_idempotency_key_is_the_tenants(worlds: Worlds) -> None:
    query = {"endpoint": "/v1/embeddings", "model": "wordllama-256", "deadline": "6h"}
    headers = {"Idempotency-Key": "same", "Content-Type": "application/x-ndjson"}
    line = b'{"custom_id":"a","body":{"input":"x"}}\n'
    answers = [
        client.post("/v1/jobs", params=query, content=line, headers=headers) for client in (worlds.http, worlds.theirs)
    ]
    assert [one.status_code for one in answers] == [202, 202]
    assert answers[0].json()["id"] != answers[1].json()["id"]
    batches: list[httpx.Response] = []
    for client, world in ((worlds.http, worlds.acme), (worlds.theirs, worlds.rival)):
        body = {"input_file_id": world.ids["file"][0], **batching.EMBED}
        batches.append(client.post("/v1/batches", json=body, headers={"Idempotency-Key": "same"}))
    assert [one.status_code for one in batches] == [200, 200]
    assert batches[0].json()["id"] != batches[1].json()["id"]


@pytest.mark.parametrize(
    "way", ["../{}", "..%2F{}", "%2e%2e%2f{}", "./{}", "{}%00", "{}/..", "jobs%2F{}%2Foutput.jsonl"]
)
def test_a_blob_is_reached_by_its_owner_only(worlds: Worlds, way: str) -> None:
    """No id is a path: what is stored under a tenant's job or file is opened through its row or not at all."""
    for kind, path in (("job", "/v1/jobs/{}/results"), ("file", "/v1/files/{}/content")):
        target = path.format(way.format(worlds.acme.ids[kind][-1]))
        answer = worlds.theirs.get(target)
        assert answer.status_code in {400, 404}, (target, answer.text)
        assert WORD.format("acme") not in answer.text


def test_answers_name_no_place_of_a_blob(worlds: Worlds) -> None:
    for path in ("/v1/jobs", "/v1/files", "/v1/batches", f"/v1/jobs/{worlds.acme.ids['job'][0]}"):
        text = json.dumps(worlds.http.get(path).json())
        assert "input.jsonl" not in text and "blob" not in text, path
