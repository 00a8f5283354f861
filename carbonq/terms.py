"""What clients ask of carbonq beside the work itself: the object ``carbon``, from whichever carrier it came. Pure.

One reader for every interface: values are checked here and nowhere else, and an unknown key is refused by name. Grams
are gCO2e, times aware UTC grid times, ``slo_ms`` milliseconds.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any

from carbonq.errors import InvalidRequest
from carbonq.model import LatePolicy, WorkClass
from carbonq.units import iso, parse_iso, plain

#: Longest name of a product line, workload or session, in characters.
MAX_NAME_CHARS = 255

#: Longest deadline, in seconds: beyond a month no grid forecast says anything.
MAX_SPAN_S = 31 * 86_400

#: Longest latency budget that a call may state, in milliseconds.
MAX_SLO_MS = 600_000

#: Smallest and largest carbon cap, in grams: the last decimal of the ledger, and a billion tonnes.
_MIN_GRAMS = Decimal("1e-15")
_MAX_GRAMS = Decimal("1e15")

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)", re.IGNORECASE)
_SPAN_S = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


class OnBudget(StrEnum):
    """What happens to work whose carbon cap is below the best that can be foreseen."""

    REJECT = "reject"
    RUN_ANYWAY = "run_anyway"
    WAIT = "wait"  # for cleaner windows, as long as the deadline lets it


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a piece of work; None where nobody said anything."""

    deadline: datetime | None = None
    regions: tuple[str, ...] | None = None
    max_gco2e: Decimal | None = None
    product_line: str | None = None
    workload: str | None = None
    late_policy: LatePolicy | None = None
    on_budget: OnBudget | None = None
    work_class: WorkClass | None = None
    session: str | None = None
    slo_ms: float | None = None
    defer: bool | None = None
    downgrade: bool | None = None

    def over(self, other: Terms) -> Terms:
        """Return these terms, with those of ``other`` where nothing is said here."""
        missing = {one.name: getattr(other, one.name) for one in fields(self) if getattr(self, one.name) is None}
        return replace(self, **missing)


#: What ``Terms`` calls ``class``, which Python keeps for itself.
_ATTRIBUTES = {"class": "work_class"}

#: All keys of the object ``carbon``, as clients write them.
KEYS = frozenset({"class" if one.name == "work_class" else one.name for one in fields(Terms)})

#: Keys of work with a deadline: batches and jobs, and single lines of them.
BATCH_KEYS = KEYS - {"class", "session", "slo_ms"}

#: Keys of a call that is answered at once.
REALTIME_KEYS = frozenset({"class", "product_line", "regions", "session", "slo_ms", "workload"})


@dataclass(frozen=True, slots=True)
class Carrier:
    """Values from one place; ``label`` makes the name of a key for errors, ``line`` is the 1-based input line.

    ``is_shared``: it goes with calls of every kind (headers of a client, defaults of a key), so that keys which do not
    concern this one are passed over instead of refused.
    """

    values: Mapping[str, Any]
    label: Callable[[str], str] = "carbon.{}".format
    line: int | None = None
    is_shared: bool = False


def read(carriers: Iterable[Carrier], *, now: datetime, takes: Collection[str] = KEYS) -> Terms:
    """Return the terms that carriers agree on: of each key the first one that says something.

    Spans count from ``now``. Raises InvalidRequest naming the key as its carrier does, also for one that ``takes``
    leaves out.
    """
    found: dict[str, Any] = {}
    for carrier in carriers:
        for key, value in carrier.values.items():
            if key not in KEYS or (key not in takes and not carrier.is_shared):
                raise _wrong(carrier, key, _not_taken(key, takes), code="unknown_parameter")
            attribute = _ATTRIBUTES.get(key, key)
            if value is not None and key in takes and attribute not in found:
                found[attribute] = _read(carrier, key, value, now)
    return Terms(**found)


