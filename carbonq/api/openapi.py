"""What ``/openapi.json`` says beyond what FastAPI finds out by itself: bodies, answers, errors, headers, examples.

Routes read raw requests and write raw answers, so each says what it takes and gives beside its decorator::

    @router.get("/{job_id}", **operation("get_job", "jobs", answers={200: gives(Job)}, errors=("not_found",)))

``Job`` is a ``shapes.Shape``: a pydantic model that describes, and by which the tests check real answers; it is not
used while serving. Examples are put together from those of the fields, errors from ``codes.CODES``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, cast

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from carbonq.api.codes import CODES, error_type
from carbonq.api.shapes.words import Problem
from carbonq.model import LatePolicy

JSON = "application/json"
PROBLEM = "application/problem+json"

Json = dict[str, Any]

#: What a route may always answer besides its own: (with a key, without one).
_ALWAYS = ("internal_error",)
_WITH_KEY = ("missing_api_key", "invalid_api_key", "insufficient_scope", "quota_exceeded", "store_unavailable")

#: Tags, in the order in which they are shown.
TAGS: Mapping[str, str] = {
    "jobs": "Work with a deadline: submit, watch, cancel, download.",
    "openai": "OpenAI's own API: files, batches, embeddings, chat completions, models.",
    "planning": "Quotes, the plan in force, regions and forecasts.",
    "ledger": "Every figure with its inputs, versioned and sealed.",
    "budgets": "Caps and promises of grams, and how they stand.",
    "events": "What happened, as a stream or to a webhook.",
    "operations": "Whether the process lives and works.",
}

#: Headers of answers and requests by name: (schema, what it says, an example).
HEADERS: dict[str, tuple[Json, str, Any]] = {
    "Accept-Ranges": ({"type": "string"}, "that `Range` is taken", "bytes"),
    "Content-Disposition": ({"type": "string"}, "a name for the file", 'attachment; filename="job_1.results.jsonl"'),
    "Content-Range": ({"type": "string"}, "which bytes these are", "bytes 0-99/1234"),
    "ETag": ({"type": "string"}, "changes when the answer does; send it back as `If-None-Match`", '"5d41402abc4b2a76"'),
    "Idempotency-Key": (
        {"type": "string", "minLength": 1, "maxLength": 255},
        "a fresh text for each new submit; a repeated one returns what the first one made",
        "0190c2a1-7b0e-7c3e-9f00-5f6d0a1b2c3d",
    ),
    "Idempotency-Replayed": ({"type": "string", "const": "true"}, "that an earlier request made it", "true"),
    "If-None-Match": ({"type": "string"}, "the `ETag` you have; 304 if nothing changed", '"5d41402abc4b2a76"'),
    "If-Range": (
        {"type": "string"},
        "take `Range` only if the file is still the one with this `ETag`",
        '"5d41402abc4b2a76"',
    ),
    "Last-Event-ID": ({"type": "string", "pattern": "^[0-9]{1,18}$"}, "the `id` of the event to go on after", "17"),
    "Last-Modified": ({"type": "string"}, "when the file was written", "Mon, 30 Nov 2026 06:00:00 GMT"),
    "Location": ({"type": "string"}, "where it is", "/v1/jobs/job_0190c2a17b0e"),
    "Prefer": (
        {"type": "string"},
        "`wait=N`: answer when the job is final, after at most N seconds (RFC 7240)",
        "wait=10",
    ),
    "Preference-Applied": ({"type": "string"}, "which of your preferences was followed", "wait=10"),
    "Range": ({"type": "string"}, "one range of bytes", "bytes=0-99"),
    "Retry-After": ({"type": "integer", "minimum": 0}, "seconds after which another look is worth it", 5),
    "WWW-Authenticate": ({"type": "string"}, "how to send a key", "Bearer"),
    "X-Accel-Buffering": ({"type": "string"}, "that a proxy must pass each event on at once", "no"),
    "X-Carbonq-Class": ({"type": "string"}, "the class of work it was answered as", "realtime"),
    "X-Carbonq-Deadline": ({"type": "string"}, "a span (`6h`) or a time with its zone", "6h"),
    "X-Carbonq-Downgrade": (
        {"type": "string", "enum": ["true", "false"]},
        "whether a smaller model may run it",
        "false",
    ),
    "X-Carbonq-Energy-Wh": ({"type": "string"}, "the call's energy, in Wh", "0.0002"),
    "X-Carbonq-Gco2e": ({"type": "string"}, "the call's marginal emission, in grams", "0.00008"),
    "X-Carbonq-Late-Policy": ({"type": "string", "enum": list(LatePolicy)}, "what becomes of what is late", "expire"),
    "X-Carbonq-Max-Gco2e": ({"type": "string"}, "a cap of grams", "5"),
    "X-Carbonq-Product-Line": ({"type": "string", "maxLength": 255}, "for budgets and reports", "search"),
    "X-Carbonq-Region": ({"type": "string"}, "the region that answered", "fr"),
    "X-Carbonq-Regions": ({"type": "string"}, "where it may run; names with commas", "fr,se"),
    "X-Carbonq-Workload": ({"type": "string", "maxLength": 255}, "for budgets and reports", "chatbot"),
    "X-Request-Id": ({"type": "string"}, "names the request in the server's log", "req_0190c2a17b0e"),
}

#: What parameters mean that many routes have.
_SAID: dict[str, str] = {
    "after": "the `last_id` of the page before",
    "limit": "how many at most",
    "batch_id": "the batch's id",
    "job_id": "the job's id",
    "message_id": "the message's id, which is the header `webhook-id`",
    "target_id": "the target's id",
    "webhook_id": "the endpoint's id",
}


@dataclass(frozen=True, slots=True)
class Content:
    """A body of one media type: described by ``schema``, or else text; ``example`` is put together if left out."""

    schema: type[BaseModel] | Json | None = None
    example: Any = None


@dataclass(frozen=True, slots=True)
class Answer:
    """One status's answer: bodies by media type (none: an empty answer) and the names of its headers."""

    says: str
    content: Mapping[str, Content] = field(default_factory=dict[str, Content])
    headers: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter that the route reads by itself."""

    name: str
    says: str
    schema: Json
    example: Any = None
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class _Operation:
    answers: Mapping[int, Answer]
    errors: Sequence[tuple[str, int]]
    body: Mapping[str, Content]
    headers: Sequence[str]
    parameters: Sequence[Parameter]
    is_open: bool
    is_body_required: bool


_OPERATIONS: dict[str, _Operation] = {}


def gives(shape: type[BaseModel] | Json, says: str = "", *, headers: Sequence[str] = (), example: Any = None) -> Answer:
    """Return an answer of JSON."""
    said = says or ((shape.__doc__ or "").splitlines()[0] if isinstance(shape, type) else "the answer")
    return Answer(said, {JSON: Content(shape, example)}, headers)


def sends(media_type: str, says: str, *, headers: Sequence[str] = (), example: str | None = None) -> Answer:
    """Return an answer that is a file or a stream."""
    return Answer(says, {media_type: Content(None, example)}, headers)


def operation(
    name: str,
    tag: str,
    *,
    answers: Mapping[int, Answer],
    errors: Sequence[str | tuple[str, int]] = (),
    body: Mapping[str, Content] | None = None,
    headers: Sequence[str] = (),
    parameters: Sequence[Parameter] = (),
    is_open: bool = False,
    is_body_required: bool = True,
) -> dict[str, Any]:
    """Describe a route; returns the arguments for its decorator.

    ``name`` is its operationId; ``errors`` are the codes (of one status: with it) beyond those that every route may
    give; ``headers`` those it reads; ``parameters`` those of the query that FastAPI does not see; ``is_open``: without
    a key.
    """
    assert name not in _OPERATIONS, name
    assert tag in TAGS, tag
    pairs = [(one, status) for one in errors if isinstance(one, str) for status in CODES[one].statuses]
    pairs += [one for one in errors if not isinstance(one, str)]
    _OPERATIONS[name] = _Operation(answers, pairs, dict(body or {}), headers, parameters, is_open, is_body_required)
    return {"operation_id": name, "tags": [tag]}


def install(app: FastAPI) -> None:
    """Make an app's ``/openapi.json`` say all of it."""
    generate = app.openapi

    def complete() -> Json:
        if app.openapi_schema is None:
            app.openapi_schema = _complete(generate())
        return app.openapi_schema

    app.openapi = complete  # the documented way to extend it


