"""How engine batches went of late, by model and region: sums over ``engine_batches``. ``since`` is grid time."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Float, case, cast, func, select

from carbonq.model import EngineFigures
from carbonq.store.database import Tx
from carbonq.store.tables import engine_batches


def since(tx: Tx, start: datetime) -> list[EngineFigures]:
    """Return the figures of what ran in windows from ``start`` on, by model and region; work only, no idle time.

    Means weigh engine batches evenly for times, and by their size for fills. Takes a pass over the windows' rows.
    """
    rows = engine_batches.c
    first = rows.part == 1  # figures are on the first part alone, energy and time on all
    energy, seconds = func.sum(rows.energy_uj), func.sum(cast(rows.duration_s, Float))
    statement = (
        select(
            rows.model,
            rows.region,
            func.sum(case((first, 1), else_=0)),
            func.sum(case((first, rows["items"]), else_=0)),
            func.coalesce(func.sum(rows.tokens), 0),
            _share(func.sum(case((rows.capacity_items.is_not(None), rows["items"]))), func.sum(rows.capacity_items)),
            _share(func.sum(case((rows.padded_tokens.is_not(None), rows.tokens))), func.sum(rows.padded_tokens)),
            cast(func.avg(rows.ttft_us), Float) / 1e6,
            cast(func.avg(rows.output_token_us), Float) / 1e6,
            _share(func.sum(rows.tokens), seconds),
            _share(energy, func.sum(rows.tokens)),
        )
        .where(rows.window_at >= start, rows.model.is_not(None), rows["items"] > 0)
        .group_by(rows.model, rows.region)
        .order_by(rows.model, rows.region)
    )
    found: list[EngineFigures] = []
    for row in tx.execute(statement):
        sums: tuple[Any, ...] = tuple(row)
        model, region, batches, items, tokens, *figures = sums
        values = [None if one is None else float(one) for one in figures]
        found.append(EngineFigures(model, region, int(batches), int(items), int(tokens), *values))
    return found


def _share(part: ColumnElement[Any], whole: ColumnElement[Any]) -> ColumnElement[float]:
    return cast(part, Float) / func.nullif(cast(whole, Float), 0.0)
