"""Counters for Prometheus and the set-up of logging; the only place where metrics are made.

Each process has its own registry of these; what is true of the whole installation comes from the database instead.
Units are in the names (seconds, joules).
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import Counter, Gauge, Histogram, start_http_server

from carbonq.booking import Booking, Entries
from carbonq.model import EngineFigures
from carbonq.signals import SourceFigures
from carbonq.trends import Figure

logger = logging.getLogger(__name__)

#: How many ports a worker tries for its metrics: as many workers of a host have metrics of their own.
PORTS = 20

#: What became of tickets of chunks.
CHUNKS = Counter("carbonq_chunk_tickets", "Tickets of chunks by what became of them", ["region", "result"])

DISPATCH_LAG_SECONDS = Histogram(
    "carbonq_dispatch_lag_seconds",
    "Time from a ticket's first sending to a worker's claim",
    ["region"],
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)

#: Realtime calls as a region's worker answered them.
REALTIME_SECONDS = Histogram(
    "carbonq_realtime_worker_seconds",
    "Time of a realtime call on the worker",
    ["region"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)

#: What this worker booked, as it was first: rates settle later, and the ledger's gauges tell of that.
ENERGY_JOULES = Counter("carbonq_energy_joules", "Energy booked", ["region", "model", "kind", "quality"])
IMPACT_GRAMS = Counter(
    "carbonq_impact_grams", "Marginal emission as first booked", ["region", "model", "kind", "status"]
)
INVENTORY_GRAMS = Counter(
    "carbonq_inventory_grams", "Average emission as first booked", ["region", "model", "kind", "status"]
)

#: Ticks of the control workers.
TICK_SECONDS = Histogram("carbonq_tick_seconds", "Time of a tick", ["tick"])
TICK_ERRORS = Counter("carbonq_tick_errors", "Ticks that failed", ["tick"])
TICKS_SKIPPED = Counter("carbonq_ticks_skipped", "Ticks that came while the one before still ran", ["tick"])

#: Grid sources as the control workers asked them.
GRID_ASKS = Counter("carbonq_grid_asks", "Times a grid source was asked, by what came of it", ["source", "result"])

#: The API: requests by route template (never by id), and realtime calls as a client of the API waits for them.
API_REQUESTS = Counter("carbonq_api_requests", "HTTP requests answered", ["method", "route", "status"])
API_REALTIME_SECONDS = Histogram(
    "carbonq_api_realtime_seconds",
    "Time of a realtime call from the API to its answer",
    ["endpoint"],
    buckets=(0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)

#: Event streams of this API process; those that did not end by themselves: refused, behind (too much came), slow.
EVENT_STREAMS = Gauge("carbonq_event_streams", "Event streams open")
EVENT_STREAMS_ENDED = Counter("carbonq_event_streams_ended", "Event streams refused or cut off", ["reason"])

#: Webhooks as the control worker sends them: delivered, retried (a later attempt follows), failed (none does).
WEBHOOK_ATTEMPTS = Counter("carbonq_webhook_attempts", "Attempts to deliver a webhook", ["result"])
WEBHOOK_SECONDS = Histogram("carbonq_webhook_seconds", "Time of one attempt to deliver a webhook")
WEBHOOKS_PENDING = Gauge("carbonq_webhooks_pending", "Webhook messages that wait to be delivered")
WEBHOOKS_PENDING_AGE_SECONDS = Gauge(
    "carbonq_webhooks_pending_age_seconds", "Time since the oldest webhook message that waits was made; 0: none"
)

#: Set from the database and the API's memory at each scrape.
JOBS = Gauge("carbonq_jobs", "Jobs by state", ["state"])
LIVE_WORKERS = Gauge("carbonq_live_workers", "Region workers heard of lately", ["region"])
DEAF_WORKERS = Gauge("carbonq_deaf_workers", "Region workers that live and leave their tickets alone", ["region"])

JOBS_OVERDUE = Gauge("carbonq_jobs_overdue", "Jobs whose deadline has passed and that are not done")
CHUNKS_TRIED = Gauge("carbonq_chunks_tried_again", "Open chunks whose last try failed, by model", ["model"])

#: How engine batches went of late (an hour of grid time), likewise; what no engine told of is absent.
_ENGINE = ["model", "region"]
ENGINE_FILL_ITEMS = Gauge(
    "carbonq_engine_fill_items_ratio", "Items of engine batches by how many they might hold", _ENGINE
)
ENGINE_FILL_TOKENS = Gauge(
    "carbonq_engine_fill_tokens_ratio", "Tokens computed by those computed with padding to the longest item", _ENGINE
)
ENGINE_TTFT_SECONDS = Gauge(
    "carbonq_engine_ttft_seconds", "Mean of the engine batches' median time to first token", _ENGINE
)
ENGINE_OUTPUT_TOKEN_SECONDS = Gauge("carbonq_engine_output_token_seconds", "Mean time of a further token", _ENGINE)

#: The ledger's seals, likewise; machine seconds.
LEDGER_SEAL_AGE_SECONDS = Gauge("carbonq_ledger_seal_age_seconds", "Time since the newest seal of the ledger")
LEDGER_UNSEALED_AGE_SECONDS = Gauge(
    "carbonq_ledger_unsealed_age_seconds", "Time since the oldest ledger line without a seal was recorded; 0: none"
)

#: Grid sources and zones, likewise from the database; ages are grid seconds.
GRID_STALE_SHARE = Gauge(
    "carbonq_grid_stale_zones_ratio", "Share of zones whose rates are all stale, by signal", ["signal"]
)
GRID_ZONE_STALE = Gauge("carbonq_grid_zone_stale", "1 where all sources of a zone are stale", ["zone", "signal"])
GRID_SOURCE_AGE_SECONDS = Gauge(
    "carbonq_grid_source_age_seconds", "Age of the newest rate a source told of", ["zone", "signal", "source"]
)
GRID_SOURCE_FAILURES = Gauge(
    "carbonq_grid_source_failures", "Times in a row that a source did not answer", ["zone", "signal", "source"]
)
GRID_SOURCE_DOWN = Gauge("carbonq_grid_source_down", "1 where a source counts as down", ["zone", "signal", "source"])

#: What waits, likewise. Slack is grid time until the first chunk must start at the latest, below 0: too late.
CHUNKS_OPEN = Gauge("carbonq_chunks", "Open chunks by region (empty: not placed) and state", ["region", "state"])
ITEMS_OPEN = Gauge("carbonq_chunk_items", "Items in open chunks, likewise", ["region", "state"])
DEADLINE_SLACK_SECONDS = Gauge(
    "carbonq_deadline_least_slack_seconds", "Grid time until the first waiting chunk must start; below 0: too late"
)
CHUNKS_AT_RISK = Gauge("carbonq_chunks_at_risk", "Waiting chunks whose latest safe start has passed")
TICKETS_UNCLAIMED = Gauge("carbonq_tickets_unclaimed", "Tickets that no worker has taken yet", ["region"])
TICKETS_UNCLAIMED_AGE_SECONDS = Gauge(
    "carbonq_tickets_unclaimed_age_seconds", "Time since the oldest of them went out first", ["region"]
)

#: Rates of the regions, likewise; the marginal and the average ones are two metrics, never one.
MOER = Gauge("carbonq_moer_grams_per_kilowatt_hour", "Marginal rate of the window that runs", ["region", "status"])
MOER_PAST_HOUR = Gauge(
    "carbonq_moer_past_hour_grams_per_kilowatt_hour", "Mean of the marginal rates of the past hour", ["region"]
)
AER = Gauge("carbonq_aer_grams_per_kilowatt_hour", "Average rate of the window that runs", ["region", "status"])

#: The ledger's sums over a period up to now (grid time), likewise; gauges, since settlement changes them.
_RAN = ["period", "region", "model", "outcome", "quality"]
LEDGER_ENERGY_JOULES = Gauge("carbonq_ledger_energy_joules", "Energy of entries", _RAN)
LEDGER_IMPACT_GRAMS = Gauge("carbonq_ledger_impact_grams", "Marginal emission of entries", [*_RAN, "status"])
LEDGER_INVENTORY_GRAMS = Gauge("carbonq_ledger_inventory_grams", "Average emission of entries", [*_RAN, "status"])
LEDGER_BASELINE_GRAMS = Gauge(
    "carbonq_ledger_baseline_grams", "Emission of the same energy run at home at once", ["period", "quality", "status"]
)
LEDGER_SAVED_GRAMS = Gauge(
    "carbonq_ledger_saved_grams", "Baseline less emission, on the same entries", ["period", "quality", "status"]
)
LEDGER_REQUESTS = Gauge("carbonq_ledger_requests", "Items that succeeded", ["period", "region", "model"])
LEDGER_TOKENS = Gauge("carbonq_ledger_tokens", "Their tokens", ["period", "region", "model"])
LEDGER_COST = Gauge("carbonq_ledger_cost", "Cost of entries, in the currency of the settings", ["period", "region"])
REQUESTS_PER_KILOGRAM = Gauge(
    "carbonq_requests_per_kilogram_co2e", "Items that succeeded by their emission", ["period", "quality", "status"]
)
KILOGRAMS_PER_MILLION_TOKENS = Gauge(
    "carbonq_kilograms_co2e_per_million_tokens",
    "Emission of items that succeeded by their tokens",
    ["period", "model", "quality", "status"],
)
WASTED_ENERGY_RATIO = Gauge(
    "carbonq_wasted_energy_ratio", "Energy of lost or refused attempts by that of all work", ["period", "quality"]
)
BELOW_MEAN_RATIO = Gauge(
    "carbonq_energy_below_mean_moer_ratio",
    "Share of the past day's work, by energy, that ran below the day's mean MOER over the regions it might use",
    ["class"],
)

#: Budgets and contract targets as they stand, likewise. Tenant and name are empty, and the figure is the worst of the
#: level (of all targets) and book, unless the settings say that /metrics may tell names.
_BUDGET = ["tenant", "level", "name", "book"]
BUDGET_BURN_RATIO = Gauge("carbonq_budget_burn_ratio", "(spent / cap) / elapsed share of the period", _BUDGET)
BUDGET_LEFT_RATIO = Gauge("carbonq_budget_left_ratio", "Cap less spent and reserved, by the cap", _BUDGET)
BUDGET_WAITING_CHUNKS = Gauge("carbonq_budget_waiting_chunks", "Chunks that a budget holds back", _BUDGET)
BUDGET_ELAPSED_RATIO = Gauge("carbonq_budget_elapsed_ratio", "Elapsed share of the level's running period", ["level"])
BUDGET_CAP_GRAMS = Gauge("carbonq_budget_cap_grams", "What a budget allows in its period", _BUDGET)
BUDGET_SPENT_GRAMS = Gauge("carbonq_budget_spent_grams", "What the ledger has of the period", _BUDGET)
BUDGET_RESERVED_GRAMS = Gauge("carbonq_budget_reserved_grams", "What accepted work is expected to emit", _BUDGET)
_TARGET = ["tenant", "model", "book"]
TARGETS = Gauge("carbonq_targets", "Contract targets by how they stand in the running month", ["state"])
TARGET_FORECAST_RATIO = Gauge("carbonq_target_forecast_ratio", "Forecast of the month by what was promised", _TARGET)
TARGET_PROMISED = Gauge("carbonq_target_promised_grams_per_thousand_tokens", "What was promised", _TARGET)
TARGET_VALUE = Gauge("carbonq_target_grams_per_thousand_tokens", "Running value of the month", _TARGET)
TARGET_FORECAST = Gauge("carbonq_target_forecast_grams_per_thousand_tokens", "Forecast of the month", _TARGET)

#: Interactive calls, as the API routes them: what the choice by carbon costs in latency, and why regions change.
INTERACTIVE_EXTRA_SECONDS = Histogram(
    "carbonq_interactive_extra_latency_seconds",
    "Expected latency of the region chosen less that of the nearest healthy one",
    buckets=(0.0, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
)
INTERACTIVE_ROUTES = Counter(
    "carbonq_interactive_routes", "Interactive calls by why they went there", ["region", "reason"]
)
INTERACTIVE_SWITCHES = Counter(
    "carbonq_interactive_switches", "Changes of the region that a model's calls go to", ["region", "reason"]
)

_FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(process)d %(name)s: %(message)s"


def set_up_logging(level: str) -> None:
    """Log to standard error, in UTC; whoever starts the process decides where that goes."""
    formatter = logging.Formatter(_FORMAT, datefmt="%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # One line for each tick and ticket, three times a second for ever, says nothing that the database does not.
    quiet = ("celery.app.trace", "celery.worker.strategy", "celery.beat", "httpx", "alembic.runtime.migration")
    for name in quiet:
        logging.getLogger(name).setLevel(logging.WARNING)
    # Ticks that expired before anybody took them: that is what ``expires`` is for.
    logging.getLogger("celery.worker.request").setLevel(logging.WARNING)


def show_seals(newest_s: float | None, waiting_s: float) -> None:
    """Set the gauges of the ledger's seals; what is not known is NaN."""
    LEDGER_SEAL_AGE_SECONDS.set(float("nan") if newest_s is None else newest_s)
    LEDGER_UNSEALED_AGE_SECONDS.set(waiting_s)