def _complete(document: Json) -> Json:
    document["tags"] = [{"name": name, "description": says} for name, says in TAGS.items()]
    document["info"]["description"] = (
        "A job queue for batch AI inference that decides when and where each job runs by the marginal carbon of the "
        "grid. Errors have one shape on every route: OpenAI's error object and RFC 9457's members."
    )
    document["info"]["license"] = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
    # ``/`` is where the document came from, whatever name the client calls the server by.
    document["servers"] = [{"url": "/"}]
    parts = _Parts()
    for path in document["paths"].values():
        for described in path.values():
            _describe(described, parts)
    document["components"] = parts.components()
    return document


class _Parts:
    """The shapes, headers and examples that are named once and referred to."""

    def __init__(self) -> None:
        self._shapes: dict[type[BaseModel], None] = {Problem: None}
        self._codes: dict[tuple[str, int], None] = {}
        self._headers: dict[str, None] = {}
        self._wanted: list[Json] = []

    def schema(self, shape: type[BaseModel] | Json | None) -> Json:
        if shape is None:
            return {"type": "string"}
        if isinstance(shape, dict):
            return shape
        self._shapes[shape] = None
        return {"$ref": f"#/components/schemas/{shape.__name__}"}

    def content(self, content: Content) -> Json:
        made: Json = {"schema": self.schema(content.schema)}
        if content.example is not None:
            made["example"] = content.example
        elif content.schema is not None:
            self._wanted.append(made)
        return made

    def header(self, name: str) -> Json:
        self._headers[name] = None
        return {"$ref": f"#/components/headers/{name}"}

    def problem(self, status: int, codes: Iterable[str]) -> Json:
        examples: Json = {}
        for code in codes:
            self._codes[code, status] = None
            examples[code] = {"$ref": f"#/components/examples/{code}_{status}"}
        headers = ["X-Request-Id"]
        headers += {401: ["WWW-Authenticate"], 429: ["Retry-After"], 503: ["Retry-After"]}.get(status, [])
        return {
            "description": f"{HTTPStatus(status).phrase}: {'; '.join(CODES[code].says for code in examples)}.",
            "content": {PROBLEM: {"schema": self.schema(Problem), "examples": examples}},
            "headers": {name: self.header(name) for name in headers},
        }

    def components(self) -> Json:
        # The models' names are the components' names: two of one name would get their modules' names as well.
        _, made = models_json_schema(
            [(shape, "validation") for shape in self._shapes], ref_template="#/components/schemas/{model}"
        )
        schemas: Json = made["$defs"]
        for place in self._wanted:
            place["example"] = example_of(place["schema"], schemas)
        return {
            "schemas": dict(sorted(schemas.items())),
            "examples": {f"{code}_{status}": _problem_example(code, status) for code, status in sorted(self._codes)},
            "headers": {
                name: {"schema": HEADERS[name][0], "description": HEADERS[name][1], "example": HEADERS[name][2]}
                for name in sorted(self._headers)
            },
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "A key that `carbonq keys create` made."}
            },
        }


