"""Bring the gauges of ``/metrics`` up to date: what is true of the whole installation, from the database and memory.

What is not known is absent or NaN, never 0 and never the figure of before.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from prometheus_client import Gauge, generate_latest

from carbonq import telemetry, trends
from carbonq.api import scrape_budgets
from carbonq.api.context import Api
from carbonq.errors import StoreUnavailable
from carbonq.model import EntryKind, JobState, RateStatus, Signal
from carbonq.store import chunks, deaf, engine_figures, jobs, queue_figures, seals, sources, webhooks
from carbonq.trends import PERIODS, Groups, Key
from carbonq.units import window_of

#: Engine batches of this much grid time are shown.
ENGINES_OF = timedelta(hours=1)

_UNKNOWN = float("nan")

#: Gauges are global: two scrapes at once would show each other's half.
_ONE_AT_A_TIME = threading.Lock()

_LEDGER = (
    *(telemetry.LEDGER_ENERGY_JOULES, telemetry.LEDGER_IMPACT_GRAMS, telemetry.LEDGER_INVENTORY_GRAMS),
    *(telemetry.LEDGER_BASELINE_GRAMS, telemetry.LEDGER_SAVED_GRAMS, telemetry.LEDGER_REQUESTS),
    *(telemetry.LEDGER_TOKENS, telemetry.LEDGER_COST, telemetry.REQUESTS_PER_KILOGRAM),
    *(telemetry.KILOGRAMS_PER_MILLION_TOKENS, telemetry.WASTED_ENERGY_RATIO, telemetry.BELOW_MEAN_RATIO),
)
_RATES = (telemetry.MOER, telemetry.MOER_PAST_HOUR, telemetry.AER)
_QUEUE = (
    *(telemetry.CHUNKS_OPEN, telemetry.ITEMS_OPEN, telemetry.TICKETS_UNCLAIMED),
    telemetry.TICKETS_UNCLAIMED_AGE_SECONDS,
)


def text(api: Api) -> bytes:
    """Return all metrics of this process in Prometheus' text format, the installation's as they are now."""
    with _ONE_AT_A_TIME:
        for show in (_show_work, _show_queue, _show_seals, _show_trends, scrape_budgets.show):
            show(api)
        snapshot = api.directory.snapshot
        for name in snapshot.regions:
            telemetry.LIVE_WORKERS.labels(name).set(len(snapshot.workers.get(name, ())))
        return generate_latest()


def _show_work(api: Api) -> None:
    _clear(telemetry.JOBS, telemetry.DEAF_WORKERS, telemetry.CHUNKS_TRIED)
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
        telemetry.JOBS_OVERDUE.set(_UNKNOWN)
        telemetry.show_engines(())
        telemetry.show_sources(())
        pending, oldest_s = _UNKNOWN, _UNKNOWN
    else:
        telemetry.JOBS_OVERDUE.set(overdue)
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


def _show_queue(api: Api) -> None:
    _clear(*_QUEUE)
    telemetry.DEADLINE_SLACK_SECONDS.set(_UNKNOWN)
    try:
        with api.db.read() as tx:
            queue = queue_figures.of(tx, api.clock.now())
    except StoreUnavailable:
        telemetry.CHUNKS_AT_RISK.set(_UNKNOWN)
        return
    for depth in queue.depths:
        telemetry.CHUNKS_OPEN.labels(depth.region or "", depth.state).set(depth.chunks)
        telemetry.ITEMS_OPEN.labels(depth.region or "", depth.state).set(depth.items)
    telemetry.CHUNKS_AT_RISK.set(queue.late)
    if queue.least_slack_s is not None:
        telemetry.DEADLINE_SLACK_SECONDS.set(queue.least_slack_s)
    for region in api.directory.snapshot.regions:
        count, oldest_s = queue.unclaimed.get(region, (0, 0.0))
        telemetry.TICKETS_UNCLAIMED.labels(region).set(count)
        telemetry.TICKETS_UNCLAIMED_AGE_SECONDS.labels(region).set(oldest_s)


def _show_seals(api: Api) -> None:
    try:
        with api.db.read() as tx:
            ages = seals.ages(tx)
    except StoreUnavailable:  # a login without the right to see what waits has all other figures
        ages = None, _UNKNOWN
    telemetry.show_seals(*ages)


def _show_trends(api: Api) -> None:
    _clear(*_LEDGER, *_RATES)
    try:
        api.trends.refresh()
    except StoreUnavailable:
        return
    window_at = window_of(api.clock.now())
    snapshot = api.directory.snapshot
    for region in snapshot.regions:
        _show_rate(api, telemetry.MOER, Signal.MOER, region, window_at)
        _show_rate(api, telemetry.AER, Signal.AER, region, window_at)
        mean = api.trends.mean_rate(Signal.MOER, region, timedelta(hours=1))
        if mean is not None:
            telemetry.MOER_PAST_HOUR.labels(region).set(mean)
    for period in PERIODS:
        groups = api.trends.over(period)
        if groups is not None:
            _show_ledger(period, groups)
    telemetry.show(telemetry.BELOW_MEAN_RATIO, api.trends.below_mean(snapshot.regions))


def _show_rate(api: Api, gauge: Gauge, signal: Signal, region: str, window_at: datetime) -> None:
    rate, status = api.trends.rate(signal, region, window_at)
    if rate is not None:
        gauge.labels(region, status.value).set(float(rate.g_per_kwh))


def _show_ledger(period: str, groups: Groups) -> None:
    items: Mapping[Key, trends.Sums] = {key: sums for key, sums in groups.items() if key.kind == EntryKind.ITEM.value}
    rated = {key: sums for key, sums in items.items() if key.moer_status != RateStatus.MISSING.value}

    def ran(key: Key) -> tuple[str, ...]:
        return (key.region, key.model or "", _outcome(key), key.quality)

    def show(gauge: Gauge, found: list[trends.Figure]) -> None:
        telemetry.show(gauge, found, period)

    totals, ratios = trends.totals, trends.ratios
    show(telemetry.LEDGER_ENERGY_JOULES, totals(groups, ran, lambda sums: _joules(sums.energy_uj)))
    show(
        telemetry.LEDGER_IMPACT_GRAMS,
        totals(groups, lambda key: (*ran(key), key.moer_status), lambda sums: sums.emission_g),
    )
    show(
        telemetry.LEDGER_INVENTORY_GRAMS,
        totals(groups, lambda key: (*ran(key), key.aer_status), lambda sums: sums.inventory_g),
    )
    compared = {key: sums for key, sums in items.items() if sums.saved_g is not None}
    show(telemetry.LEDGER_BASELINE_GRAMS, totals(compared, _standing, lambda sums: sums.baseline_g))
    show(telemetry.LEDGER_SAVED_GRAMS, totals(compared, _standing, lambda sums: sums.saved_g))
    where: Callable[[Key], tuple[str, ...]] = lambda key: (key.region, key.model or "")  # noqa: E731
    show(telemetry.LEDGER_REQUESTS, totals(items, where, lambda sums: sums.items))
    show(telemetry.LEDGER_TOKENS, totals(items, where, lambda sums: sums.tokens))
    show(telemetry.LEDGER_COST, totals(groups, lambda key: (key.region,), lambda sums: sums.cost))
    show(
        telemetry.REQUESTS_PER_KILOGRAM,
        ratios(rated, _standing, lambda sums: sums.rated_items, lambda sums: _kilograms(sums.emission_g)),
    )
    show(
        telemetry.KILOGRAMS_PER_MILLION_TOKENS,
        ratios(
            rated,
            lambda key: (key.model or "", *_standing(key)),
            lambda sums: _kilograms(sums.emission_g),
            lambda sums: sums.rated_tokens / 1e6,
        ),
    )
    show(telemetry.WASTED_ENERGY_RATIO, trends.wasted_shares(groups))


def _standing(key: Key) -> tuple[str, ...]:
    return (key.quality, key.moer_status)


def _outcome(key: Key) -> str:
    return key.outcome or key.kind if key.kind == EntryKind.ITEM.value else key.kind


def _joules(energy_uj: float | None) -> float | None:
    return None if energy_uj is None else energy_uj / 1e6


def _kilograms(grams: float | None) -> float | None:
    return None if grams is None else grams / 1000


def _clear(*gauges: Gauge) -> None:
    for gauge in gauges:
        gauge.clear()
