"""GET /v1/reports, /v1/reports/{month}: a month of the caller's ledger as JSON, CSV, a page or a PDF.

A report takes a pass over the month's entries, so it is made in a thread, one at a time in a process; a few more wait,
and whoever comes then is told when to come again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, TypeVar

import anyio
import anyio.to_thread
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from carbonq.api import views
from carbonq.api.auth import Caller, needs
from carbonq.api.context import Api, ApiDep, CallerDep
from carbonq.api.download import Streamed
from carbonq.api.openapi import Answer, Content, gives, operation
from carbonq.api.shapes.reports import MonthReport, ReportMonthPage
from carbonq.clock import ClockKind
from carbonq.errors import InvalidRequest, QuotaExceeded
from carbonq.model import Scope
from carbonq.render import formats
from carbonq.render.formats import Format
from carbonq.services import report as reports
from carbonq.services import report_months

router = APIRouter(dependencies=[needs(Scope.EXPORT)])

Made = TypeVar("Made")

#: What stands for the month that runs now.
RUNNING = "running"

#: Reports that wait for the one that is made, and the shortest time after which more may be asked for, in seconds.
MOST_WAITING = 4
_SHORTEST_S = 5.0

#: Months before the report's that efficiency is told of, unless asked otherwise.
MONTHS_BACK = 1

#: The headers of a page that stands for itself: what its policy lets a browser do is to show it.
_SAFE = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "private, no-store"}


class Desk:
    """Where reports are made: one at a time, with a few that wait."""

    def __init__(self, most_waiting: int = MOST_WAITING) -> None:
        """Begin with nothing to do."""
        self._limiter = anyio.CapacityLimiter(1)
        self._most_waiting = most_waiting
        self._lasted_s = 0.0

    async def make(self, work: Callable[[], Made]) -> Made:
        """Do work in a thread when it is its turn. Raises QuotaExceeded where too many wait, and what it raises."""
        waiting = self._limiter.statistics().tasks_waiting
        if waiting >= self._most_waiting:
            wait_s = max(_SHORTEST_S, self._lasted_s * (waiting + 1))
            raise QuotaExceeded(
                f"{waiting + 1} reports are being made or wait for it here; come again in {wait_s:.0f} s",
                code="reports_busy",
                retry_after_s=wait_s,
            )
        return await anyio.to_thread.run_sync(self._timed, work, limiter=self._limiter)

    def _timed(self, work: Callable[[], Made]) -> Made:
        began = time.monotonic()
        try:
            return work()
        finally:
            self._lasted_s = time.monotonic() - began


class Wanted(BaseModel):
    """Which report, beside its month."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    format_: Literal["json", "csv", "html", "pdf"] | None = Field(
        None, alias="format", description="how it is written; without: as `Accept` asks"
    )
    section: str | None = Field(None, description="with csv: this section alone, as a table")
    as_of: AwareDatetime | None = Field(None, description="the ledger as it was then, e.g. when a report was filed")
    clock: ClockKind | None = Field(None, description="which entries, where they ran on several clocks")
    months_back: int = Field(
        MONTHS_BACK, ge=0, le=reports.MAX_MONTHS_BACK, description="earlier months to compare the efficiency with"
    )


@router.get("/v1/reports", **operation("list_reports", "ledger", answers={200: gives(ReportMonthPage)}))
def list_reports(api: ApiDep, caller: CallerDep) -> dict[str, Any]:
    """List the months since the caller's first entry, the running one first."""
    now = api.clock.now()
    found = report_months.since_first_entry(api.db, caller.tenant, now)
    data = [
        {"id": month, "object": "report.month", "is_over": number > 0, "formats": [fmt.value for fmt in Format]}
        for number, month in enumerate(found)
    ]
    return views.page_view(data, has_more=False)


_ANSWER = Answer(
    "The report.",
    {
        "application/json": Content(MonthReport),
        "text/csv": Content(None, "section,row,figure,value\r\ntotals,,items,2000\r\n"),
        "text/html": Content(None, "<!doctype html>..."),
        "application/pdf": Content(),
    },
    headers=("Content-Disposition",),
)