def _problem_example(code: str, status: int) -> Json:
    known = CODES[code]
    message = f"{known.says}: {known.do}"
    value = {
        "error": {"message": message, "type": error_type(status), "param": None, "code": code},
        "type": f"urn:carbonq:error:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": message,
        "instance": "/v1/jobs",
    }
    return {"summary": known.says, "value": value}


def _describe(described: Json, parts: _Parts) -> None:
    found = _OPERATIONS.get(described["operationId"])
    if found is None:
        return
    summary, _, rest = described.get("description", "").partition("\n")
    described["summary"] = summary.rstrip(".")
    described["description"] = f"{summary}\n{rest}".strip()
    if not found.is_open:
        described["security"] = [{"key": []}]
    parameters: list[Json] = described.get("parameters", [])
    for one in parameters:
        one.setdefault("description", _SAID.get(one["name"], one["name"].replace("_", " ")))
    parameters += [_query(one) for one in found.parameters] + [_request_header(name) for name in found.headers]
    if parameters:
        described["parameters"] = parameters
    if found.body:
        content = {media_type: parts.content(one) for media_type, one in found.body.items()}
        described["requestBody"] = {"required": found.is_body_required, "content": content}
    described["responses"] = _responses(found, parts, has_input=bool(parameters or found.body))


def _query(one: Parameter) -> Json:
    made: Json = {"name": one.name, "in": "query", "description": one.says, "schema": one.schema}
    if one.example is not None:
        made["example"] = one.example
    return made | {"required": one.is_required}


def _request_header(name: str) -> Json:
    schema, says, example = HEADERS[name]
    return {"name": name, "in": "header", "description": says, "schema": schema, "example": example, "required": False}


def _responses(found: _Operation, parts: _Parts, *, has_input: bool) -> Json:
    made: Json = {}
    for status, answer in found.answers.items():
        one: Json = {"description": answer.says}
        if answer.content:
            one["content"] = {media_type: parts.content(content) for media_type, content in answer.content.items()}
        one["headers"] = {name: parts.header(name) for name in (*answer.headers, "X-Request-Id")}
        made[str(status)] = one
    usual = [*_ALWAYS, *(() if found.is_open else _WITH_KEY), *(("invalid_request",) if has_input else ())]
    pairs = [*found.errors, *((code, CODES[code].statuses[0]) for code in usual)]
    by_status: dict[int, list[str]] = {}
    for code, status in dict.fromkeys(pairs):
        by_status.setdefault(status, []).append(code)
    for status, named in sorted(by_status.items()):
        if str(status) not in made:
            made[str(status)] = parts.problem(status, named)
    return dict(sorted(made.items()))


def example_of(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    """Put an example together from a schema: its own, or else those of its parts."""
    if "$ref" in schema:
        return example_of(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    given = schema.get("examples") or schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if given:
        return given[0]
    choices = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if choices:
        return example_of(choices[0], schemas)
    if schema.get("type") == "object":
        members = cast("Mapping[str, Mapping[str, Any]]", schema.get("properties", {}))
        return {name: example_of(one, schemas) for name, one in members.items()}
    if schema.get("type") == "array":
        return [example_of(schema["items"], schemas)] if "items" in schema else []
    return _PLAIN.get(schema.get("type", ""))


#: Examples of what says nothing more than its type.
_PLAIN: Mapping[str, Any] = {"integer": 1, "number": 1.5, "boolean": False, "string": "text"}
