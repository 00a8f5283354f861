"""Which rate a window has and how final it is."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from carbonq.model import RateKind, RateStatus, Signal
from carbonq.ratebook import RateBook, status_of
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
