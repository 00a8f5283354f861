"""OpenAI's Batch API: create, look, list, cancel. A batch is one or more jobs; its figures are sums over them."""

from __future__ import annotations

import difflib
import hashlib
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any, cast

import anyio.to_thread
import orjson
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from carbonq import terms
from carbonq.api import batch_view, files, views
from carbonq.api import terms as carried
from carbonq.api.auth import Caller, needs
from carbonq.api.body import object_of, read_bytes
from carbonq.api.context import Api, ApiDep, CallerDep, seen_by
from carbonq.api.flights import Flights, Sight
from carbonq.api.openapi import JSON, Answer, Content, gives, operation
from carbonq.api.shapes.batches import Batch as BatchShape
from carbonq.api.shapes.batches import BatchPage
from carbonq.api.shapes.batches import NewBatch as NewBatchShape
from carbonq.errors import InvalidRequest
from carbonq.model import Endpoint, Scope
from carbonq.services import batches as service
from carbonq.services import meaning, traced
from carbonq.services.batches import NewBatch
from carbonq.store import batches
from carbonq.store import files as file_rows
from carbonq.store.batches import Batch
from carbonq.tracing import Span
from carbonq.units import iso

router = APIRouter(prefix="/v1/batches")

#: Largest body of a create, in bytes: the work itself is in the input file.
MAX_BODY_BYTES = 64 * 1024

#: What a create may say.
FIELDS = (*("carbon", "completion_window", "endpoint", "input_file_id", "metadata", "output_expires_after"),)

#: A create.
EXAMPLE = {
    "input_file_id": "file-0190c2a17b0e7c3e9f005f6d",
    "endpoint": "/v1/embeddings",
    "completion_window": "24h",
    "carbon": {"deadline": "6h", "regions": ["fr", "se"]},
}

#: How many tries a client may say it has made.
_MAX_RETRY_COUNT = 1000


@router.post(
    "",
    dependencies=[needs(Scope.SUBMIT)],
    **operation(
        "create_batch",
        "openai",
        answers={200: gives(BatchShape, headers=("Idempotency-Replayed",))},
        errors=(
            "deadline_in_the_past",
            "idempotency_key_reused",
            "invalid_json",
            ("not_found", 404),
            "region_not_found",
            "request_timeout",
            "request_too_large",
            "unknown_parameter",
            "unsupported_encoding",
            "unsupported_media_type",
        ),
        body={JSON: Content(NewBatchShape, EXAMPLE)},
        headers=("Idempotency-Key",),
    ),
)
async def create_batch(request: Request, api: ApiDep, caller: CallerDep) -> Response:
    """Store a batch, to be read and checked at once afterwards; its state says what came of that."""
    began = time.monotonic()
    raw = await read_bytes(request, MAX_BODY_BYTES, way_out="the requests belong into the input file")
    values = object_of(raw)
    asked = service.Request(
        fingerprint=hashlib.sha256(raw).hexdigest(),
        retry_count=_retry_count(request.headers),
        idempotency_key=_idempotency_key(request.headers),
    )
    headers = request.headers

    def create() -> tuple[dict[str, Any], bool]:
        with api.traces.begin("submit", kind="server", parent=headers.get("traceparent")) as span:
            new = replace(_new_batch(api, caller, values, headers), trace_context=span.link)
            return _create(api, new, replace(asked, came_s_ago=time.monotonic() - began), span)

    view, is_new = await anyio.to_thread.run_sync(create)
    sent = {} if is_new else {"Idempotency-Replayed": "true"}
    return Response(orjson.dumps(view), media_type="application/json", headers=sent)


def _create(api: Api, new: NewBatch, asked: service.Request, span: Span) -> tuple[dict[str, Any], bool]:
    batch, is_new = service.create(api.db, new, asked, api.clock, limits=api.allowance.of(new.tenant))
    if api.traces.is_on:
        span.set({**traced.of_batch(batch), "carbonq.is_replayed": not is_new})
    if is_new:
        api.nudger.nudge("validate")  # its jobs are there sooner; the schedule brings it anyhow
    with api.db.read() as tx:
        return batch_view.whole(api, tx, batch), is_new


def _new_batch(api: Api, caller: Caller, values: Mapping[str, Any], headers: Mapping[str, str]) -> NewBatch:
    """Read the fields of a create. Raises InvalidRequest naming the field."""
    for name in values:
        if name not in FIELDS:  # as OpenAI does: what is passed over silently is believed to work
            near = difflib.get_close_matches(name, FIELDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(FIELDS)}"
            raise InvalidRequest(f"{name} is not known; {hint}", param=name, code="unknown_parameter")
    now = api.clock.now()
    endpoint = _endpoint(values.get("endpoint"))
    file_id = values.get("input_file_id")
    if not isinstance(file_id, str) or not file_id:
        state = "is missing" if file_id in (None, "") else f"is {file_id!r}, which is no id"
        raise InvalidRequest(
            f"input_file_id {state}; upload the requests by POST /v1/files and give its id", param="input_file_id"
        )
    window = values.get("completion_window")
    window_s = terms.parse_span_s(window)
    if window_s is None or not 0 < window_s <= terms.MAX_SPAN_S:
        raise InvalidRequest(
            f"completion_window {window!r} is no span of at most 31 days such as 24h, 30m or 7d",
            param="completion_window",
        )
    metadata = _metadata(values.get("metadata"))
    with api.db.read() as tx:
        file = file_rows.find(tx, file_id, caller.tenant, now)
    found = carried.read(
        now=now,
        takes=terms.BATCH_KEYS,
        body=values.get("carbon"),
        metadata=metadata,
        headers=headers,
        file=None if file is None else file.carbon,
        defaults=caller.defaults,
    )
    _check_regions(api, found.regions)
    deadline = found.deadline
    if deadline is not None and deadline <= now:
        raise InvalidRequest(
            f"carbon.deadline {iso(deadline)} is in the past (grid time is {iso(now)}); give a later time or a span "
            "such as 6h",
            param="carbon.deadline",
            code="deadline_in_the_past",
        )
    kept = files.kept_after(values.get("output_expires_after"), param="output_expires_after")
    return NewBatch(
        tenant=caller.tenant,
        api_key_id=caller.api_key_id,
        endpoint=endpoint,
        input_file_id=file_id,
        completion_window=str(window),
        expires_at=deadline or now + timedelta(seconds=window_s),
        terms=found,
        metadata=metadata,
        output_expires_after_s=None if kept is None else int(kept.total_seconds()),
    )


