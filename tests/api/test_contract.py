"""/openapi.json says the truth: every route is described, its examples are taken, its answers are as described."""

from __future__ import annotations

import ast
import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock
from urllib.parse import urlencode

import jsonschema_rs
import pytest
import schemathesis
from fastapi import FastAPI
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import from_schema
from schemathesis.engine.events import NonFatalError, ScenarioFinished
from schemathesis.engine.recorder import CheckNode
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR
from schemathesis.transport import SerializationContext

from carbonq import errors
from carbonq.api import codes, problems, waiting
from carbonq.api.app import create_app
from carbonq.api.codes import BATCH_CODES, CODES, INNER_CODES, ITEM_CODES
from carbonq.services.seal import seal
from tests.api.harness import EMBEDDER, Harness
from tests.api.inprocess import Answer, InProcess, in_process, mighty
from tests.api.test_jobs import NDJSON, QUERY, chunk_up, finish, lines
from tests.api.test_ledger import book

Json = dict[str, Any]


@pytest.fixture
def app(harness: Harness) -> FastAPI:
    return create_app(harness.api, background=[])


@pytest.fixture(scope="module")
def document() -> Json:
    """The description, which is the same whatever the app works with."""
    return create_app(MagicMock(allowed_hosts=None), background=[]).openapi()


def operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            yield method.upper(), path, described


def test_every_route_is_described(document: Json) -> None:
    assert document["openapi"].startswith("3.1")
    wrong = [one.message for one in OPENAPI_31_VALIDATOR.iter_errors(document)]
    assert not wrong, wrong[:5]
    tags = {tag["name"] for tag in document["tags"]}
    for method, path, described in operations(document):
        where = f"{method} {path}"
        assert described["summary"] and not described["summary"].endswith("."), where
        assert described["tags"] and set(described["tags"]) <= tags, where
        assert ("security" in described) == path.startswith("/v1/"), where
        for parameter in described.get("parameters", []):
            assert parameter["description"], f"{where}: {parameter['name']}"
        assert "422" not in described["responses"] or "problem+json" in str(described["responses"]["422"]), where
        for status, answer in described["responses"].items():
            assert answer["description"], f"{where}: {status}"
            for media_type, content in answer.get("content", {}).items():
                assert "schema" in content, f"{where}: {status} {media_type}"
                if is_json(media_type):
                    assert "example" in content or content.get("examples"), f"{where}: {status} {media_type}"
        if described.get("requestBody"):
            assert all("example" in one for one in described["requestBody"]["content"].values()), where


def test_examples_are_as_described(document: Json) -> None:
    for method, path, described in operations(document):
        answers = [content for one in described["responses"].values() for content in one.get("content", {}).items()]
        for media_type, content in [*answers, *described.get("requestBody", {}).get("content", {}).items()]:
            for example in _examples(document, content):
                problems = violations(document, content["schema"], example)
                assert not problems, f"{method} {path} {media_type}: {problems}"


def _examples(document: Json, content: Json) -> list[Any]:
    named = [
        document["components"]["examples"][one["$ref"].rpartition("/")[2]]
        for one in content.get("examples", {}).values()
    ]
    return [content["example"]] if "example" in content else [one["value"] for one in named]


def violations(document: Json, schema: Json, value: Any) -> list[str]:
    text = json.dumps(schema)
    if text not in _VALIDATORS:
        # With what it refers to and no more: a validator of all components takes a while to make.
        named, found = dict[str, Json](), list(re.findall(_NAMED, text))
        while found:
            name = found.pop()
            if name not in named:
                named[name] = document["components"]["schemas"][name]
                found += re.findall(_NAMED, json.dumps(named[name]))
        _VALIDATORS[text] = jsonschema_rs.Draft202012Validator({**schema, "components": {"schemas": named}})
    wrong = _VALIDATORS[text].iter_errors(value)
    return [f"{'/'.join(map(str, one.instance_path))}: {one.message[:300]}" for one in wrong]


_VALIDATORS: dict[str, jsonschema_rs.Validator] = {}
_NAMED = r"#/components/schemas/(\w+)"


def is_json(media_type: str) -> bool:
    return media_type.endswith(("/json", "+json"))


def strays(document: Json, method: str, template: str, answer: Answer) -> list[str]:
    """Return how a real answer differs from what is described."""
    described = document["paths"][template][method.lower()]["responses"].get(str(answer.status))
    if described is None:
        return [f"{answer.status} is not described: {answer.body[:300]!r}"]
    wrong = [f"header {name} is missing" for name in ("X-Request-Id",) if name.lower() not in answer.headers]
    if "content" not in described:
        return wrong + ([f"a body that is not described: {answer.body[:300]!r}"] if answer.body else [])
    media_type = answer.headers.get("content-type", "").partition(";")[0]
    content = described["content"].get(media_type)
    if content is None:
        return [*wrong, f"{media_type!r} is not described for {answer.status}: {answer.body[:300]!r}"]
    return wrong + (violations(document, content["schema"], answer.json()) if is_json(media_type) else [])


