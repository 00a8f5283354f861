"""The shapes of quotes, the plan, regions, forecasts and models."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from carbonq.api.shapes.jobs import Chunk, JobTerms
from carbonq.api.shapes.words import (
    OUT,
    Clock,
    Count,
    Decimal,
    ModelName,
    Page,
    Rate,
    RegionName,
    Shape,
    Text,
    Time,
    Unix,
    Zone,
    eg,
)
from carbonq.model import Endpoint, LatePolicy, RateKind, RateStatus, RegionState, Signal
from carbonq.plan.outlook import Basis

Figure = Annotated[float | None, eg(1.25, says="null: not known")]


class NewQuote(Shape):
    """What a quote is asked of: the fields of a job, with items or with counts."""

    endpoint: Endpoint = OUT
    kind: Literal["embeddings", "summarize", "chat"] = OUT
    model: ModelName
    deadline: Annotated[str, eg("6h", says="a span or a time; may be left out")] = OUT
    regions: list[RegionName] = OUT
    max_carbon_g: Annotated[float, eg(5.0, gt=0)] = OUT
    product_line: Annotated[str, eg("search", max_length=255)] = OUT
    workload: Annotated[str, eg("reindex", max_length=255)] = OUT
    late_policy: LatePolicy = OUT
    downgrade: Annotated[bool, eg(False)] = OUT
    metadata: Annotated[dict[str, str], eg({"team": "search"}, max_length=16)] = OUT
    carbon: JobTerms = OUT
    items: Annotated[int | list[Any], eg(1000, says="a count, or a list as for a submit")]
    tokens: Annotated[int, eg(900_000, says="of all items together; goes with a count", ge=1)] = OUT


class QuoteRegion(Shape):
    """How fast the work would be in a region."""

    region: RegionName
    hardware: Text
    pue: Decimal
    energy_wh: Figure
    work_s: Figure
    tokens_per_s: Figure
    is_learned: bool
    has_rates: bool
    issued_at: Time | None


class QuoteBaseline(Shape):
    """What it would cause at once at home."""

    region: RegionName
    start_at: Time
    finish_at: Time
    gco2e: Figure
    spread_gco2e: Figure


class QuotePoint(Shape):
    """What it would cause by a deadline in a set of regions."""

    set: Annotated[str, eg("all")]
    regions: list[RegionName]
    after_s: Annotated[float | None, eg(21_600.0)]
    deadline_at: Time | None
    is_met: bool
    late_chunks: Annotated[int, eg(0)]
    unplaced_chunks: Annotated[int, eg(0)]
    unrated_chunks: Annotated[int, eg(0)]
    start_at: Time | None
    finish_at: Time | None
    placed: Annotated[dict[str, int], eg({"se": 1})]
    energy_wh: Figure
    gco2e: Figure
    spread_gco2e: Figure
    extra_gco2e: Figure
    weighted_price_g: Figure
    baseline_gco2e: Figure
    saved_gco2e: Figure
    saved_pct: Figure
    saved_spread_gco2e: Figure


class AskedPoint(QuotePoint):
    """The same for the deadline that was asked about."""

    is_met_by_moving: bool
    shortage: Annotated[str | None, eg(None)]


class Quote(Shape):
    """What a job would cause; nothing was stored."""

    object: Literal["quote"]
    clock: Clock
    model: ModelName
    endpoint: Endpoint
    items: Count
    est_tokens: Count
    max_carbon_g: Annotated[str | None, eg(None)]
    chunks: Count
    signal: Signal
    unit: Literal["gCO2e"]
    known_until_at: Time | None
    regions: list[QuoteRegion]
    baseline: QuoteBaseline | None
    asked: AskedPoint | None
    curve: list[QuotePoint]
    uncertainty: Text
    notes: Annotated[list[str], eg([])]


class PlanHead(Shape):
    """The plan in force."""

    id: Annotated[str, eg("plan_0190c2a17b0e")]
    created_at: Time
    is_overlay: bool
    signal: Signal
    max_gap_to_optimum_pct: Annotated[float | None, eg(0.4)]
    note: Annotated[str | None, eg(None)]


class PlanOutlookRegion(Shape):
    """What the planner thinks of a region's coming windows."""

    region: RegionName
    zone: Zone
    state: RegionState
    is_healthy: bool
    pue: Decimal
    issued_at: Time | None
    values: list[Rate | None]
    spread: Annotated[list[float | None], eg([12.0])]
    basis: list[Basis]


class PlanOutlook(Shape):
    """What the planner thinks of all regions' coming windows."""

    signal: Signal
    unit: Literal["gCO2e/kWh"]
    is_down: bool
    start_at: Time
    step_s: Annotated[int, eg(300)]
    regions: list[PlanOutlookRegion]


class PlacedCell(Shape):
    """How many of your chunks are placed in a cell."""

    region: RegionName
    window_at: Time
    chunks: Count


class Plan(Shape):
    """The plan in force and your open chunks."""

    object: Literal["plan"]
    clock: Clock
    plan: PlanHead | None
    chunks: list[Chunk]
    has_more: bool
    outlook: Annotated[PlanOutlook, Field(description="with `hours`")] = OUT
    placements: Annotated[list[PlacedCell], Field(description="with `hours`")] = OUT


