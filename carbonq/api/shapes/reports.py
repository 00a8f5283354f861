"""The shape of a month's report, made of the document's own classes, so that neither says what the other does not."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from datetime import datetime
from decimal import Decimal as Exact
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import create_model

from carbonq import report
from carbonq.api.shapes.words import Decimal, Page, Shape, Time, eg

#: What fields look like in the example, by name; others by their type.
_SHOWN: dict[str, Any] = {
    "as_of": "2026-12-04T09:00:00.000000Z",
    "book": "impact",
    "day": "2026-11-30",
    "end_at": "2026-12-01T00:00:00.000000Z",
    "generated_at": "2026-12-04T09:00:05.000000Z",
    "kind": "item",
    "method": "cq-2026-2",
    "month": "2026-11",
    "quality": "estimated",
    "region": "fr",
    "start_at": "2026-11-01T00:00:00.000000Z",
    "status": "settled",
    "tenant": "acme",
}

_PLAIN: dict[Any, Any] = {
    Exact: Decimal,
    datetime: Time,
    str: Annotated[str, eg("text")],
    int: Annotated[int, eg(3)],
    float: Annotated[float, eg(0.25)],
    bool: bool,
}


def _member(name: str, kind: Any) -> Any:
    """Return how a field of the document looks as JSON."""
    made = _json_type(kind)
    has_example = name in _SHOWN and not is_dataclass(kind) and get_origin(kind) is not tuple
    return Annotated[made, eg(_SHOWN[name])] if has_example else made


def _json_type(kind: Any) -> Any:
    if is_dataclass(kind):
        return _shape(kind)  # pyright: ignore[reportArgumentType]
    if get_origin(kind) is tuple:
        members = get_args(kind)
        if members[1:] == (...,):
            return list[_json_type(members[0])]
        return list[Union[tuple(_json_type(one) for one in members)]]  # noqa: UP007 - made while running
    if isinstance(kind, UnionType):
        (known,) = (one for one in get_args(kind) if one is not NoneType)
        return _json_type(known) | None
    return _PLAIN[kind]


def _shape(kind: type) -> type[Shape]:
    if kind not in _MADE:
        says = (kind.__doc__ or "").strip()
        hints = get_type_hints(kind)
        members = {one.name: (_member(one.name, hints[one.name]), ...) for one in fields(kind)}  # pyright: ignore[reportArgumentType]
        _MADE[kind] = create_model(f"Report{kind.__name__}", __base__=Shape, __doc__=says, **members)  # pyright: ignore[reportCallIssue, reportArgumentType]
    return _MADE[kind]


_MADE: dict[type, type[Shape]] = {}


MonthReport = create_model(
    "MonthReport",
    __base__=_shape(report.Report),
    __doc__="A month of the caller's ledger: sums by section, each book by itself. Units stand in the names.",
    object=(Literal["report"], ...),
)


class ReportMonth(Shape):
    """A month of which there can be a report."""

    id: Annotated[str, eg("2026-11")]
    object: Literal["report.month"]
    is_over: Annotated[bool, eg(True, says="whether it has ended, so that only settlement still changes it")]
    formats: Annotated[list[str], eg(["json", "csv", "html", "pdf"])]


class ReportMonthPage(Page):
    """Months since the caller's first entry, the running one first."""

    data: list[ReportMonth]
