"""The shapes of /v1/jobs: what a job is made of, how it looks, its items, chunks and why they are where they are."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from carbonq.api.shapes.words import (
    OUT,
    ChunkId,
    Clock,
    Count,
    Grams,
    JobId,
    ModelName,
    OpenShape,
    Page,
    Rate,
    RegionName,
    Seconds,
    Shape,
    Text,
    Time,
    eg,
)
from carbonq.model import (
    ChunkState,
    DowngradeReason,
    Endpoint,
    HeldKind,
    ItemState,
    JobState,
    LatePolicy,
    Quality,
    RateStatus,
    RegionState,
    Signal,
    Treatment,
)

#: A deadline as clients write it.
Deadline = Annotated[str, eg("6h", says="a span (`6h`, `90m`, `2d`) or a time with its zone; it means finished by")]


class ItemText(Shape):
    """An item by its text."""

    id: Annotated[str, eg("doc-1", says="its `custom_id`")]
    text: Annotated[str, eg("The grid is cleanest at night.")]


class ItemLine(OpenShape):
    """An item as a line of OpenAI's batch format."""

    custom_id: Annotated[str, eg("a-1")]
    body: Annotated[dict[str, Any], eg({"input": "The grid is cleanest at night."})]


class JobTerms(Shape):
    """When and where a job may run, for clients that send it as one object; also as metadata or headers."""

    deadline: Deadline = OUT
    regions: Annotated[list[RegionName] | str, eg(["fr"])] = OUT
    max_gco2e: Annotated[float | str, eg(5.0, says="a cap of grams")] = OUT
    product_line: Annotated[str, eg("search", max_length=255)] = OUT
    workload: Annotated[str, eg("reindex", max_length=255)] = OUT
    late_policy: LatePolicy = OUT
    downgrade: Annotated[bool, eg(False, says="whether a smaller model may run it (`models.NAME.smaller`)")] = OUT


class NewJob(Shape):
    """A new job with its items."""

    endpoint: Annotated[Endpoint, Field(description="or `kind` instead")] = OUT
    kind: Annotated[Literal["embeddings", "summarize", "chat"], Field(description="instead of `endpoint`")] = OUT
    model: ModelName
    deadline: Annotated[str, eg("6h", says="a span or a time with its zone; here, or as another carrier's")] = OUT
    regions: Annotated[list[RegionName], Field(description="where it may run; everywhere if left out")] = OUT
    max_carbon_g: Annotated[float, eg(5.0, says="a cap of grams; above 0", gt=0)] = OUT
    product_line: Annotated[str, eg("search", max_length=255)] = OUT
    workload: Annotated[str, eg("reindex", max_length=255)] = OUT
    late_policy: LatePolicy = OUT
    downgrade: Annotated[bool, eg(False, says="whether a smaller model may run it (`models.NAME.smaller`)")] = OUT
    metadata: Annotated[dict[str, str], eg({"team": "search"}, max_length=16)] = OUT
    carbon: JobTerms = OUT
    items: Annotated[
        list[str | ItemText | ItemLine],
        eg(["The grid is cleanest at night.", {"id": "doc-2", "text": "And at noon."}], min_length=1),
    ]


class Progress(Shape):
    """Items by how they ended."""

    total: Count
    ended: Annotated[int, eg(0)]
    succeeded: Annotated[int, eg(0)]
    failed: Annotated[int, eg(0)]
    expired: Annotated[int, eg(0)]
    cancelled: Annotated[int, eg(0)]


class Held(Shape):
    """What an operator pauses or drains."""

    kind: HeldKind
    name: Text
    state: RegionState
    reason: Text | None
    since: Time


class JobUrls(Shape):
    """Where the parts of a job are."""

    self: Annotated[str, eg("/v1/jobs/job_0190c2a17b0e")]
    items: Annotated[str, eg("/v1/jobs/job_0190c2a17b0e/items")]
    chunks: Annotated[str, eg("/v1/jobs/job_0190c2a17b0e/chunks")]
    results: Annotated[str, eg("/v1/jobs/job_0190c2a17b0e/results")]
    errors: Annotated[str, eg("/v1/jobs/job_0190c2a17b0e/errors")]
    cancel: Annotated[str, eg("/v1/jobs/job_0190c2a17b0e/cancel")]


