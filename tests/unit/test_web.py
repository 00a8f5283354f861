"""Figures and marks of the dashboard: rules without a page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from carbonq.web import charts, formats
from carbonq.web.charts import Frame
from carbonq.web.session import safe_target

START = datetime(2026, 3, 2, 22, tzinfo=UTC)
FRAME = Frame(0, 0, 100, 50, START, START + timedelta(hours=10), 0.0, 100.0)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "unknown"), (0, "0 g"), ("0.000134", "134 µg"), (1234, "1.23 kg"), (-0.5, "−500 mg"), (999.96, "1.00 kg")],
)
def test_figures_have_three_digits_and_unknown_is_said(value: object, text: str) -> None:
    assert formats.scaled(value, "g") == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "unknown"), (5, "5 s"), (3725, "1 h 2 min"), (-90_000, "−1 d 1 h")]
)
def test_spans(seconds: float | None, text: str) -> None:
    assert formats.span(seconds) == text


def test_a_share_of_nothing_is_not_told() -> None:
    assert (formats.share_pct(1, 4), formats.share_pct(None, 4), formats.share_pct(1, 0)) == (
        "25.0\N{NO-BREAK SPACE}%",
        None,
        None,
    )


def test_an_id_is_told_by_its_kind_and_its_end() -> None:
    assert formats.short_id("job_01m8ns4f96j9813nbz0p1mapme") == "job_…0p1mapme"
    assert formats.short_id("job_1") == "job_1"


def test_a_gap_stays_a_gap() -> None:
    points = [(START + timedelta(hours=n), value) for n, value in enumerate([0.0, 50.0, None, 100.0])]
    assert charts.line(FRAME, points) == "M0 50L10 25M30 0"
    around = [(at, value, None if value is None else 10.0) for at, value in points]
    assert charts.band(FRAME, around) == "M0 45L10 20L10 30L0 50Z"


def test_what_is_not_known_has_no_step_and_is_no_part_of_a_mean() -> None:
    assert charts.thinned([1.0, None, None, None, 5.0], 2) == [1.0, None, 5.0]
    assert [charts.step_of(value, (0.0, 8.0)) for value in (None, 0.0, 7.99, 8.0)] == [None, 0, 7, 7]
    assert charts.step_of(3.0, (3.0, 3.0)) == charts.STEPS // 2


def test_midnight_is_named_by_its_day() -> None:
    assert [tick.label for tick in charts.time_ticks(FRAME, 3)] == ["Tue", "03:00", "06:00"]


@pytest.mark.parametrize(
    "given", [None, "", "//evil.example", "/\\evil.example", "https://evil.example", "jobs", "/a\\b", "/\r\nX: y", "/ü"]
)
def test_a_login_leads_nowhere_else(given: str | None) -> None:
    assert safe_target(given) == "/"
    assert safe_target("/jobs?state=waiting") == "/jobs?state=waiting"
