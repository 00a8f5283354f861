"""Rows of ``outlook_skills``: what was learned of a zone, signal and source, and up to which window. Grid times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select, update

from carbonq.model import Signal
from carbonq.store.database import Tx
from carbonq.store.dialect import insert_new
from carbonq.store.tables import observations, outlook_skills


@dataclass(frozen=True, slots=True)
class SkillRow:
    """What was learned (as JSON values) from all windows before ``learned_until``."""

    state: Mapping[str, Any]
    learned_until: datetime


def load(tx: Tx, zone: str, signal: Signal, source: str) -> SkillRow | None:
    """Return what was learned of a source; None if nothing was."""
    columns = (outlook_skills.c.state, outlook_skills.c.learned_until)
    row = tx.execute(select(*columns).where(*_is(zone, signal, source))).one_or_none()
    return None if row is None else SkillRow(row.state, row.learned_until)


def newest_observed(tx: Tx, zone: str, signal: Signal, source: str) -> tuple[datetime, int] | None:
    """Return start and length (s) of the newest span observed by a source; None if there is none."""
    mine = (observations.c.zone == zone, observations.c.signal == signal.value, observations.c.source == source)
    statement = select(observations.c.window_at, observations.c.step_s).where(*mine)
    row = tx.execute(statement.order_by(observations.c.window_at.desc()).limit(1)).one_or_none()
    return None if row is None else (row.window_at, row.step_s)


def save(
    tx: Tx,
    key: tuple[str, Signal, str],
    state: Mapping[str, Any],
    *,
    learned_until: datetime,
    before: datetime | None,
    now: datetime,
) -> bool:
    """Store what was learned since ``before`` (None: the first time); False if somebody else was faster.

    Each window is thus learned once, however many processes try.
    """
    values: dict[str, Any] = {"state": state, "learned_until": learned_until, "updated_at": now}
    if before is None:
        row = {"zone": key[0], "signal": key[1].value, "source": key[2], **values}
        return insert_new(tx, outlook_skills, [row]) == 1
    change = update(outlook_skills).where(*_is(*key), outlook_skills.c.learned_until == before).values(values)
    return tx.execute(change).rowcount == 1


def _is(zone: str, signal: Signal, source: str) -> tuple[Any, ...]:
    return (
        outlook_skills.c.zone == zone,
        outlook_skills.c.signal == signal.value,
        outlook_skills.c.source == source,
    )