@pytest.fixture
def near(harness: Harness, app: FastAPI) -> Iterator[InProcess]:
    with in_process(app, mighty(harness)) as client:
        yield client


def test_examples_are_taken(document: Json, near: InProcess) -> None:
    """What is shown of a request works as it stands, and its answer is as described."""
    tried = 0
    for method, path, described in operations(document):
        for media_type, content in described.get("requestBody", {}).get("content", {}).items():
            if "{" in path or media_type == "multipart/form-data" or path in NEEDS_MORE:
                continue
            query = ""
            if not is_json(media_type):
                wanted = [one for one in described["parameters"] if one["in"] == "query" and "example" in one]
                query = "?" + urlencode({one["name"]: one["example"] for one in wanted}, doseq=True)
            example = content["example"]
            body = example.encode() if isinstance(example, str) else json.dumps(example).encode()
            answer = near.ask(method, path + query, body=body, headers={"Content-Type": media_type})
            assert answer.status < 300, f"{method} {path} {media_type}: {answer.body[:500]!r}"
            assert not strays(document, method, path, answer), f"{method} {path} {media_type}"
            tried += 1
    assert tried >= 6


#: Routes whose examples name what must be there before, or that need another scope; their own tests send them.
NEEDS_MORE = frozenset({"/v1/batches", "/v1/webhook_endpoints", "/v1/webhooks"})


def test_real_answers_are_as_described(harness: Harness, document: Json, near: InProcess) -> None:
    line = {**NDJSON, "Idempotency-Key": "k"}
    submitted = near.ask("POST", f"/v1/jobs?{urlencode(QUERY)}", body=lines(3), headers=line)
    assert not strays(document, "POST", "/v1/jobs", submitted)
    job_id = submitted.json()["id"]
    chunk_up(harness, job_id)
    entry_ids = book(harness, "eb_1", tenant="acme", job_id=job_id)
    seal(harness.db)
    known = {"job_id": job_id, "entry_id": entry_ids[0], "name": EMBEDDER, "month": f"{harness.clock.now():%Y-%m}"}
    waiting_job = {path for path in document["paths"] if path.endswith(("/results", "/errors"))}
    asked = [(path, "") for path in sorted(document["paths"]) if not path.endswith("/events")]
    asked += [
        ("/v1/plan", "?hours=1"),
        ("/v1/ledger_changes", "?since=2026-01-01T00:00:00Z"),
        ("/v1/ledger", "?limit=1"),
    ]
    asked += [(f"/v1/forecasts{rest}", "?zone=ZONE_FR") for rest in ("", "/issues", "/outlook")]
    asked += [("/v1/ledger.csv", "?format=csv.gz"), ("/v1/jobs/{job_id}/items", "?limit=1")]
    statuses = Counter[int]()
    for path, query in asked:
        if "get" not in document["paths"][path] or any(name not in known for name in re.findall(r"{(\w+)}", path)):
            continue
        answer = near.ask("GET", path.format(**known) + query)
        assert not strays(document, "GET", path, answer), f"GET {path}{query}"
        assert answer.status == 200 or not query or path in waiting_job, f"GET {path}{query}: {answer.body[:300]!r}"
        statuses[answer.status] += 1
        head = near.ask("HEAD", path.format(**known) + query)
        assert (head.status, head.body) == (answer.status, b""), f"HEAD {path}"
    assert statuses[200] > 20 and statuses[409] == 2
    finish(harness, job_id, b"{}\n")
    for path, headers in [(one, {}) for one in sorted(waiting_job)] + [
        ("/v1/jobs/{job_id}/results", {"Range": "bytes=0-0"}),
        ("/v1/jobs/{job_id}/results", {"Range": "bytes=9-"}),
        ("/v1/jobs/{job_id}", {}),
        ("/v1/jobs/{job_id}", {"If-None-Match": "*"}),
    ]:
        answer = near.ask("GET", path.format(**known), headers=headers)
        assert answer.status in {200, 206, 304, 416}, path
        assert not strays(document, "GET", path, answer), path
    assert not strays(document, "POST", "/v1/jobs/{job_id}/cancel", near.ask("POST", f"/v1/jobs/{job_id}/cancel"))


def test_without_a_key_nothing_is_told(document: Json, near: InProcess) -> None:
    for method, path, described in operations(document):
        if "security" not in described:
            continue
        for authorization, code in (("", "missing_api_key"), ("Bearer cq_wrong", "invalid_api_key")):
            answer = near.ask(method, path.replace("{", "").replace("}", ""), headers={"Authorization": authorization})
            assert (answer.status, answer.code) == (401, code), f"{method} {path}"
            assert not strays(document, method, path, answer), f"{method} {path}"


