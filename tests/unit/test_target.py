"""How a promise stands: running value, forecast, range, and when it counts as at risk or broken."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from carbonq.budget import Book
from carbonq.target import Ahead, Day, Month, Ran, Target, TargetState, foresee, judge, month_of, recent_since

MONTH = Month(datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC))
NOW = datetime(2026, 11, 16, tzinfo=UTC)


def target(promise: str = "0.5") -> Target:
    return Target("tgt_1", "acme", None, Book.IMPACT, Decimal(promise), NOW, NOW)


def ran(tokens: int, grams: str, **more: object) -> Ran:
    return Ran(tokens, Decimal(grams), **more)  # pyright: ignore[reportArgumentType]


def day(number: int, tokens: int, grams: str) -> Day:
    return Day(datetime(2026, 11, number, tzinfo=UTC), ran(tokens, grams))


def test_a_month_is_a_calendar_month_in_utc() -> None:
    assert month_of(NOW) == MONTH and MONTH.name == "2026-11"
    assert month_of(datetime(2026, 12, 31, 23, 59, tzinfo=UTC)).end_at == datetime(2027, 1, 1, tzinfo=UTC)
    assert recent_since(NOW + timedelta(hours=5)) == datetime(2026, 11, 9, tzinfo=UTC)


def test_the_running_value_is_grams_for_each_thousand_tokens_and_unknown_is_none() -> None:
    found = judge(target(), MONTH, ran(4_000, "1", provisional_g=Decimal("0.25")), now=NOW)
    assert (found.value, found.provisional_share) == (Decimal("0.25"), 0.25)
    nothing = judge(target(), MONTH, ran(0, "0", unknown_entries=3), now=NOW)
    assert (nothing.value, nothing.forecast, nothing.provisional_share) == (None, None, None)
    assert nothing.state is TargetState.UNKNOWN


def test_a_forecast_adds_accepted_work_and_what_the_recent_rate_brings_beyond_it() -> None:
    # 1,000 tokens a day for 7 days (9 to 15), at 0.4 g/1k; 15 days are left, so 15,000 tokens are expected.
    days = [day(number, 1_000, "0.4") for number in range(9, 16)]
    found = foresee(MONTH, ran(20_000, "10"), now=NOW, ahead=Ahead(6_000, 4_000, Decimal(2)), days=days)
    assert found is not None
    assert (found.ran_tokens, found.accepted_tokens, found.further_tokens) == (20_000, 6_000, 9_000)
    # 10 g have run, 2 g are planned, 2,000 accepted without a price and 9,000 further tokens at 0.4 g/1k.
    assert found.g_per_1k_tokens == round(Decimal("16.4") / 35, 15)
    assert found.low == found.g_per_1k_tokens == found.high


def test_accepted_work_stands_for_what_was_to_come_and_is_not_counted_twice() -> None:
    days = [day(number, 1_000, "0.4") for number in range(9, 16)]
    found = foresee(MONTH, ran(1, "0"), now=NOW, ahead=Ahead(50_000, 50_000, Decimal(1)), days=days)
    assert found is not None and found.further_tokens == 0


def test_the_range_is_that_of_the_cleanest_and_the_dirtiest_recent_day() -> None:
    days = [day(9, 0, "0"), day(14, 1_000, "0.2"), day(15, 3_000, "1.8")]
    found = foresee(MONTH, ran(4_000, "2"), now=NOW, ahead=Ahead(), days=days)
    assert found is not None
    # The first day that had work is the 14th: 4,000 tokens in two days.
    assert found.further_tokens == 30_000
    ends = [round((2 + 30 * Decimal(rate)) / 34, 15) for rate in ("0.2", "0.5", "0.6")]
    assert [found.low, found.g_per_1k_tokens, found.high] == ends
    alone = foresee(MONTH, ran(4_000, "2"), now=NOW, ahead=Ahead(), days=days[1:2])
    assert alone is not None and (alone.low, alone.high) == (None, None)


def test_one_hour_of_work_is_not_taken_for_a_months_rate() -> None:
    now = MONTH.start_at + timedelta(hours=1)
    found = foresee(MONTH, ran(100, "1"), now=now, ahead=Ahead(), days=[day(1, 100, "1")])
    assert found is not None and found.further_tokens == 2_995  # as if it had taken a day


def test_without_recent_work_accepted_work_is_valued_as_what_ran_and_nothing_is_made_up() -> None:
    found = foresee(MONTH, ran(1_000, "0.5"), now=NOW, ahead=Ahead(1_000, 0), days=[])
    assert found is not None and found.g_per_1k_tokens == Decimal("0.5") and found.further_tokens == 0
    assert foresee(MONTH, ran(0, "0"), now=NOW, ahead=Ahead(1_000, 0), days=[]) is None
    assert foresee(MONTH, ran(0, "0"), now=NOW, ahead=Ahead(), days=[]) is None
    planned = foresee(MONTH, ran(0, "0"), now=NOW, ahead=Ahead(1_000, 1_000, Decimal("0.3")), days=[])
    assert planned is not None and planned.g_per_1k_tokens == Decimal("0.3")


def test_a_promise_is_at_risk_when_the_forecast_passes_it_though_the_value_does_not() -> None:
    days = [day(15, 10_000, "9")]
    at_risk = judge(target(), MONTH, ran(20_000, "9"), now=NOW, days=days)
    assert at_risk.value is not None and at_risk.value < Decimal("0.5")
    assert at_risk.state is TargetState.AT_RISK
    assert judge(target("0.9"), MONTH, ran(20_000, "9"), now=NOW, days=days).state is TargetState.ON_TRACK


def test_a_promise_is_broken_when_even_work_without_emission_could_not_bring_it_back() -> None:
    # 5 g spread over 1,000 tokens that ran and 8,999 that are to come stay above 0.5 g/1k; over 9,000 they do not.
    broken = judge(target(), MONTH, ran(1_000, "5"), now=NOW, ahead=Ahead(8_999, 8_999, Decimal(0)))
    assert broken.state is TargetState.BROKEN
    open_ = judge(target(), MONTH, ran(1_000, "5"), now=NOW, ahead=Ahead(9_000, 9_000, Decimal("0.1")))
    assert open_.state is TargetState.AT_RISK


def test_a_month_that_is_over_is_kept_or_broken_and_has_no_forecast() -> None:
    at = MONTH.end_at
    for grams, state in (("0.5", TargetState.KEPT), ("0.500000000000001", TargetState.BROKEN)):
        found = judge(target(), MONTH, ran(1_000, grams), now=at, days=[day(30, 1_000, "9")])
        assert (found.state, found.forecast) == (state, None)
    assert judge(target(), MONTH, ran(0, "0"), now=at).state is TargetState.UNKNOWN


@st.composite
def situations(draw: st.DrawFn) -> tuple[Ran, Ahead, list[Day]]:
    grams = st.decimals("0", "1000", places=15)
    tokens = st.integers(0, 10**9)
    days = [Day(datetime(2026, 11, number, tzinfo=UTC), Ran(draw(tokens), draw(grams))) for number in range(9, 16)]
    accepted = draw(tokens)
    priced = draw(st.integers(0, accepted))
    return (
        Ran(draw(tokens), draw(grams)),
        Ahead(accepted, priced, draw(grams) if priced else Decimal(0)),
        draw(st.lists(st.sampled_from(days), unique_by=lambda one: one.start_at)),
    )


@given(situations(), st.decimals("0.001", "1000", places=6))
def test_the_forecast_lies_in_its_range_and_a_broken_promise_is_passed_by_every_forecast(
    situation: tuple[Ran, Ahead, list[Day]], promise: Decimal
) -> None:
    so_far, ahead, days = situation
    found = judge(target(str(promise)), MONTH, so_far, now=NOW, ahead=ahead, days=days)
    forecast = found.forecast
    if forecast is None:
        assert found.state is TargetState.UNKNOWN
        return
    if forecast.low is not None and forecast.high is not None:
        assert forecast.low <= forecast.g_per_1k_tokens <= forecast.high
    tokens = forecast.ran_tokens + forecast.accepted_tokens + forecast.further_tokens
    least = Fraction(so_far.grams) * 1_000 / tokens
    assert (found.state is TargetState.BROKEN) == (least > promise)
    if found.state is TargetState.BROKEN:
        assert forecast.g_per_1k_tokens > promise - Decimal("1e-12")
