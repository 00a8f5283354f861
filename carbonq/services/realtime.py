"""Answer one realtime call on a region's worker: one engine call of one item, metered, with its entry written behind.

No database and no planner on the way. The request is the API's payload: ``request_id, tenant, api_key_id, why,
product_line, workload, endpoint, model, requested_model, body``, where it is traced also ``traceparent``. The answer:
``status_code``, ``body_json`` (text, without ``usage``), ``usage``, ``carbon_json`` (text, so that no digit is lost on
the way), ``region``, ``engine_s``, ``energy_uj``; or ``status_code`` and ``error``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from carbonq import answers, batching, ids, ledger
from carbonq.booking import Booking, EngineBatch, WorkItem
from carbonq.engines.protocol import ENGINE_FAILED, Engine, EngineRequest, EngineResult, ShouldStop, Stopped
from carbonq.errors import EngineAway, EngineError
from carbonq.meters.protocol import MeteredPart, MeterInfo
from carbonq.model import Endpoint, EntryKind, Model, WorkClass
from carbonq.services import traced, weighing
from carbonq.services.site import Site

logger = logging.getLogger(__name__)

#: How long an answer waits for a meter that trails, in machine seconds; its entry follows in any case.
METER_WAIT_S = 0.005


def answer(
    site: Site,
    payload: Mapping[str, Any],
    keep: Callable[[Booking], None],
    should_stop: ShouldStop = lambda: False,
    on_text: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Answer a call; ``keep`` takes the booking. Never raises for what a client can send.

    ``on_text`` is told the text piece by piece as it comes, where the engine can; the answer has the whole of it.

    Where ``should_stop`` says that nobody waits any more, the engine stops and what it burnt is booked as wasted.
    """
    model = site.models.get(payload["model"])
    if model is None or not site.region.serves(model.name):
        return _error(404, "model_not_found", f"region {site.region.name} does not serve {payload['model']}", "model")
    engine = site.engine_of(model.name)
    told = traced.Call(site.traces, payload, model, site.region.name)
    keep = told.telling(keep)
    request = EngineRequest(payload["request_id"], payload["body"], on_text)
    failure: EngineError | Stopped | None = None
    result: EngineResult | None = None
    with site.gate:
        handle = site.hub.start(model.tokens_per_s)
        began = time.perf_counter()
        told.begin()
        try:
            result = engine.run([request], should_stop)[0]
        except (EngineError, Stopped) as error:
            failure = error
        finally:
            engine_s = time.perf_counter() - began
            told.end()
            closing = site.hub.finish(handle)
    engine_batch_id = ids.new("eb")

    def batch(item: WorkItem | None) -> EngineBatch:
        made = _batch(site, model, engine, engine_batch_id, closing.so_far(), item, _class(payload))
        return made if result is None else replace(made, figures=batching.figures([result], model))

    if isinstance(failure, Stopped):
        closing.when_known(lambda: keep(_wasted(site, batch(None), payload, "cancelled")))
        return _error(499, "caller_gone", "the caller has gone away", None)
    if failure is not None or result is None:
        closing.when_known(lambda: keep(_wasted(site, batch(None), payload, "failed")))
        logger.warning("engine failed on realtime call %s: %s", payload["request_id"], failure)
        reason = failure.message if failure is not None else "no result"
        status = 503 if isinstance(failure, EngineAway) else ENGINE_FAILED
        code = failure.code if failure is not None else EngineError.code
        is_final = failure is not None and not failure.is_retryable
        return _error(status, code, reason, None) | {"is_final": is_final}
    item = _item(payload, result)

    def book() -> Booking:
        return ledger.book(
            batch(item),
            site.rates(),
            recorded_at=site.machine.now(),
            recorded_by=site.worker_id,
            baseline_facts=site.facts,
        )

    # Where the meter trails, the answer leaves before its energy is known: unknown in the answer, exact in the entry.
    is_known = closing.wait(METER_WAIT_S)
    booked = book()
    if is_known:
        keep(booked)
    else:
        closing.when_known(lambda: keep(book()))
    if result.error_code is not None or result.body_json is None:
        return _error(result.status_code, result.error_code, result.error_message, result.error_param)
    assert booked.figures is not None
    figures = booked.figures if is_known else booked.figures.unmetered()
    return {
        "status_code": result.status_code,
        "body_json": result.body_json.decode(),
        "usage": answers.usage(result, Endpoint(payload["endpoint"])),
        "carbon_json": answers.carbons(figures, payload.get("why"))[0].decode(),
        "region": site.region.name,
        "engine_s": engine_s,
        "energy_uj": figures.energies_uj[0],
    }


def _error(status: int, code: str | None, message: str | None, param: str | None) -> dict[str, Any]:
    return {"status_code": status, "error": {"code": code, "message": message, "param": param}}


def _item(payload: Mapping[str, Any], result: EngineResult) -> WorkItem:
    return WorkItem(
        tenant=payload["tenant"],
        api_key_id=payload["api_key_id"],
        product_line=payload["product_line"],
        workload=payload["workload"],
        job_id=None,
        custom_id=payload["request_id"],
        item=None,
        chunk_id=None,
        attempt=None,
        work_class=_class(payload),
        requested_model=payload["requested_model"],
        outcome="succeeded" if result.error_code is None else "failed",
        prompt_tokens=result.prompt_tokens,
        cached_tokens=result.cached_tokens,
        completion_tokens=result.completion_tokens,
    )


def _batch(  # noqa: PLR0917 - what one engine batch is made of, called in one place
    site: Site,
    model: Model,
    engine: Engine,
    engine_batch_id: str,
    metered: tuple[tuple[MeteredPart, ...], MeterInfo],
    item: WorkItem | None,
    work_class: WorkClass,
) -> EngineBatch:
    model = site.weighed.of(model)
    return EngineBatch(
        engine_batch_id=engine_batch_id,
        worker_id=site.worker_id,
        work_class=work_class,
        fact=site.fact,
        info=metered[1] if item is None else weighing.marked(metered[1], model),
        parts=metered[0],
        items=() if item is None else (item,),
        model=model,
        engine=engine.name,
        engine_version=engine.version,
        software_version=site.software_version,
        clock=site.clock.kind,
    )


def _class(payload: Mapping[str, Any]) -> WorkClass:
    return WorkClass(payload.get("class") or WorkClass.REALTIME)


def _wasted(site: Site, batch: EngineBatch, payload: Mapping[str, Any], outcome: str) -> Booking:
    return ledger.book_overhead(
        batch,
        site.rates(),
        EntryKind.WASTED,
        outcome=outcome,
        recorded_at=site.machine.now(),
        recorded_by=site.worker_id,
        tenant=payload["tenant"],
    )
