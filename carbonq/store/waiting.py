"""The chunks that the planner may place or move, read by column: there may be 100,000 of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import ColumnElement, Select, Text, cast, select

from carbonq.model import ChunkState, Treatment
from carbonq.store import holds
from carbonq.store.bulk import epoch_s, raw_time
from carbonq.store.database import Tx
from carbonq.store.tables import chunks
from carbonq.units import WINDOW_S

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: Rows of ``columns``, as the driver gives them.
Rows = Sequence[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Waiting:
    """Chunks that wait or are placed with no ticket out, most urgent first, one row each.

    ``release_s``, ``deadline_s`` and ``latest_s`` (NaN: none) are grid seconds since 1970; ``window`` is the number of
    the planned window (-1: none); ``duration_s`` is machine seconds; ``regions`` the allowed ones as JSON (None: all).
    """

    chunk_id: list[str]
    model: list[str]
    regions: list[str | None]
    home: list[str]
    region: list[str | None]
    treatment: list[str]
    release_s: FloatArray
    deadline_s: FloatArray
    latest_s: FloatArray
    window: IntArray
    tokens: IntArray
    duration_s: FloatArray
    energy_uj: IntArray
    is_placed: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        """Count the chunks."""
        return len(self.chunk_id)

    def take(self, rows: IntArray) -> Waiting:
        """Return some of them."""
        made: list[Any] = [[column[row] for row in rows.tolist()] for column in self._lists()]
        made += [column[rows] for column in self._arrays()]
        return Waiting(*made)

    def join(self, other: Waiting) -> Waiting:
        """Return these, and then the others."""
        made: list[Any] = [mine + theirs for mine, theirs in zip(self._lists(), other._lists(), strict=True)]
        made += [np.concatenate(pair) for pair in zip(self._arrays(), other._arrays(), strict=True)]
        return Waiting(*made)

    def _lists(self) -> tuple[list[Any], ...]:
        return (self.chunk_id, self.model, self.regions, self.home, self.region, self.treatment)

    def _arrays(self) -> tuple[npt.NDArray[Any], ...]:
        times = (self.release_s, self.deadline_s, self.latest_s)
        return (*times, self.window, self.tokens, self.duration_s, self.energy_uj, self.is_placed)


def columns(
    tx: Tx,
    *,
    region: ColumnElement[Any] = chunks.c.region,
    window_at: ColumnElement[Any] = chunks.c.window_at,
    state: ColumnElement[Any] = chunks.c.state,
) -> tuple[ColumnElement[Any], ...]:
    """Return what to select for ``fetch``; where chunks are may be told by another table."""
    return (
        chunks.c.chunk_id,
        chunks.c.model,
        cast(chunks.c.regions, Text),
        chunks.c.baseline_region,
        region,
        chunks.c.treatment,
        raw_time(tx, chunks.c.release_at),
        raw_time(tx, chunks.c.deadline_at),
        raw_time(tx, chunks.c.latest_start_at),
        raw_time(tx, window_at),
        chunks.c.est_tokens,
        chunks.c.est_duration_s,
        chunks.c.est_energy_uj,
        state,
    )


def read(tx: Tx) -> Rows:
    """Return all that may run, as rows for ``arrange``."""
    statement = select(*columns(tx)).where(
        chunks.c.state.in_((ChunkState.WAITING, ChunkState.PLACED)), chunks.c.dispatched_at.is_(None), holds.may_run()
    )
    return fetch(tx, statement)


def read_pressing(tx: Tx, now: datetime) -> Rows:
    """Return those that have no place, or whose window has come at grid time ``now``, as rows for ``arrange``."""
    has_come = (chunks.c.state == ChunkState.PLACED) & (chunks.c.window_at <= now)
    statement = select(*columns(tx)).where(
        (chunks.c.state == ChunkState.WAITING) | has_come, chunks.c.dispatched_at.is_(None), holds.may_run()
    )
    return fetch(tx, statement)


def without_place(tx: Tx, *, limit: int) -> list[str]:
    """Return the ids of at most ``limit`` chunks that may run and have no place."""
    statement = select(chunks.c.chunk_id).where(
        chunks.c.state == ChunkState.WAITING, chunks.c.dispatched_at.is_(None), holds.may_run()
    )
    return list(tx.execute(statement.limit(limit)).scalars())


def fetch(tx: Tx, statement: Select[Any]) -> Rows:
    """Return what a statement over ``columns`` finds, as the driver gives it: a row object for each would double it."""
    with tx.execute(statement) as result:
        return [] if result.cursor is None else list(result.cursor.fetchall())


def arrange(rows: Rows) -> Waiting:
    """Return rows by column, most urgent first. Call it after the transaction: it takes seconds for 100,000 of them."""
    found = _of_rows(rows)
    # Not by the database: sorting whole rows takes it longer than reading them.
    by_id = np.array(sorted(range(len(found)), key=found.chunk_id.__getitem__), dtype=np.int64)
    return found.take(by_id[np.argsort(found.deadline_s[by_id], kind="stable")])


def _of_rows(rows: Rows) -> Waiting:
    found: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(14)]
    ids, models, allowed, homes, regions, treatments, *times, tokens, durations, energies, states = found
    release_s, deadline_s, latest_s, window_s = (epoch_s(one) for one in times)
    window = np.where(np.isnan(window_s), -1, np.nan_to_num(window_s) // WINDOW_S).astype(np.int64)
    return Waiting(
        chunk_id=ids,
        model=models,
        regions=allowed,
        home=homes,
        region=regions,
        treatment=[one or Treatment.PLANNED.value for one in treatments],
        release_s=release_s,
        deadline_s=deadline_s,
        latest_s=latest_s,
        window=window,
        tokens=np.array(tokens, dtype=np.int64),
        duration_s=np.array(durations, dtype=np.float64),
        energy_uj=np.array(energies, dtype=np.int64),
        is_placed=np.array([state == ChunkState.PLACED.value for state in states], dtype=np.bool_),
    )
