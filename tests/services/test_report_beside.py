"""What stands beside the sums in a month's report: budgets, targets, forecasts, measured savings, a provider's bill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from sqlalchemy import insert

from carbonq.budget import Book, Level
from carbonq.clock import ClockKind
from carbonq.errors import InvalidRequest
from carbonq.model import DowngradeReason, RateKind, Signal, Treatment
from carbonq.report import Report
from carbonq.services import budgets_admin, report, settle, targets, targets_admin
from carbonq.statement import Columns
from carbonq.store import jobs, throughputs
from carbonq.store.database import Database
from carbonq.store.tables import shadows
from carbonq.testing import FakeClock
from carbonq.units import UJ_PER_KWH, WINDOW
from tests.services.booked import configure, observe, store
from tests.store.rows import job
from tests.unit.bookings import AWAY, FACTS, HOME, W0, batch, book, item, part, rate, rate_book

AFTER = datetime(2026, 4, 3, tzinfo=W0.tzinfo)
KWH = 3_600_000_000_000


def make(database: Database, now: datetime = AFTER, **changes: Any) -> Report:
    return report.make(database, "2026-03", now=now, **changes)


def clock(at: datetime = AFTER) -> FakeClock:
    return FakeClock(at, kind=ClockKind.REAL)


def spend(database: Database, day: int, grams: int, **changes: Any) -> None:
    """Book one item of one kWh whose marginal rate makes it ``grams``, and whose average rate a tenth of that."""
    number = day * 288
    at = W0 + number * WINDOW
    rates = [rate("Z-AWAY", at, str(Decimal(grams) / Decimal("1.2")))]
    rates += [rate("Z-AWAY", at, str(Decimal(grams) / Decimal(12)), signal=Signal.AER)]
    only = item(0, **changes)
    store(database, book(batch([only], [part(number, cpu=KWH)]), rate_book(rates, now=at)))


def cap(database: Database, level: Level, name: str, cap_g: int, book_: Book = Book.IMPACT) -> None:
    budgets_admin.set_budget(database, clock(), "acme", level=level, name=name, cap_g=cap_g, book=book_, actor="me")


def test_product_lines_stand_beside_their_budget_and_others_have_none(database: Database) -> None:
    spend(database, 0, 600, product_line="search")
    spend(database, 3, 300, product_line="search")
    spend(database, 3, 90, product_line=None)
    spend(database, 3, 60, tenant="other", product_line="search")
    cap(database, Level.PRODUCT_LINE, "search", 600)
    cap(database, Level.PRODUCT_LINE, "unused", 5, Book.INVENTORY)
    rows = {(row.tenant, row.name): row for row in make(database).product_lines}
    assert set(rows) == {("acme", "search"), ("acme", None), ("acme", "unused"), ("other", "search")}
    search = rows["acme", "search"]
    assert (search.book, search.cap_g, search.spent_g, search.used_share) == ("impact", 600, 900, 1.5)
    assert (search.worst_day, search.worst_day_g, search.days, search.days_over) == ("2026-03-02", 600, 2, None)
    assert search.inventory.known_g == 90
    for free in (rows["acme", None], rows["other", "search"]):
        assert (free.book, free.cap_g, free.spent_g, free.used_share) == (None, None, None, None)
    # Nothing ran under it: nothing spent is known, not unknown.
    unused = rows["acme", "unused"]
    assert (unused.book, unused.spent_g, unused.used_share, unused.items) == ("inventory", 0, 0.0, 0)
    assert {row.tenant for row in make(database, tenant="other").product_lines} == {"other"}


def test_workloads_are_held_against_their_cap_day_by_day_in_its_book(database: Database) -> None:
    for day, grams in ((0, 400), (0, 300), (1, 500), (2, 900)):
        spend(database, day, grams, workload="backfill")
    cap(database, Level.WORKLOAD, "backfill", 60, Book.INVENTORY)
    (row,) = make(database).workloads
    # A tenth of the impact book: 70, 50 and 90 grams a day.
    assert (row.book, row.spent_g, row.days, row.days_over) == ("inventory", 210, 3, 2)
    assert (row.worst_day, row.worst_day_g) == ("2026-03-04", 90)
    assert row.used_share is None


def test_targets_of_a_month_that_is_over_are_judged_by_the_reports_own_sums(database: Database) -> None:
    configure(database)
    spend(database, 0, 600, tokens=(1_000, 0, 0))
    spend(database, 1, 300, tokens=(2_000, 0, 0), tenant="other")
    for tenant, grams in (("acme", "500"), ("other", "151")):
        targets_admin.set_target(database, clock(W0), tenant, g_per_1k_tokens=grams, actor="me")
    rows = {row.tenant: row for row in make(database).targets}
    assert (rows["acme"].value_g, rows["acme"].state, rows["acme"].tokens) == (600, "broken", 1_000)
    assert (rows["other"].value_g, rows["other"].state, rows["other"].forecast_g) == (150, "kept", None)
    assert [row.tenant for row in make(database, tenant="other").targets] == ["other"]


def test_targets_of_the_running_month_have_a_forecast(database: Database) -> None:
    configure(database)
    spend(database, 0, 600, tokens=(1_000, 0, 0))
    now = W0 + timedelta(hours=2)
    targets_admin.set_target(database, clock(now), "acme", g_per_1k_tokens="1000", actor="me")
    targets.tick(database, clock(now))
    made = make(database, now=now)
    assert not made.head.is_over
    (row,) = made.targets
    assert (row.value_g, row.state) == (600, "on_track")
    assert row.forecast_g == 600


def test_forecast_quality_is_by_zone_and_of_the_tenants_own_entries(database: Database) -> None:
    configure(database)
    store(database, book(), book(batch([item(tenant="other")], [part(0, cpu=77)])))
    observe(database, "Z-AWAY", W0, "290.25")
    assert settle.settle(database, W0 + timedelta(hours=9), settle_after_s=0)
    (row,) = make(database).forecast
    assert (row.book, row.zone, row.entries, row.lead) == ("impact", "Z-AWAY", 6, "under 1 h")
    assert (row.mean_g_per_kwh, row.mae_g_per_kwh) == (10, 10)
    observe(database, "Z-HOME", W0 - WINDOW, "300", retrieved_at=W0 + timedelta(hours=1))
    observe(database, "Z-AWAY", W0, "95.125", signal=Signal.AER, method="lifecycle")
    assert settle.settle(database, W0 + timedelta(hours=9), settle_after_s=0)
    by_book = {row.book: row.mean_g_per_kwh for row in make(database).forecast}
    assert by_book == {"impact": 10, "inventory": -5, "baseline": 55.25}
    (own, *_) = make(database, tenant="other").forecast
    assert (own.entries, own.energy_uj) == (1, 77)
    assert make(database, clock="accelerated").forecast == ()


def test_a_measured_saving_stands_there_where_there_was_a_holdout_or_only_a_look(database: Database) -> None:
    configure(database)
    assert make(database).saving.holdout == ()
    for number in range(6):
        for name, treatment, value in (("planned", Treatment.PLANNED, "200"), ("held", Treatment.HELD_OUT, "400")):
            made = job(job_id=f"{name}_{number}", tenant="acme", treatment=treatment, created_at=W0)
            with database.write() as tx:
                jobs.insert_job(tx, made, source="jobs", machine_created_at=W0)
            ran = batch([item(job_id=made.job_id, chunk_id=made.job_id, tokens=(100, 0, 0))])
            store(database, book(ran, rate_book([rate("Z-AWAY", W0, value)])))
    shadow = {
        **{"chunk_id": "held_0", "plan_id": "pln", "region": "home", "window_at": W0, "duration_s": 60.0},
        **{"g_per_kwh": Decimal(90), "issued_at": W0, "signal": "moer", "reason": "carbon", "created_at": W0},
    }
    with database.write() as tx:
        tx.execute(insert(shadows).values(shadow))
    # The home zone is foretold and not final, as is what ran.
    observe(database, "Z-HOME", W0, "100", is_estimated=True)
    made = make(database)
    by_unit = {row.unit: row for row in made.saving.holdout}
    assert set(by_unit) == {"per_kwh", "per_1000_tokens"}
    assert by_unit["per_kwh"].saved_pct == pytest.approx(50)
    assert (by_unit["per_kwh"].planned_jobs, by_unit["per_kwh"].held_out_jobs) == (6, 6)
    (seen,) = made.saving.observed
    assert (seen.status, seen.chunks) == ("provisional", 1)
    assert seen.saved_g == seen.emission_g - seen.realised_g
    assert make(database, tenant="other").saving.observed == ()


STATEMENT = """\
month,region,it_kwh,pue,g_per_kwh,location_based_kgco2e,market_based_kgco2e
2026-03,eu-away,2.5,1.1,100,0.275,0
2026-03,eu-nowhere,1,1.1,100,0.11,0
2026-02,eu-away,9,1.1,100,9,0
"""


def test_a_providers_statement_is_explained_step_by_step(database: Database) -> None:
    spend(database, 0, 600)
    spend(database, 1, 600, tenant="other")
    store(database, book(batch(fact=FACTS["home"], parts=[part(cpu=9)])))
    columns = Columns(regions={"eu-away": "away"})
    found = make(database, statement=STATEMENT.splitlines(), columns=columns).statement
    assert found is not None
    (row,) = found.rows
    assert (row.region, row.stated_as) == ("away", ("eu-away",))
    assert (row.booked_kwh, row.booked_pue, row.stated_pue) == (Decimal("2.4"), Decimal("1.2"), Decimal("1.1"))
    assert (row.stated_g, row.booked_g, row.difference_g) == (275, 120, 155)
    steps: Sequence[Decimal | None] = (row.energy_g, row.pue_g, row.intensity_g, row.rest_g)
    assert sum(Fraction(one or 0) for one in steps) == 155
    assert None not in steps
    assert (found.only_stated, found.only_booked) == (("eu-nowhere",), ("home",))
    with pytest.raises(InvalidRequest, match="report of all tenants"):
        make(database, tenant="acme", statement=STATEMENT.splitlines(), columns=columns)
    with pytest.raises(InvalidRequest, match="no line of 2026-03"):
        make(database, statement=[STATEMENT.splitlines()[0]], columns=columns)


def test_a_price_makes_a_cost_of_facility_energy(database: Database) -> None:
    configure(database, [HOME, replace(AWAY, price_per_kwh=Decimal("0.25"))])
    spend(database, 0, 600)
    rates = rate_book([rate("Z-HOME", W0, "10", kind=RateKind.OBSERVED)])
    store(database, book(batch(fact=FACTS["home"], parts=[part(cpu=9)]), rates))
    by_name = {row.region: row for row in make(database).regions}
    assert by_name["away"].cost == Decimal("0.3")
    assert by_name["home"].cost is None
    assert by_name["away"].mean_moer_g_per_kwh == 500
    assert by_name["away"].energy_uj == UJ_PER_KWH
    assert by_name["home"].energy_share == pytest.approx(9 / UJ_PER_KWH)


def test_downgrades_have_a_line_of_their_own_and_are_in_no_saving(database: Database) -> None:
    spend(database, 0, 600)
    with_saving = make(database).saving
    ran = batch(
        [item(n, requested_model="writer", tokens=(10, 0, 0)) for n in range(4)],
        [part(cpu=KWH)],
        downgraded=DowngradeReason.BUDGET,
    )
    alone = {"baseline_region": None, "baseline_window_at": None}
    ran = replace(ran, items=[one._replace(**alone) for one in ran.items])
    store(database, book(ran, rate_book([rate("Z-AWAY", W0, "100")])))
    (row,) = make(database).downgrades
    assert (row.requested_model, row.model, row.reason, row.items) == ("writer", "embedder", "budget", 4)
    assert (row.emission_g, row.requested_g, row.estimated_saved_g, row.unknown_items) == (120, None, None, 4)
    with database.write() as tx:
        throughputs.learn(tx, "embedder", "gpu", 100, 1.0, 1_000)
        throughputs.learn(tx, "writer", "gpu", 100, 1.0, 3_000)
    (row,) = make(database).downgrades
    assert (row.compared_g, row.requested_g, row.estimated_saved_g, row.unknown_items) == (120, 360, 240, 0)
    assert make(database).saving.rows == with_saving.rows
    assert make(database, tenant="other").downgrades == ()
