"""Budgets and contract targets: what is spent and reserved of each cap, and where each promise is going.

The figures are those of ``/v1/budgets`` and ``/v1/targets``; added here is only where the marks of a bar stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from carbonq.api import views
from carbonq.api.context import Api, ApiDep
from carbonq.budget import BudgetStatus
from carbonq.services import budget, budgets_admin, targets, targets_admin
from carbonq.services.budget_alarms import Thresholds, is_exhausted, is_warned_of
from carbonq.target import TargetState, TargetStatus
from carbonq.web.pages import PageRoute, page
from carbonq.web.session import ReaderDep

router = APIRouter(route_class=PageRoute, include_in_schema=False)

#: Width of a bar in its own units; the page stretches it.
WIDTH = 1000.0

#: How much of a target's scale lies above its highest mark.
_AIR = 1.12


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a bar."""

    kind: str
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Cap:
    """A budget with a period: its figures, its bar, and how it stands in a word and a colour."""

    view: Mapping[str, Any]
    word: str
    colour: str
    pieces: Sequence[Piece]
    cap_x: float
    even_x: float | None

    @property
    def period(self) -> str:
        """The running period: ``2026-11`` or ``2026-11-30``."""
        started: str = self.view["status"]["started_at"]
        return started[:7] if self.view["period"] == "month" else started[:10]


@dataclass(frozen=True, slots=True)
class Promise:
    """A target, how it stands in a word and a colour, and where its marks stand; None: there is none to draw."""

    view: Mapping[str, Any]
    word: str
    colour: str
    promise_x: float
    value_x: float | None
    forecast_x: float | None
    range_x: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Glance:
    """What the overview says of both in a line: how many there are, and how many of them are in trouble."""

    budgets: int
    exhausted: int
    warned: int
    targets: int
    at_risk: int
    broken: int


@router.get("/budgets")
def show(api: ApiDep, viewer: ReaderDep) -> Response:
    """Show the budgets and targets of the session's tenant as they stand now."""
    now, tenant = api.clock.now(), viewer.caller.tenant
    found = budget.statuses(api.db, now, tenant)
    return page(
        "budgets.html",
        viewer,
        title="Budgets",
        clock=views.clock_view(api.clock),
        caps=[cap(one, api.budget_thresholds) for one in found if one.started_at is not None],
        items=[budgets_admin.view(one) for one in found if one.started_at is None],
        promises=[promise(one) for one in targets.statuses(api.db, now, tenant)],
        width=WIDTH,
    )


def glance(api: Api, tenant: str) -> Glance | None:
    """Return how a tenant's budgets and targets stand in all; None where there is none."""
    now = api.clock.now()
    caps = [one for one in budget.statuses(api.db, now, tenant) if one.started_at is not None]
    promised = targets.statuses(api.db, now, tenant)
    if not caps and not promised:
        return None
    colours = [cap(one, api.budget_thresholds).colour for one in caps]
    states = [one.state for one in promised]
    return Glance(
        budgets=len(caps),
        exhausted=colours.count("bad"),
        warned=colours.count("warn"),
        targets=len(promised),
        at_risk=states.count(TargetState.AT_RISK),
        broken=states.count(TargetState.BROKEN),
    )


def cap(status: BudgetStatus, thresholds: Thresholds) -> Cap:
    """Return how a budget with a period is drawn. Pure."""
    settled, provisional = _positive(status.spent_g - status.provisional_g), _positive(status.provisional_g)
    parts = {"settled": settled, "provisional": provisional, "reserved": _positive(status.reserved_g)}
    total, limit = sum(parts.values()), float(status.budget.cap_g)
    scale = WIDTH / max(total, limit)
    pieces: list[Piece] = []
    x = 0.0
    for kind, grams in parts.items():
        if grams > 0:
            pieces.append(Piece(kind, round(x, 2), round(grams * scale, 2)))
        x += grams * scale
    if is_exhausted(status):
        word, colour = ("holds work back" if status.waiting_chunks else "nothing left"), "bad"
    elif is_warned_of(status, thresholds):
        is_nearly_used = status.spent_g + status.reserved_g >= status.budget.cap_g * Decimal(str(thresholds.used_share))
        word, colour = ("nearly used up" if is_nearly_used else "burns too fast"), "warn"
    else:
        word, colour = "on track", "good"
    even = None if status.elapsed_share is None else round(status.elapsed_share * limit * scale, 2)
    return Cap(budgets_admin.view(status), word, colour, pieces, round(limit * scale, 2), even)


_WORDS = {
    TargetState.ON_TRACK: ("on track", "good"),
    TargetState.AT_RISK: ("at risk", "warn"),
    TargetState.BROKEN: ("broken", "bad"),
    TargetState.KEPT: ("kept", "good"),
    TargetState.UNKNOWN: ("not known yet", ""),
}


def promise(status: TargetStatus) -> Promise:
    """Return how a target is drawn. Pure."""
    forecast = status.forecast
    ends = (None, None) if forecast is None else (forecast.low, forecast.high)
    end = None if forecast is None else forecast.g_per_1k_tokens
    known = [float(one) for one in (status.target.g_per_1k_tokens, status.value, end, *ends) if one is not None]
    scale = WIDTH / (max(known) * _AIR)

    def place(value: Decimal | None) -> float | None:
        return None if value is None else round(max(0.0, float(value)) * scale, 2)

    low, high = place(ends[0]), place(ends[1])
    word, colour = _WORDS[status.state]
    return Promise(
        view=targets_admin.view(status),
        word=word,
        colour=colour,
        promise_x=round(float(status.target.g_per_1k_tokens) * scale, 2),
        value_x=place(status.value),
        forecast_x=place(end),
        range_x=None if low is None or high is None else (low, high),
    )


def _positive(grams: Decimal) -> float:
    """Return grams as far as they can be drawn: rates below zero take off what is spent."""
    return max(0.0, float(grams))
