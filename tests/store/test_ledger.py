"""The ledger's tables on both databases: idempotent bookings, whole engine batches out, exact sums."""

from __future__ import annotations

import io
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest
from sqlalchemy import func, select

from carbonq import export, verify
from carbonq.errors import StoreUnavailable
from carbonq.model import EntryKind
from carbonq.store import dialect, exports, figures, ledger
from carbonq.store.database import Database
from carbonq.store.dialect import machine_now
from carbonq.store.exports import Selection
from carbonq.store.figures import Scope
from carbonq.store.tables import entries, unsettled
from carbonq.units import parse_iso
from tests.unit.bookings import batch, book, cells, item, overhead, part


def export_text(database: Database, selection: Selection | None = None) -> str:
    return b"".join(export.write_csv(exports.csv_pages(database, selection or Selection()))).decode()


def read(text: str) -> list[dict[str, str]]:
    return list(export.read_csv(io.StringIO(text, newline="")))


def test_what_was_booked_is_exported_to_the_letter_and_passes_the_checker(database: Database) -> None:
    booked = [book(batch(parts=[part(0, gpu=7, dram=11), part(1, gpu=5, dram=0)])), overhead(), book()]
    with database.write() as tx:
        ledger.insert_bookings(tx, booked)
    text = export_text(database)
    written = {line["entry_id"]: line for line in read(text)}
    assert written == {line["entry_id"]: line for line in cells(*booked)}
    report = verify.check(io.StringIO(text, newline=""))
    assert report.problems == []
    assert (report.whole_batches, report.partial_batches) == (4, 0)


def test_booking_twice_stores_once(database: Database) -> None:
    booked = book()
    for _ in range(2):
        with database.write() as tx:
            ledger.insert_booking(tx, booked)
    with database.read() as tx:
        assert tx.execute(select(func.count()).select_from(entries)).scalar_one() == 5
        assert tx.execute(select(func.count()).select_from(unsettled)).scalar_one() == len(booked.awaited)


def test_what_is_new_is_stored_beside_what_was_replayed(database: Database) -> None:
    booked = [book() for _ in range(3)]
    for some in (booked[:1], booked[:2], booked):
        with database.write() as tx:
            ledger.insert_bookings(tx, some)
    with database.read() as tx:
        assert tx.execute(select(func.count()).select_from(entries)).scalar_one() == 15


def test_a_replay_beside_the_original_waits_for_it_and_not_for_ever(
    postgresql: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialect, "POSTGRES_LOCK_TIMEOUT_MS", 100)
    booked, other = book(), Database(postgresql.url)
    with postgresql.write() as tx:
        ledger.insert_booking(tx, booked)
        with pytest.raises(StoreUnavailable, match="lock timeout"), other.write() as second:
            ledger.append_revisions(second, [], booked.entries)
    other.dispose()


def test_positions_are_in_order_and_pages_hold_whole_engine_batches(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "PAGE_LINES", 25)
    booked = [book(batch([item(n) for n in range(12)], [part(0), part(1)])) for _ in range(4)]
    with database.write() as tx:
        ledger.insert_bookings(tx, booked)
    pages = list(exports.pages(database, Selection()))
    assert [len(page) for page in pages] == [24, 24, 24, 24]
    for page in pages:
        assert [(line["part"], line["entry_id"].rpartition(".")[2]) for line in page] == [
            (str(number), str(position)) for number in (1, 2) for position in range(12)
        ]


def test_a_tenant_sees_its_own_entries_only(database: Database) -> None:
    shared = book(batch([item(0), item(1, tenant="other", job_id="job_2"), item(2)]))
    with database.write() as tx:
        ledger.insert_bookings(tx, [shared, overhead(EntryKind.IDLE)])
    text = export_text(database, Selection(tenant="acme"))
    assert {line["tenant"] for line in read(text)} == {"acme"}
    report = verify.check(io.StringIO(text, newline=""))
    assert report.problems == []
    assert (report.lines, report.whole_batches, report.partial_batches) == (2, 0, 1)
    assert [line["tenant"] for line in read(export_text(database, Selection(job_id="job_2")))] == ["other"]
    assert read(export_text(database, Selection(tenant="acme", job_id="job_2"))) == []
    with database.read() as tx:
        theirs = shared.entries[1]["entry_id"]
        assert exports.entry(tx, theirs, tenant="acme") is None
        assert exports.entry(tx, theirs) is not None
        assert [
            line["item"]
            for line in exports.page_of_entries(tx, selection=Selection(tenant="acme"), after=None, limit=9)
        ] == [
            "0",
            "2",
        ]


