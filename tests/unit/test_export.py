"""The CSV: complete, exact, safe to open in a spreadsheet, and reversible."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carbonq import export
from tests.unit.bookings import batch, book, cells, csv_text, item, overhead

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)


def test_every_column_is_written_once() -> None:
    (line, *_) = cells(book())
    assert sorted(line) == sorted(export.COLUMNS)
    assert len(set(export.COLUMNS)) == len(export.COLUMNS)
    assert set(export.COLUMNS) >= export.TEXT_COLUMNS


def test_rfc_4180_with_a_header_and_crlf() -> None:
    text = csv_text(cells(book(batch([item(custom_id='a,"b"\nc')]))))
    assert text.startswith(",".join(export.COLUMNS) + "\r\n")
    assert text.endswith("\r\n")
    assert '"a,""b""\nc"' in text


@given(TEXT | st.sampled_from(["=1+1", "'=x", "''", "-", "\t", "\r\n@", "＝A1"]))
def test_text_comes_back_as_it_was_and_never_starts_a_formula(custom_id: str) -> None:
    text = csv_text(cells(book(batch([item(custom_id=custom_id)]))))
    (back,) = export.read_csv(io.StringIO(text, newline=""))
    assert back["custom_id"] == custom_id
    (row,) = list(csv.reader(io.StringIO(text, newline="")))[1:]
    cell = row[export.COLUMNS.index("custom_id")]
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))


def test_numbers_are_not_escaped_so_that_a_negative_saving_stays_a_number() -> None:
    (line, *_) = cells(book())
    line = line | {"saved_g": "-0.000000000000001", "custom_id": "-5"}
    text = csv_text([line])
    assert ",-0.000000000000001," in text
    assert ",'-5," in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (0, "0"),
        (False, "false"),
        (True, "true"),
        (Decimal("1E-15"), "0.000000000000001"),
        (Decimal("1.20"), "1.20"),
        (datetime(2026, 3, 2, 8, tzinfo=UTC), "2026-03-02T08:00:00.000000Z"),
        (["GPU-1", "GPU-2"], "GPU-1;GPU-2"),
        ("x", "x"),
        (30.0, "30.0"),
    ],
)
def test_values_are_written_exactly_and_unknown_is_empty(value: object, text: str) -> None:
    assert export.text_of(value) == text


def test_it_streams_a_page_at_a_time() -> None:
    page = "".join(export.line(line) for line in cells(book()))
    pulled: list[int] = []

    def pages():
        for number in range(3):
            pulled.append(number)
            yield page

    stream = export.write_csv(pages())
    assert next(stream).decode() == export.header()
    assert pulled == []
    assert next(stream).decode() == page
    assert pulled == [0]
    assert next(export.write_csv(pages(), has_header=False)).decode() == page


def test_a_template_gives_the_line_that_its_cells_give() -> None:
    for one in cells(book(batch([item(custom_id="100 %s")])), overhead()):
        line = {**one, "workload": "50 % off, =1+1", "tenant": "=cmd"}
        own = [export.quoted(line[name]) if name in export.TEXT_COLUMNS else line[name] for name in export.OWN_COLUMNS]
        assert export.line_template(line) % tuple(own) == export.line(line)
    assert [name for name in export.COLUMNS if name in export.OWN_COLUMNS] == list(export.OWN_COLUMNS)
    assert [name in export.TEXT_COLUMNS for name in export.OWN_COLUMNS] == [
        number < export.OWN_TEXTS for number in range(len(export.OWN_COLUMNS))
    ]


def test_overhead_leaves_what_is_nobodys_empty() -> None:
    (line,) = cells(overhead())
    assert {line[name] for name in ("tenant", "job_id", "custom_id", "class", "model", "baseline_g")} == {""}
