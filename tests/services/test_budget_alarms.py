"""Alarms of budgets: each is told once for a period, in the transaction that notes it, and again after a change."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carbonq import events as rules
from carbonq.budget import Action, Book, Budget, BudgetStatus, Level, Reserved, Spent, status_of
from carbonq.events import BUDGET_EXHAUSTED, BUDGET_RESTORED, BUDGET_WARNING
from carbonq.services import budget_alarms, budgets_admin
from carbonq.services.budget_alarms import Thresholds
from carbonq.store import budget_alarms as rows
from carbonq.store import budgets, events
from carbonq.store.budget_alarms import Told
from carbonq.store.database import Database
from carbonq.store.events import Event
from carbonq.testing import FakeClock

#: The middle of a day.
NOON = datetime.fromisoformat("2026-03-10T12:00:00+00:00")
DAY = timedelta(days=1)

DEFAULTS = Thresholds()


def budget(cap_g: str = "100", level: Level = Level.WORKLOAD, at: datetime = NOON - timedelta(days=9)) -> Budget:
    return Budget("bgt_1", "acme", level, "nightly", Book.IMPACT, Action.QUEUE, Decimal(cap_g), at, at)


def standing(
    spent_g: str | Decimal = "0",
    *,
    reserved_ug: int = 0,
    waiting: int = 0,
    at: datetime = NOON,
    of: Budget | None = None,
) -> BudgetStatus:
    spent = Spent(Decimal(spent_g), Decimal(0), 0)
    return status_of(of or budget(), at, spent, Reserved(reserved_ug, 0, waiting, 0))


def told(*kinds: str, at: datetime = NOON) -> dict[str, Told]:
    start = at.replace(hour=0)
    return {kind: Told("bgt_1", kind, start, at + timedelta(seconds=number)) for number, kind in enumerate(kinds)}


@pytest.mark.parametrize(
    ("status", "kinds"),
    [
        (standing("10"), []),
        (standing("60"), []),  # at noon: exactly 1.2
        (standing("60.1"), [BUDGET_WARNING]),
        (standing("79.9", at=NOON + timedelta(hours=11)), []),
        (standing("80", at=NOON + timedelta(hours=11)), [BUDGET_WARNING]),
        (standing("30", reserved_ug=50_000_000), [BUDGET_WARNING]),
        (standing("30", reserved_ug=49_999_999), []),
        (standing("30", reserved_ug=70_000_000), [BUDGET_EXHAUSTED]),
        (standing("100"), [BUDGET_EXHAUSTED]),
        (standing("101"), [BUDGET_EXHAUSTED]),
        (standing("1", waiting=1), [BUDGET_EXHAUSTED]),
        (standing("7", at=NOON - timedelta(hours=10, minutes=49)), []),  # 4.9 % of the day: too early to say
        (standing("7", at=NOON - timedelta(hours=10, minutes=48)), [BUDGET_WARNING]),
        (standing("1000", of=budget(level=Level.ITEM)), []),
    ],
)
def test_what_is_told_first(status: BudgetStatus, kinds: list[str]) -> None:
    assert budget_alarms.due(status, {}, DEFAULTS) == kinds


def test_thresholds_are_settings() -> None:
    mine = Thresholds(burn_rate=1.0, elapsed_share=0.9, used_share=0.3)
    assert budget_alarms.due(standing("29"), {}, mine) == []
    assert budget_alarms.due(standing("30"), {}, mine) == [BUDGET_WARNING]
    late = NOON + timedelta(hours=10)
    assert budget_alarms.due(standing("99", at=late), {}, replace(mine, used_share=1.0)) == [BUDGET_WARNING]


def test_room_again_is_told_once_after_it_was_used_up() -> None:
    full, some = standing("100"), standing("10")
    assert budget_alarms.due(full, told(BUDGET_EXHAUSTED), DEFAULTS) == []
    assert budget_alarms.due(some, told(BUDGET_EXHAUSTED), DEFAULTS) == [BUDGET_RESTORED]
    assert budget_alarms.due(some, told(BUDGET_EXHAUSTED, BUDGET_RESTORED), DEFAULTS) == []
    assert budget_alarms.due(some, told(BUDGET_WARNING), DEFAULTS) == [], "it was never used up"
    tomorrow = standing("0", at=NOON + DAY)
    assert budget_alarms.due(tomorrow, told(BUDGET_EXHAUSTED), DEFAULTS) == [BUDGET_RESTORED]
    most = standing("90")
    assert budget_alarms.due(most, told(BUDGET_EXHAUSTED), DEFAULTS) == [BUDGET_RESTORED], "no warning after the fact"
    # Used up again on the same day, once told; the next day there is room again.
    assert budget_alarms.due(tomorrow, told(BUDGET_RESTORED, BUDGET_EXHAUSTED), DEFAULTS) == [BUDGET_RESTORED]


def test_a_new_period_has_room_though_more_waits_than_it_has_room_for() -> None:
    at, before = NOON + DAY, told(BUDGET_EXHAUSTED)
    waits = standing("10", waiting=4, at=at)
    assert budget_alarms.due(waits, before, DEFAULTS) == [BUDGET_RESTORED]
    after = before | {BUDGET_RESTORED: Told("bgt_1", BUDGET_RESTORED, at.replace(hour=0), at)}
    assert budget_alarms.due(waits, after, DEFAULTS) == [BUDGET_EXHAUSTED], "by the next look"
    assert budget_alarms.due(standing("100", waiting=4, at=at), before, DEFAULTS) == [BUDGET_EXHAUSTED], "no room"


def test_a_new_period_and_a_changed_budget_are_told_of_anew() -> None:
    before = told(BUDGET_WARNING, BUDGET_EXHAUSTED)
    assert budget_alarms.due(standing("100", at=NOON + DAY), before, DEFAULTS) == [BUDGET_EXHAUSTED]
    changed = replace(budget("50"), updated_at=NOON + timedelta(hours=1))
    at = NOON + timedelta(hours=2)
    assert budget_alarms.due(standing("50", of=changed, at=at), before, DEFAULTS) == [BUDGET_EXHAUSTED]
    assert budget_alarms.due(standing("49", of=changed, at=at), before, DEFAULTS) == [BUDGET_RESTORED, BUDGET_WARNING]


#: What a budget spends and reserves over some looks within two days, in the order of time.
LOOKS = st.lists(
    st.tuples(
        st.integers(0, 2 * 24 * 60 - 1),
        st.decimals("0", "150", places=1, allow_nan=False),
        st.integers(0, 150_000_000),
        st.integers(0, 1),
    ),
    max_size=30,
)


@given(LOOKS)
def test_whatever_happens_each_alarm_comes_once_a_period_and_restored_after_exhausted(looks: Any) -> None:
    midnight = NOON.replace(hour=0)
    last: dict[str, Told] = {}
    heard: list[tuple[datetime, str]] = []
    for minute, spent_g, reserved_ug, waiting in sorted(looks):
        at = midnight + timedelta(minutes=minute)
        status = standing(spent_g, reserved_ug=reserved_ug, waiting=waiting, at=at)
        assert status.started_at is not None
        while kinds := budget_alarms.due(status, last, DEFAULTS):
            at += timedelta(seconds=2)  # the next look
            for kind in kinds:
                last[kind] = Told("bgt_1", kind, status.started_at, at)
                heard.append((status.started_at, kind))
                assert (kind == BUDGET_EXHAUSTED) <= budget_alarms.is_exhausted(status)
                assert (kind == BUDGET_RESTORED) <= (status.left_g > 0)
        if budget_alarms.is_exhausted(status):
            assert (status.started_at, BUDGET_EXHAUSTED) in heard, "what is used up was told of"
    assert len(heard) == len(set(heard))
    kinds = [kind for _, kind in heard if kind != BUDGET_WARNING]
    assert all(kind == BUDGET_EXHAUSTED for kind in kinds[:1])
    assert kinds.count(BUDGET_RESTORED) <= kinds.count(BUDGET_EXHAUSTED)


# --- in a database ----------------------------------------------------------------------------------------------


def put(db: Database, one: Budget) -> None:
    with db.write() as tx:
        budgets.put(tx, one)


def tell(db: Database, *found: BudgetStatus, at: datetime = NOON) -> int:
    return budget_alarms.tell(db, at, found, DEFAULTS)


def heard(db: Database, tenant: str = "acme") -> list[Event]:
    with db.read() as tx:
        return [one for one in events.after(tx, tenant) if one.type in rules.BUDGET]


def test_an_alarm_is_an_event_of_the_tenants_with_the_budget_as_it_stands(database: Database) -> None:
    put(database, budget())
    assert tell(database, standing("10")) == 0
    assert tell(database, standing("62.5", reserved_ug=5_000_000)) == 1
    assert tell(database, standing("63")) == 0, "once"
    (event,) = heard(database)
    assert (event.type, event.at, event.job_id) == (BUDGET_WARNING, NOON, None)
    assert event.data == {
        "id": "bgt_1",
        "level": "workload",
        "name": "nightly",
        "period": "day",
        "book": "impact",
        "action": "queue",
        "cap_g": "100",
        "started_at": "2026-03-10T00:00:00.000000Z",
        "ends_at": "2026-03-11T00:00:00.000000Z",
        "spent_g": "62.5",
        "provisional_g": "0",
        "reserved_g": "5",
        "left_g": "32.5",
        "unknown_entries": 0,
        "unknown_reserved": 0,
        "elapsed_share": 0.5,
        "burn_rate": 1.25,
        "exhausted_at": "2026-03-10T19:12:00.000000Z",
        "waiting_chunks": 0,
    }
    assert tell(database, standing("100")) == 1
    tomorrow = NOON + DAY
    assert tell(database, standing("0", at=tomorrow), at=tomorrow) == 1
    assert [one.type for one in heard(database)] == [BUDGET_WARNING, BUDGET_EXHAUSTED, BUDGET_RESTORED]
    with database.read() as tx:
        assert len(rows.of(tx, ["bgt_1"])) == 3, "a row a kind, whatever the period"


def test_two_that_look_at_once_tell_once(database: Database) -> None:
    many = [replace(budget(), budget_id=f"bgt_{number}", name=f"w{number}") for number in range(20)]
    for one in many:
        put(database, one)
    found = [standing("100", of=one) for one in many]
    counts: list[int] = []
    barrier = threading.Barrier(4)

    def look() -> None:
        barrier.wait(10)
        counts.append(tell(database, *found))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sum(counts) == len(many) == len(heard(database))


def test_a_budget_that_is_removed_meanwhile_tells_nothing_and_leaves_nothing(database: Database) -> None:
    made = budgets_admin.set_budget(
        database, FakeClock(), "acme", level=Level.WORKLOAD, name="nightly", cap_g="100", actor="ci"
    )
    full = standing("100", of=replace(made, updated_at=NOON - DAY))
    assert tell(database, full) == 1
    budgets_admin.remove(database, "acme", made.budget_id, actor="ci")
    with database.read() as tx:
        assert rows.of(tx, [made.budget_id]) == []
    assert tell(database, full) == 0
    with database.read() as tx:
        assert rows.of(tx, [made.budget_id]) == []
    assert len(heard(database)) == 1


def test_the_event_and_its_note_are_one_transaction(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    put(database, budget())

    def fail(*_: object) -> None:
        raise RuntimeError("killed in between")

    with monkeypatch.context() as patch:
        patch.setattr(events, "append_many", fail)
        with pytest.raises(RuntimeError):
            tell(database, standing("100"))
    assert tell(database, standing("100")) == 1, "what was not told is told by the next look"