def _endpoint(value: object) -> Endpoint:
    if value is None:
        raise InvalidRequest(f"endpoint is missing; give one of {', '.join(Endpoint)}", param="endpoint")
    if value not in list(Endpoint):
        raise InvalidRequest(
            f"endpoint {value!r} is not offered; batches are for {', '.join(Endpoint)}", param="endpoint"
        )
    return Endpoint(str(value))


def _metadata(value: object) -> dict[str, str] | None:
    if value is None:
        return None
    pairs, key_chars, value_chars = meaning.MAX_METADATA
    given = cast("dict[object, object]", value) if isinstance(value, dict) else None
    if given is None or len(given) > pairs:
        raise InvalidRequest(f"metadata must be an object of at most {pairs} pairs of text", param="metadata")
    for key, text in given.items():
        if not isinstance(key, str) or not isinstance(text, str) or "\0" in key + text:
            raise InvalidRequest(f"metadata.{key} must be text without NUL", param=f"metadata.{key}"[:key_chars])
        if len(key) > key_chars or len(text) > value_chars:
            raise InvalidRequest(
                f"metadata.{key[:key_chars]} has {len(key)} and {len(text)} characters; a key may have {key_chars}, a "
                f"value {value_chars}",
                param=f"metadata.{key[:key_chars]}",
            )
    return {str(key): str(text) for key, text in given.items()}


def _check_regions(api: Api, wanted: tuple[str, ...] | None) -> None:
    known = sorted(api.directory.snapshot.regions) or sorted(region.name for region in api.regions)
    for name in wanted or ():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise InvalidRequest(
                f"there is no region {name[:80]!r}; {hint}known: {', '.join(known)}",
                param="carbon.regions",
                code="region_not_found",
            )


def _retry_count(headers: Mapping[str, str]) -> int:
    given = headers.get("x-stainless-retry-count", "")
    return min(int(given), _MAX_RETRY_COUNT) if given.isascii() and given.isdecimal() and len(given) < 10 else 0


def _idempotency_key(headers: Mapping[str, str]) -> str | None:
    key = headers.get("idempotency-key")
    if key is not None and (not 0 < len(key) <= meaning.MAX_NAME_CHARS or not key.isprintable()):
        raise InvalidRequest(
            f"Idempotency-Key must be printable text of 1 to {meaning.MAX_NAME_CHARS} characters",
            param="Idempotency-Key",
        )
    return key


@router.get(
    "", dependencies=[needs(Scope.READ)], **operation("list_batches", "openai", answers={200: gives(BatchPage)})
)
def list_batches(
    api: ApiDep,
    caller: CallerDep,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> dict[str, Any]:
    """List the caller's batches, newest first; ``carbon`` and ``usage`` of each are told where it is retrieved."""
    with api.db.read() as tx:
        found = batches.page(tx, caller.tenant, after, limit + 1)
        counts = batches.progress(tx, [batch.batch_id for batch in found[:limit]])
    data = [batch_view.plain_view(batch, counts.get(batch.batch_id)) for batch in found[:limit]]
    return views.page_view(data, has_more=len(found) > limit)


@router.get(
    "/{batch_id}",
    dependencies=[needs(Scope.READ)],
    **operation(
        "get_batch",
        "openai",
        answers={
            200: gives(BatchShape, headers=("ETag",)),
            304: Answer("Nothing has changed since the `ETag` you have.", headers=("ETag",)),
        },
        errors=(("not_found", 404),),
        headers=("If-None-Match",),
    ),
)
async def get_batch(request: Request, batch_id: str) -> Response:
    """Return a batch with its progress, usage and carbon figures."""
    _, caller = seen_by(request)
    flights: Flights[tuple[str, str], Sight] = request.app.state.batch_flights
    return (await flights.of((batch_id, caller.tenant))).answer({}, request.headers.get("if-none-match"))


def look(api: Api, key: tuple[str, str]) -> Sight:
    """See a batch (id, tenant) with its figures. Raises NotFound, StoreUnavailable."""
    with api.db.read() as tx:
        return Sight(orjson.dumps(batch_view.whole(api, tx, batches.get(tx, *key))))


@router.post(
    "/{batch_id}/cancel",
    dependencies=[needs(Scope.SUBMIT)],
    **operation("cancel_batch", "openai", answers={200: gives(BatchShape)}, errors=(("not_found", 404),)),
)
def cancel_batch(batch_id: str, api: ApiDep, caller: CallerDep) -> dict[str, Any]:
    """Cancel what has not run; results so far are kept. A final batch comes back unchanged."""
    batch: Batch = service.cancel(api.db, batch_id, caller.tenant, api.clock)
    if not batch.is_final:
        for tick in ("expire", "finish"):
            api.nudger.nudge(tick)
    with api.db.read() as tx:
        return batch_view.whole(api, tx, batch)
