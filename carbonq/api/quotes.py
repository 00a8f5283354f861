"""POST /v1/quotes: what a job would cause now, by its deadline, and over deadlines and regions. Nothing is stored."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Request

from carbonq.api import job_terms, jobs, schemas, views
from carbonq.api.auth import Caller, needs
from carbonq.api.body import drain, media_type_of, read_object, stage, unsupported
from carbonq.api.context import Api, ApiDep, CallerDep
from carbonq.api.openapi import JSON, Content, gives, operation
from carbonq.api.shapes.planning import NewQuote
from carbonq.api.shapes.planning import Quote as QuoteShape
from carbonq.blobs import Staged
from carbonq.errors import InvalidRequest
from carbonq.model import NewJob, Scope
from carbonq.plan.quote import Point
from carbonq.services import meaning, quote, submit
from carbonq.services.quote import Ask, Quote, SetPoint
from carbonq.store import throughputs
from carbonq.units import iso, wh

router = APIRouter(prefix="/v1/quotes", dependencies=[needs(Scope.SUBMIT)])

#: The deadline that stands in for none while the other fields are checked.
_SOME_DEADLINE = "24h"

#: Most tokens that can be asked about by count.
_MOST_TOKENS = 10**12

UNCERTAINTY = (
    "spread_gco2e is at most one standard error of grams: the cells' root mean square errors at that lead, weighted by "
    "energy and added up as if they were fully correlated. Of a saving, what both sides run in the same cell cancels. "
    "It holds the rates' errors only, not those of tokens, speed or energy; null: not learned yet."
)


@router.post(
    "",
    **operation(
        "make_quote",
        "planning",
        answers={200: gives(QuoteShape)},
        errors=(*jobs.REFUSALS, "disk_full"),
        body={
            JSON: Content(
                NewQuote,
                {"model": "wordllama-256", "kind": "embeddings", "deadline": "6h", "items": 1000, "tokens": 900_000},
            ),
            "application/x-ndjson": jobs.LINES,
        },
        headers=jobs.TERMS_HEADERS,
        parameters=jobs.FIELDS,
    ),
)
async def make_quote(request: Request, api: ApiDep, caller: CallerDep) -> dict[str, Any]:
    """Quote JSON lines with the fields in the query, or one JSON object with ``items``: a list, or a count.

    The fields are those of a submit, and ``deadline`` may be left out. With a count comes ``tokens``, of all items
    together, prompt and completion.
    """
    media_type = media_type_of(request)
    if media_type == "application/json":
        values = await read_object(request, jobs.MAX_INLINE_BYTES, way_out="stream it as JSON lines instead")
        items, tokens = values.pop("items", None), values.pop("tokens", None)
        new, has_deadline = _fields(request, api, caller, values)
        if isinstance(items, int) and not isinstance(items, bool):
            ask = _counted(api, items, tokens)
            return await anyio.to_thread.run_sync(_answer, api, new, ask, has_deadline)
        if tokens is not None and isinstance(items, list):
            raise InvalidRequest("tokens goes with a count of items; of a list they are estimated", param="tokens")
        if not isinstance(items, list):
            raise InvalidRequest(
                f"items must be a list, or a count: a whole number from 1 to {api.limits.max_items:,} beside tokens",
                param="items",
            )
        staged = await anyio.to_thread.run_sync(jobs.stage_inline, api, items, new)
    elif media_type in jobs.STREAMED:
        new, has_deadline = _fields(request, api, caller, schemas.job_query(request.query_params.multi_items()))
        staged = await stage(request, api.blobs, api.limits.max_input_bytes, way_out="quote a part of it")
    else:
        await drain(request)
        raise unsupported(media_type, "application/x-ndjson lines or one application/json object")
    return await anyio.to_thread.run_sync(_read_and_answer, api, new, staged, has_deadline)


def _fields(request: Request, api: Api, caller: Caller, values: Mapping[str, Any]) -> tuple[NewJob, bool]:
    now = api.clock.now()
    values = job_terms.completed(values, headers=request.headers, defaults=caller.defaults, now=now)
    has_deadline = values.get("deadline") is not None
    new = schemas.new_job(
        {**values, "deadline": values["deadline"] if has_deadline else _SOME_DEADLINE},
        tenant=caller.tenant,
        api_key_id=caller.api_key_id,
        now=now,
        models=api.models,
        idempotency_key=None,
    )
    meaning.check_meaning(new, api.models, jobs.regions_of(api), api.clock.now())
    return new, has_deadline


def _counted(api: Api, items: int, tokens: Any) -> Ask:
    if not 1 <= items <= api.limits.max_items:
        raise InvalidRequest(f"items is {items:,}; a job holds 1 to {api.limits.max_items:,}", param="items")
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not items <= tokens <= _MOST_TOKENS:
        raise InvalidRequest(
            f"tokens is {tokens!r}; with a count of items give the tokens of all of them together, a whole number of "
            f"at least one an item and at most {_MOST_TOKENS:,}",
            param="tokens",
        )
    return Ask(items, tokens, -(-tokens // items))


def _read_and_answer(api: Api, new: NewJob, staged: Staged, has_deadline: bool) -> dict[str, Any]:
    with contextlib.ExitStack() as always:
        always.callback(staged.discard)
        staged.sync()
        found = submit.read_input(staged, new, api.models[new.model], jobs.submit_limits(api))
    return _answer(api, new, Ask(len(found.items), found.est_tokens, found.longest_item), has_deadline)


def _answer(api: Api, new: NewJob, ask: Ask, has_deadline: bool) -> dict[str, Any]:
    with api.db.read() as tx:
        learned = throughputs.get_all(tx)
    ask = replace(ask, regions=new.regions, deadline_at=new.deadline_at if has_deadline else None)
    made = quote.quote(
        api.db,
        ask,
        api.models[new.model],
        regions=jobs.regions_of(api),
        home_region=api.home_region,
        clock=api.clock,
        chunk_fill=api.limits.chunk_fill,
        max_chunk_items=api.limits.max_chunk_items,
        throughputs=learned,
        max_stale_s=api.max_stale_s,
        models=api.models,
        price_weight_g=api.price_weight_g,
    )
    notes = list(made.notes)
    if api.treatments.is_observed or new.tenant in api.treatments.observed_tenants:
        notes.append("work is only observed here: it runs at once at home, and the other figures say what would be")
    return {
        "object": "quote",
        "clock": views.clock_view(api.clock),
        "model": new.model,
        "endpoint": new.endpoint.value,
        "items": ask.items,
        "est_tokens": ask.tokens,
        "max_carbon_g": views.decimal_or_none(new.max_carbon_g),
        **_view(made),
        "notes": notes,
    }


def _view(made: Quote) -> dict[str, Any]:
    base = made.baseline
    return {
        "chunks": made.chunks,
        "signal": made.signal.value,
        "unit": "gCO2e",
        "known_until_at": views.time_or_none(made.known_until_at),
        "regions": [
            {
                "region": site.region.name,
                "hardware": site.region.hardware,
                "pue": views.decimal_or_none(site.region.pue),
                "energy_wh": _rounded(wh(site.energy_uj)),
                "work_s": _rounded(site.work_s),
                "tokens_per_s": _rounded(site.speed.tokens_per_s),
                "is_learned": site.speed.is_learned,
                "has_rates": site.is_known,
                "issued_at": views.time_or_none(site.issued_at),
            }
            for site in made.sites
        ],
        "baseline": None
        if base is None
        else {
            "region": base.region,
            "start_at": iso(base.start_at),
            "finish_at": iso(base.finish_at),
            "gco2e": _rounded(base.grams),
            "spread_gco2e": _rounded(base.spread_g),
        },
        "asked": None if made.asked is None else _point_view(made.asked, made) | _feasible_view(made.asked.point, made),
        "curve": [_point_view(one, made) for one in made.curve],
        "uncertainty": UNCERTAINTY,
    }


def _feasible_view(point: Point, made: Quote) -> dict[str, Any]:
    """Say whether the deadline may be met if accepted work makes room, and what a submit would say where it cannot."""
    return {"is_met_by_moving": point.is_met or made.shortage is None, "shortage": made.shortage}


def _point_view(one: SetPoint, made: Quote) -> dict[str, Any]:
    point = one.point
    names = [made.regions[row] for row in point.regions]
    return {
        "set": one.name,
        "regions": names,
        "after_s": point.deadline_s,
        "deadline_at": views.time_or_none(one.deadline_at),
        "is_met": point.is_met,
        "late_chunks": point.late,
        "unplaced_chunks": point.unplaced,
        "unrated_chunks": point.unrated,
        "start_at": views.time_or_none(one.start_at),
        "finish_at": views.time_or_none(one.finish_at),
        "placed": {made.regions[row]: count for row, count in enumerate(point.per_region) if count},
        "energy_wh": _rounded(wh(round(point.energy_uj))),
        "gco2e": _rounded(point.grams),
        "spread_gco2e": _rounded(point.spread_g),
        "extra_gco2e": _rounded(point.extra_g),
        "weighted_price_g": _rounded(point.price_g),
        "baseline_gco2e": _rounded(point.baseline_g),
        "saved_gco2e": _rounded(point.saved_g),
        "saved_pct": _share(point),
        "saved_spread_gco2e": _rounded(point.saved_spread_g),
    }


def _share(point: Point) -> float | None:
    if point.saved_g is None or not point.baseline_g:
        return None
    return round(100 * point.saved_g / point.baseline_g, 1)


def _rounded(value: float | None) -> float | None:
    """Keep six digits: more would pretend a precision that an estimate has not."""
    return None if value is None else float(f"{value:.6g}")
