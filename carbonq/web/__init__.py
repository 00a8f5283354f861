"""The dashboard: pages at ``/`` of the API process, made on the server, usable without JavaScript.

Its figures are those of the API's own routes, called as functions with the session's key; it adds only how they look.
"""

from __future__ import annotations

from fastapi import FastAPI

from carbonq.web import assets, budgets, jobs, ledger, login, overview, reports

__all__ = ["ROUTERS", "install"]

#: All routes of the dashboard.
ROUTERS = (overview.router, jobs.router, budgets.router, ledger.router, reports.router, login.router, assets.router)


def install(app: FastAPI) -> None:
    """Add the pages to an API's application."""
    for router in ROUTERS:
        app.include_router(router)
