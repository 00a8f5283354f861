"""Settings of the places that run work: ``[regions.NAME]``."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

from pydantic import AwareDatetime, Field, model_validator

from carbonq.config.meters import MetersSettings
from carbonq.config.strict import Strict


class MaintenanceSettings(Strict):
    """A span of grid time in which a region offers fewer slots (``[[regions.NAME.maintenance]]``)."""

    start: AwareDatetime = Field(description="Begin, with Z or an offset, e.g. 2026-11-03T08:00Z.")
    end: AwareDatetime = Field(description="End, likewise; the span is half-open.")
    slots: int = Field(
        0, ge=0, le=1024, description="Slots that remain for flexible work meanwhile; at most the region's."
    )

    @model_validator(mode="after")
    def _check(self) -> MaintenanceSettings:
        if self.end <= self.start:
            raise ValueError(f"end {self.end.isoformat()} must be after start {self.start.isoformat()}")
        return self


class RegionSettings(Strict):
    """One place that can run work (``[regions.NAME]``)."""

    zone: str = Field(description="Grid zone, as its source names it; must be configured under [zones].")
    slots: int = Field(1, ge=1, le=1024, description="Chunks that run at the same time (engine lanes).")
    realtime_slots: int = Field(
        1, ge=1, le=256, description="Worker threads kept free for realtime requests, on top of slots: never planned."
    )
    maintenance: tuple[MaintenanceSettings, ...] = Field(
        (), description="Spans in which fewer slots are offered; `carbonq config push` makes a new one known at once."
    )
    pue: Decimal = Field(Decimal("1.0"), ge=1, le=5, description="Power usage effectiveness of the site.")
    pue_source: str = Field("not stated, 1.0 assumed", description="Where the PUE comes from, for the auditor.")
    hardware: str = Field("cpu", description="Name of the hardware; throughput is learned for (model, hardware).")
    latency_ms: float = Field(0.0, ge=0, description="Network latency from the API in ms until it was measured.")
    ownership: Literal["owned", "colocated", "rented"] = Field("owned", description="For the GHG scope of its energy.")
    models: tuple[str, ...] | None = Field(None, description="Models it serves; unset: all configured models.")
    embodied_kg: Decimal | None = Field(None, ge=0, description="kgCO2e embodied in one slot's hardware.")
    life_h: Decimal | None = Field(None, gt=0, description="Hours over which embodied carbon is spread.")
    transfer_kwh_per_gb: Decimal | None = Field(
        None, ge=0, description="kWh that the network takes for a gigabyte from the home region to here, as stated."
    )
    transfer_g_per_kwh: Decimal | None = Field(None, ge=0, description="gCO2e/kWh of that network, as stated.")
    price_per_kwh: Decimal | None = Field(
        None, ge=0, description="Price of a kWh here, in the currency of price_weight_g; unset counts as the dearest."
    )
    watts_per_core: float | None = Field(None, gt=0, description="W per busy core for the CPU-time estimate.")
    gpus: tuple[str, ...] = Field((), description="GPU indices or UUIDs its worker uses; empty: all it sees.")
    meters: MetersSettings = Field(default_factory=MetersSettings, description="How its worker meters energy.")
    threads: int | None = Field(None, ge=1, description="CPU threads of an engine; unset: the host's cores / regions.")

    @model_validator(mode="after")
    def _check_maintenance(self) -> RegionSettings:
        for number, one in enumerate(self.maintenance):
            if one.slots > self.slots:
                raise ValueError(
                    f"maintenance.{number}.slots is {one.slots}, more than the region's {self.slots} slots; "
                    "it says what remains of them meanwhile"
                )
        return self
