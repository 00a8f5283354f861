"""Bring the gauges of budgets and contract targets up to date, at each scrape.

``/metrics`` is open to whoever reaches it, so whose a budget or target is is not told unless the settings say so: then
only those that somebody has set are named, and a bounded number of them. Without names each level and book has one
figure, the worst, which is what an alarm needs; books are never put together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from prometheus_client import Gauge

from carbonq import telemetry
from carbonq.api.context import Api
from carbonq.budget import BudgetStatus
from carbonq.errors import StoreUnavailable
from carbonq.services import budget, targets
from carbonq.target import TargetState, TargetStatus

#: Budgets, and targets, that are named at most: those that burn fastest.
MOST = 1_000

Status = TypeVar("Status")
Worst = Callable[[Sequence[float]], float]

_GAUGES = (
    *(telemetry.BUDGET_BURN_RATIO, telemetry.BUDGET_LEFT_RATIO, telemetry.BUDGET_WAITING_CHUNKS),
    *(telemetry.BUDGET_ELAPSED_RATIO, telemetry.BUDGET_CAP_GRAMS, telemetry.BUDGET_SPENT_GRAMS),
    *(telemetry.BUDGET_RESERVED_GRAMS, telemetry.TARGETS, telemetry.TARGET_FORECAST_RATIO),
    *(telemetry.TARGET_PROMISED, telemetry.TARGET_VALUE, telemetry.TARGET_FORECAST),
)


def show(api: Api) -> None:
    """Set the gauges; those of what is not there any more disappear, all of them where the database is away."""
    for gauge in _GAUGES:
        gauge.clear()
    now = api.clock.now()
    try:
        caps = [one for one in budget.statuses(api.db, now) if one.started_at is not None]
        promised = targets.statuses(api.db, now)
    except StoreUnavailable:
        return
    caps = sorted(caps, key=lambda one: -(one.burn_rate or 0.0))[:MOST]
    promised = sorted(promised, key=lambda one: -(_forecast_ratio(one) or 0.0))
    for state in TargetState if promised else ():
        telemetry.TARGETS.labels(state.value).set(sum(one.state is state for one in promised))
    _show_budgets(caps, has_names=api.metrics_name_tenants)
    _show_targets(promised[:MOST], has_names=api.metrics_name_tenants)


def _show_budgets(found: Sequence[BudgetStatus], *, has_names: bool) -> None:
    def labels(one: BudgetStatus) -> tuple[str, ...]:
        level, book = one.budget.level.value, one.budget.book.value
        return (one.budget.tenant, level, one.budget.name, book) if has_names else ("", level, "", book)

    _set(telemetry.BUDGET_BURN_RATIO, found, labels, lambda one: one.burn_rate, max)
    _set(telemetry.BUDGET_LEFT_RATIO, found, labels, lambda one: float(one.left_g / one.budget.cap_g), min)
    _set(telemetry.BUDGET_WAITING_CHUNKS, found, labels, lambda one: one.waiting_chunks, sum)
    _set(
        telemetry.BUDGET_ELAPSED_RATIO, found, lambda one: (one.budget.level.value,), lambda one: one.elapsed_share, max
    )
    if has_names:
        _set(telemetry.BUDGET_CAP_GRAMS, found, labels, lambda one: float(one.budget.cap_g), max)
        _set(telemetry.BUDGET_SPENT_GRAMS, found, labels, lambda one: float(one.spent_g), max)
        _set(telemetry.BUDGET_RESERVED_GRAMS, found, labels, lambda one: float(one.reserved_g), max)


def _show_targets(found: Sequence[TargetStatus], *, has_names: bool) -> None:
    def labels(one: TargetStatus) -> tuple[str, ...]:
        book = one.target.book.value
        return (one.target.tenant, one.target.model or "", book) if has_names else ("", "", book)

    _set(telemetry.TARGET_FORECAST_RATIO, found, labels, _forecast_ratio, max)
    if has_names:
        _set(telemetry.TARGET_PROMISED, found, labels, lambda one: float(one.target.g_per_1k_tokens), max)
        _set(telemetry.TARGET_VALUE, found, labels, lambda one: None if one.value is None else float(one.value), max)
        _set(telemetry.TARGET_FORECAST, found, labels, _forecast, max)


def _set(
    gauge: Gauge,
    found: Sequence[Status],
    labels: Callable[[Status], tuple[str, ...]],
    value: Callable[[Status], float | None],
    worst: Worst,
) -> None:
    """Set a gauge's series, each to the worst of those alike in their labels; what is not known counts nowhere."""
    by_labels: dict[tuple[str, ...], list[float]] = {}
    for one in found:
        known = value(one)
        if known is not None:
            by_labels.setdefault(labels(one), []).append(known)
    for names, values in by_labels.items():
        gauge.labels(*names).set(worst(values))


def _forecast(one: TargetStatus) -> float | None:
    return None if one.forecast is None else float(one.forecast.g_per_1k_tokens)


def _forecast_ratio(one: TargetStatus) -> float | None:
    return None if one.forecast is None else float(one.forecast.g_per_1k_tokens / one.target.g_per_1k_tokens)
