"""Rows of ``files``: inputs that clients uploaded and results of batches. Deleted and expired ones are not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, and_, delete, exists, insert, or_, select, update

from carbonq.errors import InvalidRequest, NotFound
from carbonq.store.database import Tx
from carbonq.store.dialect import is_any_of
from carbonq.store.tables import batches, files

#: What a file can be for: the input of a batch, or what came of one.
PURPOSES = ("batch", "batch_output")


@dataclass(frozen=True, slots=True)
class File:
    """A stored file. ``carbon`` are terms it was uploaded with, as the client wrote them."""

    file_id: str
    tenant: str
    api_key_id: str | None
    purpose: str
    filename: str
    bytes: int
    lines: int
    blob: str
    created_at: datetime
    expires_at: datetime | None = None
    carbon: Mapping[str, Any] | None = None


_COLUMNS = tuple(files.c[name] for name in File.__dataclass_fields__)


def blob_key(file_id: str) -> str:
    """Return the key of a file's bytes."""
    return f"files/{file_id}.jsonl"


def insert_many(tx: Tx, new: Sequence[File]) -> None:
    """Store new files."""
    if new:
        tx.execute(insert(files), [{name: getattr(one, name) for name in File.__dataclass_fields__} for one in new])


def find(tx: Tx, file_id: str, tenant: str, now: datetime, *, is_locked: bool = False) -> File | None:
    """Return a tenant's file; None where there is none, or it is deleted or expired at grid time ``now``.

    ``is_locked`` keeps others from deleting it until the transaction ends.
    """
    statement = select(*_COLUMNS).where(files.c.file_id == file_id, files.c.tenant == tenant, *_is_there(now))
    row = tx.execute(statement.with_for_update() if is_locked else statement).one_or_none()
    return None if row is None else File(*row)


def get(tx: Tx, file_id: str, tenant: str, now: datetime, *, is_locked: bool = False) -> File:
    """Return a tenant's file as ``find`` does. Raises NotFound, also for another tenant's."""
    file = find(tx, file_id, tenant, now, is_locked=is_locked)
    if file is None:
        raise NotFound(f"there is no file {file_id!r}; GET /v1/files lists yours")
    return file


def is_stored(tx: Tx, file_id: str) -> bool:
    """Say whether a file has a row, whatever became of it."""
    return tx.execute(select(files.c.file_id).where(files.c.file_id == file_id)).first() is not None


def blob_of(tx: Tx, file_id: str) -> str | None:
    """Return where a file's bytes lie, also of a deleted one that a batch still reads; None where they are gone."""
    return tx.execute(select(files.c.blob).where(files.c.file_id == file_id)).scalar_one_or_none()


def page(
    tx: Tx,
    tenant: str,
    now: datetime,
    *,
    after: str | None,
    limit: int,
    purpose: str | None = None,
    order: Literal["asc", "desc"] = "desc",
) -> list[File]:
    """Return a tenant's files by time, beginning after the file ``after``.

    Raises InvalidRequest for an unknown ``after``.
    """
    key = (files.c.created_at, files.c.file_id)
    statement = select(*_COLUMNS).where(files.c.tenant == tenant, *_is_there(now)).limit(limit)
    if purpose is not None:
        statement = statement.where(files.c.purpose == purpose)
    if after is not None:
        # Also after one that was deleted meanwhile, so that a client may delete what it pages through.
        last = tx.execute(select(*key).where(files.c.file_id == after, files.c.tenant == tenant)).one_or_none()
        if last is None:
            raise InvalidRequest(
                f"after: there is no file {after!r}; pass the last id of the page before", param="after"
            )
        statement = statement.where(_is_beyond(last[0], last[1], is_later=order == "asc"))
    ordered = (one.asc() if order == "asc" else one.desc() for one in key)
    return [File(*row) for row in tx.execute(statement.order_by(*ordered))]


def mark_deleted(tx: Tx, file_id: str, tenant: str, now: datetime) -> bool:
    """Put a tenant's file out of everybody's reach; False when it was before, or never there."""
    statement = update(files).where(files.c.file_id == file_id, files.c.tenant == tenant, *_is_there(now))
    return tx.execute(statement.values(deleted_at=now)).rowcount == 1


def mark_expired(tx: Tx, now: datetime, *, limit: int) -> int:
    """Put up to ``limit`` expired files out of everybody's reach; return how many."""
    due = select(files.c.file_id).where(files.c.expires_at <= now, files.c.deleted_at.is_(None)).limit(limit)
    found = list(tx.execute(due).scalars())
    if found:
        tx.execute(update(files).where(is_any_of(tx, files.c.file_id, found)).values(deleted_at=now))
    return len(found)


def has_expired(tx: Tx, now: datetime) -> bool:
    """Say whether any file has expired and can still be reached by its id's row."""
    due = select(files.c.file_id).where(files.c.expires_at <= now, files.c.deleted_at.is_(None)).limit(1)
    return tx.execute(due).first() is not None


def removable(tx: Tx, *, limit: int) -> list[tuple[str, str]]:
    """Return (file_id, blob) of deleted files that no open batch reads."""
    is_read = exists().where(batches.c.input_file_id == files.c.file_id, batches.c.finished_at.is_(None))
    due = select(files.c.file_id, files.c.blob).where(files.c.deleted_at.is_not(None), ~is_read)
    return [(file_id, blob) for file_id, blob in tx.execute(due.order_by(files.c.deleted_at).limit(limit))]


def remove(tx: Tx, file_ids: Sequence[str]) -> None:
    """Forget files whose bytes have gone."""
    tx.execute(delete(files).where(is_any_of(tx, files.c.file_id, file_ids)))


def _is_there(now: datetime) -> tuple[ColumnElement[bool], ...]:
    return (files.c.deleted_at.is_(None), or_(files.c.expires_at.is_(None), files.c.expires_at > now))


def _is_beyond(at: datetime, file_id: str, *, is_later: bool) -> ColumnElement[bool]:
    if is_later:
        return or_(files.c.created_at > at, and_(files.c.created_at == at, files.c.file_id > file_id))
    return or_(files.c.created_at < at, and_(files.c.created_at == at, files.c.file_id < file_id))
