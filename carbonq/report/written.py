"""A report written as JSON values and as CSV rows. Pure.

JSON: decimals as text without exponent, times as ISO 8601, unknown as null. CSV: one section as a table, its columns
named as in JSON with dots between levels; or all sections in one tidy table of single figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from carbonq.export import escape, text_of
from carbonq.report.document import Report

Json = dict[str, Any]

#: Columns of the tidy table: which row of which section by what it is of, one figure of it, and its value.
TIDY = ("section", "row", "figure", "value")


def as_json(report: Report) -> Json:
    """Return the report as JSON values."""
    return _json(report)


def sections() -> tuple[str, ...]:
    """Return the names of what can be written as a table."""
    return tuple(_TABLES)


def csv_rows(report: Report, section: str | None = None) -> Iterator[list[str]]:
    """Return header and rows of one section as a table; of all as a tidy table, one figure a row.

    In the tidy table ``row`` says what a row is of, by its texts, times and truths (``region=fr; status=settled``), and
    figures are its numbers; a section that is a single row has no ``row``, and its texts are figures too. What is
    unknown is empty. Raises KeyError for a section that is none of ``sections()``.
    """
    if section is not None:
        names = _columns(_TABLES[section])
        yield list(names)
        for row in _rows(report, section):
            cells = dict(_flat(row))
            yield [_cell(cells[name]) for name in names]
        return
    yield list(TIDY)
    for name, kind in _TABLES.items():
        keys = frozenset[str]() if name in _SINGLE else _keys(kind)
        for row in _rows(report, name):
            cells = list(_flat(row))
            of = "; ".join(f"{key}={_cell(value)}" for key, value in cells if key in keys and value is not None)
            for key, value in cells:
                if key not in keys:
                    yield [name, escape(of), key, _cell(value)]


def _json(value: object) -> Any:
    if is_dataclass(value):
        return {one.name: _json(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, tuple):
        return [_json(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
    return text_of(value) if isinstance(value, Decimal | datetime) else value


def _rows(report: Report, section: str) -> tuple[Any, ...]:
    found: Any = report
    for name in section.split("."):
        found = None if found is None else getattr(found, name)
    if found is None:
        return ()
    return found if isinstance(found, tuple) else (found,)


def _flat(row: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Return a row's values by column; rows within it have tables of their own."""
    for one in fields(row):  # pyright: ignore[reportArgumentType]
        value = getattr(row, one.name)
        if is_dataclass(value):
            yield from _flat(value, f"{prefix}{one.name}.")
        elif one.name not in _members(type(row)):
            yield f"{prefix}{one.name}", value


@cache
def _members(row_type: type) -> frozenset[str]:
    """Return which fields of a row hold rows of their own."""
    return frozenset(name for name, kind in get_type_hints(row_type).items() if _holds_rows(kind))


def _columns(row_type: type, prefix: str = "") -> tuple[str, ...]:
    names: list[str] = []
    for name, kind in get_type_hints(row_type).items():
        if is_dataclass(kind):
            names += _columns(kind, f"{prefix}{name}.")  # pyright: ignore[reportArgumentType]
        elif not _holds_rows(kind):
            names.append(f"{prefix}{name}")
    return tuple(names)


def _holds_rows(kind: object) -> bool:
    return any(is_dataclass(one) for one in get_args(kind))


@cache
def _keys(row_type: type) -> frozenset[str]:
    """Return the columns that say what a row is of: texts, times, truths and lists. Its type decides, so None too."""
    hints = get_type_hints(row_type)
    found = frozenset(
        name
        for name, kind in hints.items()
        if get_origin(kind) is tuple or {str, datetime, bool} & {kind, *get_args(kind)}
    )
    return found if found < hints.keys() else frozenset([next(iter(hints))])  # words alone: the first is their title


def _cell(value: object) -> str:
    if isinstance(value, tuple):
        return escape(";".join(map(_member, value)))  # pyright: ignore[reportUnknownArgumentType]
    return escape(value) if isinstance(value, str) else text_of(value)


def _member(value: object) -> str:
    return "=".join(map(text_of, value)) if isinstance(value, tuple) else text_of(value)


def _tables() -> Mapping[str, type]:
    """Find the tables: each section that is a row or rows, and the rows within sections."""
    found: dict[str, type] = {}

    def walk(kind: Any, path: str) -> None:
        found[path] = kind
        for name, member in get_type_hints(kind).items():
            for one in (member, *get_args(member)):
                if is_dataclass(one) and (_holds_rows(member) or not path):
                    walk(one, f"{path}.{name}" if path else name)

    walk(Report, "")
    del found[""]
    return found


_TABLES: Mapping[str, type] = _tables()

#: Sections that are one row.
_SINGLE = frozenset({"head", "totals", "saving", "sci", "statement", "recompute"})
