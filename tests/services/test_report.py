"""A month's report says what its entries say, and keeps apart what must not be added."""

from __future__ import annotations

import io
import shlex
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from shutil import copyfile
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import insert
from typer.testing import CliRunner

from carbonq import export, verify
from carbonq.api.ledger import Download
from carbonq.cli.ledger import app as ledger_commands
from carbonq.clock import ClockKind
from carbonq.errors import InvalidRequest
from carbonq.meters.protocol import MeterInfo, MeterKind
from carbonq.model import (
    EntryKind,
    Quality,
)
from carbonq.report import Report
from carbonq.report.document import Grams, SciRow
from carbonq.services import report, settle, summary
from carbonq.store import exports, ledger
from carbonq.store.database import Database
from carbonq.store.exports import Selection
from carbonq.store.figures import Scope
from carbonq.store.tables import placements
from carbonq.units import UJ_PER_KWH, WINDOW, from_quanta, quanta
from tests.services.audited import wasted
from tests.services.booked import configure, observe, store
from tests.unit.bookings import (
    FACTS,
    PATIENT,
    RECORDED,
    W0,
    WRITER,
    batch,
    book,
    engine_batches,
    item,
    overhead,
    part,
    rate_book,
    rate_books,
)

NOW = datetime(2026, 4, 3, tzinfo=UTC)
MONTH = "2026-03"
#: Windows from W0 into the month before.
FEBRUARY = -400


def make(database: Database, **changes: Any) -> Report:
    return report.make(database, MONTH, now=NOW, **changes)


def exported(database: Database, made: Report) -> list[dict[str, str]]:
    """The lines of the export that the report names, checked by the standalone checker on the way."""
    head = made.head
    selection = Selection(tenant=head.tenant, start_at=head.start_at, end_at=head.end_at, as_of=head.as_of)
    text = export.header() + "".join(exports.csv_pages(database, selection))
    checked = verify.check(io.StringIO(text, newline=""))
    assert checked.problems == []
    lines = list(export.read_csv(io.StringIO(text, newline="")))
    assert checked.energy_uj == sum(int(line["energy_uj"] or 0) for line in lines)
    return [line for line in lines if line["clock"] == head.clock]


def total(lines: Sequence[dict[str, str]], column: str) -> Fraction | None:
    """The sum of a column by a plain loop; None where no line has the figure."""
    known = [Fraction(line[column]) for line in lines if line[column]]
    return sum(known, Fraction(0)) if known else None


def agree(found: Grams, lines: Sequence[dict[str, str]], name: str) -> None:
    column, status = {"impact": ("emission_g", "moer_status"), "inventory": ("inventory_g", "aer_status")}[name]

    def of(*statuses: str) -> Fraction:
        return total([line for line in lines if line[status] in statuses], column) or Fraction(0)

    assert same(found.known_g, total(lines, column))
    assert Fraction(found.provisional_g) == of("provisional")
    assert Fraction(found.settled_g) == of("settled", "restated")
    assert Fraction(found.unsettleable_g) == of("unsettleable")
    assert found.unknown_entries == sum(not line[column] for line in lines)


def same(found: Decimal | int | None, wanted: Fraction | None) -> bool:
    return found is None and wanted is None if None in (found, wanted) else Fraction(found or 0) == wanted


