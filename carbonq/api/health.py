"""GET /healthz (the process lives), /readyz (it can do its work) and /metrics. Open: they show no tenant's data."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from carbonq import telemetry
from carbonq.api.context import Api, ApiDep
from carbonq.api.openapi import gives, operation, sends
from carbonq.api.shapes.health import Alive, Ready
from carbonq.errors import CarbonqError, StoreUnavailable
from carbonq.model import JobState
from carbonq.store import chunks, deaf, engine_figures, jobs, schema, seals, sources, webhooks

logger = logging.getLogger(__name__)

router = APIRouter()

#: Engine batches of this much grid time are shown in metrics.
ENGINES_OF = timedelta(hours=1)


@router.get("/healthz", **operation("healthz", "operations", answers={200: gives(Alive)}, is_open=True))
async def healthz() -> dict[str, str]:
    """Say that the process answers."""
    return {"status": "ok"}


@router.get(
    "/readyz",
    **operation(
        "readyz",
        "operations",
        answers={200: gives(Ready), 503: gives(Ready, "Jobs cannot be taken.", headers=("Retry-After",))},
        is_open=True,
    ),
)
def readyz(api: ApiDep) -> JSONResponse:
    """Check database, broker and workers; 503 when jobs cannot be taken. A region without worker is only reported."""
    checks = {
        "database": _check(lambda: schema.check_usable(api.db)),
        "broker": _check(api.tickets.ping),
    }
    snapshot = api.directory.snapshot
    regions = {name: len(snapshot.workers.get(name, ())) for name in snapshot.regions}
    is_ready = all(found == "ok" for found in checks.values())
    body: dict[str, Any] = {"status": "ready" if is_ready else "not ready", "checks": checks, "live_workers": regions}
    return JSONResponse(body, 200) if is_ready else JSONResponse(body, 503, {"Retry-After": "5"})


@router.get(
    "/metrics",
    **operation(
        "metrics",
        "operations",
        answers={200: sends("text/plain", "Prometheus' text format.", example='carbonq_jobs{state="waiting"} 3\n')},
        is_open=True,
    ),
)
def metrics(api: ApiDep) -> Response:
    """Return this process's metrics for Prometheus, with the installation's jobs and workers as they are now."""
    try:
        with api.db.read() as tx:
            counts = jobs.counts_by_state(tx)
            states = sources.states(tx)
            alive = [worker for workers in api.directory.snapshot.workers.values() for worker in workers]
            silent = Counter(one.region for one in deaf.find(tx, alive))
            now = api.clock.now()
            overdue, failing = jobs.count_overdue(tx, now), chunks.count_failing(tx)
            engines = engine_figures.since(tx, now - ENGINES_OF)
            pending, oldest_s = webhooks.backlog(tx)
    except StoreUnavailable:
        telemetry.JOBS.clear()  # unknown is absent, not a stale figure
        telemetry.DEAF_WORKERS.clear()
        telemetry.JOBS_OVERDUE.set(float("nan"))
        telemetry.CHUNKS_TRIED.clear()
        telemetry.show_engines(())
        telemetry.show_sources(())
        pending, oldest_s = float("nan"), float("nan")
    else:
        telemetry.JOBS_OVERDUE.set(overdue)
        telemetry.CHUNKS_TRIED.clear()
        for model, count in failing.items():
            telemetry.CHUNKS_TRIED.labels(model).set(count)
        telemetry.show_engines(engines)
        for region in api.directory.snapshot.regions:
            telemetry.DEAF_WORKERS.labels(region).set(silent[region])
        telemetry.show_sources(sources.figures(states, api.clock.now(), api.max_stale_s))
        for state in JobState:
            telemetry.JOBS.labels(state.value).set(counts.get(state, 0))
    telemetry.WEBHOOKS_PENDING.set(pending)
    telemetry.WEBHOOKS_PENDING_AGE_SECONDS.set(oldest_s)
    telemetry.show_seals(*_seal_ages(api))
    snapshot = api.directory.snapshot
    for name in snapshot.regions:
        telemetry.LIVE_WORKERS.labels(name).set(len(snapshot.workers.get(name, ())))
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


def _seal_ages(api: Api) -> tuple[float | None, float]:
    try:
        with api.db.read() as tx:
            return seals.ages(tx)
    except StoreUnavailable:  # a login without the right to see what waits has all other figures
        return None, float("nan")


def _check(probe: Callable[[], object]) -> str:
    try:
        probe()
    except CarbonqError as error:
        logger.warning("not ready: %s", error.message)  # the route is open, so the sentence stays in the log
        return error.code
    return "ok"
