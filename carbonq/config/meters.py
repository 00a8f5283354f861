"""Settings of the meters of a region's worker: ``[regions.NAME.meters.gpu]``, ``.cpu`` and ``.dram``."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from functools import partial
from typing import Annotated, Literal, TypeVar

from pydantic import Field, model_validator

from carbonq.config.grid import HeaderSecret
from carbonq.config.strict import Strict

#: What a component's source needs beside its name.
_NEEDS = {
    "dcgm": ("url",),
    "external": ("url", "value", "unit"),
    "tdp": ("watts",),
    "nameplate": ("watts",),
}


class _MeterSettings(Strict):
    """How one component is metered."""

    watts: float | None = Field(None, gt=0, description="tdp, nameplate: W of all its devices together.")
    uncertainty_pct: float | None = Field(
        None, ge=0, le=100, description="Stated uncertainty of an external meter, an estimate or a factor, in per cent."
    )
    url: str | None = Field(
        None, description="dcgm, external: http(s) address, or for external a file, of the reading."
    )
    headers: dict[str, HeaderSecret] = Field(default_factory=dict, description="Headers to send there; secrets.")
    value: str | None = Field(None, description="external: JSON path of the number, or the CSV column's name.")
    unit: Literal["uJ", "mJ", "J", "kJ", "Wh", "kWh", "MWh", "mW", "W", "kW"] | None = Field(
        None, description="external: the number's unit, of energy counted so far or of power."
    )
    form: Literal["json", "csv"] = Field(
        "json", description="external: what the answer is; of CSV the last row counts."
    )
    period_s: Annotated[float, Field(ge=0.1, le=3600)] = Field(
        1.0, description="dcgm, external: machine seconds between looks."
    )
    lag_s: float | None = Field(
        None,
        ge=0,
        le=3600,
        description="Seconds by which the reading itself trails; unset: nvml 0.11, amd 0.05, dcgm 30, external 0.",
    )
    is_whole_host: bool = Field(
        False, description="external: it covers the whole host, so that nothing else of it is metered."
    )
    factor: Decimal | None = Field(
        None,
        gt=0,
        le=10,
        description="Calibration factor that the counter is multiplied by, found against a better meter.",
    )
    factor_on: date | None = Field(None, description="The day the factor was found; belongs to factor.")

    @model_validator(mode="after")
    def _check(self) -> _MeterSettings:
        source: str = getattr(self, "by")  # noqa: B009 - every kind below has one
        missing = [name for name in _NEEDS.get(source, ()) if getattr(self, name) is None]
        if missing:
            raise ValueError(f"the meter {source!r} needs {', '.join(missing)}")
        if (self.factor is None) is not (self.factor_on is None):
            raise ValueError("factor and factor_on belong together; set both or neither")
        if self.is_whole_host and source != "external":
            raise ValueError("is_whole_host is for an external meter")
        return self


class GpuMeterSettings(_MeterSettings):
    """How its GPUs are metered."""

    by: Literal["auto", "none", "nvml", "amd", "dcgm", "external", "tdp", "nameplate"] = Field(
        "auto", description="auto: NVML, else AMD SMI, where there is one."
    )


class CpuMeterSettings(_MeterSettings):
    """How its CPUs are metered."""

    by: Literal["auto", "none", "rapl", "cpu_time", "external", "tdp", "nameplate"] = Field(
        "auto", description="auto: RAPL where the worker is alone on its host, else CPU time x watts."
    )


class DramMeterSettings(_MeterSettings):
    """How its memory is metered."""

    by: Literal["auto", "none", "rapl", "external", "tdp", "nameplate"] = Field(
        "auto", description="auto: RAPL where the CPU is metered by it and it has a counter."
    )


Kind = TypeVar("Kind", bound=Strict)


def _plain(kind: type[Kind]) -> Callable[[], Kind]:
    """Return what makes a table in which nothing was set."""
    return partial(kind.model_validate, {})


class MetersSettings(Strict):
    """The meters of a region's worker."""

    gpu: GpuMeterSettings = Field(default_factory=_plain(GpuMeterSettings), description="GPUs.")
    cpu: CpuMeterSettings = Field(default_factory=_plain(CpuMeterSettings), description="CPUs.")
    dram: DramMeterSettings = Field(default_factory=_plain(DramMeterSettings), description="Memory.")

    @model_validator(mode="after")
    def _check(self) -> MetersSettings:
        whole = [name for name in ("gpu", "cpu", "dram") if getattr(self, name).is_whole_host]
        others = [name for name in ("gpu", "cpu", "dram") if getattr(self, name).by not in {"auto", "none"}]
        if whole and others != whole:
            raise ValueError(f"the meter of {whole[0]} covers the whole host, so {', '.join(others)} cannot all be set")
        return self