def show_engines(figures: Sequence[EngineFigures]) -> None:
    """Set the gauges of engine batches; those of models and regions that are not among ``figures`` disappear."""
    gauges = (ENGINE_FILL_ITEMS, ENGINE_FILL_TOKENS, ENGINE_TTFT_SECONDS, ENGINE_OUTPUT_TOKEN_SECONDS)
    for gauge in gauges:
        gauge.clear()
    for one in figures:
        shown = (one.fill_items, one.fill_tokens, one.ttft_s, one.output_token_s)
        for gauge, value in zip(gauges, shown, strict=True):
            if value is not None:
                gauge.labels(one.model, one.region).set(value)


def show_sources(figures: Sequence[SourceFigures]) -> None:
    """Set the gauges of grid sources; those that are not among ``figures`` disappear.

    A zone is stale where all its sources of a signal are.
    """
    gauges = (GRID_ZONE_STALE, GRID_STALE_SHARE, GRID_SOURCE_AGE_SECONDS, GRID_SOURCE_FAILURES, GRID_SOURCE_DOWN)
    for gauge in gauges:
        gauge.clear()
    stale: dict[tuple[str, str], bool] = {}
    for one in figures:
        labels = (one.zone, one.signal, one.source)
        if one.age_s is not None:
            GRID_SOURCE_AGE_SECONDS.labels(*labels).set(one.age_s)
        GRID_SOURCE_FAILURES.labels(*labels).set(one.failures)
        GRID_SOURCE_DOWN.labels(*labels).set(one.is_down)
        stale[labels[:2]] = stale.get(labels[:2], True) and one.is_stale
    for (zone, signal), is_stale in stale.items():
        GRID_ZONE_STALE.labels(zone, signal).set(is_stale)
    for signal in {signal for _, signal in stale}:
        shares = [is_stale for (_, of), is_stale in stale.items() if of == signal]
        GRID_STALE_SHARE.labels(signal).set(sum(shares) / len(shares))


