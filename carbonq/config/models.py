"""Settings of the models that clients may ask for: ``[models.NAME]``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from carbonq.config.strict import Strict


class ModelSettings(Strict):
    """A model clients may ask for (``[models.NAME]``)."""

    engine: Literal["wordllama", "llama_cpp", "sentence_transformers"] = Field(description="Which engine runs it.")
    path: Path | None = Field(
        None, description="llama_cpp: the GGUF file; sentence_transformers: the folder with modules.json."
    )
    context_tokens: int | None = Field(
        None,
        ge=16,
        description="llama_cpp: context length in tokens, unset: 2048; sentence_transformers: longest text in tokens, "
        "unset: 512; never more than the model's own limit.",
    )
    max_output_tokens: int = Field(128, ge=1, description="llama_cpp: default and upper limit of max_tokens.")
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
    tier: int = Field(1, ge=1, description="Size class; a downgrade goes to the next smaller tier.")
