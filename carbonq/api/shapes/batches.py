"""The shapes of OpenAI's Files and Batch API, with ``carbon`` in and out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from carbonq.api.shapes.words import OUT, JobId, ModelName, OpenShape, Page, RegionName, Shape, Time, Unix, eg
from carbonq.model import Endpoint, LatePolicy, Quality, RateStatus, Signal
from carbonq.store.batches import BatchState
from carbonq.terms import OnBudget

FileId = Annotated[str, eg("file-0190c2a17b0e7c3e9f005f6d")]
BatchId = Annotated[str, eg("batch_0190c2a17b0e7c3e9f005f6d")]
Metadata = Annotated[dict[str, str], eg({"team": "search"}, max_length=16)]
Figure = Annotated[float | None, eg(0.0123, says="null: not known")]
Tokens = Annotated[int, eg(1200, ge=0)]
Count = Annotated[int, eg(3, ge=0)]


class BatchTerms(Shape):
    """When and where a batch may run; also as metadata `carbonq_*`, headers `X-Carbonq-*`, or `carbon` of a line."""

    deadline: Annotated[str, eg("6h", says="a span from now, or a time with its zone; over completion_window")] = OUT
    regions: Annotated[list[RegionName] | str, eg(["fr", "se"], says="where it may run; all where left out")] = OUT
    max_gco2e: Annotated[float | str, eg(5.0, says="a cap of grams over all of its lines")] = OUT
    on_budget: Annotated[OnBudget, eg("reject", says="what becomes of it where the cap cannot be kept")] = OUT
    product_line: Annotated[str, eg("search", max_length=255)] = OUT
    workload: Annotated[str, eg("reindex", max_length=255)] = OUT
    late_policy: Annotated[LatePolicy, eg("expire", says="what becomes of lines that are late; expire")] = OUT
    defer: Annotated[Literal[True, "true"], eg(True, says="what a batch does anyway")] = OUT
    downgrade: Annotated[
        bool | Literal["true", "false"], eg(False, says="whether a smaller model may run it (`models.NAME.smaller`)")
    ] = OUT


class ExpiresAfter(Shape):
    """When a file goes."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, eg(86_400, ge=3600, le=2_592_000)]


class NewFile(OpenShape):
    """A form with the parts purpose and file; expires_after[anchor], expires_after[seconds], carbon[...] if wanted."""

    purpose: Literal["batch"]
    file: Annotated[
        str,
        eg(
            '{"custom_id": "a-1", "method": "POST", "url": "/v1/embeddings", "body": {"model": "wordllama-256", '
            '"input": "The grid is cleanest at night."}}\n',
            says="requests as JSON lines, with a file name",
        ),
    ]


class File(Shape):
    """OpenAI's FileObject; `lines` counts the requests or answers in it."""

    id: FileId
    object: Literal["file"]
    bytes: Count
    created_at: Unix
    expires_at: Unix | None
    filename: Annotated[str, eg("requests.jsonl")]
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]
    status_details: None
    lines: Count
    carbon: Annotated[dict[str, Any], eg({"deadline": "6h"}, says="terms it was uploaded with")] = OUT


class FilePage(Page):
    """A page of files, newest first."""

    data: list[File]


class Deleted(Shape):
    """A file that is gone; a batch that reads it goes on."""

    id: FileId
    object: Literal["file"]
    deleted: Literal[True]


class NewBatch(Shape):
    """A batch to be run."""

    input_file_id: FileId
    endpoint: Endpoint
    completion_window: Annotated[str, eg("24h", says="any span of at most 31 days: 30m, 6h, 7d")]
    metadata: Metadata | None = OUT
    output_expires_after: ExpiresAfter | None = OUT
    carbon: BatchTerms | None = OUT


class BatchError(Shape):
    """What is wrong with a batch or one line of its input."""

    code: Annotated[str, eg("model_not_found")]
    line: Annotated[int | None, eg(2)]
    message: Annotated[str, eg("line 2: there is no model 'x'; known models: wordllama-256")]
    param: Annotated[str | None, eg("body.model")]


