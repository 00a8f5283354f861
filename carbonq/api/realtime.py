"""POST /v1/embeddings and /v1/chat/completions: answered now, without database or planner.

A realtime call goes to the nearest region, an interactive one to the cleanest within its latency budget. The body is
OpenAI's, with an optional object ``carbon`` (``terms.REALTIME_KEYS``) or its other carriers; the answer is OpenAI's
with ``usage.carbon`` and the headers ``X-Carbonq-*``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, cast

import anyio.to_thread
import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response

from carbonq import answers, estimate, telemetry, terms
from carbonq.api import problems
from carbonq.api import terms as api_terms
from carbonq.api.auth import Caller, needs
from carbonq.api.body import read_object
from carbonq.api.context import Api, ApiDep, CallerDep
from carbonq.api.dispatcher import Reply
from carbonq.api.interactive import Wanted, route_view
from carbonq.api.openapi import JSON, Content, gives, operation
from carbonq.api.schemas import find_model
from carbonq.api.shapes.openai import Completion, Embeddings, NewChat, NewEmbeddings
from carbonq.engines.protocol import ENGINE_FAILED
from carbonq.errors import InvalidRequest, Unavailable
from carbonq.model import Endpoint, Model, Region, Scope, WorkClass
from carbonq.terms import Terms

router = APIRouter(dependencies=[needs(Scope.SUBMIT)])

#: Why a realtime call ran where and when it did.
_AT_ONCE = {"reason": "realtime", "sentence": "answered at once by the nearest healthy region that had room"}

#: The status of an answer that nobody reads any more, as proxies log it.
_GONE = 499

#: Headers of an answer, and those that say what ``carbon`` leaves out.
_ANSWERED = ("X-Carbonq-Class", "X-Carbonq-Energy-Wh", "X-Carbonq-Gco2e", "X-Carbonq-Region")
_CHAT = {"model": "smollm2-135m-instruct", "messages": [{"role": "user", "content": "When is the grid clean?"}]}
_TERMS = ("X-Carbonq-Product-Line", "X-Carbonq-Regions", "X-Carbonq-Workload")

_REFUSALS = (
    *("context_length_exceeded", "invalid_json", "model_mismatch", ("model_not_found", 400), "unknown_region"),
    *("request_timeout", "request_too_large", "unsupported_encoding", "unsupported_media_type"),
    *("engine_error", "broker_unavailable", "model_draining", "model_paused", "no_region_available"),
    *("realtime_failed", "realtime_timeout", "tenant_draining", "tenant_paused"),
)


@router.post(
    Endpoint.EMBEDDINGS.value,
    **operation(
        "create_embeddings",
        "openai",
        answers={200: gives(Embeddings, headers=_ANSWERED)},
        errors=_REFUSALS,
        body={JSON: Content(NewEmbeddings, {"model": "wordllama-256", "input": "The grid is cleanest at night."})},
        headers=_TERMS,
    ),
)
async def embeddings(request: Request, api: ApiDep, caller: CallerDep) -> Response:
    """Embed now."""
    return await _answer(request, api, caller, Endpoint.EMBEDDINGS)


@router.post(
    Endpoint.CHAT.value,
    **operation(
        "create_chat_completion",
        "openai",
        answers={200: gives(Completion, headers=_ANSWERED)},
        errors=_REFUSALS,
        body={JSON: Content(NewChat, _CHAT)},
        headers=_TERMS,
    ),
)
async def chat_completions(request: Request, api: ApiDep, caller: CallerDep) -> Response:
    """Complete a chat now; streaming is refused."""
    return await _answer(request, api, caller, Endpoint.CHAT)


async def _answer(request: Request, api: Api, caller: Caller, endpoint: Endpoint) -> Response:
    body = await read_object(request, api.limits.max_line_bytes, way_out="send less or raise CARBONQ_MAX_LINE_BYTES")
    if body.get("stream"):
        raise InvalidRequest("streamed answers are not offered; send it without stream", param="stream")
    body.pop("stream", None)
    body.pop("stream_options", None)
    requested = body.get("model")
    model = find_model(api.models, requested, endpoint)
    asked = _terms(api, caller, request, body)
    work_class = asked.work_class or WorkClass.REALTIME
    api.directory.check_open(caller.tenant, model.name)
    await api.rate_limits.check_tokens(request, caller)
    api.allowance.check_tokens(caller.tenant)
    region, routing = _region(api, caller, model, asked, body)
    payload = {
        "request_id": request.scope["carbonq.request_id"],  # the ledger names the item by it
        "tenant": caller.tenant,
        "api_key_id": caller.api_key_id,
        "product_line": asked.product_line,
        "workload": asked.workload,
        "class": work_class.value,
        "why": _AT_ONCE if routing is None else {name: routing[name] for name in ("reason", "sentence")},
        "endpoint": endpoint.value,
        "model": model.name,
        "requested_model": requested,
        "body": body,
    }
    call_id = uuid.uuid4().hex
    with telemetry.timed(telemetry.API_REALTIME_SECONDS, endpoint.value):
        slo_s = _seconds(asked.slo_ms)
        call = api.dispatcher.call(payload, model=model, region=region, slo_s=slo_s, call_id=call_id)
        reply = await _unless_gone(request, call, lambda: api.dispatcher.drop(call_id))
    if reply is None:
        return Response(status_code=_GONE)
    tokens = int((reply.values.get("usage") or {}).get("total_tokens") or 0)
    api.allowance.count_tokens(caller.tenant, tokens)
    await api.rate_limits.count_tokens(request, caller, tokens)
    return _response(request, reply, routing, work_class)


def _region(
    api: Api, caller: Caller, model: Model, asked: Terms, body: Mapping[str, Any]
) -> tuple[Region, dict[str, Any] | None]:
    """Return where a call goes: the nearest region, or for an interactive one the cleanest within its budget."""
    if asked.work_class is not WorkClass.INTERACTIVE:
        slo_s = _seconds(asked.slo_ms)
        return (
            api.directory.nearest(
                model, asked.regions, has_room=lambda name: api.dispatcher.has_room(name, model.name, slo_s)
            ),
            None,
        )
    tokens = estimate.body_tokens(body, model).total
    wanted = Wanted(
        tenant=caller.tenant,
        model=model,
        allowed=asked.regions,
        slo_ms=asked.slo_ms or api.limits.interactive_slo_ms,
        session=asked.session,
        call_uj=estimate.energy_uj(tokens, model.uj_per_token),
    )
    region, made = api.router.choose(wanted)
    return region, route_view(made)


async def _unless_gone(request: Request, call: Coroutine[Any, Any, Reply], drop: Callable[[], None]) -> Reply | None:
    """Wait for an answer; None when the client went away before it came, and then nobody computes it any more."""
    answer, gone = asyncio.ensure_future(call), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        await anyio.to_thread.run_sync(drop)
        with contextlib.suppress(Unavailable):
            await answer
        return None
    finally:
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _terms(api: Api, caller: Caller, request: Request, body: dict[str, Any]) -> Terms:
    """Take a call's terms out of its body and the other carriers. Raises InvalidRequest."""
    metadata: object = body.get("metadata")
    found = api_terms.read(
        now=api.clock.now(),
        takes=terms.REALTIME_KEYS,
        body=body.pop("carbon", None),
        metadata=cast("dict[str, str]", metadata) if isinstance(metadata, dict) else None,
        headers=request.headers,
        defaults=caller.defaults,
    )
    if found.work_class is WorkClass.FLEXIBLE:
        raise InvalidRequest(
            "carbon.class flexible is work with a deadline, which is a batch or a job: POST /v1/batches, /v1/jobs",
            param="carbon.class",
        )
    if found.session is not None and found.work_class is not WorkClass.INTERACTIVE:
        raise InvalidRequest("carbon.session is for interactive calls; send class interactive", param="carbon.session")
    return found