def recompute(database: Database, made: Report) -> None:
    """Hold the totals against the lines of the export, added up by plain loops."""
    lines = exported(database, made)
    items = [line for line in lines if line["kind"] == "item"]
    extra = [line for line in lines if line["kind"] in ("idle", "wasted", "gap")]
    sums = made.totals
    assert sums.items == sum(line["part"] == "1" for line in items)
    assert (sums.entries, sums.overhead_entries) == (len(items), len(extra))
    assert sums.prompt_tokens == sum(int(line["prompt_tokens"]) for line in items)
    assert sums.completion_tokens == sum(int(line["completion_tokens"]) for line in items)
    assert sums.item_energy_uj == sum(int(line["energy_uj"] or 0) for line in items)
    assert sums.overhead_energy_uj == sum(int(line["energy_uj"] or 0) for line in extra)
    for name in ("impact", "inventory"):
        agree(getattr(sums, name), items, name)
        agree(getattr(sums, f"{name}_overhead"), extra, name)
    assert same(sums.embodied_g, total(items, "embodied_g"))
    for row in sums.energy:
        mine = [line for line in lines if (line["kind"], line["quality"]) == (row.kind, row.quality)]
        assert row.energy_uj == sum(int(line["energy_uj"] or 0) for line in mine)
        assert (row.entries, row.unmetered_entries) == (len(mine), sum(not line["energy_uj"] for line in mine))
    for rows, column, status in (
        (sums.impact_rows, "emission_g", "moer_status"),
        (sums.inventory_rows, "inventory_g", "aer_status"),
    ):
        for row in rows:
            mine = [
                line
                for line in lines
                if (line["kind"], line[status], line["method"]) == (row.kind, row.status, row.method)
            ]
            assert (row.entries, row.unknown_entries) == (len(mine), sum(not line[column] for line in mine))
            assert same(row.grams, total(mine, column))
        assert sum(row.entries for row in rows) == len(lines)
    saved = [line for line in items if line["saved_g"]]
    assert sum(row.entries for row in made.saving.rows) == len(saved)
    for column in ("emission_g", "baseline_g", "saved_g"):
        assert sum(Fraction(getattr(row, column)) for row in made.saving.rows) == (total(saved, column) or 0)
    ours = [line for line in lines if line["kind"] != "host_other"]
    for region in made.regions:
        mine = [line for line in ours if line["region"] == region.region]
        assert region.energy_uj == sum(int(line["energy_uj"] or 0) for line in mine)
        agree(region.impact, mine, "impact")
        agree(region.inventory, mine, "inventory")
    for hour in made.inventory:
        stamp, known = f"{hour.hour_at:%Y-%m-%dT%H}", hour.source or ""
        mine = [
            line
            for line in ours
            if (line["window"][:13], line["region"], line["aer_source"], line["aer_status"], line["aer_method"])
            == (stamp, hour.region, known, hour.status, hour.method or "")
            and (line["aer_model"], line["aer_gas"]) == (hour.model or "", hour.gas or "")
            and line["aer_estimated"] == ("" if hour.is_estimated is None else str(hour.is_estimated).lower())
        ]
        assert mine
        assert same(hour.inventory_g, total(mine, "inventory_g"))
        facility = sum((int(line["energy_uj"] or 0) * Fraction(line["pue"]) for line in mine), Fraction(0))
        assert hour.unmetered_entries == sum(not line["energy_uj"] for line in mine)
        assert same(hour.energy_uj, total(mine, "energy_uj"))
        assert hour.kwh == (None if hour.energy_uj is None else rounded(facility / UJ_PER_KWH))
    assert sum(hour.energy_uj or 0 for hour in made.inventory) == sum(int(line["energy_uj"] or 0) for line in ours)


def rounded(value: Fraction) -> Decimal:
    return from_quanta(quanta(value.numerator, value.denominator))


def month(database: Database) -> None:
    """Two tenants, regions and models, every kind of entry, figures of every status; some of February and by demo."""
    configure(database)
    mixed = [item(n, tenant="acme" if n % 2 else "other", product_line=None if n == 4 else "search") for n in range(6)]
    kept = [item(n, tokens=(n, 0, 3), requested_model="writer", workload=f"w-{n % 2}") for n in range(1, 4)]
    store(
        database,
        book(batch(mixed, [part(-1), part(0)])),
        book(batch(kept, [part(2, cpu=77_777)], model=WRITER, fact=FACTS["home"])),
        book(batch([item(9, baseline_region=None, baseline_window_at=None, job_id=None)], [part(3, cpu=9)])),
        book(batch(parts=[part(cpu=None)])),
        book(rates=rate_book([])),
        *(overhead(kind, [part(1, cpu=1_000 + n)]) for n, kind in enumerate(EntryKind) if kind is not EntryKind.ITEM),
        book(batch([item(1)], [part(FEBRUARY, cpu=5)])),
    )
    observe(database, "Z-AWAY", W0, "100")
    observe(database, "Z-AWAY", W0 - WINDOW, "-3.5")
    observe(database, "Z-HOME", W0 - WINDOW, "410.25")
    assert settle.settle(database, W0 + timedelta(hours=9), settle_after_s=0)


def test_the_totals_are_the_sums_over_the_export_that_the_report_names(database: Database) -> None:
    month(database)
    for tenant in (None, "acme", "nobody"):
        made = make(database, tenant=tenant)
        recompute(database, made)
    assert make(database).totals.impact.settled_g != 0


