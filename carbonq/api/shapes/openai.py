"""The shapes of calls that are answered now: OpenAI's, with ``carbon`` in and out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from carbonq.api.shapes.words import OUT, EntryId, ModelName, OpenShape, RegionName, Time, Unix, eg
from carbonq.model import DowngradeReason, Quality, RateStatus


class RealtimeTerms(OpenShape):
    """Where and how fast a call is to be answered; headers `X-Carbonq-*` give what is left out."""

    regions: Annotated[list[RegionName], eg(["fr"])] = OUT
    product_line: Annotated[str, eg("search", max_length=255)] = OUT
    workload: Annotated[str, eg("chatbot", max_length=255)] = OUT
    slo_ms: Annotated[float, eg(800.0, says="the latency budget of the whole answer", gt=0, le=600_000)] = OUT
    session: Annotated[str, eg("user-17", max_length=255)] = OUT


class NewEmbeddings(OpenShape):
    """OpenAI's request for embeddings."""

    model: ModelName
    input: Annotated[
        str | list[str] | list[int] | list[list[int]],
        eg("The grid is cleanest at night.", says="a text, a list of texts, or tokens"),
    ]
    encoding_format: Literal["float", "base64"] = OUT
    carbon: RealtimeTerms = OUT


class Message(OpenShape):
    """A message of a chat."""

    role: Annotated[str, eg("user")]
    content: Annotated[Any, eg("Summarize: the grid is cleanest at night, when wind blows and few use it.")]


class StreamOptions(OpenShape):
    """What a stream holds."""

    include_usage: Annotated[bool, eg(True, says="a last chunk with `usage` and its `carbon`")] = OUT


class NewChat(OpenShape):
    """OpenAI's request for a chat completion."""

    model: Annotated[str, eg("smollm2-135m-instruct")]
    messages: list[Message]
    max_tokens: Annotated[int, eg(64, ge=1)] = OUT
    stream: Annotated[bool, eg(False, says="chunks as the text comes")] = OUT
    stream_options: StreamOptions = OUT
    carbon: RealtimeTerms = OUT


class RateThen(OpenShape):
    """The rate of a window, and the time it holds from."""

    g_per_kwh: Annotated[float, eg(400.0)]
    at: Time
    issued_at: Time | None
    source: Annotated[str, eg("watttime")]
    status: RateStatus


class WindowThen(OpenShape):
    """A window that the answer was computed in, with the rates there."""

    window: Time
    moer: RateThen | None
    aer: RateThen | None


class BaselineThen(OpenShape):
    """Where and when it would have run without carbonq."""

    region: RegionName
    window: Time
    status: RateStatus | None


class Because(OpenShape):
    """Why it ran there and then."""

    reason: Annotated[str, eg("realtime")]
    sentence: Annotated[str, eg("answered at once by the nearest healthy region that had room")]


class Carbon(OpenShape):
    """What an answer has cost, by the ledger's entries; null figures are unknown."""

    entry_ids: list[EntryId]
    energy_uj: Annotated[int | None, eg(720_000, says="IT energy")]
    energy_wh: Annotated[float | None, eg(0.0002, says="IT energy")]
    facility_energy_wh: Annotated[float | None, eg(0.00024, says="IT energy x PUE")]
    gco2e: Annotated[float | None, eg(0.00008, says="impact book: facility energy x MOER")]
    inventory_gco2e: Annotated[float | None, eg(0.00002, says="inventory book: facility energy x AER; never added")]
    saved_gco2e: Annotated[float | None, eg(0.00001)]
    baseline_gco2e: Annotated[float | None, eg(0.00009)]
    baseline: BaselineThen | None
    region: RegionName
    signal: Annotated[str, eg("marginal")]
    intensity_g_per_kwh: Annotated[float | None, eg(400.0)]
    pue: Annotated[float, eg(1.2)]
    quality: Quality
    status: RateStatus
    inventory_status: RateStatus
    method: Annotated[str, eg("carbonq-1")]
    requested_model: Annotated[str | None, eg("wordllama-256", says="what was asked for; the answer's `model` ran")]
    downgraded: Annotated[DowngradeReason | None, eg(None, says="why a smaller model ran")]
    windows: list[WindowThen]
    why: Because | None


class CallCarbon(Carbon):
    """What a call that was answered now has cost; ``routing`` says how an interactive one found its region."""

    engine_s: Annotated[float | None, eg(0.012)]


class Usage(OpenShape):
    """OpenAI's usage, with the carbon of the call."""

    prompt_tokens: Annotated[int, eg(9)]
    total_tokens: Annotated[int, eg(9)]
    carbon: CallCarbon


class Embedding(OpenShape):
    """One vector."""

    object: Literal["embedding"]
    index: Annotated[int, eg(0)]
    embedding: Annotated[
        list[float] | str, eg([0.5, -0.5, 0.25, 1.0], says="numbers, or little-endian float32 as base64")
    ]


class Embeddings(OpenShape):
    """OpenAI's list of embeddings."""

    object: Literal["list"]
    model: ModelName
    data: list[Embedding]
    usage: Usage


class Choice(OpenShape):
    """One answer."""

    index: Annotated[int, eg(0)]
    message: Message
    finish_reason: Annotated[str | None, eg("stop")]


class Completion(OpenShape):
    """OpenAI's chat completion."""

    id: Annotated[str, eg("chatcmpl-1")]
    object: Literal["chat.completion"]
    created: Unix
    model: Annotated[str, eg("smollm2-135m-instruct")]
    choices: list[Choice]
    usage: Usage
