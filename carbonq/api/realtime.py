"""POST /v1/embeddings and /v1/chat/completions: answered now, without database or planner.

A realtime call goes to the nearest region, an interactive one to the cleanest within its latency budget. The body is
OpenAI's, with an optional object ``carbon`` (``class``, ``regions``, ``session``, ``slo_ms``, ``product_line``,
``workload``); the answer is OpenAI's with ``usage.carbon`` and the headers ``X-Carbonq-*``.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import anyio.to_thread
import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response

from carbonq import estimate, telemetry
from carbonq.api import problems
from carbonq.api.auth import Caller
from carbonq.api.body import read_object
from carbonq.api.context import Api, ApiDep, CallerDep
from carbonq.api.dispatcher import Reply
from carbonq.api.interactive import Wanted, route_view
from carbonq.api.openapi import JSON, Content, gives, operation
from carbonq.api.schemas import find_model, label, names
from carbonq.api.shapes.openai import Completion, Embeddings, NewChat, NewEmbeddings
from carbonq.errors import InvalidRequest, Unavailable
from carbonq.model import Endpoint, Model, Region, WorkClass

router = APIRouter()

#: What ``carbon`` may hold in a realtime body; times and caps belong to jobs.
_CARBON_FIELDS = frozenset({"class", "product_line", "regions", "session", "slo_ms", "workload"})

#: Longest latency budget that a call may state, in milliseconds.
_MAX_SLO_MS = 600_000

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
    carbon = _carbon(body.pop("carbon", None), request.headers)
    api.directory.check_open(caller.tenant, model.name)
    region, routing = _region(api, caller, model, carbon, body)
    payload = {
        "request_id": request.scope["carbonq.request_id"],  # the ledger names the item by it
        "tenant": caller.tenant,
        "api_key_id": caller.api_key_id,
        "product_line": carbon["product_line"],
        "workload": carbon["workload"],
        "class": carbon["class"].value,
        "endpoint": endpoint.value,
        "model": model.name,
        "requested_model": requested,
        "body": body,
    }
    call_id = uuid.uuid4().hex
    with telemetry.timed(telemetry.API_REALTIME_SECONDS, endpoint.value):
        call = api.dispatcher.call(
            payload, model=model, region=region, slo_s=_seconds(carbon["slo_ms"]), call_id=call_id
        )
        reply = await _unless_gone(request, call, lambda: api.dispatcher.drop(call_id))
    return Response(status_code=_GONE) if reply is None else _response(request, reply, routing, carbon["class"])


def _region(
    api: Api, caller: Caller, model: Model, carbon: Mapping[str, Any], body: Mapping[str, Any]
) -> tuple[Region, dict[str, Any] | None]:
    """Return where a call goes: the nearest region, or for an interactive one the cleanest within its budget."""
    if carbon["class"] is WorkClass.REALTIME:
        slo_s = _seconds(carbon["slo_ms"])
        return (
            api.directory.nearest(
                model, carbon["regions"], has_room=lambda name: api.dispatcher.has_room(name, model.name, slo_s)
            ),
            None,
        )
    tokens = estimate.body_tokens(body, model).total
    wanted = Wanted(
        tenant=caller.tenant,
        model=model,
        allowed=carbon["regions"],
        slo_ms=carbon["slo_ms"] or api.limits.interactive_slo_ms,
        session=carbon["session"],
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


def _carbon(given: Any, headers: Mapping[str, str]) -> dict[str, Any]:
    """Read the ``carbon`` object; a header gives the default for a field the body leaves out."""
    if given is not None and not isinstance(given, dict):
        raise InvalidRequest("carbon must be an object", param="carbon")
    carbon: dict[str, Any] = dict(given or {})
    for name in carbon:
        if name not in _CARBON_FIELDS:
            raise InvalidRequest(
                f"carbon.{name} is not known for a realtime call, which takes {', '.join(sorted(_CARBON_FIELDS))}; "
                "work with a deadline or a cap is a job: POST /v1/jobs",
                param=f"carbon.{name}",
            )
    said = {name: headers.get(f"x-carbonq-{name.replace('_', '-')}") for name in _CARBON_FIELDS}
    values = {name: said[name] if carbon.get(name) is None else carbon[name] for name in _CARBON_FIELDS}
    for name in ("product_line", "session", "workload"):
        values[name] = label(values[name], param=f"carbon.{name}")
    values["regions"] = names(values["regions"], param="carbon.regions")
    values["class"] = _class(values["class"])
    values["slo_ms"] = _slo_ms(values["slo_ms"])
    if values["session"] is not None and values["class"] is WorkClass.REALTIME:
        raise InvalidRequest("carbon.session is for interactive calls; send class interactive", param="carbon.session")
    return values


def _class(value: Any) -> WorkClass:
    """Read the latency class; a call without one, and so without a deadline, is realtime."""
    if value is None:
        return WorkClass.REALTIME
    if value == WorkClass.FLEXIBLE:
        raise InvalidRequest(
            "carbon.class flexible is work with a deadline, which is a job: POST /v1/jobs", param="carbon.class"
        )
    if value not in (WorkClass.REALTIME, WorkClass.INTERACTIVE):
        raise InvalidRequest(f"carbon.class {value!r} is neither realtime nor interactive", param="carbon.class")
    return WorkClass(value)


def _slo_ms(value: Any) -> float | None:
    if value is None:
        return None
    with contextlib.suppress(TypeError, ValueError):
        found = float(value)
        if not isinstance(value, bool) and 0 < found <= _MAX_SLO_MS:
            return found
    raise InvalidRequest(
        f"carbon.slo_ms {value!r} is no number of milliseconds above 0 and at most {_MAX_SLO_MS:,}",
        param="carbon.slo_ms",
    )


def _seconds(slo_ms: float | None) -> float | None:
    return None if slo_ms is None else slo_ms / 1000


def _response(request: Request, reply: Reply, routing: dict[str, Any] | None, work_class: WorkClass) -> Response:
    values, region = reply.values, reply.region.name
    headers = {"X-Carbonq-Region": region, "X-Carbonq-Class": work_class.value}
    error = values.get("error")
    status = int(values.get("status_code") or 500)
    if error is not None or status >= 400:
        error = error or {}
        return problems.problem(
            status,
            str(error.get("message") or f"the engine in {region} failed on this request"),
            code=str(error.get("code") or "engine_error"),
            param=error.get("param"),
            instance=request.url.path,
            headers=headers,
        )
    carbon: dict[str, Any] = values.get("carbon") or {}
    for header, field in (("X-Carbonq-Energy-Wh", "energy_wh"), ("X-Carbonq-Gco2e", "gco2e")):
        if carbon.get(field) is not None:
            headers[header] = str(carbon[field])
    routed = {} if routing is None else {"routing": routing}
    carbon = {**carbon, "class": work_class.value, "engine_s": values.get("engine_s"), **routed}
    usage = {**values["usage"], "carbon": carbon}
    # The engine's body is spliced, not parsed: a vector would be decoded and encoded again for nothing.
    body = values["body_json"].encode().rstrip()
    assert body.endswith(b"}")
    content = b"".join((body[:-1], b',"usage":', orjson.dumps(usage), b"}"))
    return Response(content, status, media_type="application/json", headers=headers)
