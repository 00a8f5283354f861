"""What the overview draws of the grid: each region's rates of the past day and ahead, and the map of cells.

Rates of one signal only, the one that the installation decides by. Reads a bounded number of windows by index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt

from carbonq.api.context import Api
from carbonq.api.jobs import regions_of
from carbonq.model import ChunkState, Region, Signal
from carbonq.plan.outlook import Outlook
from carbonq.services.outlook import load_outlook, read_history
from carbonq.store import overview, sources
from carbonq.store.overview import PlacedCell
from carbonq.units import WINDOW, window_of
from carbonq.web import charts
from carbonq.web.charts import Frame, Tick

#: What is drawn, in windows: a day back and a day ahead; of the map, six hours back.
PAST = 288
AHEAD = 288
MAP_PAST = 72

#: Windows that one column of the map stands for, and one point of a line.
MAP_SPAN = 3
LINE_SPAN = 2

WIDTH, HEIGHT = 400, 176
MAP_WIDTH, ROW, BAR = 1020, 46, 16
LABELS = 92


@dataclass(frozen=True, slots=True)
class Hour:
    """An hour of a region, for the table beside the drawing."""

    at: datetime
    is_past: bool
    rate: float | None
    spread: float | None


@dataclass(frozen=True, slots=True)
class Curve:
    """A region's drawing, and its figures."""

    region: Region
    now: float | None
    basis: str
    low: float | None
    high: float | None
    cleanest_at: datetime | None
    past: str
    ahead: str
    band: str
    hours: Sequence[Hour]


@dataclass(frozen=True, slots=True)
class Cell:
    """A column of a region's row on the map; heights are of the bars below it."""

    x: float
    at: datetime
    step: int | None
    rate: float | None
    planned: int
    run: int
    planned_height: float
    run_height: float


@dataclass(frozen=True, slots=True)
class MapRow:
    """A region's row on the map."""

    region: Region
    y: float
    cells: Sequence[Cell]
    planned: int
    run: int


@dataclass(frozen=True, slots=True)
class Grid:
    """All of it. ``scale`` is None where no rate is known."""

    signal: Signal
    now: datetime
    is_down: bool
    curves: Sequence[Curve]
    frame: Frame
    value_ticks: Sequence[Tick]
    time_ticks: Sequence[Tick]
    now_x: float
    rows: Sequence[MapRow]
    scale: tuple[float, float] | None
    map_ticks: Sequence[Tick]
    map_now_x: float
    map_height: float
    column_width: float


@dataclass(frozen=True, slots=True)
class _Read:
    """What was read: past rates by zone, the outlook, and the tenant's chunks by cell."""

    regions: Sequence[Region]
    signal: Signal
    now: datetime
    past: Mapping[str, list[float | None]]
    outlook: Outlook
    planned: Sequence[PlacedCell]
    run: Sequence[PlacedCell]


def load(api: Api, tenant: str) -> Grid:
    """Read and lay out. Raises StoreUnavailable."""
    now, regions = api.clock.now(), regions_of(api)
    start = window_of(now) - PAST * WINDOW
    with api.db.read() as tx:
        signal = sources.decision_signal(tx)
        states = sources.states(tx, sorted({region.zone for region in regions}))
        planned = overview.open_by_cell(tx, tenant)
        run = overview.run_by_cell(tx, tenant, window_of(now) - MAP_PAST * WINDOW)
        past: dict[str, list[float | None]] = {}
        for zone in {region.zone for region in regions}:
            source = sources.choose(states, zone, signal, now, api.max_stale_s)[1]
            past[zone] = _floats(read_history(tx, (zone, signal, source), start, window_of(now)).values)
    outlook = load_outlook(api.db, regions, now, AHEAD, api.max_stale_s, signal=signal)
    return _laid_out(_Read(regions, signal, now, past, outlook, planned, run))


