"""A small month's report made by hand, for tests of what shows it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from carbonq.report import Report
from carbonq.report.document import (
    Avoidable,
    BookRow,
    BudgetRow,
    DayRow,
    DowngradeRow,
    EfficiencyRow,
    EnergyRow,
    ForecastRow,
    Grams,
    Head,
    HoldoutRow,
    InventoryRow,
    KindRow,
    ObservedRow,
    Recompute,
    RegionRow,
    Saving,
    SavingRow,
    Sci,
    SciRow,
    StatementComparison,
    StatementRow,
    SwitchRow,
    TargetRow,
    Text,
    Totals,
)

START, END = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)

NOTHING = Grams(None, Decimal(0), Decimal(0), Decimal(0), 0)


def grams(known: str | None, provisional: str = "0", unsettleable: str = "0", unknown: int = 0) -> Grams:
    settled = Decimal(known or 0) - Decimal(provisional) - Decimal(unsettleable)
    return Grams(
        None if known is None else Decimal(known), Decimal(provisional), settled, Decimal(unsettleable), unknown
    )


def efficiency(month: str, model: str | None = None, rate: str | None = "0.0125") -> EfficiencyRow:
    return EfficiencyRow(
        month=month,
        model=model,
        items=2_000,
        tokens=100_000,
        energy_uj=18_000_000_000,
        impact=grams("1.25", "0.5"),
        inventory=grams("0.75"),
        unmetered_entries=0 if rate else 3,
        impact_g_per_1000_tokens=None if rate is None else Decimal(rate),
        inventory_g_per_1000_tokens=Decimal("0.0075"),
        impact_g_per_item=None if rate is None else Decimal("0.000625"),
        requests_per_kg=None if rate is None else Decimal(1_600_000),
        wh_per_1000_tokens=Decimal("0.05"),
    )


def example() -> Report:
    """Two days, two regions, two product lines; provisional, unknown and negative figures among them."""
    impact, inventory = grams("1.25", "0.5", unknown=3), grams("0.75")
    budget = BudgetRow(
        tenant="acme",
        name="search",
        items=1_500,
        tokens=80_000,
        energy_uj=14_000_000_000,
        impact=grams("1.0", "0.4"),
        inventory=grams("0.6"),
        book="impact",
        action="queue",
        cap_g=Decimal("0.8"),
        spent_g=Decimal("1.0"),
        used_share=1.25,
        days=2,
        days_over=None,
        worst_day="2026-11-02",
        worst_day_g=Decimal("0.7"),
    )
    free = BudgetRow(
        tenant="acme",
        name=None,
        items=500,
        tokens=20_000,
        energy_uj=4_000_000_000,
        impact=grams("0.25", "0.1", unknown=3),
        inventory=grams("0.15"),
        book=None,
        action=None,
        cap_g=None,
        spent_g=None,
        used_share=None,
        days=1,
        days_over=None,
        worst_day="2026-11-01",
        worst_day_g=Decimal("0.25"),
    )
    backfill = BudgetRow(
        tenant="acme",
        name="backfill",
        items=2_000,
        tokens=100_000,
        energy_uj=18_000_000_000,
        impact=impact,
        inventory=inventory,
        book="inventory",
        action="warn",
        cap_g=Decimal("0.5"),
        spent_g=Decimal("0.75"),
        used_share=None,
        days=2,
        days_over=1,
        worst_day="2026-11-02",
        worst_day_g=Decimal("0.55"),
    )
    days = tuple(
        DayRow(
            day=f"2026-11-{number:02}",
            items=1_000,
            tokens=50_000,
            energy_uj=9_500_000_000,
            overhead_energy_uj=500_000_000,
            impact=grams("0.65", "0.25"),
            inventory=grams("0.4"),
            baseline_g=Decimal("0.9"),
            compared_emission_g=Decimal("0.6"),
            saved_g=Decimal("0.3"),
        )
        for number in (1, 2)
    )
    regions = tuple(
        RegionRow(
            region=name,
            zones=(zone,),
            ownership=(ownership,),
            pues=(Decimal("1.2"),),
            items=1_000,
            tokens=50_000,
            items_energy_uj=9_000_000_000,
            energy_uj=9_500_000_000,
            energy_share=0.5,
            qualities=(("estimated", 500_000_000), ("measured", 9_000_000_000)),
            impact=grams("0.65", "0.25"),
            inventory=grams("0.4"),
            mean_moer_g_per_kwh=Decimal("205.5"),
            mean_aer_g_per_kwh=Decimal("120.25"),
            cost=cost,
        )
        for name, zone, ownership, cost in (("fr", "FR", "owned", Decimal("0.02")), ("se", "SE", "rented", None))
    )
    hours = tuple(
        InventoryRow(
            hour_at=START + timedelta(hours=hour),
            region=region,
            zone=region.upper(),
            ownership=ownership,
            scope=scope,
            source="test" if rate else None,
            model="2026-01" if rate else None,
            gas="co2e" if rate else None,
            method="lifecycle" if rate else None,
            is_estimated=hour == 25 if rate else None,
            status="settled" if rate else "missing",
            energy_uj=4_750_000_000,
            kwh=Decimal("0.001583333333333"),
            unmetered_entries=0,
            aer_g_per_kwh=rate,
            inventory_g=None if rate is None else Decimal("0.2"),
            unknown_entries=0 if rate else 7,
        )
        for hour in (1, 25)
        for region, ownership, scope, rate in (
            ("fr", "owned", "scope 2", Decimal("120.25")),
            ("se", "rented", "scope 3", None if hour == 1 else Decimal("30.5")),
        )
    )
    saved = SavingRow(
        status="settled",
        quality="measured",
        method="cq-2026-2",
        entries=1_900,
        energy_uj=17_000_000_000,
        emission_g=Decimal("1.2"),
        transfer_g=None,
        baseline_g=Decimal("1.8"),
        saved_g=Decimal("0.6"),
    )
    return Report(
        head=Head(
            month="2026-11",
            start_at=START,
            end_at=END,
            tenant=None,
            clock="real",
            generated_at=datetime(2026, 12, 4, 9, 30, tzinfo=UTC),
            as_of=datetime(2026, 12, 4, 9, 0, tzinfo=UTC),
            is_fixed=True,
            is_over=True,
            made_by="0.1.0",
            software_versions=("0.1.0",),
            methods=("cq-2026-2",),
        ),
        totals=Totals(
            items=2_000,
            prompt_tokens=90_000,
            completion_tokens=10_000,
            entries=2_010,
            overhead_entries=4,
            item_energy_uj=18_000_000_000,
            overhead_energy_uj=1_000_000_000,
            energy=(
                EnergyRow("idle", "estimated", 4, 1_000_000_000, 1),
                EnergyRow("item", "measured", 2_010, 18_000_000_000, 0),
            ),
            impact=impact,
            impact_overhead=grams("0.05"),
            impact_rows=(
                BookRow("item", "missing", "cq-2026-2", 3, None, 3),
                BookRow("item", "provisional", "cq-2026-2", 800, Decimal("0.5"), 0),
                BookRow("item", "settled", "cq-2026-2", 1_207, Decimal("0.75"), 0),
            ),
            inventory=inventory,
            inventory_overhead=grams("0.05"),
            inventory_rows=(BookRow("item", "settled", "cq-2026-2", 2_010, Decimal("0.75"), 0),),
            embodied_g=Decimal("0.125"),
            no_embodied_entries=10,
            transfer_g=None,
            no_transfer_entries=2_010,
            provisional_share=0.4,
            inventory_provisional_share=0.0,
            measured_share=1.0,
        ),
        product_lines=(budget, free),
        workloads=(backfill,),
        months=(efficiency("2026-11"), efficiency("2026-10", rate=None)),
        models=(efficiency("2026-11", "embedder"), efficiency("2026-10", "embedder", None)),
        days=days,
        regions=regions,
        switches=(SwitchRow("fr", "se", "lowest carbon", 900, 8_000_000_000),),
        inventory=hours,
        saving=Saving(
            words="the same energy at home, first come, first served",
            avoidable_words="the same energy at once in the nearest region",
            rows=(saved,),
            coverage=0.944,
            avoidable=(
                Avoidable("settled", 1_000, 9_000_000_000, 0.5, Decimal("0.6"), Decimal("0.55"), Decimal("-0.05")),
            ),
            holdout=(HoldoutRow("settled", "per_kwh", 40, 10, 210.5, 260.25, 19.1, 4.2, 31.0),),
            observed=(
                ObservedRow("settled", 3, 10**9, Decimal("0.3"), Decimal("0.3"), Decimal("0.2"), Decimal("0.1"), 33.3),
            ),
        ),
        kinds=(
            KindRow("idle", 4, 1_000_000_000, 1, 0.0526, grams("0.05"), grams("0.05")),
            KindRow("item", 2_010, 18_000_000_000, 0, 0.9474, impact, inventory),
            KindRow("wasted", 0, 0, 0, 0.0, NOTHING, NOTHING),
        ),
        sci=Sci(
            boundary="what was metered",
            items=2_000,
            tokens=100_000,
            kwh_per_million_tokens=Decimal("0.05"),
            rows=tuple(
                SciRow(book, counted, *(Decimal(1), Decimal("0.125"), Decimal("1.125")), Decimal("0.0006"), Decimal(11))
                if book == "inventory"
                else SciRow(book, counted, None, Decimal("0.125"), None, None, None)
                for book in ("impact", "inventory")
                for counted in ("direct", "with_overhead")
            ),
            unknown=(("embodied", 10), ("emission", 3), ("energy", 0), ("inventory", 0)),
        ),
        forecast=(ForecastRow("impact", "FR", "1 to 6 h", 700, 6_000_000_000, -3.5, 12.25, 0.05, 0.21),),
        downgrades=(
            DowngradeRow(
                requested_model="writer",
                model="writer-small",
                reason="budget",
                items=40,
                tokens=4_000,
                energy_uj=300_000_000,
                statuses=("provisional", "settled"),
                emission_g=Decimal("0.02"),
                compared_g=Decimal("0.018"),
                requested_g=Decimal("0.048"),
                estimated_saved_g=Decimal("0.03"),
                unknown_items=2,
            ),
        ),
        targets=(
            TargetRow(
                tenant="acme",
                model="embedder",
                book="impact",
                promised_g=Decimal("0.02"),
                value_g=Decimal("0.0125"),
                tokens=100_000,
                provisional_share=0.4,
                unknown_entries=3,
                forecast_g=None,
                low_g=None,
                high_g=None,
                state="kept",
            ),
        ),
        statement=StatementComparison(
            provider="aws",
            covers="scope 2, location-based",
            stated_g=Decimal("0.52"),
            booked_g=Decimal("0.4"),
            difference_g=Decimal("0.12"),
            rows=(
                StatementRow(
                    region="se",
                    stated_as=("eu-north-1",),
                    stated_kwh=Decimal("0.004"),
                    booked_kwh=Decimal("0.003166666666667"),
                    stated_pue=Decimal("1.1"),
                    booked_pue=Decimal("1.2"),
                    stated_g=Decimal("0.52"),
                    booked_g=Decimal("0.4"),
                    difference_g=Decimal("0.12"),
                    energy_g=Decimal("0.15"),
                    pue_g=Decimal("-0.04"),
                    intensity_g=Decimal("0.01"),
                    rest_g=Decimal("0"),
                    is_implied=False,
                    untold=None,
                    market_g=Decimal("0.1"),
                ),
            ),
            only_stated=("eu-west-9",),
            only_booked=("fr",),
        ),
        method=(
            Text("The two books", ("Never added.", "Marginal figures are a separate statement.")),
            Text("Limits", ("GPU-only is said to be so.",)),
        ),
        recompute=Recompute(
            command="carbonq ledger export --from 2026-11-01T00:00:00Z --to 2026-12-01T00:00:00Z -o ledger.csv",
            query="/v1/ledger.csv?from=2026-11-01T00:00:00Z&to=2026-12-01T00:00:00Z",
            check="carbonq ledger verify ledger.csv",
            note="The totals are the sums of its columns.",
        ),
    )
