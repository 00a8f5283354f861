"""Read the ledger as an auditor sees it: whole engine batches, everything that is referred to expanded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, RowMapping, Table, func, select, type_coerce
from sqlalchemy.types import NullType

from carbonq import export
from carbonq.export import Cells
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import ExactDecimal, UtcDateTime
from carbonq.store.ledger import is_current
from carbonq.store.tables import engine_batches, entries, facts, placements, rates

#: Lines read in one go: about 10 MB of cells.
PAGE_LINES = 4_000

#: Engine batches looked at in one go; realtime ones hold one item each.
_PAGE_BATCHES = 1_000


#: Times and decimals as the driver gives them: the export writes them as text again at once.
_ENTRY_COLUMNS = tuple(
    type_coerce(column, NullType()).label(column.name)
    if isinstance(column.type, UtcDateTime | ExactDecimal)
    else column
    for column in entries.c
)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which entries to read; None means no restriction. ``tenant`` also hides what belongs to no tenant."""

    tenant: str | None = None
    job_id: str | None = None
    all_revisions: bool = False


def pages(database: Database, selection: Selection) -> Iterator[list[Cells]]:
    """Stream the selected lines in the order of engine batch, part, position, revision.

    Each page is a transaction of its own, so a slow reader holds nothing; the lines of an engine batch are always read
    together. Raises StoreUnavailable.
    """
    after = ""
    while True:
        with database.read() as tx:
            ids = _next_batches(tx, selection, after)
            lines = _lines(tx, selection, ids) if ids else []
        if not ids:
            return
        after = ids[-1]
        if lines:
            yield lines


def entry(tx: Tx, entry_id: str, *, tenant: str | None = None, revision: int | None = None) -> Cells | None:
    """Return one entry as its CSV line has it, by default the current revision; None where there is none.

    With ``tenant``, an entry of another tenant is not found.
    """
    terms = [entries.c.entry_id == entry_id]
    if tenant is not None:
        terms.append(entries.c.tenant == tenant)
    if revision is not None:
        terms.append(entries.c.revision == revision)
    rows = (
        tx.execute(select(*_ENTRY_COLUMNS).where(*terms).order_by(entries.c.revision.desc()).limit(1)).mappings().all()
    )
    return next(iter(_expand(tx, rows)), None)


def page_of_entries(tx: Tx, *, tenant: str | None, job_id: str | None, after: str | None, limit: int) -> list[Cells]:
    """Return up to ``limit`` current entries after an entry id, for paging through the HTTP API."""
    terms = [*_terms(Selection(tenant=tenant, job_id=job_id)), is_current()]
    if after is not None:
        terms.append(entries.c.entry_id > after)
    rows = tx.execute(select(*_ENTRY_COLUMNS).where(*terms).order_by(entries.c.entry_id).limit(limit)).mappings().all()
    return list(_expand(tx, rows))


def _terms(selection: Selection) -> list[ColumnElement[bool]]:
    terms: list[ColumnElement[bool]] = []
    if selection.tenant is not None:
        terms.append(entries.c.tenant == selection.tenant)
    if selection.job_id is not None:
        terms.append(entries.c.job_id == selection.job_id)
    return terms


def _next_batches(tx: Tx, selection: Selection, after: str) -> list[str]:
    """Return the next engine batches with any selected line, up to about a page of lines."""
    if selection.job_id is not None:
        table: Table = entries
        count: ColumnElement[Any] = func.count()
        terms = _terms(selection)
    else:
        # A tenant's lines are picked out of all engine batches: that walks one small table in order, where looking for
        # the tenant's next engine batch would sort its entries again for every page.
        table, count, terms = engine_batches, func.sum(engine_batches.c["items"]), []
    key = table.c.engine_batch_id
    found = tx.execute(
        select(key, count).where(key > after, *terms).group_by(key).order_by(key).limit(_PAGE_BATCHES)
    ).all()
    ids: list[str] = []
    lines = 0
    for engine_batch_id, items in found:
        if ids and lines + items > PAGE_LINES:
            break
        ids.append(engine_batch_id)
        lines += items
    return ids


def _lines(tx: Tx, selection: Selection, ids: Sequence[str]) -> list[Cells]:
    rows = (
        tx.execute(select(*_ENTRY_COLUMNS).where(entries.c.engine_batch_id.in_(ids), *_terms(selection)))
        .mappings()
        .all()
    )
    chosen = list(rows) if selection.all_revisions else _current(rows)
    chosen.sort(key=_order)
    return list(_expand(tx, chosen))


def _current(rows: Iterable[RowMapping]) -> list[RowMapping]:
    newest: dict[str, RowMapping] = {}
    for row in rows:
        known = newest.get(row["entry_id"])
        if known is None or row["revision"] > known["revision"]:
            newest[row["entry_id"]] = row
    return list(newest.values())


def _order(row: RowMapping) -> tuple[str, int, int, int]:
    position = int(row["entry_id"].rpartition(".")[2])
    return row["engine_batch_id"], row["part"], position, row["revision"]


def _expand(tx: Tx, rows: Sequence[RowMapping]) -> Iterator[Cells]:
    """Join what the rows refer to; each referred row is read and rendered once a page."""
    batch_rows = {
        (row["engine_batch_id"], row["part"]): row
        for row in _by_id(tx, engine_batches, "engine_batch_id", {row["engine_batch_id"] for row in rows})
    }
    fact_ids = {row["fact_id"] for row in batch_rows.values()} | {row["baseline_fact_id"] for row in rows}
    rate_ids = {row[name] for row in rows for name in ("moer_rate_id", "aer_rate_id", "baseline_rate_id")}
    fact_rows = {row["fact_id"]: row for row in _by_id(tx, facts, "fact_id", fact_ids)}
    rate_rows = {row["rate_id"]: row for row in _by_id(tx, rates, "rate_id", rate_ids)}
    placement_rows = {
        row["placement_id"]: row
        for row in _by_id(tx, placements, "placement_id", {row["placement_id"] for row in rows})
    }
    batches = {
        key: export.batch_cells(row) | export.fact_cells(fact_rows[row["fact_id"]]) for key, row in batch_rows.items()
    }
    moer = {rate_id: export.rate_cells("moer", row) for rate_id, row in rate_rows.items()}
    aer = {rate_id: export.rate_cells("aer", row) for rate_id, row in rate_rows.items()}
    plans = {key: export.placement_cells(row) for key, row in placement_rows.items()}
    no_moer, no_aer = export.rate_cells("moer", None), export.rate_cells("aer", None)
    no_plan = export.placement_cells(None)
    baselines: dict[tuple[Any, Any], Cells] = {}
    for row in rows:
        key = (row["baseline_fact_id"], row["baseline_rate_id"])
        if key not in baselines:
            baselines[key] = export.baseline_cells(fact_rows.get(key[0]), rate_rows.get(key[1]))
        yield {
            **batches[row["engine_batch_id"], row["part"]],
            **moer.get(row["moer_rate_id"], no_moer),
            **aer.get(row["aer_rate_id"], no_aer),
            **plans.get(row["placement_id"], no_plan),
            **baselines[key],
            **export.entry_cells(row),
        }


def _by_id(tx: Tx, table: Table, column: str, ids: Iterable[str | None]) -> list[RowMapping]:
    wanted = sorted(key for key in ids if key is not None)
    rows: list[RowMapping] = []
    for start in range(0, len(wanted), 1_000):
        chunk = wanted[start : start + 1_000]
        rows += tx.execute(select(table).where(table.c[column].in_(chunk))).mappings().all()
    return rows