def test_the_command_and_the_query_that_a_report_names_are_the_real_ones(
    sqlite_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CARBONQ_DATA_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    month(sqlite_database)
    made = make(sqlite_database, tenant="acme", as_of=RECORDED)
    words = shlex.split(made.recompute.command)
    assert words[:2] == ["carbonq", "ledger"]
    done = CliRunner().invoke(ledger_commands, words[2:])
    assert done.exit_code == 0, done.stderr
    with (tmp_path / words[-1]).open(encoding="utf-8", newline="") as file:
        lines = list(export.read_csv(file))
    assert sum(int(line["energy_uj"] or 0) for line in lines) == made.totals.item_energy_uj > 0
    path, _, query = str(made.recompute.query).partition("?")
    assert path == "/v1/ledger.csv"
    asked = Download.model_validate(dict(parse_qsl(query)))
    assert (asked.start_at, asked.end_at, asked.as_of) == (made.head.start_at, made.head.end_at, RECORDED)
    assert make(sqlite_database).recompute.query is None


@given(some=st.lists(engine_batches(), min_size=1, max_size=3), books=rate_books())
@settings(max_examples=15, **PATIENT)
def test_whatever_is_booked_the_report_is_its_sum(
    tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path, some: list[Any], books: Any
) -> None:
    path = tmp_path_factory.mktemp("report") / "ledger.db"
    copyfile(sqlite_template, path)
    database = Database(f"sqlite:///{path}")
    store(database, *(book(one, books) for one in some))
    recompute(database, make(database))
    database.dispose()
    path.unlink()


def test_a_month_is_of_its_windows_alone(database: Database) -> None:
    first = datetime(2026, 3, 1, tzinfo=UTC)
    edges = [(at - W0) // WINDOW for at in (first - WINDOW, first, datetime(2026, 4, 1, tzinfo=UTC) - WINDOW)]
    rates = rate_book([])
    store(database, *(book(batch([item(n)], [part(edge, cpu=10**n)]), rates) for n, edge in enumerate(edges)))
    store(database, book(batch([item(3)], [part(edges[2] + 1, cpu=1000)]), rates))
    assert make(database).totals.item_energy_uj == 110
    assert [one.day for one in make(database).days] == ["2026-03-01", "2026-03-31"]
    # What is open at both ends belongs to the months beside.
    assert report.make(database, "2026-02", now=NOW).totals.item_energy_uj == 1
    assert report.make(database, "2026-04", now=NOW).totals.item_energy_uj == 1000


def test_looking_up_in_small_steps_changes_nothing(sqlite_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    month(sqlite_database)
    whole = make(sqlite_database)
    monkeypatch.setattr(report, "CELLS_AT_ONCE", 1)
    again = make(sqlite_database)
    assert replace(again, head=whole.head, recompute=whole.recompute) == whole


def test_clocks_are_never_mixed(database: Database) -> None:
    store(database, book(), book(batch(clock=ClockKind.ACCELERATED)))
    store(database, book(batch([item(tenant="other")], clock=ClockKind.ACCELERATED)))
    with pytest.raises(InvalidRequest, match=r"accelerated \(6\), real \(5\); choose one") as caught:
        make(database)
    assert caught.value.param == "clock"
    made = make(database, clock="real")
    assert (made.head.clock, made.totals.entries) == ("real", 5)
    assert make(database, tenant="other").head.clock == "accelerated"
    assert "accelerated clock" in " ".join(make(database, tenant="other").method[0].paragraphs)


def test_a_month_without_entries_is_a_report_that_knows_nothing(database: Database) -> None:
    made = make(database)
    assert (made.head.clock, made.totals.items, made.days, made.inventory) == (None, 0, (), ())
    assert made.totals.impact.known_g is None
    assert made.totals.measured_share is None
    assert all(row.total_g is None for row in made.sci.rows)


@pytest.mark.parametrize(
    ("month_", "changes", "param"),
    [
        ("2026-13", {}, "month"),
        ("March", {}, "month"),
        ("2026-05", {}, "month"),
        (MONTH, {"as_of": datetime(2126, 1, 1, tzinfo=UTC)}, "as_of"),
        (MONTH, {"months_back": 12}, "months_back"),
        (MONTH, {"statement": ["region"], "tenant": "acme"}, "statement"),
    ],
)
def test_what_cannot_be_told_is_refused(
    sqlite_database: Database, month_: str, changes: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        report.make(sqlite_database, month_, now=NOW, **changes)
    assert caught.value.param == param


def test_a_report_as_of_a_time_is_what_it_was(database: Database) -> None:
    booked = book()
    store(database, booked)
    before = make(database, as_of=RECORDED)
    assert before.head.is_fixed
    row = booked.entries[0]
    later = RECORDED + timedelta(days=1)
    again = row | {"revision": 2, "supersedes": f"{row['entry_id']}#1", "recorded_at": later, "emission_g": Decimal(9)}
    with database.write() as tx:
        ledger.append_revisions(tx, [], [again])
    assert make(database).totals.impact != before.totals.impact
    assert make(database, as_of=RECORDED).totals == before.totals
    assert make(database, as_of=RECORDED - timedelta(seconds=1)).totals.entries == 0


def test_scores_are_those_of_the_summary(database: Database) -> None:
    configure(database)
    store(
        database,
        book(batch([item(0, tokens=(600, 0, 0)), item(1, tokens=(400, 0, 0), tenant="other")], [part(cpu=3_000)])),
        overhead(parts=[part(cpu=400)]),
        overhead(EntryKind.WASTED, parts=[part(cpu=80)]),
        overhead(EntryKind.HOST_OTHER, parts=[part(cpu=9_000)]),
    )
    observe(database, "Z-AWAY", W0, "100")
    assert settle.settle(database, W0 + timedelta(hours=9), settle_after_s=0) == 5
    for tenant in (None, "acme"):
        found = make(database, tenant=tenant).sci
        wanted = summary.summarize(database, Scope(tenant=tenant))["sci"]
        assert found.kwh_per_million_tokens == Decimal(wanted["kwh_per_million_tokens"])
        for row in found.rows:
            assert row.per_item_g == Decimal(wanted[row.book][row.counted]["per_item_g"])
            assert row.per_million_tokens_g == Decimal(wanted[row.book][row.counted]["per_million_tokens_g"])
        assert dict(found.unknown) == wanted["unknown"]


def test_what_others_wasted_is_in_the_overhead_that_a_tenants_score_shares(database: Database) -> None:
    configure(database)
    mixed = [item(n, tokens=(tokens, 0, 0), tenant=tenant) for n, (tenant, tokens) in enumerate(SHARES)]
    store(database, book(batch(mixed, [part(cpu=3_000)])), overhead(parts=[part(cpu=400)]), wasted("other"))
    whole = _scores(make(database))
    shares = [_scores(make(database, tenant=tenant)) for tenant, _ in SHARES]
    for book_ in ("impact", "inventory"):
        parts = [one[book_, "with_overhead"].operational_g for one in shares]
        wanted = whole[book_, "with_overhead"].operational_g
        assert abs(sum(Fraction(one or 0) for one in parts) - Fraction(wanted or 0)) <= Fraction(2, 10**15)
        own = make(database, tenant="acme")
        assert own.totals.overhead_entries == 0
        wanted = summary.summarize(database, Scope(tenant="acme"))["sci"][book_]["with_overhead"]["operational_g"]
        assert str(shares[0][book_, "with_overhead"].operational_g) == wanted


#: Two tenants, and how many tokens each has of an engine batch.
SHARES = (("acme", 600), ("other", 400))


def _scores(made: Report) -> dict[tuple[str, str], SciRow]:
    return {(row.book, row.counted): row for row in made.sci.rows}


def test_efficiency_is_over_what_is_known_and_of_the_months_before_too(database: Database) -> None:
    month(database)
    made = make(database)
    (whole, february) = made.months
    items = [line for line in exported(database, made) if line["kind"] == "item"]
    tokens = sum(int(line["prompt_tokens"]) + int(line["completion_tokens"]) for line in items if line["emission_g"])
    assert whole.impact_g_per_1000_tokens == rounded((total(items, "emission_g") or Fraction(0)) * 1000 / tokens)
    assert whole.impact.unknown_entries > 0
    assert (february.month, february.items, february.energy_uj) == ("2026-02", 1, 5)
    assert [row.month for row in make(database, months_back=0).months] == [MONTH]
    assert {row.model for row in made.models} == {"embedder", "writer"}
    assert sum(row.energy_uj for row in made.models if row.month == MONTH) == whole.energy_uj


def test_meters_are_named_and_gpu_only_is_said_to_be_so(database: Database) -> None:
    alone = MeterInfo(MeterKind.NVML_COUNTER, MeterKind.NONE, MeterKind.NONE, Quality.MEASURED, 2.0, ("GPU-1",))
    store(database, book(batch(parts=[part(gpu=3_600_000_000, cpu=None)], info=alone)))
    told = " ".join(next(text for text in make(database).method if text.title.startswith("How energy")).paragraphs)
    assert "1 Wh measured by GPU: NVML energy counter" in told
    assert "GPU only: 1 Wh" in told


def test_items_are_counted_where_they_left_home_with_the_reason(database: Database) -> None:
    placed = [item(n, placement_id="plc_1") for n in range(3)]
    row = {
        **{"placement_id": "plc_1", "chunk_id": "chunk_1", "plan_id": "pln_1", "region": "away", "window_at": W0},
        **{"g_per_kwh": Decimal(100), "issued_at": W0, "reason": "carbon", "created_at": W0, "signal": "moer"},
    }
    with database.write() as tx:
        tx.execute(insert(placements).values(row))
    store(database, book(), book(batch(placed)), book(batch(fact=FACTS["home"])))
    rows = {(one.home_region, one.region, one.reason): one.items for one in make(database).switches}
    # What ran at home is no switch.
    assert rows == {("home", "away", None): 5, ("home", "away", "carbon"): 3}
