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
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response

from carbonq import answers, estimate, telemetry, terms
from carbonq.api import problems, streaming
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
from carbonq.services import traced
from carbonq.terms import Terms

_T = TypeVar("_T")

router = APIRouter(dependencies=[needs(Scope.SUBMIT)])

#: Why a realtime call ran where and when it did.
_AT_ONCE = {"reason": "realtime", "sentence": "answered at once by the nearest healthy region that had room"}

#: The status of an answer that nobody reads any more, as proxies log it.
_GONE = 499

#: Headers of an answer, and those that say what ``carbon`` leaves out.
_ANSWERED = ("X-Carbonq-Class", "X-Carbonq-Energy-Wh", "X-Carbonq-Gco2e", "X-Carbonq-Region")
_WHOLE = gives(Completion, headers=_ANSWERED)
_STREAMED = {"text/event-stream": Content(None, 'data: {"object":"chat.completion.chunk","choices":[]}\n\n')}
_COMPLETED = replace(_WHOLE, content={**_WHOLE.content, **_STREAMED})
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
        answers={200: _COMPLETED},
        errors=_REFUSALS,
        body={JSON: Content(NewChat, _CHAT)},
        headers=_TERMS,
    ),
)
async def chat_completions(request: Request, api: ApiDep, caller: CallerDep) -> Response:
    """Complete a chat now, as a stream of chunks where ``stream`` is true."""
    return await _answer(request, api, caller, Endpoint.CHAT)


async def _answer(request: Request, api: Api, caller: Caller, endpoint: Endpoint) -> Response:
    body = await read_object(request, api.limits.max_line_bytes, way_out="send less or raise CARBONQ_MAX_LINE_BYTES")
    wish = streaming.wish_of(body, may_stream=endpoint is Endpoint.CHAT)
    requested = body.get("model")
    model = find_model(api.models, requested, endpoint)
    asked = _terms(api, caller, request, body)
    work_class = asked.work_class or WorkClass.REALTIME
    api.directory.check_open(caller.tenant, model.name)
    await api.rate_limits.check_tokens(request, caller)
    api.allowance.check_tokens(caller.tenant)
    region, routing = _region(api, caller, model, asked, body)
    request_id: str = request.scope["carbonq.request_id"]
    payload = {
        "request_id": request_id,  # the ledger names the item by it
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

    async def run(on_piece: Callable[[str], None] | None = None) -> Reply:
        with (
            telemetry.timed(telemetry.API_REALTIME_SECONDS, endpoint.value),
            api.traces.begin(work_class.value, kind="server", parent=request.headers.get("traceparent")) as span,
        ):
            if api.traces.is_on:
                payload["traceparent"] = span.context
                span.set(traced.of_call(payload, region.name))
            slo_s = _seconds(asked.slo_ms)
            reply = await api.dispatcher.call(
                payload, model=model, region=region, slo_s=slo_s, call_id=call_id, on_piece=on_piece
            )
            if api.traces.is_on:
                traced.tell_reply(span, reply.values)
            return reply

    async def ended(reply: Reply) -> None:
        tokens = int((reply.values.get("usage") or {}).get("total_tokens") or 0)
        api.allowance.count_tokens(caller.tenant, tokens)
        await api.rate_limits.count_tokens(request, caller, tokens)

    def drop() -> None:
        asyncio.get_running_loop().run_in_executor(None, api.dispatcher.drop, call_id)

    answered = _Answered(request, region.name, work_class, routing)
    if wish is not None:
        call = streaming.Call(
            request_id=request_id,
            model=model.name,
            wish=wish,
            headers=answered.headers,
            run=run,
            drop=drop,
            refusal=answered.refusal,
            usage=answered.usage,
            ended=ended,
        )
        return await _while_there(request, lambda gone: streaming.answer(call, gone)) or Response(status_code=_GONE)
    reply = await _while_there(request, lambda gone: _unless_gone(run(), gone, drop))
    if reply is None:
        return Response(status_code=_GONE)
    await ended(reply)
    return answered.response(reply)


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


async def _while_there(
    request: Request, act: Callable[[asyncio.Future[None]], Coroutine[Any, Any, _T | None]]
) -> _T | None:
    """Act, told of the client's going away by a future that is done then."""
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        return await act(gone)
    finally:
        gone.cancel()


async def _unless_gone(
    call: Coroutine[Any, Any, Reply], gone: asyncio.Future[None], drop: Callable[[], None]
) -> Reply | None:
    """Wait for an answer; None when the client went away before it came, and then nobody computes it any more."""
    answer = asyncio.ensure_future(call)
    await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
    if answer.done():
        return answer.result()
    drop()
    with contextlib.suppress(Unavailable):
        await answer
    return None


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


@dataclass(frozen=True, slots=True)
class _Answered:
    """Makes HTTP of what a region's worker replies to one call."""

    request: Request
    region: str
    work_class: WorkClass
    routing: Mapping[str, Any] | None

    @property
    def headers(self) -> dict[str, str]:
        return {"X-Carbonq-Region": self.region, "X-Carbonq-Class": self.work_class.value}

    def refusal(self, reply: Reply) -> Response | None:
        """Return the answer for a reply that is an error; None for one that is none."""
        error, headers = reply.values.get("error"), self.headers
        status = int(reply.values.get("status_code") or ENGINE_FAILED)
        if error is None and status < 400:
            return None
        error = error or {}
        if reply.values.get("is_final"):
            headers["X-Should-Retry"] = "false"  # the engine would fail on it again, and burn as much
        return problems.problem(
            status,
            str(error.get("message") or f"the engine in {self.region} failed on this request"),
            code=str(error.get("code") or "engine_error"),
            param=error.get("param"),
            instance=self.request.url.path,
            headers=headers,
        )

    def usage(self, reply: Reply) -> bytes:
        """Return the usage of a reply as JSON, with its carbon as the worker wrote it, digit by digit."""
        written: str = reply.values["carbon_json"]
        routed = {} if self.routing is None else {"routing": self.routing}
        added = {"class": self.work_class.value, "engine_s": reply.values.get("engine_s"), **routed}
        carbon = b"".join((written[:-1].encode(), b",", orjson.dumps(added)[1:]))
        return answers.with_carbon(reply.values["usage"], carbon)

    def response(self, reply: Reply) -> Response:
        """Return the whole answer."""
        refused = self.refusal(reply)
        if refused is not None:
            return refused
        headers = self.headers
        shown: dict[str, Any] = json.loads(reply.values["carbon_json"], parse_float=str)  # as it is written
        for header, name in (("X-Carbonq-Energy-Wh", "energy_wh"), ("X-Carbonq-Gco2e", "gco2e")):
            if shown.get(name) is not None:
                headers[header] = str(shown[name])
        # The engine's body is spliced, not parsed: a vector would be decoded and encoded again for nothing.
        content = answers.body(reply.values["body_json"].encode(), self.usage(reply))
        return Response(content, int(reply.values["status_code"]), media_type="application/json", headers=headers)
