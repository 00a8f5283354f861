"""The native jobs API: submit (streamed or inline), list, look at, cancel, and see the chunks of a job."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, cast

import anyio.to_thread
import orjson
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from carbonq import jsonl
from carbonq.api import job_terms, schemas, small, views
from carbonq.api.auth import Caller, needs
from carbonq.api.body import drain, media_type_of, read_bytes, read_object, stage, unsupported
from carbonq.api.context import Api, ApiDep, CallerDep, seen_by
from carbonq.api.flights import Flights, Sight
from carbonq.api.openapi import JSON, Answer, Content, Parameter, gives, operation
from carbonq.api.shapes.jobs import Job as JobShape
from carbonq.api.shapes.jobs import JobChunkPage, JobPage, WholeJob
from carbonq.api.shapes.jobs import NewJob as NewJobShape
from carbonq.api.waiting import Finals, Preference, preference, unless_gone
from carbonq.blobs import Staged
from carbonq.errors import InvalidRequest
from carbonq.model import Endpoint, Job, JobState, LatePolicy, NewJob, Region, Scope
from carbonq.services import cancel, meaning, submit, traced
from carbonq.store import downgrades, jobs, overview

router = APIRouter(prefix="/v1/jobs")

#: Media types of a streamed submit; curl's own default counts, so that ``--data-binary @file`` just works.
STREAMED = frozenset(
    {
        "",
        "application/jsonl",
        "application/octet-stream",
        "application/x-jsonlines",
        "application/x-ndjson",
        "application/x-www-form-urlencoded",
        "text/plain",
    }
)

#: Largest JSON body with inline items, in bytes; more is streamed as JSON lines.
MAX_INLINE_BYTES = 16 * 1024 * 1024

_SPLIT = "split it over several jobs or raise CARBONQ_MAX_INPUT_BYTES"

#: A body of JSON lines.
LINES = Content(None, '{"custom_id": "a-1", "body": {"input": "The grid is cleanest at night."}}\n')

#: The fields of a job in the query, beside a body of JSON lines.
FIELDS = (
    Parameter("endpoint", "what the lines ask for; or `kind`", {"type": "string", "enum": list(Endpoint)}),
    Parameter("kind", "instead of `endpoint`", {"type": "string", "enum": list(schemas.KINDS)}, "embeddings"),
    Parameter("model", "the model", {"type": "string"}, "wordllama-256"),
    Parameter("deadline", "a span (`6h`, `90m`, `2d`) or a time with its zone", {"type": "string"}, "6h"),
    Parameter("region", "where it may run; repeat it", {"type": "array", "items": {"type": "string"}}, ["fr"]),
    Parameter("max_carbon_g", "a cap of grams", {"type": "number", "exclusiveMinimum": 0}, 5.0),
    Parameter("product_line", "for budgets and reports", {"type": "string", "maxLength": 255}, "search"),
    Parameter("workload", "for budgets and reports", {"type": "string", "maxLength": 255}, "reindex"),
    Parameter("late_policy", "what becomes of items that are late", {"type": "string", "enum": list(LatePolicy)}),
    Parameter(
        "downgrade", "whether a smaller model may run it", {"type": "string", "enum": ["true", "false"]}, "false"
    ),
)

#: Headers that say what the fields leave out.
TERMS_HEADERS = (
    *("X-Carbonq-Deadline", "X-Carbonq-Downgrade", "X-Carbonq-Late-Policy", "X-Carbonq-Max-Gco2e"),
    "X-Carbonq-Product-Line",
    *("X-Carbonq-Regions", "X-Carbonq-Workload"),
)

#: What may be wrong with the fields or lines of a job.
REFUSALS = (
    "context_length_exceeded", "deadline_in_the_past", "duplicate_custom_id", "empty_file", "infeasible",
    "input_too_large", "invalid_json", "invalid_json_line", "invalid_value", "line_too_long",
    "missing_required_parameter", "model_mismatch", ("model_not_found", 400), "region_not_found", "request_timeout",
    "request_too_large", "too_many_tasks", "unknown_parameter", "unsupported_encoding",
    "unsupported_media_type", "url_mismatch",
)  # fmt: skip

#: A job in JSON.
EXAMPLE = {
    "model": "wordllama-256",
    "kind": "embeddings",
    "deadline": "6h",
    "items": ["The grid is cleanest at night.", {"id": "doc-2", "text": "And at noon."}],
}

_STORED = ("Location", "Preference-Applied", "Idempotency-Replayed")


@router.post(
    "",
    dependencies=[needs(Scope.SUBMIT)],
    **operation(
        "submit_job",
        "jobs",
        answers={
            202: gives(JobShape, "Stored.", headers=(*_STORED, "Retry-After")),
            200: gives(WholeJob, "Final already: it was waited for.", headers=_STORED),
        },
        errors=(
            *REFUSALS,
            "carbon_budget_exceeded",
            "disk_full",
            "idempotency_key_reused",
            "model_draining",
            "tenant_draining",
        ),
        body={JSON: Content(NewJobShape, EXAMPLE), "application/x-ndjson": LINES},
        headers=("Idempotency-Key", "Prefer", *TERMS_HEADERS),
        parameters=FIELDS,
    ),
)
async def submit_job(request: Request) -> Response:
    """Store a job: JSON lines as the body with the fields in the query, or one JSON object with ``items``.

    With ``Prefer: wait=N`` the answer comes when the job is final, or after N seconds.
    """
    api, caller = seen_by(request)
    with api.traces.begin("submit", kind="server", parent=request.headers.get("traceparent")) as span:
        job, is_new = await _stored(request, api, caller, span.link)
        if api.traces.is_on:
            span.set({**traced.of_job(job), "carbonq.is_replayed": not is_new})
    if is_new:
        api.nudger.nudge("plan")  # a placement is visible sooner; the schedule brings it anyhow
    headers = {"Location": f"/v1/jobs/{job.job_id}"}
    if not is_new:
        headers["Idempotency-Replayed"] = "true"
    wait_s = views.retry_after_s(job, (), api.clock)
    if wait_s is not None:
        headers["Retry-After"] = str(wait_s)
    wanted = preference(request.headers.getlist("prefer"))
    if wanted.wait_s is None:
        if wanted.respond_async:
            headers["Preference-Applied"] = "respond-async"
        return _json(_view(api, job), 202, headers)
    if await _waited(request, job.job_id, wanted, headers):
        return (await _seen(request, job.job_id, caller)).answer(headers, None)
    headers.setdefault("Preference-Applied", "respond-async")
    return _json(_view(api, job), 202, headers)


async def _stored(request: Request, api: Api, caller: Caller, trace_context: str | None) -> tuple[Job, bool]:
    """Take the job of a request, in whichever shape it comes; False: it was there already."""
    media_type = media_type_of(request)
    if media_type == "application/json":
        values = await read_object(request, MAX_INLINE_BYTES, way_out="stream it as JSON lines instead")
        items = values.pop("items", None)
        new = _new_job(request, api, caller, values, trace_context)
        return await _store_items(request, api, items, new)
    if media_type in STREAMED:
        # The fields are checked before the first byte is taken: a typo must not cost an upload of 200 MB.
        new = _new_job(request, api, caller, schemas.job_query(request.query_params.multi_items()), trace_context)
        return await _store_lines(request, api, new)
    await drain(request)
    raise unsupported(media_type, "application/x-ndjson lines or one application/json object")


async def _waited(request: Request, job_id: str, wanted: Preference, headers: dict[str, str]) -> bool:
    """Wait as long as is preferred, and say so in the headers; False when the job is not final (or nobody asks)."""
    finals: Finals = request.app.state.finals
    if wanted.wait_s is None or finals.is_full:
        return False
    is_final = await unless_gone(request, finals.wait(job_id, wanted.wait_s))
    headers["Preference-Applied"] = f"wait={wanted.wait_s}"
    return bool(is_final)


def _view(api: Api, job: Job) -> dict[str, Any]:
    hold = None if job.is_final else api.directory.snapshot.hold_of(job.tenant, job.model)
    return views.job_view(job) | {"held": views.held_view(hold)}


def _new_job(request: Request, api: Api, caller: Caller, values: dict[str, Any], trace_context: str | None) -> NewJob:
    now = api.clock.now()
    new = schemas.new_job(
        job_terms.completed(values, headers=request.headers, defaults=caller.defaults, now=now),
        tenant=caller.tenant,
        api_key_id=caller.api_key_id,
        now=now,
        models=api.models,
        idempotency_key=request.headers.get("idempotency-key"),
    )
    meaning.check_meaning(new, api.models, regions_of(api), api.clock.now())
    return new if trace_context is None else replace(new, trace_context=trace_context)


def regions_of(api: Api) -> list[Region]:
    """Return the regions as they are now; those of the settings before the first look."""
    return list(api.directory.snapshot.regions.values()) or list(api.regions)


def stage_inline(api: Api, items: Any, new: NewJob) -> Staged:
    """Write texts, ``{"id","text"}`` objects or OpenAI lines as the OpenAI lines they stand for."""
    with contextlib.ExitStack() as on_error:
        staged = on_error.enter_context(api.blobs.stage())
        for line in inline_lines(items, new):
            staged.write(line)
        on_error.pop_all()  # all is well: it goes on to be stored
    return staged


def inline_lines(items: Any, new: NewJob) -> Iterator[bytes]:
    """Yield the OpenAI lines that texts, ``{"id","text"}`` objects or OpenAI lines stand for. Raises InvalidRequest."""
    if not isinstance(items, list) or not items:
        raise InvalidRequest("items must be a list with at least one item", param="items", code="empty_file")
    given = cast("list[object]", items)
    yield from jsonl.to_openai_lines(_inline(given), endpoint=new.endpoint, model=new.model, fmt="jsonl")


def _inline(items: list[object]) -> Iterator[bytes]:
    for number, item in enumerate(items, start=1):
        if not isinstance(item, str | dict):
            raise InvalidRequest(f"item {number} is neither a text nor an object", param="items", line=number)
        yield orjson.dumps({"id": f"item-{number}", "text": item} if isinstance(item, str) else item)


def _store(api: Api, staged: Staged, new: NewJob) -> tuple[Job, bool]:
    return submit.submit(
        api.db,
        api.blobs,
        staged,
        new,
        models=api.models,
        regions=regions_of(api),
        home_region=api.home_region,
        clock=api.clock,
        limits=submit_limits(api),
        throughputs=api.directory.snapshot.learned,
        treatments=api.treatments,
        quota_limits=api.allowance.of(new.tenant),
        gate=api.gate,
    )


async def _store_items(request: Request, api: Api, items: Any, new: NewJob) -> tuple[Job, bool]:
    if small.is_small(request):
        return await _store_small(api, b"".join(inline_lines(items, new)), new)
    staged = await anyio.to_thread.run_sync(stage_inline, api, items, new)
    return await anyio.to_thread.run_sync(_store, api, staged, new)


async def _store_lines(request: Request, api: Api, new: NewJob) -> tuple[Job, bool]:
    if small.is_small(request):
        return await _store_small(api, await read_bytes(request, small.MAX_BYTES, way_out=_SPLIT), new)
    staged = await stage(request, api.blobs, api.limits.max_input_bytes, way_out=_SPLIT)
    return await anyio.to_thread.run_sync(_store, api, staged, new)


async def _store_small(api: Api, data: bytes, new: NewJob) -> tuple[Job, bool]:
    return await small.store(api, data, new, regions=regions_of(api), limits=submit_limits(api))


def submit_limits(api: Api) -> submit.Limits:
    """Return what one job may hold."""
    return submit.Limits(
        max_items=api.limits.max_items,
        max_line_bytes=api.limits.max_line_bytes,
        max_input_bytes=api.limits.max_input_bytes,
        chunk_fill=api.limits.chunk_fill,
    )


@router.get("", dependencies=[needs(Scope.READ)], **operation("list_jobs", "jobs", answers={200: gives(JobPage)}))
def list_jobs(
    api: ApiDep,
    caller: CallerDep,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    state: Annotated[list[JobState] | None, Query()] = None,
) -> dict[str, Any]:
    """List the caller's jobs, newest first."""
    with api.db.read() as tx:
        found = jobs.page(tx, caller.tenant, after, limit + 1, states=tuple(state or ()))
    return views.page_view([_view(api, job) for job in found[:limit]], has_more=len(found) > limit)