class BatchErrors(Shape):
    """At most 100 of them."""

    object: Literal["list"]
    data: list[BatchError]


class RequestCounts(Shape):
    """How many lines there are, have an answer, and are in the error file."""

    total: Count
    completed: Count
    failed: Count


class CachedTokens(Shape):
    """What of the input an engine had already."""

    cached_tokens: Tokens


class ReasoningTokens(Shape):
    """What of the output was thought only."""

    reasoning_tokens: Tokens


class UsageCarbon(OpenShape):
    """What the lines have cost; null figures are unknown."""

    energy_wh: Figure
    facility_energy_wh: Figure
    gco2e: Figure
    inventory_gco2e: Figure
    baseline_gco2e: Figure
    saved_gco2e: Figure
    signal: Literal["marginal"] | None
    quality: Quality | None
    status: RateStatus | None
    method: Annotated[str | None, eg("carbonq-2")]


class BatchUsage(Shape):
    """OpenAI's usage of the lines that succeeded."""

    input_tokens: Tokens
    input_tokens_details: CachedTokens
    output_tokens: Tokens
    output_tokens_details: ReasoningTokens
    total_tokens: Tokens
    carbon: UsageCarbon = OUT


class BatchWindow(Shape):
    """When and where it runs next, or ran."""

    start: Time
    end: Time
    region: RegionName | None


class BatchWhy(OpenShape):
    """Why what runs next, or ran first, is where and when it is."""

    reason: Annotated[str, eg("carbon")]
    sentence: Annotated[str, eg("the least carbon that all waiting work together allowed, deadlines first")]
    planned_region: RegionName
    planned_window: Time
    forecast_signal: Signal
    forecast_g_per_kwh: Annotated[float | None, eg(231.5)]
    forecast_issued_at: Time | None


class BatchBaseline(Shape):
    """Where and when it would have run without carbonq: of several windows, the first."""

    region: RegionName
    window: Time


class BatchCarbon(OpenShape):
    """Where a batch stands and what it costs; null figures are unknown, sums without a rate or meter are a part."""

    phase: Annotated[str, eg("waiting")]
    window: BatchWindow | None
    eta: Annotated[Time | None, Field(description="when its last window ends, as planned now")]
    last_progress_at: Annotated[Time | None, Field(description="by the machines' clocks")]
    region: RegionName | None
    regions: Annotated[dict[str, int], eg({"fr": 2}, says="its chunks by region")]
    deadline: Time
    reason: Annotated[str | None, eg("carbon", says="why there and then; the jobs' /why has the whole answer")]
    why: BatchWhy | None
    baseline: BatchBaseline | None
    infeasible: Annotated[str | None, eg(None, says="what cannot be in time, said when it was accepted")]
    planned_gco2e: Figure
    actual_gco2e: Figure
    baseline_gco2e: Figure
    saved_gco2e: Figure
    inventory_gco2e: Figure
    energy_wh: Figure
    facility_energy_wh: Figure
    jobs: list[JobId]


class Batch(Shape):
    """OpenAI's Batch."""

    id: BatchId
    object: Literal["batch"]
    endpoint: Endpoint
    model: ModelName | None
    errors: BatchErrors | None
    input_file_id: FileId
    completion_window: Annotated[str, eg("24h")]
    status: BatchState
    output_file_id: FileId | None
    error_file_id: FileId | None
    created_at: Unix
    in_progress_at: Unix | None
    expires_at: Unix | None
    finalizing_at: Unix | None
    completed_at: Unix | None
    failed_at: Unix | None
    expired_at: Unix | None
    cancelling_at: Unix | None
    cancelled_at: Unix | None
    request_counts: RequestCounts
    usage: BatchUsage | None
    metadata: Metadata | None
    carbon: BatchCarbon = OUT


class BatchPage(Page):
    """A page of batches, newest first; carbon and usage.carbon are told where one is retrieved."""

    data: list[Batch]
