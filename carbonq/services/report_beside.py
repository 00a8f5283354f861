"""What a month's report asks beside its own pass: scores, forecast quality, targets, comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

from carbonq import statement as statements
from carbonq import target
from carbonq.budget import Book
from carbonq.errors import InvalidRequest
from carbonq.model import Rate, RateStatus, Region, Signal
from carbonq.ratebook import RateBook
from carbonq.report import figures, scores
from carbonq.report.document import (
    DowngradeRow,
    ForecastRow,
    HoldoutRow,
    ObservedRow,
    RegionRow,
    Sci,
    StatementComparison,
    StatementRow,
    TargetRow,
)
from carbonq.report.gather import Gathered
from carbonq.report.nearest import Lookup
from carbonq.services import accuracy, measured, score, tiers
from carbonq.services import targets as target_statuses
from carbonq.services.rates import runs
from carbonq.statement import Booked, Columns, Compared, Statement
from carbonq.store import accuracy as accuracy_rows
from carbonq.store import rates, sources
from carbonq.store import targets as target_rows
from carbonq.store.database import Database, Tx
from carbonq.store.figures import Scope
from carbonq.store.report_figures import Span
from carbonq.target import Ran, Target, TargetStatus
from carbonq.units import from_quanta, quanta


def read_statement(
    lines: Sequence[str] | None, month: str, columns: Columns | None, tenant: str | None
) -> Statement | None:
    """Read a provider's statement; None where none is given. Raises InvalidRequest."""
    if lines is None:
        return None
    if tenant is not None:
        raise InvalidRequest(
            "a provider's statement is of all that ran in a region: compare it in the report of all tenants",
            param="statement",
        )
    return statements.read(lines, month, columns)


def compare(stated: Statement, gathered: Gathered, regions: Sequence[RegionRow]) -> StatementComparison:
    """Compare a provider's statement with the inventory book, region by region."""
    facility_uj = {name: place.facility_uj for name, place in gathered.places.items()}
    unmetered: dict[str, int] = {}
    for (region, *_), sums in gathered.regions.items():
        unmetered[region] = unmetered.get(region, 0) + sums.unmetered
    booked = [
        Booked(
            one.region,
            one.energy_uj,
            facility_uj[one.region],
            one.inventory.known_g,
            unmetered_entries=unmetered[one.region],
            unrated_entries=one.inventory.unknown_entries,
        )
        for one in regions
    ]
    made = statements.compare(stated, booked)
    return StatementComparison(
        provider=made.provider,
        covers=made.covers,
        stated_g=made.stated_g,
        booked_g=made.booked_g,
        difference_g=made.difference_g,
        rows=tuple(map(_stated_row, made.regions)),
        only_stated=tuple(one.region for one in made.only_stated),
        only_booked=tuple(one.region for one in made.only_booked),
    )


def _stated_row(one: Compared) -> StatementRow:
    stated, booked = one.stated, one.booked
    pue = Fraction(booked.facility_uj) / booked.energy_uj if booked.energy_uj else None
    return StatementRow(
        region=one.region,
        stated_as=stated.names,
        stated_kwh=None if stated.facility_uj is None else figures.kwh(Decimal(stated.facility_uj)),
        booked_kwh=figures.kwh(booked.facility_uj),
        stated_pue=_rounded(stated.pue),
        booked_pue=_rounded(pue),
        stated_g=stated.location_g,
        booked_g=booked.inventory_g,
        difference_g=one.difference_g,
        energy_g=one.energy_g,
        pue_g=one.pue_g,
        intensity_g=one.intensity_g,
        rest_g=one.rest_g,
        is_implied=one.is_implied,
        untold=one.untold,
        market_g=stated.market_g,
    )


def _rounded(value: Fraction | None) -> Decimal | None:
    return None if value is None else from_quanta(quanta(value.numerator, value.denominator)).quantize(Decimal("1E-6"))


def sci_of(gathered: Gathered) -> Sci:
    """Return the scores of the items gathered, with the overhead of all that ran where they did."""
    return scores.scores(gathered, boundary=score.BOUNDARY)


def observed_rates(
    tx: Tx,
    gathered: Gathered,
    configured: Mapping[str, Region],
    now: datetime,
    *,
    settle_after_s: float,
    max_stale_s: float,
) -> Lookup:
    """Return the look-up of marginal rates observed where and when the items would have run at once."""
    wanted: dict[datetime, set[str]] = {}
    for key, _ in gathered.arrived.items():
        wanted.setdefault(key.window_at, set()).add(configured[key.region].zone)
    zones = {name: region.zone for name, region in configured.items()}
    found: list[Rate] = []
    for part, some in runs(wanted):
        found += rates.observed(tx, some, part, Signal.MOER)
    standings = sources.standings(tx, set(zones.values()), now=now, max_stale_s=max_stale_s)
    return RateBook.of(zones, found, now=now, settle_after_s=settle_after_s, standings=standings).lookup


#: Which book pairs of rates belong to, as budgets name it; the baseline's are the impact book's, and stand apart.
_BOOKS = {"moer": Book.IMPACT.value, "aer": Book.INVENTORY.value}


