"""/metrics as Prometheus reads it: names, units, labels from bounded sets, and figures that are absent when unknown."""

from __future__ import annotations

import math
import re
from datetime import timedelta

import httpx
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from carbonq.budget import Action, Book, Level
from carbonq.clock import ClockKind
from carbonq.model import ChunkState, EntryKind, ItemState, JobState, Quality, RateStatus, Signal
from carbonq.services import budgets_admin, targets, targets_admin
from carbonq.target import TargetState
from carbonq.trends import PERIODS
from carbonq.units import window_of
from tests.api.harness import EMBEDDER, Harness
from tests.api.test_jobs import submit
from tests.services.booked import observe, store
from tests.services.planning import add_chunks, change
from tests.unit.bookings import batch, book, item, overhead, part, rate, rate_book

#: What a name ends with, after ``_total`` is taken off: a base unit, a ratio, or the plural of what is counted.
UNITS = (
    *("seconds", "joules", "grams", "ratio", "tokens", "requests", "cost", "kilogram_co2e", "kilowatt_hour"),
    *("jobs", "workers", "chunks", "items", "streams", "ended", "pending", "routes", "switches", "unclaimed"),
    *("asks", "attempts", "tickets", "errors", "skipped", "failures", "overdue", "tried_again", "at_risk"),
    *("stale", "down"),  # 1 or 0
    "targets",
)

#: Labels whose values come from the settings, or from code: never of tenants, jobs or keys.
NAMES = {"region", "zone", "model", "source"}
BOUNDED: dict[str, set[str]] = {
    "period": set(PERIODS),
    "outcome": {state.value for state in ItemState} | {kind.value for kind in EntryKind},
    "kind": {kind.value for kind in EntryKind},
    "quality": {one.value for one in Quality},
    "status": {one.value for one in RateStatus},
    "state": {one.value for one in (*JobState, *ChunkState, *TargetState)},
    "signal": {one.value for one in Signal},
    "book": {one.value for one in Book},
    "level": {one.value for one in Level},
    # Of budgets and targets; whose they are is told where the settings say so: tests/api/test_budget_metrics.py.
    "tenant": {""},
    "name": {""},
}
CODES = {str(code) for code in range(200, 600)}
OTHERS = {"method", "route", "endpoint", "tick", "result", "reason", "class", "le"}


def scrape(http: httpx.Client) -> dict[str, Metric]:
    response = http.get("/metrics")
    assert response.status_code == 200
    found = text_string_to_metric_families(response.text)
    return {family.name: family for family in found if re.match("carbonq_(?!.*_created$)", family.name)}


def values(family: Metric, *labels: str) -> dict[tuple[str, ...], float]:
    return {tuple(sample.labels[name] for name in labels): sample.value for sample in family.samples}


def prepare(harness: Harness) -> None:
    """Work of the past hour in region away, on the harness's clock, of which one part is settled and one wasted."""
    now = window_of(harness.clock.now())
    rates = rate_book([rate(window_at=now)], now=now)
    observe(harness.db, "ZONE_FR", now, "80")
    observe(harness.db, "ZONE_FR", now - timedelta(minutes=5), "60")
    observe(harness.db, "ZONE_FR", now, "55", signal=Signal.AER)
    shift = (now - part().window_at) // timedelta(minutes=5)
    here = [part(shift, cpu=3_600_000_000)]
    made = [book(batch([item()], here, clock=ClockKind.SIMULATED), rates) for _ in range(2)]
    store(harness.db, *made, overhead(EntryKind.WASTED, here, clock=ClockKind.SIMULATED))
    for level, name in ((Level.PRODUCT_LINE, "search"), (Level.WORKLOAD, "backfill"), (Level.ITEM, "backfill")):
        budgets_admin.set_budget(
            harness.db, harness.clock, "acme", level=level, name=name, cap_g="5", action=Action.QUEUE, actor="me"
        )
    targets_admin.set_target(harness.db, harness.clock, "acme", g_per_1k_tokens="0.5", actor="me")
    targets.tick(harness.db, harness.clock)


def test_metrics_are_named_by_the_conventions_and_their_labels_are_bounded(
    harness: Harness, http: httpx.Client
) -> None:
    prepare(harness)
    job_id = submit(http)["id"]
    add_chunks(harness.db, 1, prefix="secretchunk")
    body = {"model": EMBEDDER, "input": "x", "carbon": {"class": "interactive"}}
    assert http.post("/v1/embeddings", json=body).status_code == 200
    families = scrape(http)
    assert len(families) > 50
    for name, family in families.items():
        assert re.fullmatch(r"carbonq_[a-z0-9_]+", name)
        assert name.endswith(UNITS) or "_per_" in name, name
        for sample in family.samples:
            for label, value in sample.labels.items():
                assert label in NAMES | OTHERS | BOUNDED.keys(), f"{name}: {label}"
                among = CODES if name == "carbonq_api_requests" else BOUNDED.get(label)
                assert label in NAMES | OTHERS or (among and value in among), f"{name}: {label}={value}"
                assert not value.startswith(("job_", "batch_", "key_", "chunk_", "eb_")), f"{name}: {label}={value}"
    text = http.get("/metrics").text
    for secret in (job_id, "acme", "secretchunk", "job_1", "search", "backfill", "doc-0"):
        assert secret not in text


