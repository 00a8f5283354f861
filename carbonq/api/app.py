"""The ASGI application: routes, error answers, request ids, and the refresh thread that lives as long as it does."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version

import anyio.to_thread
from fastapi import FastAPI

from carbonq.api import (
    admin,
    batches,
    budgets,
    events,
    files,
    forecasts,
    health,
    items,
    jobs,
    ledger,
    ledger_history,
    models,
    openai_webhooks,
    openapi,
    plan,
    problems,
    proofs,
    quotes,
    realtime,
    regions,
    reports,
    results,
    targets,
    webhooks,
    why,
)
from carbonq.api.background import Background, Refresh
from carbonq.api.context import Api
from carbonq.api.flights import Flights, Sight
from carbonq.api.guard import Guard
from carbonq.api.hosts import HostCheck
from carbonq.api.request_id import RequestId
from carbonq.api.waiting import Finals
from carbonq.store import jobs as job_rows

#: Looked through in this order, so what is asked most comes first.
_ROUTERS = (
    jobs.router,
    batches.router,
    realtime.router,
    files.router,
    admin.router,
    budgets.router,
    events.router,
    forecasts.router,
    health.router,
    items.router,
    ledger.router,
    ledger_history.router,
    models.router,
    openai_webhooks.router,
    plan.router,
    proofs.router,
    quotes.router,
    regions.router,
    reports.router,
    results.router,
    targets.router,
    webhooks.router,
    why.router,
)

#: How often the API's memory is renewed, in machine seconds.
DIRECTORY_PERIOD_S = 1.0
KEYS_PERIOD_S = 2.0
KEY_USES_PERIOD_S = 60.0
RATES_PERIOD_S = 10.0
SWEEP_PERIOD_S = 600.0

#: Uploads that nobody has written to for this long were left by a killed process.
_ABANDONED_S = 3600.0


def refreshes(api: Api) -> list[Refresh]:
    """Return what an API must call now and then."""
    return [
        Refresh("API keys", KEYS_PERIOD_S, api.keyring.refresh),
        Refresh("last uses of API keys", KEY_USES_PERIOD_S, api.keyring.write_uses),
        Refresh("quotas", KEYS_PERIOD_S, api.allowance.refresh),
        Refresh("rates", RATES_PERIOD_S, lambda: api.rates.refresh(api.db, api.clock.now())),
        Refresh("regions", DIRECTORY_PERIOD_S, api.directory.refresh),
        Refresh("uploads", SWEEP_PERIOD_S, lambda: api.blobs.sweep(_ABANDONED_S)),
    ]


def _final_among(api: Api, job_ids: Collection[str]) -> set[str]:
    with api.db.read() as tx:
        return job_rows.final_among(tx, job_ids)


def create_app(
    api: Api,
    *,
    background: Sequence[Refresh] | None = None,
    extend: Callable[[FastAPI], None] = lambda _: None,
) -> FastAPI:
    """Build the application around its context; ``background`` replaces the refreshes (tests).

    ``extend`` adds what is no part of the API: the dashboard.
    """

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        worker = Background(refreshes(api) if background is None else background)
        api.feed.open()
        await anyio.to_thread.run_sync(worker.start)
        try:
            yield
        finally:
            await anyio.to_thread.run_sync(worker.stop)
            api.dispatcher.close()
            await anyio.to_thread.run_sync(api.group.close)
            api.nudger.close()
            await api.rate_limits.close()

    app = FastAPI(
        title="carbonq",
        version=version("carbonq"),
        lifespan=lifespan,
        docs_url=None,  # its page loads scripts from elsewhere; /openapi.json is enough
        redoc_url=None,
        redirect_slashes=False,  # a redirected POST loses its body in most clients
        # FastAPI's own (from 0.164 on) would send queries, and errors with what clients wrote: see carbonq/tracing.py
        telemetry={"auto_configure": False, "logs": False, "metrics": False, "tracing": False},
    )
    app.state.api = api
    app.state.job_flights = Flights[tuple[str, str], Sight](lambda key: jobs.look(api, key))
    app.state.batch_flights = Flights[tuple[str, str], Sight](lambda key: batches.look(api, key))
    app.state.finals = Finals(lambda job_ids: _final_among(api, job_ids))
    app.state.reports = reports.Desk()
    problems.install(app)
    openapi.install(app)
    for router in _ROUTERS:
        app.include_router(router)
    extend(app)
    if api.allowed_hosts is not None:
        app.add_middleware(HostCheck, allowed=api.allowed_hosts)
    app.add_middleware(Guard)
    app.add_middleware(RequestId)  # outermost: what the guard refuses has an id, too
    return app