def revise(database: Database, row: dict[str, object]) -> None:
    again = row | {"revision": 2, "supersedes": f"{row['entry_id']}#1", "reason": "settled"}
    with database.write() as tx:
        ledger.append_revisions(tx, [], [again])


def test_earlier_revisions_are_exported_on_request_only(database: Database) -> None:
    booked = book()
    with database.write() as tx:
        ledger.insert_booking(tx, booked)
    revise(database, booked.entries[1])
    current, everything = read(export_text(database)), read(export_text(database, Selection(all_revisions=True)))
    assert [line["revision"] for line in current] == ["1", "2", "1", "1", "1"]
    assert [line["revision"] for line in everything] == ["1", "1", "2", "1", "1", "1"]
    with database.read() as tx:
        entry_id = booked.entries[1]["entry_id"]
        newest, first = exports.entry(tx, entry_id), exports.entry(tx, entry_id, revision=1)
        assert newest is not None
        assert first is not None
        assert (newest["revision"], first["revision"]) == ("2", "1")
        assert exports.entry(tx, entry_id, revision=3) is None
        page = exports.page_of_entries(tx, selection=Selection(), after=entry_id, limit=2)
        assert len(page) == 2
        assert all(line["entry_id"] > entry_id for line in page)


def test_sums_are_exact_and_count_each_entry_once(database: Database) -> None:
    booked = [book(batch([item(n, tokens=(n * 7 + 1, 0, 0)) for n in range(60)], [part(cpu=10**9 + 7)])), overhead()]
    entry = booked[0].entries[0]
    extreme = {"emission_g": Decimal("-0.999999999999999"), "saved_g": Decimal("12345678901234.000000000000001")}
    booked[0] = replace(booked[0], entries=[entry | extreme, *booked[0].entries[1:]])
    with database.write() as tx:
        ledger.insert_bookings(tx, booked)
    revise(database, booked[0].entries[1])
    with database.read() as tx:
        groups = figures.groups(tx, Scope())
    items = next(group for group in groups if group.kind == "item")
    assert items.entries == 60
    assert items.energy_uj == 10**9 + 7
    for name in ("emission_g", "inventory_g", "embodied_g", "baseline_g", "saved_g"):
        assert getattr(items, name) == sum(Fraction(row[name]) for row in booked[0].entries), name
    assert items.transfer_g is None
    (idle,) = [group for group in groups if group.kind == "idle"]
    assert (idle.entries, idle.has_saving, idle.saved_g) == (1, False, None)


def test_groups_keep_apart_what_may_not_be_added(database: Database) -> None:
    with database.write() as tx:
        ledger.insert_bookings(tx, [book(), overhead(), book(batch([item(tenant="other")], [part(cpu=None)]))])
        assert {(g.kind, g.entries, g.unmetered) for g in figures.groups(tx, Scope())} == {
            ("item", 5, 0),
            ("idle", 1, 0),
            ("item", 1, 1),
        }
        assert {g.entries for g in figures.groups(tx, Scope(tenant="other"))} == {1}
        assert figures.groups(tx, Scope(product_line="nobody")) == []


def test_what_is_recorded_late_is_recorded_when_it_came(database: Database) -> None:
    booked = book()
    with database.write() as tx:
        began = machine_now(tx)
        ledger.record_bookings(tx, [booked])
        ledger.record_bookings(tx, [])
        ended = machine_now(tx)
    with database.read() as tx:
        line = exports.entry(tx, booked.entries[0]["entry_id"])
    assert line is not None
    assert booked.entries[0]["recorded_at"] < began <= parse_iso(line["recorded_at"]) <= ended


def test_lines_of_one_engine_batch_keep_what_they_differ_in(database: Database) -> None:
    lines = [None, "", "null", '"', "a,b", "a'b", "a]", "1"]
    made = batch([item(n, product_line=text, workload=lines[-1 - n]) for n, text in enumerate(lines)], [part(cpu=99)])
    with database.write() as tx:
        ledger.insert_booking(tx, book(made))
    cells = [one for page in exports.pages(database, exports.Selection()) for one in page]
    assert [one["product_line"] for one in cells] == [text or "" for text in lines]
    assert [one["workload"] for one in cells] == [text or "" for text in reversed(lines)]
