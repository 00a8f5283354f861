"""Read the ledger as an auditor sees it: whole engine batches, everything that is referred to expanded.

What many entries have in common (their engine batch, rates, facts and placement, and most of their own columns) comes
from the database as one text and is rendered once for all of them; a line then costs one look-up and one ``%``.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Integer, RowMapping, Select, Text, cast, func, select

from carbonq import export
from carbonq.export import Cells
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import as_text, is_any_of, json_list
from carbonq.store.ledger import is_current
from carbonq.store.tables import engine_batches, entries, facts, placements, rates

#: Lines read in one go: about 4 MB of text.
PAGE_LINES = 4_000

#: Engine batches looked at in one go; realtime ones hold one item each.
_PAGE_BATCHES = 1_000

#: What an entry refers to.
_KEYS = ("engine_batch_id", "moer_rate_id", "aer_rate_id", "baseline_fact_id", "baseline_rate_id", "placement_id")

#: Column of the CSV -> column of ``entries``, of those that many entries have in common.
_SHARED_CELLS = {name: column for name, column in export.ENTRY_COLUMNS.items() if name not in export.OWN_COLUMNS}

#: What a line's template depends on.
_SHARED = (*_KEYS, *_SHARED_CELLS.values())


@dataclass(frozen=True, slots=True)
class Selection:
    """Which entries to read; None means no restriction. ``tenant`` also hides what belongs to no tenant.

    ``start_at`` (included) and ``end_at`` (not included) bound the window, a grid time; ``status`` is that of the
    marginal rate. ``as_of`` is machine time: the ledger as it was then. ``after`` is the last line that a reader has,
    ``ENTRY_ID`` or ``ENTRY_ID#REVISION``.
    """

    tenant: str | None = None
    job_id: str | None = None
    all_revisions: bool = False
    region: str | None = None
    kind: str | None = None
    status: str | None = None
    start_at: datetime | None = None
    end_at: datetime | None = None
    as_of: datetime | None = None
    after: str | None = None


def check_place(after: str) -> None:
    """Raise ValueError for what is no entry's id, with or without a revision."""
    _Place.of(after)


def csv_pages(database: Database, selection: Selection) -> Iterator[str]:
    """Stream the selected lines as finished CSV text, in the order of engine batch, part, position, revision.

    Each page is a transaction of its own, so a slow reader holds nothing; the lines of an engine batch are always read
    together. Costs one walk through the engine batches, and memory for one page. Raises StoreUnavailable, and
    ValueError for an ``after`` that is no entry's id.
    """
    return _pages(database, selection, None if selection.after is None else _Place.of(selection.after))


def _pages(database: Database, selection: Selection, last: _Place | None) -> Iterator[str]:
    after = ""
    while True:
        with database.read() as tx:
            ids = _next_batches(tx, selection, after, last)
            page = "".join(_lines(tx, selection, ids, last)) if ids else ""
        if not ids:
            return
        after = ids[-1]
        if page:
            yield page


def pages(database: Database, selection: Selection) -> Iterator[list[Cells]]:
    """Stream the selected lines as ``csv_pages`` does, as values by column."""
    for page in csv_pages(database, selection):
        yield list(export.read_csv(io.StringIO(export.header() + page, newline="")))


def is_any(tx: Tx, selection: Selection) -> bool:
    """Say whether there is any entry of a job or tenant."""
    return tx.execute(select(entries.c.entry_id).where(*_terms(selection)).limit(1)).first() is not None


def entry(tx: Tx, entry_id: str, *, tenant: str | None = None, revision: int | None = None) -> Cells | None:
    """Return one entry as its CSV line has it, by default the current revision; None where there is none.

    With ``tenant``, an entry of another tenant is not found.
    """
    terms = [*_terms(Selection(tenant=tenant)), entries.c.entry_id == entry_id]
    if revision is not None:
        terms.append(entries.c.revision == revision)
    found = _cells(tx, terms, [entries.c.revision.desc()], limit=1)
    return found[0] if found else None


