"""The ledger's rows as seals hash them: the content of each, and whether rates and facts still have their digest."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from sqlalchemy import ColumnElement, Table, select

from carbonq import merkle
from carbonq.booking import Fact
from carbonq.model import Rate
from carbonq.ratebook import digest, digested
from carbonq.store.database import Tx
from carbonq.store.dialect import is_any_of, stored_text
from carbonq.store.tables import engine_batches, entries, facts, placements, rates, restatements
from carbonq.units import parse_iso

#: (engine batch, part)
PartKey = tuple[str, int]

#: (revision, position in the engine batch)
Line = tuple[int, int]

#: What ids begin with that are digests of their row.
Prefix = Literal["rate", "fact", "rst"]

#: Columns by table, in the order in which they are hashed. New columns may be NULL only: what is NULL is not hashed.
_BATCH_NAMES = tuple(sorted(str(name) for name in engine_batches.columns.keys()))  # noqa: SIM118 (columns, not a dictionary)
_ENTRY_NAMES = tuple(sorted(str(name) for name in entries.columns.keys()))  # noqa: SIM118 (columns, not a dictionary)

#: What the export shows of the placement that an entry ran under.
_PLACEMENT_NAMES = ("g_per_kwh", "issued_at", "plan_id", "reason", "region", "signal", "window_at")

#: Ids looked up in one query.
_AT_ONCE = 1_000


class Span(NamedTuple):
    """Engine batch ids after one and up to another; the last one None: without end."""

    after: str
    last: str | None


@dataclass(slots=True)
class StoredEntry:
    """One entry revision as it is stored; ``line`` is None where its id does not name its engine batch and part."""

    line: Line | None
    key: str  # "<entry_id>#<revision>"
    hashed: bytes
    content: str | None
    rate_ids: tuple[str, ...]
    fact_id: str | None
    placement_id: str | None
    restatement_id: str | None  # None too where it is one of older versions, whose ids are no digests


@dataclass(slots=True)
class StoredPart:
    """One part of an engine batch as it is stored: its own row, and its entries' that were asked for."""

    hashed: bytes | None = None
    content: str | None = None
    fact_id: str | None = None
    entries: list[StoredEntry] = field(default_factory=list[StoredEntry])


def stored(
    tx: Tx,
    where: Span | Sequence[str],
    *,
    revisions: Sequence[int] | None = None,
    only: Sequence[ColumnElement[bool]] = (),
    has_content: bool = False,
) -> dict[PartKey, StoredPart]:
    """Read parts of engine batches and their entries with the hashes of their rows, by default all revisions.

    ``where`` is a range of engine batch ids, or some; ``only`` are further conditions on entries; ``has_content`` also
    keeps what was hashed.
    """
    found: dict[PartKey, StoredPart] = {}
    names = [stored_text(tx, engine_batches.c[name]) for name in _BATCH_NAMES]
    for row in tx.execute(select(*names).where(within(tx, engine_batches, where))):
        values = _known(_BATCH_NAMES, row)
        _parse_list(values, "device_ids")
        if isinstance(values.get("uncertainty_pct"), float):
            values["uncertainty_pct"] = repr(values["uncertainty_pct"])
        content = merkle.content("engine_batches", values)
        part = StoredPart(merkle.leaf(content), content if has_content else None, values.get("fact_id"))
        found[values["engine_batch_id"], values["part"]] = part
    names = [stored_text(tx, entries.c[name]) for name in _ENTRY_NAMES]
    terms = [within(tx, entries, where), *only]
    if revisions is not None:
        terms.append(entries.c.revision.in_(revisions))
    rows = tx.execute(select(*names).where(*terms)).all()
    plans = _placements(tx, {row[_PLACEMENT] for row in rows})
    for row in rows:
        values = {name: value for name, value in zip(_ENTRY_NAMES, row, strict=True) if value is not None}
        if row[_PLACEMENT] is not None:
            values["placement"] = plans.get(row[_PLACEMENT], "not stored")
        key = (values["engine_batch_id"], values["part"])
        if key not in found:
            found[key] = StoredPart()
        found[key].entries.append(_entry(key, values, has_content=has_content))
    return found


_PLACEMENT = _ENTRY_NAMES.index("placement_id")