@router.get(
    "/{job_id}",
    dependencies=[needs(Scope.READ)],
    **operation(
        "get_job",
        "jobs",
        answers={
            200: gives(WholeJob, headers=("ETag", "Retry-After", "Preference-Applied")),
            304: Answer("Nothing has changed since the `ETag` you have.", headers=("ETag", "Retry-After")),
        },
        errors=("not_found",),
        headers=("If-None-Match", "Prefer"),
    ),
)
async def get_job(request: Request, job_id: str) -> Response:
    """Return a job with progress, placement and carbon figures; ``Retry-After`` hints when to look again.

    With ``Prefer: wait=N`` the answer comes when the job is final, or after N seconds.
    """
    api, caller = seen_by(request)
    headers: dict[str, str] = {}
    wanted = preference(request.headers.getlist("prefer"))
    if wanted.wait_s is not None and not (await anyio.to_thread.run_sync(_find, api, job_id, caller.tenant)).is_final:
        await _waited(request, job_id, wanted, headers)
    known = request.headers.get("if-none-match")
    return (await _seen(request, job_id, caller)).answer(headers, known)


async def _seen(request: Request, job_id: str, caller: Caller) -> Sight:
    flights: Flights[tuple[str, str], Sight] = request.app.state.job_flights
    return await flights.of((job_id, caller.tenant))


