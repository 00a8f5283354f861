"""Contract targets on both databases: what is summed up, when it is seen, and what is told of it once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, update

from carbonq.budget import Book
from carbonq.clock import ClockKind
from carbonq.errors import Conflict, InvalidRequest, NotFound
from carbonq.model import ItemState
from carbonq.services import targets as service
from carbonq.services import targets_admin
from carbonq.services.settle import settle
from carbonq.store import admin_log, events, figures, tables, target_ahead, target_hours, targets
from carbonq.store.database import Database
from carbonq.store.figures import Scope
from carbonq.store.tables import target_marks
from carbonq.target import Ahead, Target, TargetState, TargetStatus, month_of
from carbonq.testing import FakeClock
from carbonq.units import WINDOW
from tests.services.booked import configure, observe, store
from tests.services.jobs import World, lines
from tests.unit.bookings import W0, batch, book, item, part, rate, rate_book

NOW = W0 + timedelta(minutes=30)  # 2 March
MONTH = datetime(2026, 3, 1, tzinfo=W0.tzinfo)


def clock_at(at: datetime = NOW) -> FakeClock:
    return FakeClock(at, kind=ClockKind.REAL)


def promise(
    database: Database, grams: str = "1000", *, tenant: str = "acme", at: datetime = NOW, **more: Any
) -> Target:
    return targets_admin.set_target(database, clock_at(at), tenant, g_per_1k_tokens=grams, actor="me", **more)


def look(database: Database, at: datetime = NOW, tenant: str | None = None) -> list[TargetStatus]:
    service.tick(database, clock_at(at))
    return service.statuses(database, at, tenant)


def tokens_known(found: TargetStatus) -> int:
    return found.ran.tokens + found.ran.unknown_tokens


def told(database: Database) -> list[tuple[str, str]]:
    with database.read() as tx:
        return [(one.type, one.data["status"]["month"]) for one in events.after(tx, None)]


def test_the_value_is_what_the_ledger_says_and_unknown_entries_are_counted_apart(database: Database) -> None:
    promise(database)
    booked = book()
    store(database, booked, book(rates=rate_book([])))
    (found,) = look(database)
    grams = sum(Fraction(row["emission_g"]) for row in booked.entries)
    assert Fraction(found.ran.grams) == grams == Fraction(found.ran.provisional_g)
    assert (found.ran.tokens, found.ran.unknown_entries, found.ran.unknown_tokens) == (15, 5, 15)
    assert found.value is not None and abs(Fraction(found.value) - grams * 1_000 / 15) < Fraction(1, 10**15)
    assert (found.month.name, found.provisional_share, found.state) == ("2026-03", 1.0, TargetState.ON_TRACK)


def test_each_book_stands_by_itself(database: Database) -> None:
    promise(database, book=Book.INVENTORY)
    promise(database, model="embedder")
    booked = book()
    store(database, booked)
    inventory, impact = look(database)
    assert Fraction(impact.ran.grams) == sum(Fraction(row["emission_g"]) for row in booked.entries)
    assert Fraction(inventory.ran.grams) == sum(Fraction(row["inventory_g"]) for row in booked.entries)
    assert impact.ran.grams != inventory.ran.grams


def test_a_target_counts_its_tenants_and_models_work_of_this_clock_and_month_alone(database: Database) -> None:
    promise(database)
    promise(database, model="writer")
    promise(database, tenant="globex")
    store(database, book(), book(batch([item(tenant="globex", tokens=(7, 0, 0))])))
    store(database, book(batch(clock=ClockKind.ACCELERATED)), book(batch(parts=[part(-24 * 12 * 2)])))
    by = {(one.target.tenant, one.target.model): tokens_known(one) for one in look(database)}
    assert by == {("acme", None): 15, ("acme", "writer"): 0, ("globex", None): 7}
    assert [one.target.tenant for one in service.statuses(database, NOW, "globex")] == ["globex"]


def test_what_comes_after_a_tick_is_seen_by_the_next_and_settlement_changes_sums(database: Database) -> None:
    configure(database)
    promise(database)
    store(database, book())
    before = look(database)[0].ran
    store(database, book(batch([item(9, tokens=(100, 0, 0))])))
    assert look(database)[0].ran.tokens == before.tokens + 100
    observe(database, "Z-AWAY", W0, "100")
    assert settle(database, W0 + timedelta(hours=1), settle_after_s=0) == 6
    after = look(database)[0].ran
    assert after.provisional_g == 0 and after.grams < before.grams and after.tokens == before.tokens + 100
    with database.read() as tx:
        (group,) = (one for one in figures.groups(tx, Scope(tenant="acme")) if one.kind == "item")
        assert (group.emission_g, group.prompt_tokens) == (after.grams, after.tokens)


def test_a_target_set_late_counts_the_whole_month(database: Database) -> None:
    store(database, book())
    service.tick(database, clock_at())  # nobody wants to know yet
    with database.read() as tx:
        assert tx.execute(select(func.count()).select_from(target_marks)).scalar_one() == 0
    promise(database)
    assert look(database)[0].ran.tokens == 15


def test_a_look_reads_hours_and_not_entries(database: Database) -> None:
    promise(database)
    store(database, *(book(batch([item(number) for number in range(50)])) for _ in range(4)))
    service.tick(database, clock_at())
    with database.read() as tx:
        assert len(target_hours.by_day(tx, MONTH, NOW)) == 1
    assert service.statuses(database, NOW)[0].ran.tokens == 2_000


def test_each_tick_sums_up_a_bounded_number_of_hours_newest_first(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "HOURS", 2)
    store(database, *(book(batch([item()], [part(-12 * hour)])) for hour in range(7)))
    promise(database)
    assert service.sum_up(database, clock_at(), rounds=1) == 2
    assert tokens_known(service.statuses(database, NOW)[0]) == 20
    while service.sum_up(database, clock_at(), rounds=2):
        pass
    assert tokens_known(service.statuses(database, NOW)[0]) == 70


def test_what_is_written_while_an_hour_is_summed_up_marks_it_anew(database: Database) -> None:
    promise(database)
    service.tick(database, clock_at())
    store(database, book())
    with database.write() as tx:
        marks = target_hours.take(tx, hours=9)
    with database.read() as tx:
        found = {at: target_hours.sums(tx, at, ["acme"], ClockKind.REAL) for at in {one.hour_at for one in marks}}
    store(database, book())  # between the reading and the storing
    with database.write() as tx:
        assert target_hours.finish(tx, marks, found)
    assert look(database)[0].ran.tokens == 30


def test_who_is_overtaken_stores_nothing(database: Database) -> None:
    promise(database)
    store(database, book())
    with database.write() as tx:
        marks = target_hours.take(tx, hours=2_000)
    service.tick(database, clock_at())  # takes what the other has not finished
    with database.write() as tx:
        assert not target_hours.finish(tx, marks, {one.hour_at: [] for one in marks})
    assert service.statuses(database, NOW)[0].ran.tokens == 15


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("book"), st.integers(-30, 6)),
            st.tuples(st.just("settle"), st.integers(-30, 6)),
            st.tuples(st.just("tick"), st.integers(0, 1)),
        ),
        max_size=12,
    )
)
def test_kept_sums_are_the_ledgers_whatever_happens_in_whichever_order(
    sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory, steps: Sequence[tuple[str, int]]
) -> None:
    path = tmp_path_factory.mktemp("targets") / "carbonq.db"
    path.write_bytes(sqlite_template.read_bytes())
    database = Database(f"sqlite:///{path}")
    configure(database)
    promise(database)
    observed: set[int] = set()
    for act, number in steps:
        at = W0 + number * WINDOW
        if act == "book":
            book_at = rate_book([rate("Z-AWAY", at, "250.5")])
            store(database, book(batch([item(number)], [part(number)]), book_at))
        elif act == "settle" and number not in observed:
            observed.add(number)
            observe(database, "Z-AWAY", at, "100")
            settle(database, W0 + timedelta(hours=2), settle_after_s=0)
        elif act == "tick":
            service.tick(database, clock_at())
    ran = look(database)[0].ran
    with database.read() as tx:
        groups = figures.groups(tx, Scope(tenant="acme", start_at=MONTH))
    assert ran.tokens == sum(one.prompt_tokens for one in groups)
    assert ran.grams == sum((one.emission_g or Decimal(0) for one in groups), Decimal(0))
    database.dispose()


def test_accepted_work_is_counted_until_it_has_ended(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path)
    job = world.submit(lines(4))[0]
    clock = world.clock
    targets_admin.set_target(database, clock, job.tenant, g_per_1k_tokens="1", actor="me")
    for _ in range(2):  # not cut yet, and cut
        accepted = accepted_of(database, clock)
        assert accepted == {(job.tenant, "words"): Ahead(job.est_tokens, 0, Decimal(0))}
        world.chunk()
    (found,) = service.statuses(database, clock.now())
    assert (found.forecast, found.state) == (None, TargetState.UNKNOWN)  # nothing says how clean it will be
    with database.write() as tx:  # as plans write it
        tx.execute(update(tables.chunks).values(impact_pg_per_token=2_000_000_000))
    expected = Decimal(job.est_tokens * 2) / 1_000
    assert accepted_of(database, clock) == {(job.tenant, "words"): Ahead(job.est_tokens, job.est_tokens, expected)}
    (found,) = service.statuses(database, clock.now())
    assert found.forecast is not None and found.forecast.g_per_1k_tokens == 2
    assert found.forecast.accepted_tokens == job.est_tokens and found.state is TargetState.AT_RISK
    month = month_of(clock.now())
    for at, counts in ((month.end_at - WINDOW, True), (month.end_at, False)):  # the next month's
        with database.write() as tx:
            tx.execute(update(tables.chunks).values(window_at=at))
        assert bool(accepted_of(database, clock)) == counts
    with database.write() as tx:
        tx.execute(update(tables.chunks).values(window_at=None))
        tx.execute(update(tables.items).values(state=ItemState.SUCCEEDED.value))
    assert accepted_of(database, clock) == {}


def accepted_of(database: Database, clock: FakeClock) -> dict[tuple[str, str], Ahead]:
    service.tick(database, clock)
    with database.read() as tx:
        return {key: one.by_book[Book.IMPACT] for key, one in target_ahead.kept(tx).items()}


def test_alarms_are_told_once_a_month_and_kind_and_again_when_the_target_changed(database: Database) -> None:
    store(database, book())
    promise(database)
    value = look(database)[0].value
    assert value is not None
    tight = str(round(value * Decimal("0.9"), 12))
    target = promise(database, tight)
    for _ in range(2):
        assert look(database)[0].state is TargetState.AT_RISK
    assert told(database) == [("target.at_risk", "2026-03")]
    changed = promise(database, "1000", at=NOW + WINDOW)
    assert changed.target_id == target.target_id
    for _ in range(2):
        look(database, NOW + WINDOW)
    assert told(database)[1:] == [("target.restored", "2026-03")]
    promise(database, tight, at=NOW + 2 * WINDOW)
    look(database, NOW + 2 * WINDOW)
    assert told(database)[2:] == [("target.at_risk", "2026-03")]


def test_a_month_that_ended_above_its_promise_is_told_as_broken_in_the_next(database: Database) -> None:
    promise(database, "0.000001")
    store(database, book())
    later = datetime(2026, 4, 1, 0, 10, tzinfo=W0.tzinfo)
    (found,) = look(database, later)
    assert (found.month.name, found.value, found.state) == ("2026-04", None, TargetState.UNKNOWN)
    assert told(database) == [("target.broken", "2026-03")]
    look(database, later + WINDOW)
    assert len(told(database)) == 1
    with database.read() as tx:
        (event,) = events.after(tx, "acme")
    assert event.data["id"] == found.target.target_id and "tenant" not in event.data
    assert event.data["status"]["state"] == "broken" and event.data["g_per_1k_tokens"] == "0.000001"


def test_a_promise_changed_after_a_month_was_over_does_not_judge_it(database: Database) -> None:
    promise(database)
    store(database, book())
    look(database)
    later = datetime(2026, 4, 1, 0, 10, tzinfo=W0.tzinfo)
    promise(database, "0.000001", at=later)
    look(database, later)
    assert told(database) == []


def test_a_month_that_settles_below_its_promise_is_told_as_restored(database: Database) -> None:
    configure(database)
    store(database, book())
    promise(database)
    value = look(database)[0].value
    assert value is not None
    promise(database, str(round(value / 2, 12)), at=NOW + WINDOW)
    later = datetime(2026, 4, 1, 0, 10, tzinfo=W0.tzinfo)
    look(database, later)
    observe(database, "Z-AWAY", W0, "1")
    assert settle(database, later, settle_after_s=0) == 5
    look(database, later + WINDOW)
    assert told(database)[-2:] == [("target.broken", "2026-03"), ("target.restored", "2026-03")]


def test_old_hours_are_forgotten_and_not_summed_up_again(database: Database) -> None:
    configure(database)
    promise(database)
    store(database, book())
    look(database)
    later = datetime(2026, 5, 2, tzinfo=W0.tzinfo)
    look(database, later)
    observe(database, "Z-AWAY", W0, "1")
    settle(database, later, settle_after_s=0)
    look(database, later)
    with database.read() as tx:
        assert not target_hours.has_marks(tx)
        assert target_hours.by_day(tx, MONTH, later) == {}


def test_a_target_is_set_changed_and_removed_with_its_lines_in_the_log(database: Database) -> None:
    made = promise(database, "0.5", model="writer")
    assert (made.model, made.book, made.g_per_1k_tokens) == ("writer", Book.IMPACT, Decimal("0.5"))
    assert promise(database, "0.5", model="writer", at=NOW + WINDOW) == made  # nothing changed
    changed = promise(database, "0.25", model="writer", book=Book.INVENTORY, at=NOW + WINDOW)
    assert (changed.target_id, changed.created_at, changed.updated_at) == (made.target_id, NOW, NOW + WINDOW)
    assert promise(database, "0.125", model="writer").book is Book.INVENTORY  # what is not given stays
    everything = promise(database, "1", model="*")
    assert everything.model is None and targets_admin.find(database, "acme", None) == everything
    with pytest.raises(NotFound):
        targets_admin.remove(database, "globex", made.target_id, actor="me")
    targets_admin.remove(database, "acme", made.target_id, actor="me")
    with pytest.raises(NotFound, match="for model 'writer'"):
        targets_admin.find(database, "acme", "writer")
    with database.read() as tx:
        logged = admin_log.page(tx, action="target")
        assert targets.every(tx) == [everything]
    assert [one.action for one in reversed(logged)] == ["target.set"] * 4 + ["target.removed"]
    assert logged[0].before == {"model": "writer", "book": "inventory", "g_per_1k_tokens": "0.125"}
    assert logged[-1].before is None and logged[-1].subject == made.target_id


@pytest.mark.parametrize("given", ["0", "-1", "nan", "inf", "much", "1e7", "0.0000000000000001", True])
def test_a_promise_that_is_no_number_of_grams_is_refused_by_name(database: Database, given: Any) -> None:
    with pytest.raises(InvalidRequest, match="g_per_1k_tokens") as caught:
        targets_admin.set_target(database, clock_at(), "acme", g_per_1k_tokens=given, actor="me")
    assert caught.value.param == "g_per_1k_tokens"


def test_a_tenant_may_have_a_bounded_number(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets_admin, "MAX_TARGETS", 1)
    promise(database, model="writer")
    promise(database, "2", model="writer")
    with pytest.raises(Conflict) as caught:
        promise(database)
    assert caught.value.code == "too_many_targets"
    promise(database, tenant="globex")
