"""Which rate a window has and how final it is."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

import pytest

from carbonq.model import Rate, RateKind, RateStatus, Signal
from carbonq.ratebook import FALLBACK_PATIENCE_S, RateBook, Standing, status_of
from carbonq.units import WINDOW
from tests.unit.bookings import W0, ZONES, rate, rate_book

OBSERVED = RateKind.OBSERVED


def found(book: RateBook, signal: Signal = Signal.MOER) -> tuple[str | None, RateStatus]:
    best, status = book.lookup(signal, "Z-AWAY", W0)
    return best and str(best.g_per_kwh), status


def test_nothing_known_is_missing_and_never_zero() -> None:
    assert rate_book([]).lookup(Signal.MOER, "Z-AWAY", W0) == (None, RateStatus.MISSING)


def test_a_forecast_is_provisional_an_observation_settles_when_its_window_is_over() -> None:
    assert status_of(rate(), W0 + timedelta(days=9), 0) is RateStatus.PROVISIONAL
    seen = rate(kind=OBSERVED)
    assert status_of(seen, W0 + WINDOW - timedelta(microseconds=1), 0) is RateStatus.PROVISIONAL
    assert status_of(seen, W0 + WINDOW, 0) is RateStatus.SETTLED
    assert status_of(seen, W0 + WINDOW + timedelta(seconds=59), 60) is RateStatus.PROVISIONAL
    assert status_of(seen, W0 + WINDOW + timedelta(seconds=60), 60) is RateStatus.SETTLED


def test_an_imputed_observation_does_not_settle_and_some_sources_never_do() -> None:
    late = W0 + timedelta(days=9)
    assert status_of(rate(kind=OBSERVED, is_estimated=True), late, 0) is RateStatus.PROVISIONAL
    assert status_of(rate(kind=OBSERVED, may_settle=False), late, 0) is RateStatus.UNSETTLEABLE
    assert status_of(rate(may_settle=False), late, 0) is RateStatus.UNSETTLEABLE


@pytest.mark.parametrize("is_reversed", [False, True])
def test_settled_beats_observed_beats_the_newest_forecast_beats_the_unsettleable(is_reversed: bool) -> None:
    older = rate(value="1", issued_at=W0 - timedelta(hours=2))
    newer = rate(value="2", issued_at=W0 - timedelta(hours=1))
    demo = rate(value="3", kind=OBSERVED, may_settle=False)
    imputed = rate(value="4", kind=OBSERVED, is_estimated=True)
    final = rate(value="5", kind=OBSERVED)
    after = W0 + WINDOW
    ladder = [demo, older, newer, imputed, final]
    expected = [
        ("3", RateStatus.UNSETTLEABLE),
        ("1", RateStatus.PROVISIONAL),
        ("2", RateStatus.PROVISIONAL),
        ("4", RateStatus.PROVISIONAL),
        ("5", RateStatus.SETTLED),
    ]
    for count, best in enumerate(expected, start=1):
        known = ladder[:count]
        assert found(rate_book(reversed(known) if is_reversed else known, now=after)) == best


def test_a_longer_step_covers_all_its_windows_and_no_more() -> None:
    book = rate_book([rate(step_s=1800)])
    windows = [W0 + number * WINDOW for number in range(-1, 7)]
    known = [book.lookup(Signal.MOER, "Z-AWAY", at)[0] is not None for at in windows]
    assert known == [False, *[True] * 6, False]


def test_the_two_books_never_mix() -> None:
    book = rate_book([rate(value="1"), rate(value="2", signal=Signal.AER)])
    assert found(book)[0] == "1"
    assert found(book, Signal.AER)[0] == "2"
    assert rate_book([rate()]).lookup(Signal.AER, "Z-AWAY", W0)[0] is None
    with pytest.raises(ValueError, match="is moer of Z-AWAY, not aer"):
        RateBook(ZONES, {(Signal.AER, "Z-AWAY", 0): (rate(), RateStatus.PROVISIONAL)})


def test_an_unknown_region_has_no_zone() -> None:
    assert rate_book([]).zone_of("away") == "Z-AWAY"
    assert rate_book([]).zone_of("gone") == ""


def test_a_negative_rate_is_a_rate() -> None:
    best, _ = rate_book([rate(value="-12.5")]).lookup(Signal.MOER, "Z-AWAY", W0)
    assert best is not None
    assert best.g_per_kwh == Decimal("-12.5")


def standing(position: int, *, is_fresh: bool = True, may_settle: bool = True) -> Standing:
    return Standing(position, is_fresh=is_fresh, may_settle=may_settle)


def ranked(*rates: Rate, now: datetime = W0 + WINDOW, **standings: Standing) -> tuple[str | None, RateStatus]:
    known = {(Signal.MOER, "Z-AWAY", source): one for source, one in standings.items()}
    return found(RateBook.of(ZONES, rates, now=now, settle_after_s=0, standings=known))


def test_the_preferred_source_comes_before_the_fallback_unless_it_is_stale() -> None:
    first = rate(value="1", source="a", issued_at=W0 - timedelta(hours=3))
    second = rate(value="2", source="b", kind=OBSERVED, is_estimated=True)
    assert ranked(first, second, a=standing(0), b=standing(1))[0] == "1"
    assert ranked(second, first, a=standing(1), b=standing(0))[0] == "2"
    assert ranked(first, second, a=standing(0, is_fresh=False), b=standing(1))[0] == "2"
    assert ranked(first, second, a=standing(0, is_fresh=False), b=standing(1, is_fresh=False))[0] == "1"
    imported = rate(value="3", source="c", kind=OBSERVED, is_estimated=True)
    assert ranked(first, imported, a=standing(0))[0] == "1"


def test_a_fallback_settles_a_window_only_after_the_preferred_source_had_a_day() -> None:
    seen = rate(value="2", source="b", kind=OBSERVED)
    both = {"a": standing(0), "b": standing(1)}
    patient = W0 + WINDOW + timedelta(seconds=FALLBACK_PATIENCE_S)
    assert ranked(seen, now=patient - timedelta(seconds=1), **both) == ("2", RateStatus.PROVISIONAL)
    assert ranked(seen, now=patient, **both) == ("2", RateStatus.SETTLED)
    assert ranked(seen, b=standing(0)) == ("2", RateStatus.SETTLED)
    # The preferred source settles at once, and wins over the other whenever both have the window.
    final = rate(value="1", source="a", kind=OBSERVED)
    assert ranked(seen, final, **both) == ("1", RateStatus.SETTLED)
    assert ranked(final, seen, now=patient, **both) == ("1", RateStatus.SETTLED)
    # That it is away now says nothing of a window it did observe.
    away = {"a": standing(0, is_fresh=False), "b": standing(1)}
    assert ranked(seen, final, **away) == ("1", RateStatus.SETTLED)


def test_what_never_settles_stays_open_where_another_source_of_the_zone_does() -> None:
    annual = rate(value="9", source="b", may_settle=False)
    assert ranked(annual, b=standing(0, may_settle=False)) == ("9", RateStatus.UNSETTLEABLE)
    both = {"a": standing(0), "b": standing(1, may_settle=False)}
    assert ranked(annual, **both) == ("9", RateStatus.PROVISIONAL)
    live = rate(value="1", source="a")
    assert ranked(annual, live, **both) == ("1", RateStatus.PROVISIONAL)
    # Sources of another zone or book have no say.
    known = {(Signal.AER, "Z-AWAY", "a"): standing(0), (Signal.MOER, "Z-HOME", "a"): standing(0)}
    known[Signal.MOER, "Z-AWAY", "b"] = standing(0, may_settle=False)
    book = RateBook.of(ZONES, [annual], now=W0 + WINDOW, settle_after_s=0, standings=known)
    assert found(book) == ("9", RateStatus.UNSETTLEABLE)