def test_headline_figures_are_the_ledgers(harness: Harness, http: httpx.Client) -> None:
    prepare(harness)
    found = scrape(http)
    emission_g = 2 * 0.001 * 1.2 * 250.5  # 3.6 kJ each, PUE 1.2
    ran = values(found["carbonq_ledger_energy_joules"], "period", "region", "model", "outcome", "quality")
    assert ran["7d", "away", "embedder", "succeeded", "estimated"] == 7_200
    assert ran["7d", "away", "", "wasted", "estimated"] == 3_600
    assert {key[0] for key in ran} == set(PERIODS)
    impact = values(found["carbonq_ledger_impact_grams"], "period", "outcome", "status")
    assert abs(impact["30d", "succeeded", "provisional"] - emission_g) < 1e-9
    assert ("30d", "succeeded", "missing") not in impact and not found["carbonq_ledger_inventory_grams"].samples
    per_kg = values(found["carbonq_requests_per_kilogram_co2e"], "period", "quality", "status")
    assert per_kg["1h", "estimated", "provisional"] == 2 / (emission_g / 1000)
    per_tokens = values(found["carbonq_kilograms_co2e_per_million_tokens"], "period", "model", "status")
    assert abs(per_tokens["1h", "embedder", "provisional"] - emission_g / 1000 / 20e-6) < 1e-9
    assert values(found["carbonq_wasted_energy_ratio"], "period", "quality")["24h", "estimated"] == 1 / 3
    assert not found["carbonq_ledger_cost"].samples and not found["carbonq_energy_below_mean_moer_ratio"].samples


def test_each_regions_rates_stand_in_their_own_book(harness: Harness, http: httpx.Client) -> None:
    prepare(harness)
    found = scrape(http)
    now = values(found["carbonq_moer_grams_per_kilowatt_hour"], "region", "status")
    assert now == {("fr", "provisional"): 80}  # its window is not over
    assert values(found["carbonq_moer_past_hour_grams_per_kilowatt_hour"], "region") == {("fr",): 70}
    assert values(found["carbonq_aer_grams_per_kilowatt_hour"], "region") == {("fr",): 55}  # se: absent, not 0


def test_what_waits_and_how_long_it_may(harness: Harness, http: httpx.Client) -> None:
    slack = scrape(http)["carbonq_deadline_least_slack_seconds"].samples[0].value
    assert math.isnan(slack)  # nothing waits: not known
    first, second = add_chunks(harness.db, 2, prefix="x")
    now = harness.clock.now()
    change(harness.db, first, latest_start_at=now - timedelta(seconds=90))
    change(harness.db, second, latest_start_at=now + timedelta(hours=1))
    found = scrape(http)
    assert found["carbonq_deadline_least_slack_seconds"].samples[0].value == -90
    assert found["carbonq_chunks_at_risk"].samples[0].value == 1
    assert sum(values(found["carbonq_chunks"], "region", "state").values()) == 2
    assert values(found["carbonq_tickets_unclaimed"], "region")["fr",] == 0
    # What a budget holds back is meant to wait, and has figures of its own.
    change(harness.db, first, held_by="bgt_1")
    found = scrape(http)
    assert found["carbonq_deadline_least_slack_seconds"].samples[0].value == 3600
    assert found["carbonq_chunks_at_risk"].samples[0].value == 0


def test_routing_by_carbon_shows_what_it_costs_in_latency(harness: Harness, http: httpx.Client) -> None:
    body = {"model": EMBEDDER, "input": "x", "carbon": {"class": "interactive", "regions": ["fr", "se"]}}

    def told() -> tuple[float, float]:
        found = scrape(http)
        routes = values(found["carbonq_interactive_routes"], "region", "reason")
        count = [
            s.value for s in found["carbonq_interactive_extra_latency_seconds"].samples if s.name.endswith("_count")
        ]
        return routes.get(("fr", "nearest"), 0.0), count[0]

    before = told() if "carbonq_interactive_routes" in scrape(http) else (0.0, 0.0)
    assert http.post("/v1/embeddings", json=body).status_code == 200
    after = told()
    assert (after[0] - before[0], after[1] - before[1]) == (1, 1)
