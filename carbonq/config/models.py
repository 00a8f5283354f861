"""Settings of the models that clients may ask for: ``[models.NAME]``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from carbonq.config.strict import Strict


class ModelSettings(Strict):
    """A model clients may ask for (``[models.NAME]``)."""

    engine: Literal["wordllama", "llama_cpp"] = Field(description="Which engine runs it.")
    path: Path | None = Field(None, description="llama_cpp: the GGUF file.")
    context_tokens: int = Field(2048, ge=16, description="llama_cpp: context length in tokens.")
    max_output_tokens: int = Field(128, ge=1, description="llama_cpp: default and upper limit of max_tokens.")
    dimensions: int = Field(256, ge=1, description="wordllama: length of the vectors.")
    tokens_per_s: float | None = Field(None, gt=0, description="Starting throughput of one slot.")
    tier: int = Field(1, ge=1, description="Size class; a downgrade goes to the next smaller tier.")
