"""The formats of a report: what each is called, its media type, and how it is written."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from enum import StrEnum

import orjson

from carbonq import report as documents
from carbonq.errors import InvalidRequest
from carbonq.report import Report

#: Rows of the CSV are written in pieces of about this many characters.
_PIECE = 64 * 1024


class Format(StrEnum):
    """How a report can be had."""

    JSON = "json"
    CSV = "csv"
    HTML = "html"
    PDF = "pdf"

    @property
    def media_type(self) -> str:
        """Its Content-Type."""
        return _MEDIA_TYPES[self]


_MEDIA_TYPES = {
    Format.JSON: "application/json",
    Format.CSV: "text/csv; charset=utf-8; header=present",
    Format.HTML: "text/html; charset=utf-8",
    Format.PDF: "application/pdf",
}


def check(fmt: Format, section: str | None) -> None:
    """Raise InvalidRequest for a section that there is none of, or that goes with a CSV and stands beside another."""
    if section is None:
        return
    if fmt is not Format.CSV:
        raise InvalidRequest(f"section goes with the format csv, and not with {fmt}", param="section")
    if section not in documents.sections():
        known = ", ".join(documents.sections())
        raise InvalidRequest(f"section is {section!r}; a report has {known}", param="section")


def write(report: Report, fmt: Format, section: str | None = None) -> Iterator[bytes]:
    """Yield a report's bytes; of a CSV one ``section`` as a table, else all figures in one.

    Raises InvalidRequest as ``check`` does, and ConfigError for a PDF where its packages are missing.
    """
    check(fmt, section)
    if fmt is Format.CSV:
        yield from _csv(report, section)
    elif fmt is Format.JSON:
        made = {"object": "report", **documents.as_json(report)}
        yield orjson.dumps(made, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    elif fmt is Format.HTML:
        from carbonq.render.html import html

        yield html(report).encode()
    else:
        from carbonq.render.pdf import pdf

        yield pdf(report)


def _csv(report: Report, section: str | None) -> Iterator[bytes]:
    """Write RFC 4180; texts that spreadsheets would take for formulas are made safe where the rows are made."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\r\n")
    for row in documents.csv_rows(report, section):
        writer.writerow(row)
        if buffer.tell() >= _PIECE:
            yield buffer.getvalue().encode()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue().encode()
