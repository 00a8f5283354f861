"""Rows of the report that hold something beside something else: baselines, forecasts, promises, statements. Pure.

Units are those of ``report/document.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class SavingRow:
    """A saving beside its baseline, of entries alike in status, quality and method, on the same energy.

    ``saved_g = baseline_g - emission_g - transfer_g``; transfer is deducted where it is known only.
    """

    status: str
    quality: str
    method: str
    entries: int
    energy_uj: int
    emission_g: Decimal
    transfer_g: Decimal | None
    baseline_g: Decimal
    saved_g: Decimal


@dataclass(frozen=True, slots=True)
class Avoidable:
    """What the items caused, beside running each at once in the nearest region, on the same energy and same status.

    ``avoided_g = nearest_g - emission_g``: above 0, that much was avoided; below, that much was avoidable. ``coverage``
    is the compared part of the items' energy. Without a row nothing could be compared.
    """

    status: str
    entries: int
    energy_uj: int
    coverage: float | None
    emission_g: Decimal
    nearest_g: Decimal
    avoided_g: Decimal


@dataclass(frozen=True, slots=True)
class HoldoutRow:
    """Planned jobs against held-out ones: rates in grams a unit, the saving with its 95 % interval, in per cent."""

    status: str
    unit: str
    planned_jobs: int
    held_out_jobs: int
    planned_g: float | None
    held_out_g: float | None
    saved_pct: float | None
    low_pct: float | None
    high_pct: float | None


@dataclass(frozen=True, slots=True)
class ObservedRow:
    """Work that was only observed: what it caused, and what it would have caused where carbonq would have run it."""

    status: str
    chunks: int
    energy_uj: int
    emission_g: Decimal
    baseline_g: Decimal | None
    realised_g: Decimal
    saved_g: Decimal
    saved_pct: float | None


@dataclass(frozen=True, slots=True)
class Saving:
    """The ledger's saving beside its baseline (home region, first come first served), and other comparisons.

    ``coverage`` is the part of the items' energy that has a saving; ``avoidable_words`` says how the nearest region and
    its rate are chosen.
    """

    words: str
    avoidable_words: str
    rows: tuple[SavingRow, ...]
    coverage: float | None
    avoidable: tuple[Avoidable, ...]
    holdout: tuple[HoldoutRow, ...]
    observed: tuple[ObservedRow, ...]


@dataclass(frozen=True, slots=True)
class SciRow:
    """SCI of one book, (E x I + M) / R; ``counted`` is ``direct`` or ``with_overhead``. None: an input is unknown."""

    book: str
    counted: str
    operational_g: Decimal | None
    embodied_g: Decimal | None
    total_g: Decimal | None
    per_item_g: Decimal | None
    per_million_tokens_g: Decimal | None


@dataclass(frozen=True, slots=True)
class Sci:
    """The scores of both books, apart; ``unknown`` counts items' entries without an input, by which one it is."""

    boundary: str
    items: int
    tokens: int
    kwh_per_million_tokens: Decimal | None
    rows: tuple[SciRow, ...]
    unknown: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class ForecastRow:
    """How far provisional rates were from settled ones, weighed by the energy that was booked by them.

    ``book`` is ``impact``, ``inventory`` or ``baseline`` (marginal rates where the work would have run without
    carbonq). Differences are provisional minus settled in g/kWh; relative ones are shares of the settled rate.
    """

    book: str
    zone: str
    lead: str
    entries: int
    energy_uj: int
    mean_g_per_kwh: float
    mae_g_per_kwh: float
    p50_relative: float | None
    p95_relative: float | None


@dataclass(frozen=True, slots=True)
class DowngradeRow:
    """Items that ran on a smaller model than was asked for, for one reason; impact book.

    ``requested_g`` is what the model asked for is estimated to have emitted for the part ``compared_g`` of
    ``emission_g``; ``estimated_saved_g`` is their difference, and in no other saving. ``unknown_items`` are in neither.
    """

    requested_model: str
    model: str
    reason: str | None
    items: int
    tokens: int
    energy_uj: int
    statuses: tuple[str, ...]
    emission_g: Decimal | None
    compared_g: Decimal | None
    requested_g: Decimal | None
    estimated_saved_g: Decimal | None
    unknown_items: int


@dataclass(frozen=True, slots=True)
class TargetRow:
    """A contract target as the month has it, in grams for each 1,000 tokens of its book; ``model`` None: all models.

    ``value_g`` is over the entries that have a rate; ``low_g`` and ``high_g`` are the forecast's range, None once the
    month is over. ``state`` is that of ``target.TargetState``.
    """

    tenant: str
    model: str | None
    book: str
    promised_g: Decimal
    value_g: Decimal | None
    tokens: int
    provisional_share: float | None
    unknown_entries: int
    forecast_g: Decimal | None
    low_g: Decimal | None
    high_g: Decimal | None
    state: str


@dataclass(frozen=True, slots=True)
class StatementRow:
    """A region as its provider states it beside the inventory book. ``difference_g`` = stated - booked.

    It is the sum of the four steps (``statement.Compared`` says what each is); a step is None where it cannot be told,
    for the reason in ``untold``. Energies are the facility's, in kWh. ``market_g`` stands outside the comparison.
    """

    region: str
    stated_as: tuple[str, ...]
    stated_kwh: Decimal | None
    booked_kwh: Decimal
    stated_pue: Decimal | None
    booked_pue: Decimal | None
    stated_g: Decimal | None
    booked_g: Decimal | None
    difference_g: Decimal | None
    energy_g: Decimal | None
    pue_g: Decimal | None
    intensity_g: Decimal | None
    rest_g: Decimal | None
    is_implied: bool
    untold: str | None
    market_g: Decimal | None


@dataclass(frozen=True, slots=True)
class StatementComparison:
    """A provider's location-based statement beside the inventory book; sums are over ``rows``, None where one is.

    ``covers`` says which scopes its figures hold; ``only_stated`` and ``only_booked`` name regions that one side lacks.
    """

    provider: str
    covers: str | None
    stated_g: Decimal | None
    booked_g: Decimal | None
    difference_g: Decimal | None
    rows: tuple[StatementRow, ...]
    only_stated: tuple[str, ...]
    only_booked: tuple[str, ...]