def dump(terms: Terms) -> dict[str, Any]:
    """Write terms as JSON values, without what nobody said."""
    written: dict[str, Any] = {}
    for one in fields(terms):
        value = getattr(terms, one.name)
        if value is not None:
            key = "class" if one.name == "work_class" else one.name
            written[key] = _dumped(value)
    return written


def load(values: Mapping[str, Any]) -> Terms:
    """Read what ``dump`` wrote. Raises InvalidRequest for anything else."""
    # Their times are absolute, so that no span is counted from here, and may have passed.
    return read([Carrier(values)], now=datetime.max.replace(tzinfo=parse_iso("2000-01-01T00:00:00Z").tzinfo))


def _dumped(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, Decimal):
        return plain(value)
    return list(value) if isinstance(value, tuple) else value


def _not_taken(key: str, takes: Collection[str]) -> str:
    if key in KEYS:
        kind = "work with a deadline is a batch or a job" if key in BATCH_KEYS else "it belongs to a call answered now"
        return f"is not taken here, where {', '.join(sorted(takes))} are: {kind}"
    near = difflib.get_close_matches(key, sorted(takes), n=1)
    return f"is not known; did you mean {near[0]!r}?" if near else f"is not known; known: {', '.join(sorted(takes))}"


def _wrong(carrier: Carrier, key: str, what: str, *, code: str | None = None) -> InvalidRequest:
    label = carrier.label(key)
    where = "" if carrier.line is None else f"line {carrier.line}: "
    return InvalidRequest(f"{where}{label} {what}", param=label, line=carrier.line, code=code)


def _read(carrier: Carrier, key: str, value: Any, now: datetime) -> Any:
    label = carrier.label(key)
    try:
        return _READERS[key](value, label, now)
    except InvalidRequest as error:
        if carrier.line is None:
            raise
        message = f"line {carrier.line}: {error.message}"
        raise InvalidRequest(message, param=error.param, line=carrier.line, code=error.code) from None


def parse_span_s(value: object) -> float | None:
    """Return the seconds of a span such as ``6h``, ``90m`` or ``2d``; None for anything else."""
    match = _SPAN.fullmatch(value.strip()) if isinstance(value, str) else None
    return None if match is None else float(match[1]) * _SPAN_S[match[2].lower()]


def parse_deadline(value: Any, now: datetime, *, param: str = "deadline") -> datetime:
    """Read a span (``6h``, ``90m``, ``2d``) from grid time ``now``, or an ISO 8601 time. Raises InvalidRequest."""
    seconds = parse_span_s(value)
    if seconds is not None:
        if not 0 < seconds <= MAX_SPAN_S:
            raise InvalidRequest(f"{param} {value!r} must be more than 0 and at most 31 days", param=param)
        return now + timedelta(seconds=seconds)
    if isinstance(value, str):
        try:
            at = parse_iso(value.strip())
        except (ValueError, OverflowError) as error:
            if "time zone" in str(error):
                raise InvalidRequest(f"{param}: {error}", param=param) from None
        else:
            if (at - now).total_seconds() > MAX_SPAN_S:
                raise InvalidRequest(
                    f"{param} {value!r} is more than 31 days away; give one within a month", param=param
                )
            return at
    raise InvalidRequest(
        f"{param} {_shown(value)} is neither a span such as 6h, 90m or 2d nor a time such as 2026-11-30T06:00:00Z",
        param=param,
    )


def names(value: Any, *, param: str) -> tuple[str, ...] | None:
    """Read a list of names, or one text with commas; None means no restriction.

    Raises InvalidRequest, also for an empty list: whoever restricts to nothing must not get everything.
    """
    if value is None:
        return None
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise InvalidRequest(f"{param} must be a list of names", param=param)
    found = tuple(dict.fromkeys(name.strip() for name in value if name.strip()))
    if not found:
        raise InvalidRequest(f"{param} names nothing; give at least one, or leave it out for all", param=param)
    return found


