"""What a grid source says, as values: forecasts as issued and observations, already in gCO2e/kWh. Words only.

A missing value is None and never 0; marginal (MOER) and average (AER) values never meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from carbonq.model import Signal


@dataclass(frozen=True, slots=True)
class Forecast:
    """One forecast as issued: ``values[i]`` (gCO2e/kWh, None = missing) covers ``start_at + i*step_s``, step_s long."""

    zone: str
    signal: Signal
    source: str
    model: str | None
    gas: str
    method: str | None
    issued_at: datetime
    retrieved_at: datetime
    start_at: datetime
    step_s: int
    values: Sequence[Decimal | None]
    raw_unit: str
    raw_per_g_per_kwh: Decimal  # raw value = g/kWh x this, so that the raw figure can be shown
    is_estimated: bool
    may_settle: bool


@dataclass(frozen=True, slots=True)
class Observation:
    """One observed value of a zone for ``[window_at, window_at + step_s)``."""

    zone: str
    signal: Signal
    source: str
    model: str | None
    gas: str
    method: str | None
    window_at: datetime
    step_s: int
    retrieved_at: datetime
    g_per_kwh: Decimal
    raw: Decimal
    raw_unit: str
    is_estimated: bool
    may_settle: bool


@dataclass(frozen=True, slots=True)
class SourceFigures:
    """How a source does, as metrics show it; ``age_s`` is grid seconds since what it told of last, None: never."""

    zone: str
    signal: str
    source: str
    age_s: float | None
    failures: int
    is_stale: bool
    is_down: bool


class NoteLevel(StrEnum):
    """How serious a note is; only FAIL keeps a source from being used."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class SourceNote:
    """One sentence about a source, for ``carbonq doctor``: what the account may read, what to expect of its values."""

    level: NoteLevel
    text: str