@router.get(
    "/v1/reports/{month}",
    **operation(
        "get_report",
        "ledger",
        answers={200: _ANSWER},
        errors=("not_acceptable", "reports_busy", ("config_error", 500)),
    ),
)
async def month_report(month: str, request: Request, caller: CallerDep, wanted: Annotated[Wanted, Query()]) -> Response:
    """Report a month of the caller's ledger, like 2026-11, by grid time; ``running`` is the one that runs now.

    JSON unless ``format`` or ``Accept`` asks for CSV, HTML or PDF. Actual grams against budgets, efficiency month on
    month, regions, both books apart, saving beside its baseline, and what of it is measured, estimated and provisional.
    """
    fmt = Format(wanted.format_) if wanted.format_ else negotiated(request.headers.get("accept"))
    made = await prepared(request, caller, month, wanted, fmt)
    made.headers["Vary"] = "Accept"
    return made


async def prepared(request: Request, caller: Caller, month: str, wanted: Wanted, fmt: Format) -> Response:
    """Return the answer with a report. Raises InvalidRequest, QuotaExceeded, ConfigError, StoreUnavailable."""
    formats.check(fmt, wanted.section)
    api: Api = request.app.state.api
    desk: Desk = request.app.state.reports
    now = api.clock.now()
    month = f"{now:%Y-%m}" if month == RUNNING else month

    def work() -> Iterator[bytes]:
        report = reports.make(
            api.db,
            month,
            now=now,
            tenant=caller.tenant,
            clock=wanted.clock,
            as_of=wanted.as_of,
            months_back=wanted.months_back,
            settle_after_s=api.settle_after_s,
            max_stale_s=api.max_stale_s,
        )
        pieces = formats.write(report, fmt, wanted.section)
        # What can go wrong goes wrong here and not after the answer's first byte; the CSV alone is longer than a piece.
        first = next(pieces)
        return _joined(first, pieces)

    headers = {**_SAFE, "Content-Disposition": f'{_disposition(fmt)}; filename="{_filename(month, wanted, fmt)}"'}
    if fmt is Format.HTML:
        from carbonq.render.html import POLICY

        headers["Content-Security-Policy"] = POLICY
    return Streamed(await desk.make(work), media_type=fmt.media_type, headers=headers)


def _joined(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _disposition(fmt: Format) -> str:
    return "inline" if fmt in {Format.HTML, Format.JSON} else "attachment"


def _filename(month: str, wanted: Wanted, fmt: Format) -> str:
    part = f"-{wanted.section}" if wanted.section else ""
    return f"carbonq-report-{month}{part}.{fmt.value}"


def negotiated(accept: str | None) -> Format:
    """Return the format that an Accept header likes best; of those it likes alike JSON, CSV, HTML, PDF in this order.

    Raises InvalidRequest (406) where it takes none of them.
    """
    liked = {fmt: _liking(accept or "*/*", fmt) for fmt in Format}
    best = max(Format, key=lambda fmt: liked[fmt])
    if liked[best] <= 0:
        offered = ", ".join(fmt.media_type.partition(";")[0] for fmt in Format)
        raise InvalidRequest(
            f"Accept is {(accept or '')[:200]!r}; a report is {offered}", param="Accept", code="not_acceptable"
        )
    return best


def _liking(accept: str, fmt: Format) -> float:
    """Return the quality that the most exact range of an Accept header gives to a format; 0 for none (RFC 9110)."""
    kind = fmt.media_type.partition(";")[0]
    ranges = {kind: 2, f"{kind.partition('/')[0]}/*": 1, "*/*": 0}
    best = (-1, 0.0)
    for part in accept.split(","):
        name, *parameters = (one.strip().lower() for one in part.split(";"))
        if name in ranges:
            best = max(best, (ranges[name], _quality(parameters)))
    return best[1]


def _quality(parameters: list[str]) -> float:
    for one in parameters:
        name, _, value = one.partition("=")
        if name.strip() == "q":
            try:
                return min(1.0, max(0.0, float(value)))
            except ValueError:
                return 0.0
    return 1.0
