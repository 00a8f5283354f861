"""The month's report as a document: frozen rows, section by section. Pure.

Grams are gCO2e as exact decimals, energies whole microjoules of IT energy (PUE not in them), shares between 0 and 1,
months ``2026-11``, days ``2026-11-30``; None is unknown or does not apply, never 0. Figures of the impact book
(marginal) and of the inventory book (average, location-based) stand in fields of their own and are never added.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from carbonq.report.comparisons import (
    Avoidable,
    DowngradeRow,
    ForecastRow,
    HoldoutRow,
    ObservedRow,
    Saving,
    SavingRow,
    Sci,
    SciRow,
    StatementComparison,
    StatementRow,
    TargetRow,
)

__all__ = [
    "Avoidable",
    "BookRow",
    "BudgetRow",
    "DayRow",
    "DowngradeRow",
    "EfficiencyRow",
    "EnergyRow",
    "ForecastRow",
    "Grams",
    "Head",
    "HoldoutRow",
    "InventoryRow",
    "KindRow",
    "ObservedRow",
    "Recompute",
    "RegionRow",
    "Report",
    "Saving",
    "SavingRow",
    "Sci",
    "SciRow",
    "StatementComparison",
    "StatementRow",
    "SwitchRow",
    "TargetRow",
    "Text",
    "Totals",
]


@dataclass(frozen=True, slots=True)
class Head:
    """What the report is of. Windows are grid time, ``as_of`` and ``generated_at`` machine time.

    ``tenant`` None: all tenants and the overhead. ``clock`` None: nothing ran. ``is_over``: the month has ended, so
    only settlement and restatement may still change it; ``is_fixed``: nothing recorded until ``as_of`` can be missing,
    so the same report as of the same time is the same whenever it is asked for.
    """

    month: str
    start_at: datetime
    end_at: datetime
    tenant: str | None
    clock: str | None
    generated_at: datetime
    as_of: datetime
    is_fixed: bool
    is_over: bool
    made_by: str
    software_versions: tuple[str, ...]
    methods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grams:
    """Sums of one book over some entries. ``known_g`` is provisional, settled (or restated) and unsettleable together.

    ``unknown_entries`` have no figure and are in no sum; ``known_g`` is None where none has one.
    """

    known_g: Decimal | None
    provisional_g: Decimal
    settled_g: Decimal
    unsettleable_g: Decimal
    unknown_entries: int


@dataclass(frozen=True, slots=True)
class EnergyRow:
    """Energy of one kind of entry by how it is known; ``unmetered_entries`` are in no sum."""

    kind: str
    quality: str
    entries: int
    energy_uj: int
    unmetered_entries: int


@dataclass(frozen=True, slots=True)
class BookRow:
    """One book's grams of one kind, status and method; ``unknown_entries`` have no rate or no energy."""

    kind: str
    status: str
    method: str
    entries: int
    grams: Decimal | None
    unknown_entries: int


@dataclass(frozen=True, slots=True)
class Totals:
    """The month's sums. ``impact`` and ``inventory`` are of the items; ``_overhead`` of idle, wasted and gap energy.

    What other processes used on our devices (host_other) is in the rows and in neither sum. ``provisional_share`` and
    ``measured_share`` are by the items' energy: with a provisional marginal rate, and measured by a counter.
    """

    items: int
    prompt_tokens: int
    completion_tokens: int
    entries: int
    overhead_entries: int
    item_energy_uj: int
    overhead_energy_uj: int
    energy: tuple[EnergyRow, ...]
    impact: Grams
    impact_overhead: Grams
    impact_rows: tuple[BookRow, ...]
    inventory: Grams
    inventory_overhead: Grams
    inventory_rows: tuple[BookRow, ...]
    embodied_g: Decimal | None
    no_embodied_entries: int
    transfer_g: Decimal | None
    no_transfer_entries: int
    provisional_share: float | None
    inventory_provisional_share: float | None
    measured_share: float | None


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """A product line's month or a workload's days beside its budget as set now; without one ``book`` and caps are None.

    ``cap_g`` is the month's cap (product line) or a day's (workload), ``spent_g`` the month's sum in the budget's book.
    For workloads ``days_over`` counts days above the cap, ``worst_day`` is that with most grams (without a budget: of
    the impact book). ``name`` None: work that names none.
    """

    tenant: str | None
    name: str | None
    items: int
    tokens: int
    energy_uj: int
    impact: Grams
    inventory: Grams
    book: str | None
    action: str | None
    cap_g: Decimal | None
    spent_g: Decimal | None
    used_share: float | None
    days: int
    days_over: int | None
    worst_day: str | None
    worst_day_g: Decimal | None


