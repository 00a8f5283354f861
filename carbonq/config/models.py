"""Settings of the models that clients may ask for: ``[models.NAME]``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from carbonq.config.grid import HeaderSecret, OpenAddress
from carbonq.config.strict import Strict


class TiersSettings(Strict):
    """When work goes to the smaller model of the one it asked for, whatever budgets say (``[tiers]``)."""

    easy_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Items of at most so many tokens, by estimate and with their answer, run on the `smaller` model of "
        "the one they ask for; unset: none do.",
    )
    above_g_per_kwh: float | None = Field(
        default=None,
        gt=0,
        description="Work that is about to start at a marginal rate above so many gCO2e/kWh goes to the `smaller` "
        "model, and stays with it when the rate falls; unset: none does.",
    )


class ModelSettings(Strict):
    """A model clients may ask for (``[models.NAME]``)."""

    engine: Literal["wordllama", "llama_cpp", "openai_http", "sentence_transformers"] = Field(
        description="Which engine runs it; openai_http: any OpenAI-compatible server (docs/engines.md)."
    )
    path: Path | None = Field(
        None, description="llama_cpp: the GGUF file; sentence_transformers: the folder with modules.json."
    )
    context_tokens: int | None = Field(
        None,
        ge=16,
        description="llama_cpp, openai_http: context length in tokens, unset: 2048 and 8192; sentence_transformers: "
        "longest text in tokens, unset: 512; never more than the model's own limit.",
    )
    max_output_tokens: int = Field(
        128, ge=1, description="llama_cpp, openai_http: default and upper limit of max_tokens."
    )
    base_url: OpenAddress | None = Field(
        None, description="openai_http: the server's address as OpenAI clients have it, with /v1."
    )
    endpoint: Literal["/v1/chat/completions", "/v1/embeddings"] = Field(
        "/v1/chat/completions", description="openai_http: what the server is asked for."
    )
    served_model: str | None = Field(
        None, min_length=1, description="openai_http: the model's name at the server; unset: NAME."
    )
    api_key: HeaderSecret | None = Field(None, description="openai_http: sent as `Authorization: Bearer`.")
    concurrency: int = Field(
        8, ge=1, le=1024, description="openai_http: requests of one engine batch that are out at once."
    )
    connect_timeout_s: float = Field(5.0, gt=0, le=600, description="openai_http: seconds to connect.")
    read_timeout_s: float = Field(
        120.0, gt=0, le=3600, description="openai_http: seconds of silence before a request counts as lost."
    )
    retry_budget_s: float = Field(
        60.0, ge=0, le=3600, description="openai_http: seconds after a request's first try in which it is tried again."
    )
    is_streamed: bool = Field(
        False, description="openai_http: ask for chat answers piece by piece, to measure the time to the first token."
    )
    pid_file: Path | None = Field(
        None,
        description="openai_http: a file with the process id of a server on this host; CPU seconds of it and its "
        "children then count as the engine's.",
    )
    batch_items: int | None = Field(
        None, ge=1, le=65_536, description="Most items of one engine batch; unset: the engine's."
    )
    batch_tokens: int | None = Field(
        None, ge=1, description="Most tokens of one engine batch with padding, by estimate; unset: the engine's."
    )
    precision: str | None = Field(
        None, min_length=1, max_length=40, description="Quantisation, such as q4_k_m or fp8; recorded with the work."
    )
    speculative: str | None = Field(
        None, min_length=1, max_length=80, description="Speculative decoding, such as its draft model; recorded, too."
    )
    parameters_b: float | None = Field(
        None,
        gt=0,
        le=10_000,
        description="openai_http: billions of parameters that a token passes (of a mixture of experts the active "
        "ones), for the first estimate of energy; unset: 8, embeddings 0.3.",
    )
    dimensions: int | None = Field(
        None, ge=1, description="wordllama: length of the vectors, 64, 128 or 256; unset: 256."
    )
    shorter_dimensions: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (),
        description="sentence_transformers: lengths that vectors may be cut to on request (`dimensions`), for models "
        "trained for it (Matryoshka); empty: none.",
    )
    tokens_per_s: float | None = Field(None, gt=0, description="Starting throughput of one slot.")
    w_prompt: int | None = Field(
        None, ge=0, le=1_000_000, description="Weight of a prompt token in shares of energy; unset: the engine's."
    )
    w_cached: int | None = Field(
        None, ge=0, le=1_000_000, description="Weight of a prompt token that was cached; unset: the engine's."
    )
    w_completion: int | None = Field(
        None, ge=0, le=1_000_000, description="Weight of a generated token; unset: the engine's."
    )
    token_weights: Literal["stated", "learned"] = Field(
        "stated",
        description="stated: w_prompt, w_cached and w_completion; learned: from the energy of engine batches, of each "
        "hardware by itself, the stated ones until that is identified.",
    )
    tier: int = Field(1, ge=1, description="Size class; a downgrade goes to the next smaller tier.")
    smaller: str | None = Field(
        None,
        min_length=1,
        description="The model of the next smaller tier, to which work of this one may be downgraded "
        "(docs/howto/model-tiers.md); unset: none, it is never guessed.",
    )
    same_space: bool = Field(
        False,
        description="Embeddings with `smaller`: its vectors can be compared with this model's, as those of a "
        "Matryoshka cut can; else only jobs that say `downgrade: true` themselves are downgraded.",
    )