class Job(Shape):
    """A job as a submit, a list or a cancel shows it."""

    id: JobId
    object: Literal["job"]
    state: JobState
    phase: Annotated[str, eg("waiting", says="what it waits for, in a word or three")]
    endpoint: Endpoint
    model: ModelName
    requested_model: ModelName
    product_line: Annotated[str | None, eg("search")]
    workload: Annotated[str | None, eg("reindex")]
    home_region: RegionName
    regions: Annotated[list[RegionName] | None, Field(description="null: every region")]
    deadline_at: Time
    late_policy: LatePolicy
    max_carbon_g: Annotated[str | None, eg(None)]
    downgrade: Annotated[bool | None, eg(None, says="whether a smaller model may run it; null: nobody said")]
    is_cancel_requested: bool
    input_bytes: Count
    est_tokens: Count
    created_at: Time
    started_at: Annotated[Time | None, eg(None)]
    finished_at: Annotated[Time | None, eg(None)]
    is_late: bool
    infeasible: Annotated[str | None, eg(None, says="why it may be late beside what was accepted before it")]
    treatment: Treatment
    batch_id: Annotated[str | None, eg(None, says="the batch it is a part of")]
    error: Annotated[str | None, eg(None)]
    metadata: Annotated[dict[str, str], eg({"team": "search"})]
    progress: Progress
    has_results: bool
    has_errors: bool
    files_removed_at: Annotated[Time | None, eg(None)]
    urls: JobUrls
    held: Annotated[Held | None, eg(None)]


class Placement(Shape):
    """Where and when the chunks of a job run, in figures."""

    chunks: Count
    states: Annotated[dict[ChunkState, int], eg({"waiting": 0, "placed": 1, "running": 0, "done": 0})]
    regions: Annotated[dict[str, int], eg({"se": 1})]
    next_window_at: Time | None
    last_window_at: Time | None


class EnergySum(Shape):
    """Energy of one kind and quality, in microjoules."""

    kind: Annotated[str, eg("item")]
    quality: Quality
    entries: Count
    energy_uj: Count
    unmetered_entries: Annotated[int, eg(0)]


class ImpactSum(Shape):
    """Marginal emission of one kind and status."""

    kind: Annotated[str, eg("item")]
    status: RateStatus
    method: Annotated[str, eg("m3")]
    entries: Count
    emission_g: Grams | None
    unrated_entries: Annotated[int, eg(0)]


class InventorySum(Shape):
    """Location-based emission of one kind and status."""

    kind: Annotated[str, eg("item")]
    status: RateStatus
    method: Annotated[str, eg("m3")]
    entries: Count
    inventory_g: Grams | None
    unrated_entries: Annotated[int, eg(0)]


class Compared(Shape):
    """What was saved, beside its baseline, on the entries that can be compared."""

    compared_entries: Count
    compared_energy_uj: Count
    compared_emission_g: Grams | None
    transfer_g: Grams | None
    baseline_g: Grams | None
    saved_g: Grams | None


class SavingSum(Compared):
    """What was saved, of one status and quality."""

    status: RateStatus
    quality: Quality
    method: Annotated[str, eg("m3")]


class CarbonSums(Compared):
    """The sums over a job's entries, the two books apart; null figures are unknown."""

    clock: Annotated[str | None, eg("real")]
    entries: Count
    overhead_entries: Annotated[int, eg(0)]
    items: Count
    methods: Annotated[list[str], eg(["m3"])]
    prompt_tokens: Count
    completion_tokens: Count
    energy_uj: Count
    energy_quality: list[Quality]
    emission_g: Grams | None
    emission_status: list[RateStatus]
    inventory_g: Grams | None
    embodied_g: Grams | None
    unmetered_entries: Annotated[int, eg(0)]
    unrated_entries: Annotated[int, eg(0)]
    energy: list[EnergySum]
    impact: list[ImpactSum]
    inventory: list[InventorySum]
    saving: list[SavingSum]
    status: RateStatus
    quality: Quality | None


class WholeJob(Job):
    """A job with its placement and its carbon figures."""

    placement: Placement
    downgraded: Annotated[
        dict[DowngradeReason, int] | None,
        eg({"budget": 12}, says="items that a smaller model runs, by why; null: not kept any more"),
    ]
    carbon: Annotated[CarbonSums | None, Field(description="null before anything of it has run")]


