"""GET /healthz (the process lives), /readyz (it can do its work) and /metrics. Open: they show no tenant's data."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from carbonq.api import scrape
from carbonq.api.context import ApiDep
from carbonq.api.openapi import gives, operation, sends
from carbonq.api.shapes.health import Alive, Ready
from carbonq.errors import CarbonqError
from carbonq.store import schema

logger = logging.getLogger(__name__)

router = APIRouter()


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
    """Return this process's metrics for Prometheus, with the installation's jobs, grid and ledger as they are now."""
    return Response(scrape.text(api), media_type=CONTENT_TYPE_LATEST)


def _check(probe: Callable[[], object]) -> str:
    try:
        probe()
    except CarbonqError as error:
        logger.warning("not ready: %s", error.message)  # the route is open, so the sentence stays in the log
        return error.code
    return "ok"