def page_of_entries(tx: Tx, *, selection: Selection, after: str | None, limit: int) -> list[Cells]:
    """Return up to ``limit`` current entries after an entry id, for paging through the HTTP API."""
    terms = [*_terms(selection), is_current(as_of=selection.as_of)]
    if after is not None:
        terms.append(entries.c.entry_id > after)
    return _cells(tx, terms, [entries.c.entry_id], limit=limit)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a line stands in the order of an export."""

    engine_batch_id: str
    part: int
    position: int
    revision: int

    @classmethod
    def of(cls, text: str) -> _Place:
        entry_id, _, revision = text.partition("#")
        parts = entry_id.rsplit(".", 2)
        numbers = [*parts[1:], revision or "0"]
        if len(parts) != 3 or not all(number.isascii() and number.isdigit() for number in numbers):
            raise ValueError(f"{text!r} is no entry's id (ENGINE_BATCH.PART.POSITION, with #REVISION if you like)")
        # Without a revision all of the entry's count as read.
        return cls(parts[0], int(parts[1]), int(parts[2]), int(revision) if revision else 2**31)

    def is_before(self, part: int, position: int, revision: int) -> bool:
        return (self.part, self.position, self.revision) < (part, position, revision)


def _terms(selection: Selection) -> list[ColumnElement[bool]]:
    """Return the conditions on ``entries`` but for that on revisions."""
    wanted = {
        entries.c.tenant: selection.tenant,
        entries.c.job_id: selection.job_id,
        entries.c.kind: selection.kind,
        entries.c.moer_status: selection.status,
    }
    terms: list[ColumnElement[bool]] = [column == value for column, value in wanted.items() if value is not None]
    if selection.start_at is not None:
        terms.append(entries.c.window_at >= selection.start_at)
    if selection.end_at is not None:
        terms.append(entries.c.window_at < selection.end_at)
    if selection.as_of is not None:
        terms.append(entries.c.recorded_at <= selection.as_of)
    if selection.region is not None:
        is_same = (engine_batches.c.engine_batch_id == entries.c.engine_batch_id) & (
            engine_batches.c.part == entries.c.part
        )
        terms.append(select(engine_batches.c.part).where(is_same, engine_batches.c.region == selection.region).exists())
    return terms


def _next_batches(tx: Tx, selection: Selection, after: str, last: _Place | None) -> list[str]:
    """Return the next engine batches with any selected line, up to about a page of lines."""
    if selection.job_id is not None:
        key, count = entries.c.engine_batch_id, func.count()
        terms = [entries.c.job_id == selection.job_id]
    else:
        # A tenant's lines are picked out of all engine batches: that walks one small table in order, where looking for
        # the tenant's next engine batch would sort its entries again for every page.
        key, count = engine_batches.c.engine_batch_id, func.sum(engine_batches.c["items"])
        terms = _batch_terms(selection)
    terms.append(key > after)
    if last is not None:
        terms.append(key >= last.engine_batch_id)
    found = tx.execute(select(key, count).where(*terms).group_by(key).order_by(key).limit(_PAGE_BATCHES)).all()
    ids: list[str] = []
    lines = 0
    for engine_batch_id, items in found:
        if ids and lines + items > PAGE_LINES:
            break
        ids.append(engine_batch_id)
        lines += items
    return ids


def _batch_terms(selection: Selection) -> list[ColumnElement[bool]]:
    terms: list[ColumnElement[bool]] = []
    if selection.region is not None:
        terms.append(engine_batches.c.region == selection.region)
    if selection.start_at is not None:
        terms.append(engine_batches.c.window_at >= selection.start_at)
    if selection.end_at is not None:
        terms.append(engine_batches.c.window_at < selection.end_at)
    return terms


def _lines(tx: Tx, selection: Selection, ids: Sequence[str], last: _Place | None) -> Iterator[str]:
    terms = [*_terms(selection), is_any_of(tx, entries.c.engine_batch_id, ids)]
    if not selection.all_revisions:
        terms.append(is_current(as_of=selection.as_of))
    is_cut = last is not None and last.engine_batch_id in ids
    order = [entries.c.engine_batch_id, entries.c.part, _position(), entries.c.revision]
    rows = _fetch(tx, select(*_columns(tx)).where(*terms).order_by(*order))
    if is_cut and last is not None:
        rows = [row for row in rows if _is_after(last, row)]
    return _render(tx, rows)


def _is_after(last: _Place, row: tuple[Any, ...]) -> bool:
    shared = _read(row[-1])
    return shared["engine_batch_id"] != last.engine_batch_id or last.is_before(
        int(shared["part"]), row[0], int(shared["revision"])
    )


def _fetch(tx: Tx, statement: Select[Any]) -> list[tuple[Any, ...]]:
    """Return rows as the driver has them: all columns are texts and whole numbers, which need no conversion."""
    cursor: Any = tx.execute(statement).cursor
    return cursor.fetchall()


def _cells(
    tx: Tx, terms: Sequence[ColumnElement[bool]], order: Sequence[ColumnElement[Any]], limit: int
) -> list[Cells]:
    rows = _fetch(tx, select(*_columns(tx)).where(*terms).order_by(*order).limit(limit))
    text = export.header() + "".join(_render(tx, rows))
    return list(export.read_csv(io.StringIO(text, newline="")))


def _position() -> ColumnElement[int]:
    """Return the last part of an entry's id as a number."""
    width = func.length(entries.c.engine_batch_id) + func.length(cast(entries.c.part, Text)) + 3
    return cast(func.substr(entries.c.entry_id, width), Integer)


