"""The shapes of calls that are answered now: OpenAI's, with ``carbon`` in and out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from carbonq.api.shapes.words import OUT, ModelName, OpenShape, RegionName, Unix, eg
from carbonq.model import Quality, RateStatus


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
    input: Annotated[Any, eg("The grid is cleanest at night.", says="a text, a list of texts, or tokens")]
    encoding_format: Literal["float", "base64"] = OUT
    carbon: RealtimeTerms = OUT


class Message(OpenShape):
    """A message of a chat."""

    role: Annotated[str, eg("user")]
    content: Annotated[Any, eg("Summarize: the grid is cleanest at night, when wind blows and few use it.")]


class NewChat(OpenShape):
    """OpenAI's request for a chat completion."""

    model: Annotated[str, eg("smollm2-135m-instruct")]
    messages: list[Message]
    max_tokens: Annotated[int, eg(64, ge=1)] = OUT
    carbon: RealtimeTerms = OUT


class Carbon(OpenShape):
    """What a call has cost; null figures are unknown."""

    energy_wh: Annotated[float | None, eg(0.0002)]
    gco2e: Annotated[float | None, eg(0.00008)]
    intensity_g_per_kwh: Annotated[float | None, eg(400.0)]
    region: RegionName
    signal: Annotated[str, eg("marginal")]
    quality: Quality
    status: RateStatus


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