def _find(api: Api, job_id: str, tenant: str) -> Job:
    with api.db.read() as tx:
        return jobs.get(tx, job_id, tenant)


def look(api: Api, key: tuple[str, str]) -> Sight:
    """See a job (id, tenant) with what takes more queries. Raises NotFound, StoreUnavailable."""
    with api.db.read() as tx:
        job = jobs.get(tx, *key)
        held = api.chunks.of(tx, job)
        sums = api.sums.of(tx, job)
        is_one_smaller = any(one.model != job.model for one in held)
        smaller = downgrades.items_of_job(tx, job.job_id) if is_one_smaller else {}
    view = _view(api, job)
    view |= {
        "phase": views.phase(job, held, view["held"]),
        "placement": views.placement_view(held),
        "downgraded": None if job.retired_at is not None else smaller,
        "carbon": views.carbon_view(sums),
    }
    return Sight(orjson.dumps(view), views.retry_after_s(job, held, api.clock))


@router.post(
    "/{job_id}/cancel",
    dependencies=[needs(Scope.SUBMIT)],
    **operation("cancel_job", "jobs", answers={200: gives(JobShape)}, errors=("not_found",)),
)
def cancel_job(job_id: str, api: ApiDep, caller: CallerDep) -> dict[str, Any]:
    """Cancel what has not run; what runs stops at its next engine batch. A final job comes back unchanged."""
    return _view(api, cancel.cancel(api.db, job_id, caller.tenant, api.clock))


@router.get(
    "/{job_id}/chunks",
    dependencies=[needs(Scope.READ)],
    **operation("list_chunks", "jobs", answers={200: gives(JobChunkPage)}, errors=("not_found",)),
)
def list_chunks(
    job_id: str,
    api: ApiDep,
    caller: CallerDep,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
) -> dict[str, Any]:
    """Return where each part of a job runs, and why there."""
    with api.db.read() as tx:
        jobs.get(tx, job_id, caller.tenant)
        held = overview.job_chunks(tx, job_id)
    return views.part_of([views.job_chunk_view(one) for one in held], after=after, limit=limit)


def _json(value: dict[str, Any], status: int, headers: dict[str, str]) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json", headers=headers)