def test_every_code_is_listed() -> None:
    """Whatever code an error of ours may carry is in the catalogue, with the status it comes with, and vice versa."""
    used, mentioned = dict[str, set[str]](), set[str]()
    for path in [*Path("carbonq").rglob("*.py"), *Path("workers").rglob("*.py")]:
        if path == Path("carbonq/api/codes.py"):
            continue
        text = path.read_text()
        mentioned |= set(re.findall(r'"(\w+)"', text))
        if not re.search(r"code ?=|ATTEMPTS_EXHAUSTED =|ENGINE_FAILED =", text):
            continue
        for name, where in _codes_in(ast.parse(text)):
            used.setdefault(name, set()).add(f"{path}:{where}")
    known = {*CODES, *ITEM_CODES, *BATCH_CODES, *INNER_CODES}
    unlisted = {name: sorted(places) for name, places in used.items() if name not in known}
    assert not unlisted, f"not in carbonq/api/codes.py: {unlisted}"
    made = {f"{kind}_{state}" for kind in ("model", "tenant") for state in ("draining", "paused")}  # of parts, in use
    idle = known - mentioned - made
    assert not idle, f"in carbonq/api/codes.py, but nowhere used: {idle}"


def _codes_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the texts given as ``code=`` or ``error_code=``, or assigned as the ``code`` of a class."""
    for node in ast.walk(tree):
        is_given = isinstance(node, ast.keyword) and node.arg in {"code", "error_code"}
        is_set = isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id in _NAMES for t in node.targets)
        if is_given or is_set:
            yield from _texts(node.value)


def _texts(value: ast.expr) -> Iterator[tuple[str, int]]:
    match value:
        case ast.Constant(value=str() as text):
            yield text, value.lineno
        case ast.IfExp():
            yield from _texts(value.body)
            yield from _texts(value.orelse)
        case ast.BoolOp():
            for one in value.values:
                yield from _texts(one)
        case _:
            pass


_NAMES = frozenset({"code", "ATTEMPTS_EXHAUSTED", "ENGINE_FAILED"})


def test_statuses_of_codes_are_those_of_their_classes() -> None:
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.CarbonqError) and kind.code in CODES:
            error = kind.__new__(kind)
            assert problems.status_of(error) in CODES[kind.code].statuses, name


def test_the_page_of_errors_is_as_the_code_has_it() -> None:
    assert Path("docs/errors.md").read_text() == codes.page(), "python -m carbonq.api.codes > docs/errors.md"


#: Few examples, always the same ones; what is looked at is what issue and documents promise.
_CONFIG = """
seed = 20261130
continue-on-failure = true
suppress-health-check = ["all"]
headers = {{ Authorization = "{key}" }}

[generation]
max-examples = {examples}
deterministic = true
no-shrink = true
database = "none"

[phases.stateful]
enabled = false

[phases.coverage]
unexpected-methods = ["PATCH", "TRACE"]

[analysis.constants]
enabled = false

[checks]
enabled = false
not_a_server_error.enabled = true
status_code_conformance.enabled = true
content_type_conformance.enabled = true
response_schema_conformance.enabled = true
unsupported_method.enabled = true
ignored_auth.enabled = true
"""


@schemathesis.serializer("application/x-ndjson")
def _lines(_ctx: SerializationContext, value: Any) -> bytes:
    return value.encode(errors="surrogatepass") if isinstance(value, str) else json.dumps(value).encode()


def test_schemathesis_finds_nothing(harness: Harness, app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MAX_WAIT_S", 0)  # what is waited for never comes here
    config = SchemathesisConfig.from_str(_CONFIG.format(key=mighty(harness)["Authorization"], examples=1))
    # Streams of events have no end (test_events.py reads them); webhook_endpoints is another name of webhooks.
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, config=config)
    schema = schema.exclude(path_regex="/events$|^/v1/webhook_endpoints")
    began_s, wrong, calls = time.process_time(), set[str](), 0
    for event in from_schema(schema).execute():
        if isinstance(event, NonFatalError):
            wrong.add(f"{event.label}: {event.value!r}")
        if isinstance(event, ScenarioFinished):
            calls += len(event.recorder.cases)
            for case_id, checks in event.recorder.checks.items():
                wrong |= {_told(event, case_id, check) for check in checks if check.failure_info is not None}
    took_s = time.process_time() - began_s
    assert not wrong, "\n\n".join(sorted(wrong))
    assert calls > 300
    assert took_s < 25, f"{calls} calls took {took_s:.0f} s of processor time"


def _told(event: ScenarioFinished, case_id: str, check: CheckNode) -> str:
    assert check.failure_info is not None
    request = event.recorder.interactions[case_id].request
    body = "" if request.body is None else f" {request.body[:200]!r}"
    said = check.failure_info.failure.message[:400]
    return f"{event.label} {check.name}: {said} ({request.method} {request.uri[:200]}{body})"