def _laid_out(read: _Read) -> Grid:
    ahead = [_floats(row) for row in read.outlook.g_per_kwh]
    known = [value for values in [*read.past.values(), *ahead] for value in values if value is not None]
    start = window_of(read.now)
    frame = Frame(
        *(34, 15, WIDTH - 6, HEIGHT - 22, start - PAST * WINDOW, start + AHEAD * WINDOW),
        high=charts.nice_ceiling(max(known, default=1.0) * 1.05),
    )
    scale = (min(known), max(known)) if known else None
    map_start = start - MAP_PAST * WINDOW
    number = (MAP_PAST + AHEAD) // MAP_SPAN
    map_frame = Frame(LABELS, 0, MAP_WIDTH - 6, 1, map_start, map_start + number * MAP_SPAN * WINDOW)
    return Grid(
        signal=read.signal,
        now=read.now,
        is_down=read.outlook.is_down,
        curves=[_curve(read, place, frame, ahead[place]) for place in range(len(read.regions))],
        frame=frame,
        value_ticks=charts.value_ticks(frame),
        time_ticks=charts.time_ticks(frame, 12),
        now_x=frame.x(read.now),
        rows=[_row(read, place, map_frame, scale, ahead[place]) for place in range(len(read.regions))],
        scale=scale,
        map_ticks=charts.time_ticks(map_frame, 3),
        map_now_x=map_frame.x(read.now),
        map_height=20 + ROW * len(read.regions),
        column_width=round((map_frame.right - map_frame.left) / number, 2),
    )


def _floats(values: npt.NDArray[np.float64]) -> list[float | None]:
    return [None if np.isnan(one) else float(one) for one in values]


def _curve(read: _Read, place: int, frame: Frame, ahead: Sequence[float | None]) -> Curve:
    region = read.regions[place]
    past, spread = read.past[region.zone], _floats(read.outlook.spread[place])
    middle, step = frame.start_at + PAST * WINDOW, LINE_SPAN * WINDOW
    behind = [(frame.start_at + n * step, value) for n, value in enumerate(charts.thinned(past, LINE_SPAN))]
    thin, wide = charts.thinned(ahead, LINE_SPAN), charts.thinned(spread, LINE_SPAN)
    before = [(middle + n * step, value, around) for n, (value, around) in enumerate(zip(thin, wide, strict=True))]
    known = [(value, n) for n, value in enumerate(ahead) if value is not None]
    by_hour = charts.thinned([*past, *ahead], 12), charts.thinned([*([None] * PAST), *spread], 12)
    return Curve(
        region=region,
        now=ahead[0],
        basis=read.outlook.basis_of(place, 0).value,
        low=min(known)[0] if known else None,
        high=max(known)[0] if known else None,
        cleanest_at=middle + min(known)[1] * WINDOW if known else None,
        past=charts.line(frame, behind),
        ahead=charts.line(frame, [(at, value) for at, value, _ in before]),
        band=charts.band(frame, before),
        hours=[
            Hour(frame.start_at + n * 12 * WINDOW, n < PAST // 12, value, around)
            for n, (value, around) in enumerate(zip(*by_hour, strict=True))
        ],
    )


def _row(
    read: _Read, place: int, frame: Frame, scale: tuple[float, float] | None, ahead: Sequence[float | None]
) -> MapRow:
    region, now_window = read.regions[place], window_of(read.now)
    means = charts.thinned([*read.past[region.zone][-MAP_PAST:], *ahead], MAP_SPAN)
    step = MAP_SPAN * WINDOW
    # What runs, or waits for a slot though its window has come, stands at now.
    still = Counter[datetime]()
    for one in read.planned:
        if one.region == region.name:
            still[max(one.window_at, now_window)] += one.chunks
    done = {one.window_at: one.chunks for one in read.run if one.region == region.name}
    to_come = charts.columns(still, frame.start_at, step, len(means))
    over = charts.columns(done, frame.start_at, step, len(means))
    most = max([*to_come, *over, 1])
    cells = [
        Cell(
            x=frame.x(frame.start_at + n * step),
            at=frame.start_at + n * step,
            step=None if scale is None else charts.step_of(mean, scale),
            rate=mean,
            planned=to_come[n],
            run=over[n],
            planned_height=charts.bar_height(to_come[n], most, BAR),
            run_height=charts.bar_height(over[n], most, BAR),
        )
        for n, mean in enumerate(means)
    ]
    return MapRow(region, 20 + place * ROW, cells, sum(to_come), sum(over))


def slack_s(chunks: Sequence[overview.PlacedChunk], now: datetime) -> float | None:
    """Return by how much a job's chunks, as placed, end before their deadline; None where one has no place yet."""
    left: list[float] = []
    for one in chunks:
        if one.state is ChunkState.DONE:
            continue
        if one.window_at is None:
            return None
        ends_at = max(one.window_at, now) + timedelta(seconds=one.est_duration_s)
        left.append((one.deadline_at - ends_at).total_seconds())
    return min(left, default=None)
