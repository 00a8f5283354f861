"""Settings of the places that run work: ``[regions.NAME]``."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

from pydantic import Field

from carbonq.config.strict import Strict


class RegionSettings(Strict):
    """One place that can run work (``[regions.NAME]``)."""

    zone: str = Field(description="Grid zone, as its source names it; must be configured under [zones].")
    slots: int = Field(1, ge=1, le=1024, description="Chunks that run at the same time (engine lanes).")
    realtime_slots: int = Field(1, ge=1, le=256, description="Worker threads kept free for realtime requests.")
    pue: Decimal = Field(Decimal("1.0"), ge=1, le=5, description="Power usage effectiveness of the site.")
    pue_source: str = Field("not stated, 1.0 assumed", description="Where the PUE comes from, for the auditor.")
    hardware: str = Field("cpu", description="Name of the hardware; throughput is learned for (model, hardware).")
    latency_ms: float = Field(0.0, ge=0, description="Network latency from the API in ms until it was measured.")
    ownership: Literal["owned", "colocated", "rented"] = Field("owned", description="For the GHG scope of its energy.")
    models: tuple[str, ...] | None = Field(None, description="Models it serves; unset: all configured models.")
    embodied_kg: Decimal | None = Field(None, ge=0, description="kgCO2e embodied in one slot's hardware.")
    life_h: Decimal | None = Field(None, gt=0, description="Hours over which embodied carbon is spread.")
    watts_per_core: float | None = Field(None, gt=0, description="W per busy core for the CPU-time estimate.")
    gpus: tuple[str, ...] = Field((), description="GPU indices or UUIDs its worker uses; empty: all it sees.")
    threads: int | None = Field(None, ge=1, description="CPU threads of an engine; unset: the host's cores / regions.")
