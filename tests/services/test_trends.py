"""Figures of what ran: bounded reads that come to the exact sums, whatever was recorded when."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from carbonq.clock import ClockKind
from carbonq.model import EntryKind, Signal
from carbonq.services import trends as service
from carbonq.services.trends import Trends
from carbonq.store import ledger, rolled
from carbonq.store.database import Database
from carbonq.testing import FakeClock
from carbonq.trends import Groups
from carbonq.units import WINDOW
from tests.services.booked import configure, observe, store
from tests.unit.bookings import AWAY, HOME, RECORDED, W0, batch, book, item, overhead, part, rate_book

NOW = W0 + timedelta(minutes=20)


def make(database: Database, clock: FakeClock | None = None) -> Trends:
    made_clock = clock or FakeClock(NOW, kind=ClockKind.REAL)
    return service.make(database, made_clock, (HOME, AWAY), settle_after_s=0.0, max_stale_s=7200.0)


def energy_uj(groups: Groups | None) -> float:
    assert groups is not None
    return sum(sums.energy_uj or 0.0 for sums in groups.values())


def test_sums_keep_apart_what_must_not_be_added_and_unknown_is_none(database: Database) -> None:
    store(
        database, book(), book(rates=rate_book([])), overhead(parts=[part(cpu=77)]), book(batch(parts=[part(cpu=None)]))
    )
    trends = make(database)
    trends.refresh()
    groups = trends.over("1h")
    assert groups is not None and groups == trends.over("30d")
    by = {(key.kind, key.moer_status): sums for key, sums in groups.items()}
    rated, unrated, idle = by["item", "provisional"], by["item", "missing"], by["idle", "provisional"]
    assert (rated.items, rated.rated_items, rated.tokens, rated.energy_uj) == (10, 5, 30, 1_000_003)
    assert rated.emission_g == pytest.approx(1_000_003 / 3.6e12 * 1.2 * 300.25)
    assert unrated.emission_g is None and unrated.inventory_g is None and unrated.items == 5
    assert (idle.items, idle.energy_uj) == (0, 77)
    assert {key.region for key in groups} == {"away"} and {key.quality for key in groups} == {"estimated"}


def test_periods_end_where_they_end_and_another_clock_counts_nowhere(database: Database) -> None:
    days = 24 * 12
    at = (0, -11, -30, -2 * days, -20 * days, -40 * days)
    store(database, *(book(batch([item()], [part(number, cpu=10**place)])) for place, number in enumerate(at)))
    store(database, book(batch([item()], [part(cpu=7)], clock=ClockKind.ACCELERATED)))
    trends = make(database)
    trends.refresh()
    found = {period: energy_uj(trends.over(period)) for period in ("1h", "24h", "7d", "30d")}
    assert found == {"1h": 1, "24h": 111, "7d": 1_111, "30d": 11_111}


def test_each_refresh_reads_a_bounded_part_and_later_ones_see_what_came_late(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "FIRST_STEP", 3)
    monkeypatch.setattr(service, "STEP", 3)
    hours = range(2, 14)
    store(database, *(book(batch([item()], [part(-12 * hour, cpu=1)])) for hour in hours))
    read: list[int] = []
    real = rolled.sums

    def counted(tx: object, start: datetime, end: datetime, clock: ClockKind) -> dict[datetime, Groups]:
        found = real(tx, start, end, clock)  # pyright: ignore[reportArgumentType]
        read.append(len(found))
        return found

    monkeypatch.setattr(rolled, "sums", counted)
    trends = make(database)
    trends.refresh()
    assert trends.over("1h") is not None and trends.over("30d") is None  # not known yet, and not 0
    for _ in range(5):
        trends.refresh()
    assert energy_uj(trends.over("30d")) == len(hours)
    store(database, book(batch([item()], [part(-12 * 9, cpu=100)])))  # out of a spool, say
    for _ in range(6):
        trends.refresh()
    assert energy_uj(trends.over("30d")) == len(hours) + 100
    assert max(read) <= 4


def test_a_settled_entry_counts_as_it_is_now(database: Database) -> None:
    booked = book()
    first: dict[str, Any] = dict(booked.entries[0])
    store(database, booked)
    later = {"revision": 2, "supersedes": f"{first['entry_id']}#1", "reason": "settled", "moer_status": "settled"}
    with database.write() as tx:
        ledger.append_revisions(tx, [], [{**first, **later, "emission_g": Decimal(5), "recorded_at": RECORDED}])
    trends = make(database)
    trends.refresh()
    by = {key.moer_status: sums for key, sums in (trends.over("24h") or {}).items()}
    assert (by["settled"].items, by["settled"].emission_g) == (1, 5)
    assert by["provisional"].items == 4


def test_what_runs_now_is_there_at_the_next_refresh(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "STEP", 1)
    clock = FakeClock(NOW, kind=ClockKind.REAL)
    store(database, book(batch([item()], [part(-600, cpu=1)])))
    trends = make(database, clock)
    trends.refresh()
    clock.advance(7_200)  # nobody scraped meanwhile
    store(database, *(book(batch([item()], [part(at, cpu=uj)])) for at, uj in ((6, 5), (18, 4), (28, 6))))
    trends.refresh()
    assert energy_uj(trends.over("1h")) == 10
    assert energy_uj(trends.over("24h")) == 15  # what ran in between is not left to the walk


def test_the_share_below_the_mean_is_of_place_and_time_alike(database: Database) -> None:
    configure(database)
    for number, (home, away) in enumerate([(500, 100), (500, 300), (500, 900)]):
        observe(database, "Z-HOME", W0 + number * WINDOW, str(home))
        observe(database, "Z-AWAY", W0 + number * WINDOW, str(away))  # the mean over both is 466.7
    flexible = [book(batch([item()], [part(number, cpu=uj)])) for number, uj in ((0, 1), (1, 2), (2, 4), (3, 1_000))]
    realtime = book(batch([item(work_class="realtime")], [part(0, cpu=50)]))
    store(database, *flexible, realtime, overhead(parts=[part(0, cpu=9)]))
    trends = make(database)
    trends.refresh()
    (share,) = trends.below_mean({"home": HOME, "away": AWAY})
    assert share.labels == ("flexible",) and share.value == pytest.approx(3 / 7)  # no rate: on neither side
    (alone,) = trends.below_mean({"away": AWAY})  # its mean over time alone is 433.3
    assert alone.value == pytest.approx(3 / 7)
    assert trends.mean_rate(Signal.MOER, "home", timedelta(hours=1)) == 500
    assert trends.mean_rate(Signal.AER, "home", timedelta(hours=1)) is None
    rate, _ = trends.rate(Signal.MOER, "away", W0)
    assert rate is not None and rate.g_per_kwh == Decimal(100)
    assert {key.kind for key in trends.over("1h") or ()} == {EntryKind.ITEM, EntryKind.IDLE}
