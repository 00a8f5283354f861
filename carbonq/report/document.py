"""The month's report as a document: frozen rows, section by section. Pure.

Grams are gCO2e as exact decimals, energies whole microjoules of IT energy (PUE not in them), shares between 0 and 1,
months ``2026-11``, days ``2026-11-30``; None is unknown or does not apply, never 0. Figures of the impact book
(marginal) and of the inventory book (average, location-based) stand in fields of their own and are never added.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal


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
    (PUE in it). ``aer_g_per_kwh`` is the mean of the rates used, weighted by that energy; with no rate, it and
    ``inventory_g`` are None and the energy still stands here. ``is_estimated`` is what the source says of its rate.
    """

    hour_at: datetime
    region: str
    zone: str | None
    ownership: str
    scope: str
    source: str | None
    method: str | None
    is_estimated: bool | None
    status: str
    energy_uj: int
    kwh: Decimal
    aer_g_per_kwh: Decimal | None
    inventory_g: Decimal | None
    unknown_entries: int


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
    """How far provisional rates were from settled ones: all tenants' entries, weighed by their energy.

    Differences are provisional minus settled in g/kWh; relative ones are shares of the settled rate.
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
    """Items that ran on a smaller model than was asked for; what that saved is an estimate and in no other saving."""

    requested_model: str
    model: str
    reason: str | None
    items: int
    emission_g: Decimal | None
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


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the statement of method, boundary and limits: a title and its paragraphs."""

    title: str
    paragraphs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Recompute:
    """How to get these sums again: the export that holds the entries, and how it is checked."""

    command: str
    query: str
    check: str


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