@dataclass(frozen=True, slots=True)
class EfficiencyRow:
    """What a month's items took for each unit; over ``model`` alone where it is named. Direct: without overhead.

    Each rate is over the entries that have its figure, and over their tokens; ``impact`` and ``inventory`` say how many
    have none, ``unmetered_entries`` how many have no energy. ``impact_g_per_item`` and ``requests_per_kg`` are of the
    impact book, ``wh_per_1000_tokens`` is IT energy. None: no unit, or nothing known.
    """

    month: str
    model: str | None
    items: int
    tokens: int
    energy_uj: int
    impact: Grams
    inventory: Grams
    unmetered_entries: int
    impact_g_per_1000_tokens: Decimal | None
    inventory_g_per_1000_tokens: Decimal | None
    impact_g_per_item: Decimal | None
    requests_per_kg: Decimal | None
    wh_per_1000_tokens: Decimal | None


@dataclass(frozen=True, slots=True)
class DayRow:
    """One day of windows (UTC): items and overhead together, host_other left out."""

    day: str
    items: int
    tokens: int
    energy_uj: int
    overhead_energy_uj: int
    impact: Grams
    inventory: Grams
    baseline_g: Decimal | None
    compared_emission_g: Decimal | None
    saved_g: Decimal | None


@dataclass(frozen=True, slots=True)
class RegionRow:
    """One region: items and overhead together, host_other left out; ``items_energy_uj`` the items' alone.

    The mean rates are weighted by facility energy (PUE in it) over what has one. ``cost`` is that energy at the price
    per kWh as stated now, in the installation's currency; None: no price is stated.
    """

    region: str
    zones: tuple[str, ...]
    ownership: tuple[str, ...]
    pues: tuple[Decimal, ...]
    items: int
    tokens: int
    items_energy_uj: int
    energy_uj: int
    energy_share: float | None
    qualities: tuple[tuple[str, int], ...]
    impact: Grams
    inventory: Grams
    mean_moer_g_per_kwh: Decimal | None
    mean_aer_g_per_kwh: Decimal | None
    cost: Decimal | None


@dataclass(frozen=True, slots=True)
class SwitchRow:
    """Items that ran in another region than their home region, by what placed them there."""

    home_region: str
    region: str
    reason: str | None
    items: int
    energy_uj: int


@dataclass(frozen=True, slots=True)
class InventoryRow:
    """Location-based inventory of one region and hour (UTC): all kinds but host_other, of one rate's provenance.

    ``scope`` is ``scope 2`` for owned and colocated regions, ``scope 3`` for rented ones. ``kwh`` is facility energy
    (PUE in it); it and ``energy_uj`` are None where no entry was metered, and lack ``unmetered_entries``.
    ``aer_g_per_kwh`` is the mean of the rates used, weighted by that energy; with no rate, it and ``inventory_g`` are
    None and the energy still stands here. ``model`` is the source's vintage, ``gas`` is ``co2`` or ``co2e``,
    ``is_estimated`` is what the source says of its rate.
    """

    hour_at: datetime
    region: str
    zone: str | None
    ownership: str
    scope: str
    source: str | None
    model: str | None
    gas: str | None
    method: str | None
    is_estimated: bool | None
    status: str
    energy_uj: int | None
    kwh: Decimal | None
    unmetered_entries: int
    aer_g_per_kwh: Decimal | None
    inventory_g: Decimal | None
    unknown_entries: int


@dataclass(frozen=True, slots=True)
class KindRow:
    """Energy of one kind of entry, its share of all energy, and both books apart."""

    kind: str
    entries: int
    energy_uj: int
    unmetered_entries: int
    share: float | None
    impact: Grams
    inventory: Grams


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the statement of method, boundary and limits: a title and its paragraphs."""

    title: str
    paragraphs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Recompute:
    """How to get these sums again: the export that holds the entries, and how it is checked.

    ``query`` is the same over HTTP, with a key of the tenant; None for all tenants, whom no key reads. ``check`` is a
    command too, ``note`` says which lines and columns the sums are of.
    """

    command: str
    query: str | None
    check: str
    note: str


@dataclass(frozen=True, slots=True)
class Report:
    """A month of the ledger, ready to be shown. ``months`` has this month first, then earlier ones."""

    head: Head
    totals: Totals
    product_lines: tuple[BudgetRow, ...]
    workloads: tuple[BudgetRow, ...]
    months: tuple[EfficiencyRow, ...]
    models: tuple[EfficiencyRow, ...]
    days: tuple[DayRow, ...]
    regions: tuple[RegionRow, ...]
    switches: tuple[SwitchRow, ...]
    inventory: tuple[InventoryRow, ...]
    saving: Saving
    kinds: tuple[KindRow, ...]
    sci: Sci
    forecast: tuple[ForecastRow, ...]
    downgrades: tuple[DowngradeRow, ...]
    targets: tuple[TargetRow, ...]
    statement: StatementComparison | None
    method: tuple[Text, ...]
    recompute: Recompute
