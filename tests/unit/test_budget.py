"""The rules of spending: periods, who is covered, burn rate, what a token costs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carbonq.budget import (
    ALL,
    PG_PER_UG,
    Action,
    Level,
    Line,
    Reserved,
    Spent,
    burn_rate,
    covering,
    exhausted_at,
    from_ug,
    status_of,
    to_ug,
)
from tests.services.budgeted import budget

NOON = datetime(2026, 12, 31, 12, tzinfo=UTC)
NEW_YEAR = datetime(2027, 1, 1, tzinfo=UTC)


def test_periods_are_days_and_months_of_utc() -> None:
    line, day = budget(), budget(level=Level.WORKLOAD)
    assert line.period_at(NOON) == (datetime(2026, 12, 1, tzinfo=UTC), NEW_YEAR)
    assert day.period_at(NOON) == (datetime(2026, 12, 31, tzinfo=UTC), NEW_YEAR)
    assert day.period_at(NEW_YEAR) == (NEW_YEAR, datetime(2027, 1, 2, tzinfo=UTC))  # half-open
    assert budget(level=Level.ITEM).period_at(NOON) is None
    tokyo = NOON.astimezone(timezone(timedelta(hours=13)))
    assert day.period_at(tokyo) == day.period_at(NOON)


@given(st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC)))
def test_every_time_is_in_its_period_and_periods_touch(at: datetime) -> None:
    for level in (Level.PRODUCT_LINE, Level.WORKLOAD):
        start, end = budget(level=level).period_at(at)  # pyright: ignore[reportGeneralTypeIssues]
        assert start <= at < end
        assert budget(level=level).period_at(end)[0] == end  # pyright: ignore[reportOptionalSubscript]
        assert budget(level=level).period_at(start) == (start, end)


@pytest.mark.parametrize(
    ("level", "name", "is_covered"),
    [
        (Level.PRODUCT_LINE, "search", True),
        (Level.PRODUCT_LINE, "backfill", False),
        (Level.WORKLOAD, "backfill", True),
        (Level.WORKLOAD, ALL, False),
        (Level.ITEM, "backfill", True),
        (Level.ITEM, ALL, True),
        (Level.ITEM, "search", False),
    ],
)
def test_a_budget_covers_work_of_its_name(level: Level, name: str, is_covered: bool) -> None:
    one = budget(level=level, name=name)
    assert one.covers(Line("acme", "search", "backfill")) is is_covered
    assert not one.covers(Line("rival", "search", "backfill"))


def test_work_without_names_is_in_budgets_of_all_items_alone() -> None:
    found = [budget(budget_id=level.value, level=level, name="None") for level in Level]
    assert covering(found, Line("acme", None, None)) == []
    everything = budget(level=Level.ITEM, name=ALL)
    assert covering([*found, everything], Line("acme", None, None)) == [everything]


def test_budgets_are_locked_in_the_order_of_their_ids() -> None:
    found = [budget(budget_id=name) for name in "cab"]
    assert [one.budget_id for one in covering(found, Line("acme", "search", None))] == ["a", "b", "c"]


def test_at_a_burn_rate_of_one_a_budget_lasts_as_long_as_its_period() -> None:
    assert burn_rate(Decimal(5), Decimal(10), 0.5) == 1
    assert burn_rate(Decimal(0), Decimal(10), 0.5) == 0
    assert burn_rate(Decimal(5), Decimal(10), 0.0) is None


def test_when_it_is_used_up_is_told_where_it_can_be() -> None:
    start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    now = start + timedelta(hours=6)
    assert exhausted_at(Decimal(5), Decimal(10), start, end, now) == start + timedelta(hours=12)
    assert exhausted_at(Decimal(20), Decimal(10), start, end, now) == start + timedelta(hours=3)
    assert exhausted_at(Decimal(2), Decimal(10), start, end, now) is None  # not in this period
    assert exhausted_at(Decimal(0), Decimal(10), start, end, now) is None
    assert exhausted_at(Decimal(5), Decimal(10), start, end, start) is None


def test_an_item_budget_has_no_period_to_stand_in() -> None:
    found = status_of(budget(level=Level.ITEM), NOON, Spent(), Reserved(waiting=3))
    assert (found.started_at, found.ends_at, found.burn_rate, found.exhausted_at) == (None, None, None, None)
    assert found.waiting_chunks == 3


def test_what_is_left_may_be_less_than_nothing() -> None:
    found = status_of(budget(cap_g=Decimal(1)), NOON, Spent(Decimal("0.7")), Reserved(500_000))
    assert found.left_g == Decimal("-0.2")


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_expected_micrograms_are_never_less_than_the_picograms(tokens: int, pg_per_token: int) -> None:
    assert 0 <= to_ug(tokens, pg_per_token) * PG_PER_UG - tokens * pg_per_token < PG_PER_UG
    assert from_ug(to_ug(tokens, pg_per_token)) * 10**6 == to_ug(tokens, pg_per_token)


def test_only_two_actions_hold_work_back() -> None:
    assert {one for one in Action if budget(action=one).is_holding} == {Action.QUEUE, Action.DOWNGRADE}
