"""However settlement is cut off, doubled or fed bit by bit, the ledger ends the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, func, select, text

from carbonq.booking import Booking
from carbonq.errors import StoreUnavailable
from carbonq.model import EntryKind, EntryReason, RateStatus, Signal
from carbonq.services import restate, settle
from carbonq.store import ledger, revisions, unsettled
from carbonq.store.database import Database
from carbonq.store.tables import corrections, entries
from carbonq.units import WINDOW, grams
from tests.services.booked import configure, lines, observe, store
from tests.services.test_restate import say
from tests.unit.bookings import AWAY, HOME, W0, batch, book, item, overhead, part, rate, rate_book

NOW = W0 + timedelta(days=3)

#: What a run may not change, whoever made it and when.
_MADE = ("recorded_at", "recorded_by", "restatement_id")


def bookings() -> list[Booking]:
    """Two windows, several baselines, a missing rate, idle energy, realtime work without a baseline."""
    earlier = [item(0), item(1, baseline_window_at=W0 - 2 * WINDOW), item(2, tokens=(0, 0, 0))]
    realtime = [item(3, baseline_region=None, baseline_window_at=None)]
    return [
        book(batch(earlier, [part(0), part(1)])),
        book(batch(realtime, [part(1)])),
        book(rates=rate_book([rate()])),
        overhead(EntryKind.IDLE),
    ]


def pieces() -> list[tuple[str, int, str, Signal]]:
    """What the grid says of it: zone, window, g/kWh, signal."""
    return [
        ("Z-AWAY", 0, "100", Signal.MOER),
        ("Z-AWAY", 1, "111.25", Signal.MOER),
        ("Z-HOME", -1, "400", Signal.MOER),
        ("Z-HOME", -2, "410.5", Signal.MOER),
        ("Z-AWAY", 0, "50", Signal.AER),
    ]


def run(database: Database) -> int:
    """Settle and restate until there is nothing to do."""
    total = 0
    while count := settle.settle(database, NOW, settle_after_s=0) + restate.restate_corrected(
        database, NOW, settle_after_s=0
    ):
        total += count
    return total


def figures(database: Database) -> dict[tuple[str, ...], dict[str, str]]:
    """All current lines by place in the bookings; ids differ from one database to the next."""
    order: dict[str, int] = {}
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for line in sorted(lines(database), key=lambda line: line["recorded_by"] + line["engine_batch_id"]):
        order.setdefault(line["engine_batch_id"], len(order))
        found[line["entry_id"],] = {name: cell for name, cell in line.items() if name not in _MADE}
    return found


def check_history(database: Database) -> None:
    """Revisions are 1, 2, ... without a hole; each supersedes the one before, and only figures of rates differ."""
    history: dict[str, list[dict[str, str]]] = {}
    for line in lines(database, all_revisions=True):
        history.setdefault(line["entry_id"], []).append(line)
    fixed = ("energy_uj", "gpu_uj", "cpu_uj", "dram_uj", "share_num", "share_den", "tenant", "method", "embodied_g")
    for found in history.values():
        assert [line["revision"] for line in found] == [str(number + 1) for number in range(len(found))]
        for before, after in pairwise(found):
            assert after["supersedes"] == f"{before['entry_id']}#{before['revision']}"
            assert {name: before[name] for name in fixed} == {name: after[name] for name in fixed}
            for book_ in ("moer", "aer", "baseline_moer"):
                check_transition(before[f"{book_}_status"], after[f"{book_}_status"])


def check_transition(before: str, after: str) -> None:
    may = {
        "missing": {"missing", "settled"},
        "provisional": {"provisional", "settled", "unsettleable"},
        "unsettleable": {"unsettleable", "settled"},
        "settled": {"settled", "restated"},
        "restated": {"restated"},
        "": {""},
    }
    assert after in may[before], (before, after)


def check_figures(database: Database, value: str, status: str) -> None:
    """All is final: in the first window with this value and status, in the second one as it was settled."""
    for line in lines(database):
        is_first = line["window"] == lines_window(0)
        expected = (value, status) if is_first else ("111.25", "settled")
        assert (line["moer_g_per_kwh"], line["moer_status"]) == expected
        assert Decimal(line["emission_g"]) == grams(int(line["energy_uj"]), AWAY.pue, Decimal(expected[0]))
        if line["baseline_region"]:
            assert line["baseline_moer_status"] == "settled"
            rate_ = Decimal(line["baseline_moer_g_per_kwh"])
            assert Decimal(line["baseline_g"]) == grams(int(line["energy_uj"]), HOME.pue, rate_)


def lines_window(number: int) -> str:
    """Write a window as the export does."""
    return (W0 + number * WINDOW).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Killed(StoreUnavailable):
    """Stands for the end of the process, at once like that of the database: what was not committed is gone."""


@contextmanager
def killed_at(database: Database, number: int) -> Iterator[list[int]]:
    """Die at the ``number``-th statement that changes something: after it, before its commit."""
    seen: list[int] = [0]

    def count(_connection, _cursor, statement: str, *_rest) -> None:
        if " ".join(statement.split()).upper().find("INSERT INTO") >= 0 or "DELETE FROM" in statement.upper():
            seen[0] += 1
            if seen[0] == number:
                raise Killed("killed")

    event.listen(database.engine, "after_cursor_execute", count)
    try:
        yield seen
    finally:
        event.remove(database.engine, "after_cursor_execute", count)


def test_killed_at_any_statement_it_ends_the_same(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "_ENTRIES", 4)
    monkeypatch.setattr(restate, "_ENTRIES", 4)
    configure(database)
    store(database, *bookings())
    for zone, at, value, signal in pieces():
        say(database, zone, W0 + at * WINDOW, value, signal=signal)
    assert run_killed_everywhere(database) >= 3  # how often depends on the order that random ids give
    check_history(database)
    check_figures(database, "100", "settled")
    say(database, "Z-AWAY", W0, "120")  # the provider corrects what is settled
    assert run_killed_everywhere(database) >= 2
    check_history(database)
    check_figures(database, "120", "restated")
    with database.read() as tx:
        assert tx.execute(select(func.count()).select_from(corrections)).scalar_one() == 0
        assert [key for key in unsettled.pairs(tx) if key[0] is Signal.MOER] == []


def run_killed_everywhere(database: Database) -> int:
    """Settle, killed at the first statement, then at the second one, ...: return how often, when it came through."""
    for number in range(1, 200):
        try:
            with killed_at(database, number):
                run(database)
        except Killed:
            continue
        assert run(database) == 0
        return number - 1
    raise AssertionError("it never came through")


#: Steps of a story: say a piece, correct it, settle; in any order.
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.integers(0, 4)),
        st.tuples(st.just("correct"), st.integers(0, 4)),
        st.tuples(st.just("settle"), st.integers(1, 12)),
        st.tuples(st.just("crash"), st.integers(1, 4)),
    ),
    max_size=8,
)


@settings(
    max_examples=4,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(_STEPS)
def test_in_whatever_order_news_come_the_end_is_that_of_all_at_once(
    database: Database, steps: list[tuple[str, int]]
) -> None:
    empty(database)
    made = bookings()
    configure(database)
    store(database, *made)
    said: dict[int, str] = {}
    for what, number in steps:
        zone, at, value, signal = pieces()[number % 5]
        if what in {"say", "correct"}:
            said[number] = value if what == "say" else str(Decimal(value) + 7)
            say(database, zone, W0 + at * WINDOW, said[number], signal=signal)
        elif what == "settle":
            settle.settle(database, NOW, settle_after_s=0, limit=number)
        else:
            try:
                with killed_at(database, number):
                    run(database)
            except Killed:
                pass
    run(database)
    check_history(database)
    stepwise = {entry: cells_of(line) for (entry,), line in figures(database).items()}
    empty(database)
    configure(database)
    store(database, *made)
    for number, value in said.items():
        zone, at, _, signal = pieces()[number]
        say(database, zone, W0 + at * WINDOW, value, signal=signal)
    run(database)
    assert {entry: cells_of(line) for (entry,), line in figures(database).items()} == stepwise


def cells_of(line: dict[str, str]) -> dict[str, str]:
    """What must be the same however it came about: all but how often and why it was revised."""
    left_out = {"revision", "supersedes", "reason", "moer_retrieved_at", "aer_retrieved_at"}
    found = {name: cell for name, cell in line.items() if name not in left_out}
    for name in ("moer_status", "aer_status", "baseline_moer_status"):
        found[name] = found[name].replace("restated", "settled")
    return found


def empty(database: Database) -> None:
    """Take everything away, past the triggers, for the next example."""
    tables = ("entries", "unsettled", "engine_batches", "rates", "facts", "restatements", "corrections", "observations")
    with database.write() as tx:
        if not database.is_sqlite:
            tx.execute(text("SET LOCAL session_replication_role = replica"))
        for name in (*tables, "unsealed"):
            if database.is_sqlite:
                tx.execute(text(f"DROP TRIGGER IF EXISTS {name}_refuse_delete"))
            tx.execute(text(f"DELETE FROM {name}"))


def test_a_variant_that_changed_meanwhile_is_not_revised(database: Database) -> None:
    """What was planned for an entry holds only while it is as it was looked at."""
    configure(database)
    store(database, book(rates=rate_book()))
    observe(database, "Z-AWAY", W0, "100")
    with database.read() as tx:
        part_ = unsettled.parts(tx, Signal.MOER, "Z-AWAY", [W0], max_entries=10)
        (variant,) = revisions.variants(tx, part_)
    assert settle.settle(database, NOW, settle_after_s=0) == 5
    new = revisions.NewRate(variant.moer_rate_id or "", RateStatus.SETTLED, Decimal(1))
    change = revisions.Change(variant, {"moer": new})
    with database.write() as tx:
        assert revisions.append(tx, part_, [change], revisions.Stamp(EntryReason.SETTLED, "late")) == 0


def test_revisions_are_in_the_order_of_their_times_though_a_workers_clock_ran_ahead(database: Database) -> None:
    configure(database)
    ahead = datetime.now(UTC) + timedelta(days=1)
    with database.write() as tx:
        ledger.insert_bookings(tx, [book(rates=rate_book())], recorded_at=ahead)
    observe(database, "Z-AWAY", W0, "100")
    assert settle.settle(database, NOW, settle_after_s=0) == 5
    with database.read() as tx:
        assert tx.execute(select(func.min(entries.c.recorded_at))).scalar_one() == ahead
