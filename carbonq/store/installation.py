"""What all processes of the installation must agree on, as the database keeps it: one row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete, insert, inspect, select

from carbonq.store.database import Tx
from carbonq.store.dialect import machine_now
from carbonq.store.tables import installation


@dataclass(frozen=True, slots=True)
class Installation:
    """The shared settings (no secrets), the digest of those that must be alike, and who wrote them when."""

    settings: Mapping[str, Any]
    settings_digest: str
    software_version: str
    updated_at: datetime


def load(tx: Tx) -> Installation | None:
    """Return what is kept; None before the first `carbonq up` or `carbonq db upgrade`."""
    row = tx.execute(select(installation)).one_or_none()
    if row is None:
        return None
    return Installation(row.settings, row.settings_digest, row.software_version, row.updated_at)


def has_table(tx: Tx) -> bool:
    """Say whether the database's schema knows of an installation yet."""
    return inspect(tx).has_table(installation.name)


def put(tx: Tx, settings: Mapping[str, Any], settings_digest: str, *, software_version: str) -> None:
    """Replace what is kept."""
    tx.execute(delete(installation))
    tx.execute(
        insert(installation).values(
            installation_id=1,
            settings=dict(settings),
            settings_digest=settings_digest,
            software_version=software_version,
            updated_at=machine_now(tx),
        )
    )
