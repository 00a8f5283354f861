"""Rates from CSV files: streamed, in batches, idempotent, with errors that name the line."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from carbonq.errors import InvalidRequest
from carbonq.model import Signal
from carbonq.services import imports
from carbonq.services.imports import Imported, Label, import_rates
from carbonq.store import forecasts
from carbonq.store.database import Database
from carbonq.units import WINDOW

NOW = datetime(2026, 5, 1, tzinfo=UTC)
START = datetime(2021, 4, 30, 12, tzinfo=UTC)
LABEL = Label("Z", Signal.MOER, "archive", "g/kWh")


def run(db: Database, text: str, label: Label = LABEL) -> Imported:
    return import_rates(db, io.StringIO(text), label, now=NOW)


def observed(db: Database, **options: str) -> list[tuple[datetime, Decimal]]:
    with db.read() as tx:
        found = forecasts.observed(tx, "Z", Signal.MOER, START - timedelta(days=99), START + timedelta(days=99))
    return [(one.window_at, one.g_per_kwh) for one in found]


def test_observations_are_stored_once_in_batches_with_their_label(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "BATCH_ROWS", 4)
    rows = [f"{START + i * WINDOW:%Y-%m-%dT%H:%MZ},{'' if i == 5 else i}" for i in range(10)]
    text = "time_utc,value\n" + "\n".join(rows) + "\n\n"
    seen: list[int] = []
    done = import_rates(database, io.StringIO(text), LABEL, now=NOW, report=seen.append)
    assert done == Imported(lines=10, missing=1, observations=9)
    assert seen == [4, 8, 10]
    assert run(database, text) == Imported(lines=10, missing=1, observations=0)
    assert observed(database) == [(START + i * WINDOW, Decimal(i)) for i in range(10) if i != 5]
    changed = run(database, text.replace(",7\n", ",7.5\n"))
    assert changed.observations == 1 and observed(database)[6] == (START + 7 * WINDOW, Decimal("7.5"))
    with database.read() as tx:
        (first, *_) = forecasts.observed(tx, "Z", Signal.MOER, START, START + WINDOW)
    assert (first.source, first.gas, first.raw_unit, first.retrieved_at) == ("archive", "co2", "g/kWh", NOW)
    assert (first.step_s, first.is_estimated, first.may_settle) == (300, False, True)


def test_units_are_converted_once_and_exactly(sqlite_database: Database) -> None:
    label = Label("Z", Signal.AER, "archive", "lbs_co2_per_mwh", gas="co2e", is_estimated=True, may_settle=False)
    run(sqlite_database, "value,time_utc\n812.4,2021-04-30T14:00+02:00\n,2021-04-30T15:00+02:00\n", label)
    with sqlite_database.read() as tx:
        (one,) = forecasts.observed(tx, "Z", Signal.AER, START, START + WINDOW)
    assert (one.g_per_kwh, one.raw, one.raw_unit) == (Decimal("368.498441388"), Decimal("812.4"), "lb/MWh")
    assert (one.step_s, one.gas, one.is_estimated, one.may_settle) == (3600, "co2e", True, False)


def test_forecasts_are_kept_as_issued(database: Database) -> None:
    text = (
        "issued_at,time_utc,value\n"
        "2021-04-30T12:00Z,2021-04-30T12:05Z,10\n2021-04-30T12:00Z,2021-04-30T12:10Z,\n"
        "2021-04-30T12:00Z,2021-04-30T12:20Z,12.50\n"
        "2021-04-30T12:05Z,2021-04-30T12:10Z,20\n"
    )
    assert run(database, text) == Imported(lines=4, missing=1, forecasts=2)
    assert run(database, text) == Imported(lines=4, missing=1, forecasts=0)
    with database.read() as tx:
        first, second = forecasts.issues(tx, "Z", Signal.MOER, START, START + timedelta(hours=1))
    assert [None if one is None else str(one) for one in first.values] == ["10", None, None, "12.50"]
    assert (first.issued_at, first.start_at, first.step_s) == (START, START + WINDOW, 300)
    assert (second.issued_at, list(second.values)) == (START + WINDOW, [Decimal(20)])


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "the columns time_utc and value are needed"),
        ("time_utc,value\n", None, "no rows"),
        ("time,value\n", 1, "the columns time_utc and value are needed"),
        ("time_utc,value\n2021-04-30T12:00Z,1,2\n", 2, "3 cells, but the header has 2"),
        ("time_utc,value\n2021-04-30T12:00,1\n", 2, "no time with a zone"),
        ("time_utc,value\n2021-04-30T12:01Z,1\n", 2, "not the start of a 5-minute window"),
        ("time_utc,value\n2021-04-30T12:00Z,1\n2021-04-30T12:05Z,high\n", 3, "high is no number"),
        ("time_utc,value\n2021-04-30T12:00Z,-1\n", 2, "-1 is no intensity"),
        ("time_utc,value\n2021-04-30T12:00Z,NaN\n", 2, "NaN is no intensity"),
        ("time_utc,value\n2021-04-30T12:00Z,12000\n", 2, "more than 10,000 g/kWh"),
        ("time_utc,value\n2021-04-30T12:00Z,1e999999999\n", 2, "more than 10,000 g/kWh"),
        ("time_utc,value\n2021-04-30T12:00Z,1e-999999\n", 2, "is no intensity"),
        ("time_utc,value\n0001-01-01T00:00+14:00,1\n", 2, "no time with a zone"),
        ("time_utc,value\n2021-04-30T12:00Z,1\n2021-05-02T12:00Z,1\n", 3, "2 days apart"),
        ("time_utc,value\n2026-04-30T23:55Z,1\n2026-05-01T00:00Z,1\n", 3, "is not over before 2026-05-01T00:00"),
        ("issued_at,time_utc,value\n2026-05-01T00:05Z,2026-05-01T00:05Z,1\n", 2, "issued_at is later than now"),
        ("time_utc,value\n2021-04-30T12:05Z,1\n2021-04-30T12:05Z,1\n", 3, "does not come after the line before"),
        (
            "time_utc,value\n2021-04-30T12:00Z,1\n2021-04-30T12:10Z,1\n2021-04-30T12:25Z,1\n",
            4,
            "no multiple of 600 s",
        ),
        (
            "issued_at,time_utc,value\n2021-04-30T12:05Z,2021-04-30T12:05Z,1\n2021-04-30T12:00Z,2021-04-30T12:05Z,1\n",
            3,
            "issued_at goes back",
        ),
        ("issued_at,time_utc,value\nnow,2021-04-30T12:05Z,1\n", 2, "issued_at 'now' is no time"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(
    sqlite_database: Database, text: str, line: int | None, words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words) as error:
        run(sqlite_database, text)
    assert error.value.line == line


def test_gaps_and_bad_lines_at_a_batch_edge_are_seen(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "BATCH_ROWS", 2)
    head = "time_utc,value\n2021-04-30T12:00Z,1\n2021-04-30T12:10Z,2\n"
    with pytest.raises(InvalidRequest, match="does not come after") as error:
        run(sqlite_database, head + "2021-04-30T12:10Z,3\n")
    assert error.value.line == 4
    with pytest.raises(InvalidRequest, match="no multiple of 600 s") as error:
        run(sqlite_database, head + "2021-04-30T12:25Z,3\n")
    assert error.value.line == 4
    assert len(observed(sqlite_database)) == 2  # what stood before is stored


def test_a_percentile_is_refused_by_name(sqlite_database: Database) -> None:
    with pytest.raises(InvalidRequest, match="percentile") as error:
        run(sqlite_database, "time_utc,value\n", Label("Z", Signal.MOER, "x", "percentile"))
    assert error.value.param == "unit"


def recorded(name: str) -> Iterator[list[str]]:
    path = Path(__file__).parents[2] / "carbonq/data/grid/sgip_caiso_2021-06-07.csv.gz"
    with gzip.open(path, "rt") as file:
        yield from (row for row in csv.reader(file) if row[0] == name)


def test_real_recorded_days_pass_through(sqlite_database: Database) -> None:
    """Two days of recorded forecasts of one area, 36 steps each: stored, and read back as they were."""
    issues: list[tuple[datetime, list[str]]] = []
    lines = ["issued_at,time_utc,value"]
    for row in list(recorded("SGIP_CAISO_PGE"))[:576]:
        at = datetime.fromisoformat(row[1])
        issues.append((at, row[3:]))
        lines += [
            f"{row[1]},{at + (k + 1) * WINDOW:%Y-%m-%dT%H:%MZ},{Decimal(value) / 1000 if value else ''}"
            for k, value in enumerate(row[3:])
        ]
    done = run(sqlite_database, "\n".join(lines), Label("Z", Signal.MOER, "sgip", "kg CO2/kWh"))
    assert done.forecasts == 576 and done.lines == 576 * 36
    with sqlite_database.read() as tx:
        found = forecasts.issues(tx, "Z", Signal.MOER, issues[0][0], issues[-1][0] + WINDOW)
    for (at, values), one in zip(issues, found, strict=True):
        assert one.issued_at == at
        stored = [None if value is None else int(value) for value in one.values]
        assert [int(value) if value else None for value in values] == stored + [None] * (36 - len(stored))