def _known(names: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    return {name: value for name, value in zip(names, row, strict=True) if value is not None}


def _entry(key: PartKey, values: dict[str, Any], *, has_content: bool) -> StoredEntry:
    content = merkle.content("entries", values)
    batch, _, position = str(values["entry_id"]).rpartition(".")
    revision = values["revision"]
    is_named = batch == f"{key[0]}.{key[1]}" and position.isdecimal() and str(int(position)) == position
    return StoredEntry(
        (revision, int(position)) if is_named and isinstance(revision, int) else None,
        f"{values['entry_id']}#{values['revision']}",
        merkle.leaf(content),
        content if has_content else None,
        tuple(values[name] for name in ("moer_rate_id", "aer_rate_id", "baseline_rate_id") if name in values),
        values.get("baseline_fact_id"),
        values.get("placement_id"),
        values["restatement_id"] if _DIGEST.fullmatch(str(values.get("restatement_id"))) else None,
    )


_DIGEST = re.compile(r"rst_[0-9a-f]{32}")


def _placements(tx: Tx, wanted: Iterable[str | None]) -> dict[str, str]:
    """Return the hash of what each placement said, as entries carry it."""
    texts = placement_texts(tx, [one for one in wanted if one is not None])
    return {placement_id: merkle.leaf(text).hex() for placement_id, text in texts.items()}


def placement_texts(tx: Tx, wanted: Iterable[str]) -> dict[str, str]:
    """Return by id the texts of placements whose hashes entries carry; those that are not stored are left out."""
    ids = sorted(set(wanted))
    names = [stored_text(tx, placements.c[name]) for name in _PLACEMENT_NAMES]
    found: dict[str, str] = {}
    for start in range(0, len(ids), _AT_ONCE):
        term = placements.c.placement_id.in_(ids[start : start + _AT_ONCE])
        for placement_id, *row in tx.execute(select(placements.c.placement_id, *names).where(term)):
            found[placement_id] = merkle.content("placements", _known(_PLACEMENT_NAMES, row))
    return found


def _parse_list(values: dict[str, Any], name: str) -> None:
    """Read JSON that SQLite keeps as text, so that both databases have the same hash; nonsense stays text."""
    if isinstance(values.get(name), str):
        try:
            values[name] = json.loads(values[name])
        except ValueError:
            return


def within(tx: Tx, table: Table, where: Span | Sequence[str]) -> ColumnElement[bool]:
    """Return the condition that a row belongs to one of some engine batches."""
    column = table.c.engine_batch_id
    if not isinstance(where, Span):
        return is_any_of(tx, column, where)
    return column > where.after if where.last is None else (column > where.after) & (column <= where.last)


def find(
    tx: Tx, entry_id: str, *, revision: int | None = None, tenant: str | None = None
) -> tuple[PartKey, StoredPart, StoredEntry] | None:
    """Return one entry, by default its newest revision, with its engine batch and what is hashed of both.

    With ``tenant``, an entry of another tenant is not found.
    """
    terms = [entries.c.entry_id == entry_id]
    if tenant is not None:
        terms.append(entries.c.tenant == tenant)
    if revision is not None:
        terms.append(entries.c.revision == revision)
    columns = (entries.c.engine_batch_id, entries.c.part, entries.c.revision)
    row = tx.execute(select(*columns).where(*terms).order_by(entries.c.revision.desc()).limit(1)).one_or_none()
    if row is None:
        return None
    key = (row.engine_batch_id, row.part)
    part = stored(tx, [row.engine_batch_id], revisions=[row.revision], has_content=True)[key]
    wanted = f"{entry_id}#{row.revision}"
    return key, part, next(one for one in part.entries if one.key == wanted)


def values(tx: Tx, prefix: Prefix, ids: Iterable[str]) -> dict[str, dict[str, str | None]]:
    """Return the values of rates, facts or restatements by id and name, as text in the order of their digest."""
    table, names = _DIGESTED[prefix]
    columns = [stored_text(tx, table.c[name]) for name in names]
    key = _key(prefix)
    found: dict[str, dict[str, str | None]] = {}
    for own, *row in tx.execute(select(key, *columns).where(key.in_(sorted(set(ids))))):
        typed = (_typed(name, value) for name, value in zip(names, row, strict=True))
        found[own] = {name: digested(value) for name, value in zip(names, typed, strict=True)}
    return found


def digests(
    tx: Tx, *, rate_ids: Iterable[str], fact_ids: Iterable[str], restatement_ids: Iterable[str]
) -> dict[str, str]:
    """Return the ids that rates, facts and restatements should have by their content, by the ids that they have.

    Those that are not stored are left out; of those that cannot be read the id is said to be empty.
    """
    found: dict[str, str] = {}
    for wanted, (prefix, (table, names)) in zip((rate_ids, fact_ids, restatement_ids), _DIGESTED.items(), strict=True):
        ids = sorted(set(wanted), key=repr)
        key, columns = _key(prefix), [stored_text(tx, table.c[name]) for name in names]
        for start in range(0, len(ids), _AT_ONCE):
            for own, *row in tx.execute(select(key, *columns).where(key.in_(ids[start : start + _AT_ONCE]))):
                found[own] = _digest(prefix, names, row)
    return found


_RATE_NAMES = tuple(name for name in Rate.__dataclass_fields__ if name != "rate_id")
_FACT_NAMES = tuple(Fact.__dataclass_fields__)
_RESTATEMENT_NAMES = tuple(str(name) for name in restatements.columns.keys() if name != "restatement_id")  # noqa: SIM118

#: Tables whose ids are digests, by the ids' prefix, with the columns in the order of the digest.
_DIGESTED: dict[Prefix, tuple[Table, tuple[str, ...]]] = {
    "rate": (rates, _RATE_NAMES),
    "fact": (facts, _FACT_NAMES),
    "rst": (restatements, _RESTATEMENT_NAMES),
}


def _key(prefix: Prefix) -> ColumnElement[str]:
    return restatements.c.restatement_id if prefix == "rst" else _DIGESTED[prefix][0].c[f"{prefix}_id"]


def _digest(prefix: str, names: Sequence[str], row: Sequence[Any]) -> str:
    try:
        return digest(prefix, (_typed(name, value) for name, value in zip(names, row, strict=True)))
    except (AttributeError, KeyError, TypeError, ValueError):
        return ""


def _typed(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name.endswith("_at"):
        return parse_iso(value)
    return {0: False, 1: True}[value] if name in {"is_automatic", "is_estimated", "may_settle"} else value