def label(value: Any, *, param: str) -> str | None:
    """Return a product line, workload or session. Raises InvalidRequest."""
    if value is not None and not (isinstance(value, str) and 0 < len(value) <= MAX_NAME_CHARS and value.isprintable()):
        raise InvalidRequest(f"{param} must be printable text of 1 to {MAX_NAME_CHARS} characters", param=param)
    return value


def grams(value: Any, *, param: str) -> Decimal | None:
    """Return a carbon cap in grams, exactly as written. Raises InvalidRequest."""
    if value is None:
        return None
    try:
        # By way of text: 0.1 as a float is not the 0.1 that was written.
        found = Decimal(str(value))
    except InvalidOperation:
        found = Decimal("NaN")
    if isinstance(value, bool) or not found.is_finite() or found <= 0:
        raise InvalidRequest(f"{param} {_shown(value)} is not a number of grams above 0", param=param)
    if not _MIN_GRAMS <= found <= _MAX_GRAMS:
        raise InvalidRequest(
            f"{param} {_shown(value)} is beyond what can be counted; give {_MIN_GRAMS} to {_MAX_GRAMS} grams",
            param=param,
        )
    return found


def one_of(value: Any, kinds: type[StrEnum], *, param: str) -> Any:
    """Return a member of an enumeration; None for None. Raises InvalidRequest naming the members."""
    if value is None:
        return None
    if value not in list(kinds):
        raise InvalidRequest(f"{param} {_shown(value)} is not one of {', '.join(kinds)}", param=param)
    return kinds(value)


def _slo_ms(value: Any, param: str) -> float:
    with contextlib.suppress(TypeError, ValueError):
        found = float(value)
        if not isinstance(value, bool) and 0 < found <= MAX_SLO_MS:
            return found
    raise InvalidRequest(
        f"{param} {_shown(value)} is no number of milliseconds above 0 and at most {MAX_SLO_MS:,}", param=param
    )


def _defer(value: Any, param: str) -> bool:
    if value is True or value == "true":
        return True
    raise InvalidRequest(
        f"{param} {_shown(value)} is not taken: a batch always runs when the grid is cleanest; to have it sooner give "
        "a nearer deadline, to have an answer now call the endpoint itself",
        param=param,
    )


def flag(value: Any, *, param: str) -> bool | None:
    """Read yes or no, as JSON or as text; None for None. Raises InvalidRequest."""
    if value is None or isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return value == "true"
    raise InvalidRequest(f"{param} {_shown(value)} is neither true nor false", param=param)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:76]}...{text[-1]}"


_READERS: Mapping[str, Callable[[Any, str, datetime], Any]] = {
    "class": lambda value, param, _: one_of(value, WorkClass, param=param),
    "deadline": lambda value, param, now: parse_deadline(value, now, param=param),
    "defer": lambda value, param, _: _defer(value, param),
    "downgrade": lambda value, param, _: flag(value, param=param),
    "late_policy": lambda value, param, _: one_of(value, LatePolicy, param=param),
    "max_gco2e": lambda value, param, _: grams(value, param=param),
    "on_budget": lambda value, param, _: one_of(value, OnBudget, param=param),
    "product_line": lambda value, param, _: label(value, param=param),
    "regions": lambda value, param, _: names(value, param=param),
    "session": lambda value, param, _: label(value, param=param),
    "slo_ms": lambda value, param, _: _slo_ms(value, param),
    "workload": lambda value, param, _: label(value, param=param),
}


def flattened(values: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Turn ``carbon[deadline]`` and ``carbon[regions][]`` of a form into the object they stand for.

    Raises InvalidRequest for a key that is given twice.
    """
    found: dict[str, Any] = {}
    for name, value in values:
        key, _, rest = name.removeprefix("carbon[").partition("]")
        if rest == "[]":
            listed = found.setdefault(key, [])
            if isinstance(listed, list):
                listed.append(value)
                continue
        if key in found or rest:
            raise InvalidRequest(f"{name} is given twice or is no key of carbon", param=name)
        found[key] = value
    return found
