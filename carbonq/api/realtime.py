"""POST /v1/embeddings and /v1/chat/completions: answered now, by the nearest region, without database or planner.

The body is OpenAI's, with an optional object ``carbon`` (``regions``, ``product_line``, ``workload``); the answer is
OpenAI's with ``usage.carbon`` and the headers ``X-Carbonq-*``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response

from carbonq import telemetry
from carbonq.api import problems
from carbonq.api.auth import Caller
from carbonq.api.body import read_object
from carbonq.api.context import Api, ApiDep, CallerDep
from carbonq.api.dispatcher import Reply
from carbonq.api.schemas import find_model, label, names
from carbonq.errors import InvalidRequest
from carbonq.model import Endpoint

router = APIRouter()

#: What ``carbon`` may hold in a realtime body; times and caps belong to jobs.
_CARBON_FIELDS = frozenset({"product_line", "regions", "workload"})


@router.post(Endpoint.EMBEDDINGS.value)
async def embeddings(request: Request, api: ApiDep, caller: CallerDep) -> Response:
    """Embed now."""
    return await _answer(request, api, caller, Endpoint.EMBEDDINGS)


@router.post(Endpoint.CHAT.value)
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
    api.directory.check_open(caller.tenant, model.name)
    carbon = _carbon(body.pop("carbon", None), request.headers)
    allowed: Collection[str] | None = carbon["regions"]
    payload = {
        "request_id": request.scope["carbonq.request_id"],  # the ledger names the item by it
        "tenant": caller.tenant,
        "api_key_id": caller.api_key_id,
        "product_line": carbon["product_line"],
        "workload": carbon["workload"],
        "endpoint": endpoint.value,
        "model": model.name,
        "requested_model": requested,
        "body": body,
    }

    with telemetry.timed(telemetry.API_REALTIME_SECONDS, endpoint.value):
        reply = await api.dispatcher.call(payload, model=model, allowed=allowed)
    return _response(request, reply)


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
    values = {name: carbon.get(name) or headers.get(f"x-carbonq-{name.replace('_', '-')}") for name in _CARBON_FIELDS}
    for name in ("product_line", "workload"):
        values[name] = label(values[name], param=f"carbon.{name}")
    values["regions"] = names(values["regions"], param="carbon.regions")
    return values


def _response(request: Request, reply: Reply) -> Response:
    values, region = reply.values, reply.region.name
    headers = {"X-Carbonq-Region": region}
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
    usage = {**values["usage"], "carbon": {**carbon, "engine_s": values.get("engine_s")}}
    # The engine's body is spliced, not parsed: a vector would be decoded and encoded again for nothing.
    body = values["body_json"].encode().rstrip()
    assert body.endswith(b"}")
    content = b"".join((body[:-1], b',"usage":', orjson.dumps(usage), b"}"))
    return Response(content, status, media_type="application/json", headers=headers)
