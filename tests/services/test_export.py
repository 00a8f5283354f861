"""Exports of the ledger: selected, as of a time, continued, packed, and read back by other people's tools."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from carbonq import export
from carbonq.errors import InvalidRequest, NotFound
from carbonq.model import EntryKind
from carbonq.services.export import Format, stream
from carbonq.store import exports, ledger
from carbonq.store.database import Database
from carbonq.store.exports import Selection
from carbonq.units import WINDOW
from tests.services.booked import configure, store
from tests.unit.bookings import FACTS, RECORDED, W0, batch, book, cells, item, overhead, part

LATER = RECORDED + timedelta(days=1)


def text(database: Database, selection: Selection = Selection(), **options: Any) -> str:  # noqa: B008 - frozen
    return b"".join(stream(database, selection, **options)).decode()


def ids(database: Database, selection: Selection) -> list[str]:
    return [row["entry_id"] for row in export.read_csv(io.StringIO(text(database, selection), newline=""))]


def settle(database: Database, row: dict[str, Any], *, at: datetime = LATER) -> None:
    again = row | {"revision": 2, "supersedes": f"{row['entry_id']}#1", "reason": "settled", "recorded_at": at}
    with database.write() as tx:
        ledger.append_revisions(tx, [], [again | {"moer_status": "settled"}])


def test_a_line_is_what_its_booking_says(database: Database) -> None:
    booked = [book(), overhead(), book(batch(parts=[part(0, gpu=7), part(1, cpu=None)]))]
    store(database, *booked)
    expected = sorted(cells(*booked), key=lambda line: (line["entry_id"].rsplit(".", 2)[0], int(line["part"])))
    assert list(export.read_csv(io.StringIO(text(database), newline=""))) == expected
    with database.read() as tx:
        for line in expected:
            assert exports.entry(tx, line["entry_id"]) == line


def test_each_filter_leaves_out_what_it_says(database: Database) -> None:
    configure(database)
    here, idle = book(batch(fact=FACTS["home"])), overhead()
    later = book(batch(parts=[part(3)]))
    store(database, here, idle, later)
    settle(database, here.entries[2])

    def of(*bookings: Any) -> list[str]:
        return sorted(row["entry_id"] for one in bookings for row in one.entries)

    assert sorted(ids(database, Selection(region="home"))) == of(here)
    assert sorted(ids(database, Selection(region="home", job_id="job_1"))) == of(here)
    assert sorted(ids(database, Selection(kind=EntryKind.IDLE.value))) == of(idle)
    assert ids(database, Selection(status="settled")) == [here.entries[2]["entry_id"]]
    assert sorted(ids(database, Selection(start_at=W0 + 3 * WINDOW))) == of(later)
    assert sorted(ids(database, Selection(end_at=W0 + 3 * WINDOW))) == of(here, idle)
    assert ids(database, Selection(tenant="nobody")) == []


def test_as_of_is_what_was_written_then_to_the_byte(database: Database) -> None:
    first = book()
    store(database, first)
    filed, listed = text(database), Selection(as_of=RECORDED + timedelta(hours=1))
    settle(database, first.entries[0])
    store(database, replace(book(), entries=[row | {"recorded_at": LATER} for row in book().entries]))
    assert text(database, listed) == filed
    assert text(database, replace(listed, all_revisions=True)) == filed
    assert text(database) != filed
    assert ids(database, Selection(as_of=RECORDED - timedelta(seconds=1))) == []
    gone = Selection(as_of=LATER + timedelta(seconds=1), all_revisions=True)
    assert len(ids(database, gone)) == len(ids(database, Selection(all_revisions=True)))


def test_a_time_that_may_still_change_is_refused(sqlite_database: Database) -> None:
    with pytest.raises(InvalidRequest, match=r"at least 120 s ago, so not after") as caught:
        stream(sqlite_database, Selection(as_of=datetime.now(UTC) - timedelta(seconds=60)))
    assert caught.value.param == "as_of"
    assert text(sqlite_database, Selection(as_of=datetime.now(UTC) - timedelta(seconds=180)))


def test_a_download_goes_on_after_any_line(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "PAGE_LINES", 6)
    booked = [book(batch(parts=[part(0), part(1)])), book(), overhead()]
    store(database, *booked)
    settle(database, booked[0].entries[3])
    for selection in (Selection(), Selection(all_revisions=True)):
        whole = text(database, selection)
        lines = whole.splitlines(keepends=True)
        assert len(lines) > 16
        for had in range(2, len(lines) + 1):
            row = dict(zip(export.COLUMNS, next(csv.reader([lines[had - 1]])), strict=True))
            last = row["entry_id"] + (f"#{row['revision']}" if selection.all_revisions else "")
            rest = text(database, replace(selection, after=last), has_header=False)
            assert "".join(lines[:had]) + rest == whole


@pytest.mark.parametrize("after", ["", "eb_1", "eb_1.1", "eb_1.x.1", "eb_1.1.1#", "eb_1.1.1#x", "eb_1.1.-1"])
def test_what_is_no_entry_cannot_be_gone_on_after(sqlite_database: Database, after: str) -> None:
    if after.endswith("#"):
        assert text(sqlite_database, Selection(after=after))  # the revision is left out
        return
    with pytest.raises(InvalidRequest, match="is no entry's id") as caught:
        stream(sqlite_database, Selection(after=after))
    assert caught.value.param == "after"


def test_a_selection_that_can_hold_nothing_is_refused(sqlite_database: Database) -> None:
    configure(sqlite_database)
    assert text(sqlite_database, Selection(region="home")) == export.header()
    with pytest.raises(NotFound, match="no region 'nowhere'"):
        stream(sqlite_database, Selection(region="nowhere"))
    for end in (W0, W0 - WINDOW):
        with pytest.raises(InvalidRequest, match="not after from") as caught:
            stream(sqlite_database, Selection(start_at=W0, end_at=end))
        assert caught.value.param == "to"


def test_gzip_holds_the_same_and_says_nothing_of_its_making(database: Database) -> None:
    store(database, book())
    packed = b"".join(stream(database, Selection(), Format.CSV_GZ))
    assert gzip.decompress(packed).decode() == text(database)
    assert packed == b"".join(stream(database, Selection(), Format.CSV_GZ))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a.csv", "csv"), ("-", "csv"), ("a.CSV.GZ", "csv.gz"), ("a.parquet", "parquet"), ("parquet", "csv")],
)
def test_the_name_says_the_format(name: str, expected: str) -> None:
    assert Format.of(name).value == expected


def test_parquet_has_the_same_values_with_types(database: Database) -> None:
    store(database, book(batch([item(0, custom_id="=1+1"), item(1, custom_id="'x"), item(2)])), overhead())
    table = parquet.read_table(io.BytesIO(b"".join(stream(database, Selection(), Format.PARQUET))))
    lines = list(export.read_csv(io.StringIO(text(database), newline="")))
    assert table.column_names == list(export.COLUMNS)
    for got, line in zip(table.to_pylist(), lines, strict=True):
        for name, value in got.items():
            assert export.text_of(value) == line[name], name
    assert [row["custom_id"] for row in table.to_pylist()][:3] == ["=1+1", "'x", "doc-2"]
    types = {name: str(table.schema.field(name).type) for name in ("energy_uj", "emission_g", "window", "pue")}
    assert types == {
        "energy_uj": "int64",
        "emission_g": "decimal128(38, 15)",
        "window": "timestamp[us, tz=UTC]",
        "pue": "string",
    }
    with pytest.raises(InvalidRequest, match="always has its schema"):
        stream(database, Selection(), Format.PARQUET, has_header=False)


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12) | st.sampled_from(
    [
        "=cmd|'/c calc'!A1",
        'a "b"',
        "l1\r\nl2",
        "\n",
        "\r",
        ",",
        "'",
        "''x",
        "😀",
        "a\0b",
        " x ",
        "NA",
        "007",
        "1e5",
        "\ufeff",
    ]
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(TEXT, min_size=1, max_size=5))
def test_any_text_reads_back_the_same_everywhere(texts: list[str], tmp_path: Path) -> None:
    path = tmp_path / "ledger.csv"
    made = cells(book(batch([item(number, custom_id=one) for number, one in enumerate(texts)])))
    path.write_bytes(b"".join(export.write_csv(["".join(export.line(one) for one in made)])))

    def unescaped(found: Iterator[str | None]) -> list[str]:
        return [export.unescape(one or "") for one in found]

    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        assert unescaped(row["custom_id"] for row in rows) == texts
    frame = pandas.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8")
    assert unescaped(iter(frame["custom_id"])) == texts
    columns = {name: "VARCHAR" for name in export.COLUMNS}
    options = "auto_detect=false, header=true, delim=',', quote='\"', escape='\"', new_line='\\r\\n'"
    query = f"SELECT custom_id FROM read_csv('{path}', {options}, columns={columns}, parallel=false)"
    assert unescaped(row[0] for row in duckdb.sql(query).fetchall()) == texts


def test_sums_in_another_tool_are_those_of_the_ledger(database: Database, tmp_path: Path) -> None:
    booked = book()
    store(database, booked)
    path = tmp_path / "ledger.parquet"
    path.write_bytes(b"".join(stream(database, Selection(), Format.PARQUET)))
    (found,) = duckdb.sql(f"SELECT sum(energy_uj), sum(emission_g) FROM '{path}'").fetchall()
    assert found == (1_000_003, sum((row["emission_g"] for row in booked.entries), Decimal(0)))