class JobPage(Page):
    """Jobs, newest first."""

    data: list[Job]


class Item(Shape):
    """One request inside a job."""

    id: Annotated[str, eg("a-1", says="its `custom_id`, which pages go by")]
    object: Literal["item"]
    custom_id: Annotated[str, eg("a-1")]
    index: Annotated[int, eg(0, says="its place among the job's items, from 0", ge=0)]
    state: ItemState
    chunk_id: ChunkId | None
    est_tokens: Count
    error_code: Annotated[str | None, eg(None, says="why it failed; docs/errors.md lists the codes")]
    finished_at: Annotated[Time | None, eg(None)]


class ItemPage(Page):
    """Items of a job, in the order of its lines."""

    data: list[Item]


class Baseline(Shape):
    """Where and when the chunk would run without carbonq."""

    region: RegionName
    window_at: Time


class Chunk(Shape):
    """A part of a job that is planned and run as one."""

    id: ChunkId
    object: Literal["chunk"]
    model: ModelName
    state: ChunkState
    is_dispatched: bool
    region: RegionName | None
    window_at: Time | None
    forecast_g_per_kwh: Rate | None
    forecast_signal: Signal | None
    forecast_issued_at: Time | None
    reason: Annotated[str | None, eg("carbon")]
    latest_start_at: Time | None
    deadline_at: Time
    est_duration_s: Seconds
    attempt: Annotated[int, eg(0)]
    error: Annotated[str | None, eg(None)]
    baseline: Baseline


class JobChunk(Chunk):
    """A chunk of a job, with the job's own items counted."""

    items: Count
    items_ended: Annotated[int, eg(0)]


class JobChunkPage(Page):
    """The chunks of a job, nearest window first; those without one last."""

    data: list[JobChunk]


class WhyCell(Shape):
    """A region and window with its rate and grams."""

    region: RegionName
    window_at: Time
    g_per_kwh: Annotated[float | None, eg(120.5)]
    gco2e: Annotated[float | None, eg(0.5)]
    weighted_price_g: Annotated[float | None, eg(0.0)]


class PassedOver(Shape):
    """Cells that were not taken, by the reason."""

    why: Annotated[str, eg("full")]
    cells: Count
    cleanest: WhyCell


class RunnerUp(WhyCell):
    """The next best cell, and what it would have cost more."""

    more_gco2e: Annotated[float | None, eg(0.1)]
    more_weighted_price_g: Annotated[float | None, eg(0.0)]
    more_pct: Annotated[float | None, eg(20.0)]


class Dirtiest(Shape):
    """The chunk of the group with the highest rate, which the comparison is of."""

    chunk_id: ChunkId
    window_at: Time | None
    latest_start_at: Time | None
    forecast_g_per_kwh: Rate | None
    forecast_signal: Signal | None
    forecast_issued_at: Time | None
    forecast_now_g_per_kwh: Annotated[float | None, eg(118.0)]
    compared_with: Annotated[str | None, eg("outlook of the plan")]
    choices: Annotated[int | None, eg(144)]
    gco2e: Annotated[float | None, eg(0.5)]
    weighted_price_g: Annotated[float | None, eg(0.0)]
    passed_over: list[PassedOver]
    runner_up: RunnerUp | None


class WhyGroup(Shape):
    """Chunks alike, and why they are where they are."""

    id: ChunkId
    object: Literal["why.group"]
    chunks: Count
    chunk_ids: list[ChunkId]
    items: Count
    state: ChunkState
    is_dispatched: bool
    has_run: bool
    region: RegionName | None
    first_window_at: Time | None
    last_window_at: Time | None
    deadline_at: Time
    reason: Annotated[str | None, eg("carbon")]
    planned_at: Time | None
    gco2e: Annotated[float | None, eg(0.5)]
    sentences: Annotated[list[str], eg(["1 chunk is to run in se in the window of 02:05, at 120 gCO2e/kWh."])]
    dirtiest: Dirtiest


class Why(Shape):
    """Why the chunks of a job are where they are, chunks alike in one group."""

    object: Literal["why"]
    data: list[WhyGroup]
    first_id: ChunkId | None
    last_id: ChunkId | None
    has_more: bool
    job_id: JobId
    clock: Clock
    summary: Annotated[str | None, eg("1 chunk, in 1 region.")]
    unit: Literal["gCO2e"]
