"""The report's document: what it is written as."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from decimal import Decimal

import orjson
import pytest

from carbonq import report
from tests.unit.reports import example


def test_json_has_exact_text_for_decimals_and_null_for_the_unknown() -> None:
    found = orjson.loads(orjson.dumps(report.as_json(example())))
    assert found["head"]["start_at"] == "2026-11-01T00:00:00.000000Z"
    assert found["totals"]["impact"]["known_g"] == "1.25"
    assert found["totals"]["transfer_g"] is None
    assert found["inventory"][1]["aer_g_per_kwh"] is None
    assert found["regions"][0]["zones"] == ["FR"]
    assert found["saving"]["rows"][0]["saved_g"] == "0.6"


def test_every_section_is_a_table_with_a_row_for_each_of_its_rows() -> None:
    made = example()
    for section in report.sections():
        header, *rows = report.csv_rows(made, section)
        assert len(set(header)) == len(header) > 0
        assert rows, section
        assert {len(row) for row in rows} == {len(header)}
    header, *hours = report.csv_rows(made, "inventory")
    assert len(hours) == 4
    missing = dict(zip(header, hours[1], strict=True))
    assert (missing["aer_g_per_kwh"], missing["inventory_g"], missing["unknown_entries"]) == ("", "", "7")


INVENTORY_G = ("inventory", "inventory_g")


def test_the_tidy_table_says_every_figure_once_with_what_it_is_of() -> None:
    made = example()
    text = io.StringIO()
    csv.writer(text).writerows(report.csv_rows(made))
    rows = list(csv.DictReader(io.StringIO(text.getvalue(), newline="")))
    found = {(row["section"], row["row"], row["figure"]): row["value"] for row in rows}
    assert len(found) == len(rows)
    assert found["totals", "", "impact.provisional_g"] == "0.5"
    assert found["saving.rows", "status=settled; quality=measured; method=cq-2026-2", "saved_g"] == "0.6"
    assert found["totals", "", "transfer_g"] == ""
    # What the table is of stands in it, as do its limits.
    assert found["head", "", "month"] == made.head.month
    assert found["head", "", "clock"] == "real"
    assert found["recompute", "", "command"] == made.recompute.command
    assert found["saving", "", "words"] == made.saving.words
    assert ("method", f"title={made.method[0].title}", "paragraphs") in found
    hours = [Decimal(row["value"]) for row in rows if (row["section"], row["figure"]) == INVENTORY_G and row["value"]]
    assert sum(hours) == Decimal("0.6")


def test_a_report_without_a_statement_has_no_rows_of_one() -> None:
    made = replace(example(), statement=None)
    assert report.as_json(made)["statement"] is None
    for section in ("statement", "statement.rows"):
        (header,) = report.csv_rows(made, section)
        assert header
    assert not [row for row in report.csv_rows(made) if row[0].startswith("statement")]


def test_a_section_that_is_none_is_refused() -> None:
    with pytest.raises(KeyError):
        list(report.csv_rows(example(), "weather"))