def forecast(tx: Tx, span: Span, tenant: str | None) -> tuple[ForecastRow, ...]:
    """Return how far first rates were from settled ones, of a tenant's or all entries of the span."""
    pairs = accuracy_rows.pairs(
        tx, start_at=span.start_at, end_at=span.end_at, tenant=tenant, clock=span.clock, as_of=span.as_of
    )
    return tuple(
        ForecastRow(
            book=_BOOKS.get(one.book, one.book),
            zone=one.zone,
            lead=one.lead,
            entries=one.entries,
            energy_uj=one.energy_uj,
            mean_g_per_kwh=one.mean_g_per_kwh,
            mae_g_per_kwh=one.mae_g_per_kwh,
            p50_relative=one.p50_relative,
            p95_relative=one.p95_relative,
        )
        for one in accuracy.measure(pairs)
    )


def targets(tx: Tx, gathered: Gathered, start_at: datetime, now: datetime, tenant: str | None) -> tuple[TargetRow, ...]:
    """Return how the targets set now stand in the month; of a month that is over by the sums of this very report."""
    wanted, month = target_rows.every(tx, tenant), target.month_of(start_at)
    if now < month.end_at:
        return tuple(map(_target_row, target_statuses.of_month(tx, wanted, month, now, tenant)))
    return tuple(_target_row(target.judge(one, month, _ran(gathered, one), now=now)) for one in wanted)


def _ran(gathered: Gathered, wanted: Target) -> Ran:
    is_impact = wanted.book is Book.IMPACT
    tokens = quanta_ = provisional = unknown_entries = unknown_tokens = 0
    for (tenant, model, statuses), sums in gathered.models.items():
        if tenant != wanted.tenant or wanted.model not in (None, model):
            continue
        known_tokens = sums.rated_tokens if is_impact else sums.aer_tokens
        grams = sums.emission if is_impact else sums.inventory
        is_provisional = (statuses.moer if is_impact else statuses.aer) == RateStatus.PROVISIONAL.value
        tokens += known_tokens
        quanta_ += grams
        provisional += grams if is_provisional else 0
        unknown_entries += sums.unrated if is_impact else sums.unrated_aer
        unknown_tokens += sums.tokens - known_tokens
    return Ran(tokens, from_quanta(quanta_), from_quanta(provisional), unknown_entries, unknown_tokens)


def _target_row(status: TargetStatus) -> TargetRow:
    ahead = status.forecast
    return TargetRow(
        tenant=status.target.tenant,
        model=status.target.model,
        book=status.target.book.value,
        promised_g=status.target.g_per_1k_tokens,
        value_g=status.value,
        tokens=status.ran.tokens,
        provisional_share=status.provisional_share,
        unknown_entries=status.ran.unknown_entries,
        forecast_g=None if ahead is None else ahead.g_per_1k_tokens,
        low_g=None if ahead is None else ahead.low,
        high_g=None if ahead is None else ahead.high,
        state=status.state.value,
    )


def downgrades(tx: Tx, span: Span, tenant: str | None) -> tuple[DowngradeRow, ...]:
    """Return what ran on a smaller model than was asked for, and what that is estimated to have saved."""
    scope = Scope(tenant=tenant, clock=span.clock, start_at=span.start_at, end_at=span.end_at, as_of=span.as_of)
    return tuple(
        DowngradeRow(
            requested_model=one.requested_model,
            model=one.model,
            reason=one.reason,
            items=one.items,
            tokens=one.tokens,
            energy_uj=one.energy_uj,
            statuses=one.statuses,
            emission_g=one.emission_g,
            compared_g=one.compared_g,
            requested_g=one.requested_g,
            estimated_saved_g=one.saved_g,
            unknown_items=one.unknown_items,
        )
        for one in tiers.saved(tx, scope)
    )


def holdout(db: Database, span: Span, tenant: str | None) -> tuple[HoldoutRow, ...]:
    """Return what planned jobs did against held-out ones, as the ledger is now. Raises StoreUnavailable."""
    made: list[dict[str, Any]] = measured.holdout(
        db, tenant=tenant, start=span.start_at, end=span.end_at, clock=span.clock
    )["comparisons"]
    return tuple(
        HoldoutRow(
            status=one["status"],
            unit=unit,
            planned_jobs=one["planned_jobs"],
            held_out_jobs=one["held_out_jobs"],
            **one[unit],
        )
        for one in made
        for unit in ("per_kwh", "per_1000_tokens")
    )


def observed(
    db: Database, span: Span, tenant: str | None, now: datetime, *, settle_after_s: float, max_stale_s: float
) -> tuple[ObservedRow, ...]:
    """Return what observed work caused, beside where carbonq would have run it, as the ledger is now."""
    made: list[dict[str, Any]] = measured.observed(
        db,
        now,
        settle_after_s=settle_after_s,
        max_stale_s=max_stale_s,
        tenant=tenant,
        start=span.start_at,
        end=span.end_at,
        clock=span.clock,
    )["saving"]
    return tuple(
        ObservedRow(
            status=one["status"],
            chunks=one["chunks"],
            energy_uj=one["energy_uj"],
            emission_g=Decimal(one["emission_g"]),
            baseline_g=None if one["baseline_g"] is None else Decimal(one["baseline_g"]),
            realised_g=Decimal(one["realised_g"]),
            saved_g=Decimal(one["saved_g"]),
            saved_pct=one["saved_pct"],
        )
        for one in made
    )