def _seconds(slo_ms: float | None) -> float | None:
    return None if slo_ms is None else slo_ms / 1000


def _response(request: Request, reply: Reply, routing: dict[str, Any] | None, work_class: WorkClass) -> Response:
    values, region = reply.values, reply.region.name
    headers = {"X-Carbonq-Region": region, "X-Carbonq-Class": work_class.value}
    error = values.get("error")
    status = int(values.get("status_code") or ENGINE_FAILED)
    if error is not None or status >= 400:
        error = error or {}
        if values.get("is_final"):
            headers["X-Should-Retry"] = "false"  # the engine would fail on it again, and burn as much
        return problems.problem(
            status,
            str(error.get("message") or f"the engine in {region} failed on this request"),
            code=str(error.get("code") or "engine_error"),
            param=error.get("param"),
            instance=request.url.path,
            headers=headers,
        )
    written: str = values["carbon_json"]
    shown: dict[str, Any] = json.loads(written, parse_float=str)  # as it is written, digit by digit
    for header, field in (("X-Carbonq-Energy-Wh", "energy_wh"), ("X-Carbonq-Gco2e", "gco2e")):
        if shown.get(field) is not None:
            headers[header] = str(shown[field])
    routed = {} if routing is None else {"routing": routing}
    added = {"class": work_class.value, "engine_s": values.get("engine_s"), **routed}
    carbon = b"".join((written[:-1].encode(), b",", orjson.dumps(added)[1:]))
    # The engine's body is spliced, not parsed: a vector would be decoded and encoded again for nothing.
    content = answers.body(values["body_json"].encode(), answers.with_carbon(values["usage"], carbon))
    return Response(content, status, media_type="application/json", headers=headers)