def _columns(tx: Tx) -> list[ColumnElement[Any]]:
    """Return the place in the order, the entry's own columns, and as one text what the template depends on."""
    own = (export.ENTRY_COLUMNS[name] for name in export.OWN_COLUMNS)
    return [
        _position(),
        *(as_text(tx, entries.c[name]) for name in own),
        json_list(tx, [as_text(tx, entries.c[name]) for name in _SHARED]),
    ]


def _read(shared: str) -> dict[str, Any]:
    return dict(zip(_SHARED, orjson.loads(shared), strict=True))


def _render(tx: Tx, rows: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    quoted, texts = export.quoted, export.OWN_TEXTS + 1
    templates = _templates(tx, {row[-1] for row in rows})
    for row in rows:
        cells = ["" if text is None else quoted(text) for text in row[1:texts]]
        yield templates[row[-1]] % (*cells, *["" if value is None else value for value in row[texts:-1]])


def _templates(tx: Tx, shared: Iterable[str]) -> dict[str, str]:
    """Read what lines refer to and render it once for each combination of what they share."""
    named = {text: _read(text) for text in shared}

    def ids(*names: str) -> set[str | None]:
        return {one[name] for one in named.values() for name in names}

    batches = {
        (row["engine_batch_id"], row["part"]): row
        for row in _by_id(tx, engine_batches, "engine_batch_id", ids("engine_batch_id"))
    }
    fact_ids = {row["fact_id"] for row in batches.values()} | ids("baseline_fact_id")
    fact_rows = {row["fact_id"]: row for row in _by_id(tx, facts, "fact_id", fact_ids)}
    rate_ids = ids("moer_rate_id", "aer_rate_id", "baseline_rate_id")
    rate_rows = {row["rate_id"]: row for row in _by_id(tx, rates, "rate_id", rate_ids)}
    plans = {row["placement_id"]: row for row in _by_id(tx, placements, "placement_id", ids("placement_id"))}
    made: dict[str, str] = {}
    rendered = {
        key: export.batch_cells(row) | export.fact_cells(fact_rows[row["fact_id"]]) for key, row in batches.items()
    }
    for text, one in named.items():
        made[text] = export.line_template(
            {
                **rendered[one["engine_batch_id"], int(one["part"])],
                **{name: export.text_of(one[column]) for name, column in _SHARED_CELLS.items()},
                **export.rate_cells("moer", rate_rows.get(one["moer_rate_id"])),
                **export.rate_cells("aer", rate_rows.get(one["aer_rate_id"])),
                **export.placement_cells(plans.get(one["placement_id"])),
                **export.baseline_cells(fact_rows.get(one["baseline_fact_id"]), rate_rows.get(one["baseline_rate_id"])),
            }
        )
    return made


def _by_id(tx: Tx, table: Any, column: str, ids: Iterable[str | None]) -> list[RowMapping]:
    wanted = sorted(key for key in ids if key is not None)
    if not wanted:
        return []
    return list(tx.execute(select(table).where(is_any_of(tx, table.c[column], wanted))).mappings())
