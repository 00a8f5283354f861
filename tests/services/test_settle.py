"""Settlement appends, never changes, and stops when there is nothing more to do."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest
from sqlalchemy import func, select

from carbonq.errors import StoreUnavailable
from carbonq.model import EntryKind, RateKind, Signal
from carbonq.ratebook import FALLBACK_PATIENCE_S
from carbonq.services import settle as settling
from carbonq.services.settle import settle
from carbonq.store import revisions, sources
from carbonq.store import unsettled as unsettled_rows
from carbonq.store.database import Database
from carbonq.store.tables import entries, unsettled
from carbonq.units import WINDOW, grams
from tests.services.booked import configure, lines, observe, store
from tests.unit.bookings import HOME, W0, batch, book, item, overhead, part, rate, rate_book

OVER = W0 + WINDOW
BEFORE = W0 - WINDOW  # the baseline's window


def run(database: Database, now=OVER, **options) -> int:
    return settle(database, now, settle_after_s=options.pop("settle_after_s", 0), **options)


def waiting(database: Database) -> int:
    with database.read() as tx:
        return tx.execute(select(func.count()).select_from(unsettled)).scalar_one()


def test_a_provisional_entry_gets_a_settled_revision_and_keeps_its_first(database: Database) -> None:
    configure(database)
    booked = book(rates=rate_book())
    store(database, booked)
    observe(database, "Z-AWAY", W0, "111.5")
    assert run(database) == 5
    first, second = (line for line in lines(database, all_revisions=True) if line["item"] == "3")
    assert (first["revision"], first["reason"], first["moer_status"]) == ("1", "initial", "provisional")
    assert (second["revision"], second["reason"], second["moer_status"]) == ("2", "settled", "settled")
    assert second["supersedes"] == f"{first['entry_id']}#1"
    assert second["moer_issued_at"] == ""
    expected = grams(int(second["energy_uj"]), Decimal("1.2"), Decimal("111.5"))
    assert Decimal(second["emission_g"]) == expected != Decimal(first["emission_g"])
    assert second["saved_g"] == ""  # the baseline is still provisional
    assert second["recorded_by"] == "settle"
    alike = set(first) - {name for name in first if first[name] != second[name]}
    assert {"energy_uj", "share_num", "baseline_g", "inventory_g", "embodied_g", "item", "custom_id"} <= alike


def test_a_saving_returns_when_the_baseline_has_settled_too(database: Database) -> None:
    configure(database)
    store(database, book())
    observe(database, "Z-AWAY", W0, "100")
    observe(database, "Z-HOME", BEFORE, "400")
    assert run(database) == 5  # both at once: one revision, not two
    for line in lines(database):
        assert (line["revision"], line["moer_status"], line["baseline_moer_status"]) == ("2", "settled", "settled")
        saved = Decimal(line["baseline_g"]) - Decimal(line["emission_g"])
        assert Decimal(line["saved_g"]) == saved > 0


def test_it_is_idempotent_and_empties_its_work_list(database: Database) -> None:
    configure(database)
    store(database, book(), overhead(EntryKind.IDLE), overhead(EntryKind.WASTED))
    for zone, at in (("Z-AWAY", W0), ("Z-HOME", BEFORE)):
        observe(database, zone, at, "100")
    observe(database, "Z-AWAY", W0, "50", signal=Signal.AER, method="direct")
    assert waiting(database) == 7
    assert run(database) == 7
    assert run(database) == 0
    assert waiting(database) == 0
    assert {line["moer_status"] + line["aer_status"] for line in lines(database)} == {"settledsettled"}
    with database.read() as tx:
        assert tx.execute(select(func.count()).select_from(entries)).scalar_one() == 14


def test_what_was_missing_is_filled_in_later(database: Database) -> None:
    configure(database)
    store(database, book(rates=rate_book([])))
    assert {line["moer_status"] for line in lines(database)} == {"missing"}
    observe(database, "Z-AWAY", W0, "100")
    observe(database, "Z-HOME", BEFORE, "400")
    assert run(database) == 5
    assert all(line["emission_g"] and line["saved_g"] for line in lines(database))
    assert {line["aer_status"] for line in lines(database)} == {"missing"}
    assert waiting(database) == 1  # the average rate may still come


def test_the_books_settle_apart_and_never_take_each_others_rate(database: Database) -> None:
    configure(database)
    store(database, book())
    observe(database, "Z-AWAY", W0, "50", signal=Signal.AER, method="direct")
    assert run(database) == 5
    for line in lines(database):
        assert (line["moer_status"], line["aer_status"], line["aer_g_per_kwh"]) == ("provisional", "settled", "50")


@pytest.mark.parametrize("changes", [{"is_estimated": True}, {"may_settle": False}])
def test_imputed_and_unsettleable_observations_do_not_settle(database: Database, changes: dict[str, bool]) -> None:
    configure(database)
    store(database, book())
    observe(database, "Z-AWAY", W0, "100", **changes)
    assert run(database) == 0
    observe(database, "Z-AWAY", W0, "101", revision=2)
    assert run(database) == 5
    assert {line["moer_g_per_kwh"] for line in lines(database)} == {"101"}


def test_it_waits_until_the_window_is_over_for_long_enough(database: Database) -> None:
    configure(database)
    store(database, book())
    observe(database, "Z-AWAY", W0, "100")
    assert run(database, OVER + timedelta(seconds=59), settle_after_s=60) == 0
    assert run(database, OVER + timedelta(seconds=60), settle_after_s=60) == 5


def test_an_hourly_observation_settles_the_windows_it_covers(database: Database) -> None:
    configure(database)
    store(database, book())
    observe(database, "Z-AWAY", W0 - timedelta(minutes=30), "100", step_s=3600)
    assert run(database, W0 + timedelta(hours=1)) == 5


def test_parts_and_unlike_baselines_settle_each_by_their_own_window(database: Database) -> None:
    configure(database)
    items = [
        item(0),
        item(1, baseline_window_at=W0 - 2 * WINDOW),
        item(2, baseline_region=None, baseline_window_at=None),
    ]
    store(database, book(batch(items, [part(0), part(1)])))
    observe(database, "Z-AWAY", W0 + WINDOW, "100")
    observe(database, "Z-HOME", W0 - 2 * WINDOW, "400")
    assert run(database, W0 + 2 * WINDOW) == 4  # part 2 of all three, and item 1 of part 1 for its baseline
    found = {(line["part"], line["item"]): line for line in lines(database)}
    assert [found["1", n]["moer_status"] for n in "012"] == ["provisional"] * 3
    assert [found["2", n]["moer_status"] for n in "012"] == ["settled"] * 3
    assert [found["2", n]["baseline_moer_status"] for n in "012"] == ["provisional", "settled", ""]
    assert [bool(found["2", n]["saved_g"]) for n in "012"] == [False, True, False]


def test_a_region_that_moved_keeps_the_zone_its_provisional_rate_was_of(database: Database) -> None:
    configure(database)
    store(database, book())
    moved = HOME.__class__("away", "Z-NEW", 1, Decimal(1), "x", "cpu")
    configure(database, [HOME, moved])
    observe(database, "Z-NEW", W0, "1")
    assert run(database) == 0
    observe(database, "Z-AWAY", W0, "100")
    assert run(database) == 5
    assert {line["moer_zone"] for line in lines(database)} == {"Z-AWAY"}


def test_a_missing_rate_is_filled_from_the_zone_the_region_was_in_then(database: Database) -> None:
    configure(database)
    store(database, book(rates=rate_book([])))
    moved = HOME.__class__("away", "Z-NEW", 1, Decimal(1), "x", "cpu")
    configure(database, [HOME, moved])
    later = rate_book([], now=OVER).__class__({"home": "Z-HOME", "away": "Z-NEW"}, {})
    store(database, book(rates=later))  # waits for Z-NEW in the same window
    observe(database, "Z-NEW", W0, "1")
    observe(database, "Z-AWAY", W0, "100")
    assert run(database) == 10
    found = lines(database)
    assert [line["moer_zone"] for line in found] == ["Z-AWAY"] * 5 + ["Z-NEW"] * 5


def test_a_limit_stops_it_and_the_next_run_goes_on(sqlite_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "_ENTRIES", 5)
    configure(sqlite_database)
    store(sqlite_database, *(book() for _ in range(4)))
    observe(sqlite_database, "Z-AWAY", W0, "100")
    assert run(sqlite_database, limit=10) == 10
    assert run(sqlite_database) == 10
    assert run(sqlite_database) == 0


def test_a_crash_in_the_middle_loses_and_doubles_nothing(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "_ENTRIES", 5)
    configure(sqlite_database)
    store(sqlite_database, *(book() for _ in range(3)))
    observe(sqlite_database, "Z-AWAY", W0, "100")
    append, calls = revisions.append, []

    def dies_the_second_time(*arguments) -> int:
        count = append(*arguments)
        calls.append(1)
        if len(calls) == 2:
            raise StoreUnavailable("gone")
        return count

    monkeypatch.setattr(revisions, "append", dies_the_second_time)
    with pytest.raises(StoreUnavailable):
        run(sqlite_database)
    monkeypatch.setattr(revisions, "append", append)
    assert run(sqlite_database) == 10
    assert {line["revision"] for line in lines(sqlite_database)} == {"2"}
    assert len(lines(sqlite_database, all_revisions=True)) == 30


def test_entries_that_were_settled_when_booked_are_left_alone(sqlite_database: Database) -> None:
    configure(sqlite_database)
    final = [rate(kind=RateKind.OBSERVED), rate("Z-HOME", BEFORE, kind=RateKind.OBSERVED)]
    store(sqlite_database, book(rates=rate_book(final, now=OVER)))
    observe(sqlite_database, "Z-AWAY", W0, "1")
    assert run(sqlite_database) == 0


def test_an_entry_priced_by_one_source_settles_by_rule_with_another(database: Database) -> None:
    configure(database)
    store(database, book(rates=rate_book()))
    with database.write() as tx:
        sources.configure(tx, {("Z-AWAY", Signal.MOER): ("test", "spare")})
    observe(database, "Z-AWAY", W0, "222", source="spare")
    day = timedelta(seconds=FALLBACK_PATIENCE_S)
    assert run(database, OVER + day - timedelta(seconds=1)) == 0  # the preferred one may still come
    assert run(database, OVER + day) == 5
    (line,) = (line for line in lines(database) if line["item"] == "3")
    assert (line["moer_status"], line["moer_source"], line["moer_g_per_kwh"]) == ("settled", "spare", "222")
    # What settled is not settled again: the preferred source's late value is for a restatement.
    observe(database, "Z-AWAY", W0, "111")
    assert run(database, OVER + 2 * day) == 0


def test_the_preferred_source_settles_before_the_fallback(database: Database) -> None:
    configure(database)
    store(database, book(rates=rate_book()))
    with database.write() as tx:
        sources.configure(tx, {("Z-AWAY", Signal.MOER): ("test", "spare")})
    observe(database, "Z-AWAY", W0, "222", source="spare")
    observe(database, "Z-AWAY", W0, "111")
    assert run(database, OVER + timedelta(days=3)) == 5
    assert {line["moer_source"] for line in lines(database)} == {"test"}


def test_a_book_that_no_source_feeds_is_not_walked_through(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(sqlite_database)
    store(sqlite_database, book())
    observe(sqlite_database, "Z-AWAY", W0, "100")
    walked: list[tuple[Signal, str]] = []
    real = unsettled_rows.windows

    def note(tx, signal, zone, **options):
        walked.append((signal, zone))
        return real(tx, signal, zone, **options)

    monkeypatch.setattr(unsettled_rows, "windows", note)
    assert run(sqlite_database) == 5
    assert set(walked) == {(Signal.MOER, "Z-AWAY")}
    assert waiting(sqlite_database) > 0  # what may still come is waited for all the same
