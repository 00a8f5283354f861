"""Small made worlds for the tests of replays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import numpy as np

from carbonq.model import Signal
from carbonq.plan.forecaster import Series
from carbonq.replay.grids import Grid, Issued
from carbonq.replay.site import Site
from carbonq.replay.work import Work
from carbonq.units import UJ_PER_KWH, window_at, window_index

#: A Thursday midnight.
FIRST = window_index(datetime.fromisoformat("2021-06-10T00:00+00:00"))


def stamp(window: int) -> str:
    return f"{window_at(window):%Y-%m-%dT%H:%MZ}"


def grid(
    observed: Mapping[str, Sequence[float]],
    issued: Mapping[str, Issued] | None = None,
    *,
    first: int = FIRST,
    step: int = 1,
) -> Grid:
    return Grid(
        Signal.MOER,
        {zone: Series(first, np.repeat(np.array(values, dtype=float), step)) for zone, values in observed.items()},
        dict.fromkeys(observed, step),
        issued or {},
    )


def exact(made: Grid) -> dict[str, Issued]:
    """Forecasts that are right, issued at the start of every window for all that comes."""
    found: dict[str, Issued] = {}
    for zone, series in made.observed.items():
        n = len(series.values)
        table = np.full((n, n), np.nan)
        for row in range(n):
            table[row, : n - row] = series.values[row:]
        origins = series.first_window + np.arange(n)
        found[zone] = Issued(origins, origins, table, 1)
    return found


def site(made: Grid, *, slots: Sequence[int], pue: Sequence[float] | None = None, home: int = 0) -> Site:
    first, end = made.span()
    none = np.zeros(len(made.zones))
    return Site(
        grid=made,
        regions=made.zones,
        slots=np.array(slots, dtype=np.int64),
        pue=np.array(pue or [1.0] * len(made.zones)),
        home=home,
        first=first,
        end=end,
        price_per_kwh=none,
        slot_price_per_h=none,
    )


def work(rows: Sequence[tuple[int, int, int]], kwh: float = 1.0) -> Work:
    """Pieces of (release, due, windows), counted from ``FIRST``; ``kwh`` for each window of one."""
    table = np.array(sorted(rows), dtype=np.int64).reshape(-1, 3)
    return Work(
        release=FIRST + table[:, 0],
        due=FIRST + table[:, 1],
        windows=table[:, 2].copy(),
        energy_uj=np.rint(table[:, 2] * kwh * UJ_PER_KWH).astype(np.int64),
        job=np.arange(len(table), dtype=np.int64),
    )


def write_wide(path: Path, values: Mapping[str, Sequence[float | None]], *, step: int = 1, first: int = FIRST) -> Path:
    lines = [",".join(("time_utc", *values))]
    for place, cells in enumerate(zip(*values.values(), strict=True)):
        told = ",".join("" if cell is None else f"{cell:g}" for cell in cells)
        lines.append(f"{stamp(first + place * step)},{told}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