def show(gauge: Gauge, figures: Iterable[Figure], *first: str) -> None:
    """Set a gauge's series, each with the labels ``first`` before its own; the others stay as they are."""
    for one in figures:
        gauge.labels(*first, *one.labels).set(one.value)


def count_booked(bookings: Iterable[Booking]) -> None:
    """Count the energy and the grams of bookings that are stored; what is not known counts nowhere."""
    for booked in bookings:
        parts = {row["part"]: row for row in booked.engine_batches}
        for block in booked.entries.blocks if isinstance(booked.entries, Entries) else ():
            part, kind = parts[block.shared["part"]], str(block.shared["kind"])
            ran = (part["region"], part["model"] or "", kind)
            if part["energy_uj"] is not None:
                ENERGY_JOULES.labels(*ran, part["quality"]).inc(part["energy_uj"] / 1e6)
            for counter, name, status in _BOOKS:
                known = [count for count in block.quanta[name] if count is not None]
                if known:
                    counter.labels(*ran, block.shared[status]).inc(sum(known) / 1e15)


_BOOKS = (
    (IMPACT_GRAMS, "emission_g", "moer_status"),
    (INVENTORY_GRAMS, "inventory_g", "aer_status"),
)


@contextmanager
def served(host: str, port: int | None, data_dir: Path, name: str) -> Generator[int | None]:
    """Serve this process's metrics while the body runs and yield the port; nothing where ``port`` is None.

    A port that is taken is another worker's of this host: the next of ``PORTS`` is tried; 0: any free one. Where it
    listens is written to ``data_dir/metrics/*.json``, as Prometheus' file_sd reads it. Metrics are no reason to stop
    work: what fails here is a line of the log.
    """
    if port is None:
        yield None
        return
    try:
        server, thread = _listen(host, port)
    except OSError as error:
        logger.warning("no metrics of this process: %s port %d: %s", host, port, error.strerror or error)
        yield None
        return
    path = data_dir / "metrics" / f"{name}.{socket.gethostname()}.{os.getpid()}.json"
    taken = int(server.server_address[1])
    logger.info("metrics on %s port %d", host, taken)
    try:
        _announce(path, f"{host}:{taken}", name)
        yield taken
    finally:
        path.unlink(missing_ok=True)
        server.shutdown()
        server.server_close()
        thread.join()


def _listen(host: str, port: int) -> tuple[WSGIServer, Thread]:
    for candidate in (0,) if port == 0 else range(port, min(port + PORTS, 65_536)):
        try:
            return start_http_server(candidate, host)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or candidate in (0, port + PORTS - 1):
                raise
    raise OSError(errno.EADDRINUSE, "all ports that it may take are in use")


def _announce(path: Path, target: str, name: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for other in path.parent.glob(f"{name}.{socket.gethostname()}.*.json"):
            if not Path("/proc", other.name.split(".")[-2]).exists():
                other.unlink(missing_ok=True)  # of a process that was killed
        path.write_text(json.dumps([{"targets": [target], "labels": {"process": name}}]), encoding="utf-8")
    except OSError as error:
        logger.warning("Prometheus is not told where these metrics are: %s", error)


@contextmanager
def timed(histogram: Histogram, *labels: str) -> Generator[None]:
    """Observe how long the body takes, however it ends."""
    began = time.perf_counter()
    try:
        yield
    finally:
        histogram.labels(*labels).observe(time.perf_counter() - began)
