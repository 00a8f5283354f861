import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carbonq.meters import attribution
from carbonq.units import WINDOW, window_of

EDGE = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
times = st.datetimes(datetime(2026, 1, 1), datetime(2026, 1, 2), timezones=st.just(UTC))
rates = st.lists(st.none() | st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=6)


@given(times, st.timedeltas(timedelta(0), timedelta(hours=3)))
def test_spans_tile_the_interval_and_stay_in_their_windows(start: datetime, length: timedelta) -> None:
    spans = attribution.spans(start, start + length)
    assert (spans[0].start_at, spans[-1].end_at) == (start, start + length)
    assert all(a.end_at == b.start_at for a, b in itertools.pairwise(spans))
    for span in spans:
        assert span.window_at == window_of(span.start_at)
        assert span.start_at <= span.end_at <= span.window_at + WINDOW
    assert all(span.microseconds for span in spans) or len(spans) == 1


def test_an_interval_that_ends_at_an_edge_does_not_touch_the_next_window() -> None:
    [span] = attribution.spans(EDGE, EDGE + WINDOW)
    assert span.window_at == EDGE


def test_a_clock_that_was_set_does_not_make_millions_of_windows() -> None:
    [span] = attribution.spans(datetime(1970, 1, 1, tzinfo=UTC), EDGE + timedelta(seconds=7))
    assert (span.window_at, span.microseconds) == (EDGE, 7_000_000)


@given(st.integers(0, 10**15), rates)
def test_parts_sum_to_the_whole_whatever_the_rates(delta_uj: int, token_rates: list[float | None]) -> None:
    parts = attribution.among(delta_uj, token_rates)
    assert sum(parts) == delta_uj
    assert min(parts) >= 0


@pytest.mark.parametrize(
    ("token_rates", "parts"),
    [
        ([30.0, 10.0], [75, 25]),
        ([None, None], [50, 50]),
        ([10.0, None, 30.0], [17, 33, 50]),  # unknown counts as the mean, 20
        ([0.0, 0.0], [50, 50]),
        ([0.0, 5.0], [0, 100]),
        ([0.1, 0.3], [25, 75]),
        ([float("nan"), 5.0], [50, 50]),
        ([1e300, 1e-300], [100, 0]),
    ],
)
def test_energy_goes_by_token_rate(token_rates: list[float | None], parts: list[int]) -> None:
    assert attribution.among(100, token_rates) == parts


def test_a_late_reading_is_split_by_time() -> None:
    spans = attribution.spans(EDGE + timedelta(seconds=200), EDGE + WINDOW + timedelta(seconds=300))
    assert attribution.over_time(401, spans) == [100, 301]