class RateNow(Shape):
    """A rate with its source and stamps."""

    g_per_kwh: Rate
    gas: Annotated[str, eg("co2e")]
    status: RateStatus
    kind: RateKind
    source: Annotated[str, eg("watttime")]
    zone: Zone
    window_at: Time
    step_s: Annotated[int, eg(300)]
    issued_at: Time | None
    retrieved_at: Time
    is_estimated: bool
    is_stale: bool


class RegionSource(Shape):
    """A source of a region."""

    source: Annotated[str, eg("watttime")]
    is_stale: bool


class RegionSources(Shape):
    """The sources of each signal, preferred first."""

    moer: list[RegionSource]
    aer: list[RegionSource]


class Latency(Shape):
    """How far away a region is, in milliseconds."""

    stated: Annotated[float, eg(5.0)]
    measured: Annotated[float | None, eg(None)]


class Maintenance(Shape):
    """When fewer slots are offered."""

    start_at: Time
    end_at: Time
    slots: Annotated[int, eg(0)]


class Worker(Shape):
    """A live worker; ``agrees``: whether it runs with the installation's present settings."""

    id: Annotated[str, eg("worker-fr-1")]
    host: Annotated[str, eg("gpu-1")]
    pid: Annotated[int, eg(4711)]
    software_version: Annotated[str | None, eg("0.1.0")]
    clock_offset_s: Annotated[float | None, eg(0.002)]
    agrees: bool | None
    gpus: Annotated[list[Any], eg([])]
    last_seen_at: Time


class Region(Shape):
    """A place that can run work."""

    id: RegionName
    object: Literal["region"]
    name: RegionName
    zone: Zone
    state: RegionState
    is_healthy: bool
    live_workers: Count
    slots: Count
    slots_taken: Annotated[int, eg(1)]  # by chunks that run, and by those with a ticket out
    realtime_slots: Annotated[int, eg(2)]
    maintenance: list[Maintenance]
    models: list[ModelName]
    hardware: Text
    ownership: Annotated[str, eg("owned")]
    pue: Decimal
    pue_source: Annotated[str, eg("stated")]
    latency_ms: Latency
    is_home: bool
    moer: RateNow | None
    aer: RateNow | None
    sources: RegionSources
    workers: list[Worker]


class RegionPage(Page):
    """The regions with their state and what their grid emits now."""

    data: list[Region]
    clock: Clock
    decides_by: Signal


class Issue(Shape):
    """A forecast as its source issued it; all null and no values: there is none yet."""

    source: Annotated[str | None, eg("watttime")]
    model: Annotated[str | None, eg("2023-03-01")]
    gas: Annotated[str | None, eg("co2e")]
    method: Annotated[str | None, eg(None)]
    issued_at: Time | None
    retrieved_at: Time | None
    raw_unit: Annotated[str | None, eg("lb/MWh")]
    is_estimated: bool | None
    start_at: Time
    step_s: Annotated[int, eg(300)]
    values: list[Rate | None]


class SourceState(Shape):
    """How a source does."""

    source: Annotated[str, eg("watttime")]
    position: Annotated[int, eg(0)]
    fresh_at: Time | None
    age_s: Annotated[float | None, eg(120.0)]
    is_stale: bool
    is_down: bool
    failures: Annotated[int, eg(0)]
    last_ok_at: Time | None
    last_error_at: Annotated[Time | None, eg(None)]
    may_settle: bool


class Forecast(Issue):
    """The forecast of a zone that is used now, or was at a time, and how each of its sources does."""

    object: Literal["forecast"]
    zone: Zone
    signal: Signal
    now: Time
    unit: Literal["gCO2e/kWh"]
    sources: list[SourceState]


class ListedIssue(Issue):
    """A forecast as issued, in a list."""

    id: Annotated[str, eg("fc_17")]
    object: Literal["forecast"]
    zone: Zone
    signal: Signal


class IssuePage(Page):
    """Forecasts as issued, newest first."""

    data: list[ListedIssue]
    zone: Zone
    signal: Signal
    now: Time
    unit: Literal["gCO2e/kWh"]


class Outlook(Shape):
    """What the planner thinks of a zone's coming windows."""

    object: Literal["outlook"]
    zone: Zone
    signal: Signal
    now: Time
    unit: Literal["gCO2e/kWh"]
    decides_by: Signal
    source: Annotated[str | None, eg("watttime")]
    issued_at: Time | None
    is_down: bool
    start_at: Time
    step_s: Annotated[int, eg(300)]
    values: list[Rate | None]
    spread: Annotated[list[float | None], eg([12.0])]
    basis: list[Basis]


class ModelView(Shape):
    """A model, with carbonq's additions to OpenAI's shape."""

    id: ModelName
    object: Literal["model"]
    created: Unix
    owned_by: Annotated[str, eg("carbonq")]
    endpoint: Endpoint
    engine: Annotated[str, eg("wordllama")]
    max_input_tokens: Annotated[int | None, eg(8192)]
    max_output_tokens: Annotated[int | None, eg(None)]
    regions: list[RegionName]
    tier: Annotated[int, eg(1, says="size class; a downgrade goes to the next smaller one")]


class ModelPage(Page):
    """The models."""

    data: list[ModelView]
