"""Annual factors: flat, estimated, never settling, and each naming what it rests on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from carbonq.errors import SignalUnavailable
from carbonq.grid.annual import AnnualSource
from carbonq.model import Signal
from carbonq.signals import NoteLevel
from carbonq.units import iso

#: Ten minutes before a year whose factor is another.
NEW_YEAR = datetime(2025, 12, 31, 23, 50, tzinfo=UTC)
HEAD = "zone,year,value,unit,reference"
ROWS = (
    "Beijing,2023,0.5554,kg CO2/kWh,MEE 2025-47",
    "Beijing,2022,0.5688,kg CO2/kWh,MEE 2024-12",
    "CAMX,2023,428.5,lb/MWh,eGRID2023 rev2",
    "Beijing,2026,0.5,kg CO2/kWh,not yet in force",
)


def table(folder: Path, *rows: str, head: str = HEAD) -> Path:
    path = folder / "factors.csv"
    path.write_text("\n".join((head, *rows)) + "\n", encoding="utf-8")
    return path


def test_one_value_from_end_to_end_even_across_new_year(tmp_path: Path) -> None:
    source = AnnualSource(table(tmp_path, *ROWS), "CN-BJ", Signal.AER, area="Beijing")
    made = source.forecast("CN-BJ", NEW_YEAR)
    assert made is not None
    assert set(made.values) == {Decimal("555.4")}
    assert (
        made.start_at <= NEW_YEAR < NEW_YEAR + timedelta(days=2) < made.start_at + len(made.values) * timedelta(hours=1)
    )
    assert (made.method, made.model, made.gas) == ("annual", "2023, MEE 2025-47", "co2")
    assert (made.is_estimated, made.may_settle, made.signal) == (True, False, Signal.AER)
    assert (made.raw_unit, made.values[0] * made.raw_per_g_per_kwh) == ("kg/kWh", Decimal("0.5554"))
    assert iso(made.issued_at) == "2025-12-31T23:00:00.000000Z"
    after = source.forecast("CN-BJ", NEW_YEAR + timedelta(minutes=10))
    assert after is not None and set(after.values) == {Decimal(500)}
    assert source.observations("CN-BJ", NEW_YEAR - timedelta(days=9), NEW_YEAR, NEW_YEAR) == ()
    assert source.revisions("CN-BJ", NEW_YEAR, NEW_YEAR) == ()
    assert (source.name, source.signal) == ("annual:factors.csv", Signal.AER)


def test_it_says_that_nothing_is_shifted_and_how_old_the_factor_is(tmp_path: Path) -> None:
    source = AnnualSource(table(tmp_path, *ROWS), "CAMX", Signal.MOER)
    (note,) = source.check("CAMX", NEW_YEAR)
    assert note.level is NoteLevel.WARN
    assert note.text == "one factor for the year, 428.5 lb/MWh of 2023 (eGRID2023 rev2): no work is moved in time on it"
    _, late = source.check("CAMX", NEW_YEAR + timedelta(days=1))
    assert late.text == "the factor is of 2023; is there a newer one?"
    path = table(tmp_path, "CAMX,2025,400,lb/MWh,eGRID2025")
    assert "eGRID2025" in source.check("CAMX", NEW_YEAR)[0].text  # the table is read again when it changed
    path.unlink()
    (gone,) = source.check("CAMX", NEW_YEAR)
    assert gone.level is NoteLevel.FAIL and "No such file" in gone.text


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ((), "no factor of A up to 2025 .its years: none"),
        (("A,2026,5,g/kWh,r",), "no factor of A up to 2025 .its years: 2026"),
        (("A,23,5,g/kWh,r",), "line 2: year is '23', not a year such as 2023"),
        (("A,2023,,g/kWh,r",), "line 2: value is empty"),
        (("A,2023,-5,g/kWh,r",), "line 2: value .* is -5"),
        (("A,2023,5,percentile,r",), "line 2 is in percentile"),
        (("A,2023,5,g/kWh,",), "line 2: reference is empty"),
        (("A,2023,5,t/kWh,r",), "line 2: 5 t/kWh is 5000000 g/kWh; is the unit right"),
        (("A,2023,5,g/kWh",), "line 2: 4 cells, but the header has 5"),
        (("A,2023,5,g/kWh,r", "", "A,2023,6,g/kWh,r"), "line 4: A has a factor of 2023 already"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, rows: tuple[str, ...], words: str) -> None:
    source = AnnualSource(table(tmp_path, *rows), "A", Signal.AER)
    with pytest.raises(SignalUnavailable, match=words):
        source.forecast("A", NEW_YEAR)


def test_a_table_needs_its_columns_and_its_own_zone(tmp_path: Path) -> None:
    source = AnnualSource(table(tmp_path, "A,2023,5", head="zone,year,g"), "A", Signal.AER)
    with pytest.raises(SignalUnavailable, match=r"line 1: the columns .* but value, unit, reference is not among"):
        source.forecast("A", NEW_YEAR)
    with pytest.raises(SignalUnavailable, match="the factors of A, not of B"):
        source.forecast("B", NEW_YEAR)
