"""Turn what was planned into placements: those that change, with rate and reason, and those that run at once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from carbonq.model import Treatment
from carbonq.plan import capacity
from carbonq.plan.demand import Assignment, Demand
from carbonq.plan.outlook import Outlook
from carbonq.plan.planner import Reason
from carbonq.plan.treatment import home_of
from carbonq.services.work import Work
from carbonq.store.placements import Placed
from carbonq.units import window_index, window_of

IntArray = npt.NDArray[np.int64]

#: ``reason`` of placements that run at once in the home region, because they are observed or held out.
AT_ONCE = "at_once"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The placements that change, how many of them leave another, and how many chunks are late."""

    placed: Placed
    moved: int
    late: int


def homeward(work: Work, at_once: IntArray, outlook: Outlook) -> Placed:
    """Return where chunks go that run at once: home, in the running window or the one they are released in."""
    placed = Placed()
    rates: dict[str, tuple[object, datetime | None]] = {}
    found, world = work.waiting, work.world
    for row in at_once.tolist():
        if found.is_placed[row]:
            continue
        group = work.groups[work.group[row]]
        region = home_of(group.home, group.allowed, group.model, world.regions)
        if region is None or region not in outlook.regions:
            continue
        release_at = datetime.fromtimestamp(float(found.release_s[row]), UTC)
        at = window_of(max(world.now, release_at))
        if region not in rates:
            position = outlook.regions.index(region)
            rate = outlook.rate(position, 0)
            rates[region] = (rate, None if rate is None else outlook.issued_at[position])
        is_now = window_index(at) == outlook.first_window
        rate, issued_at = rates[region] if is_now else (None, None)
        placed.chunk_id.append(found.chunk_id[row])
        placed.region.append(region)
        placed.window_at.append(at)
        placed.g_per_kwh.append(rate)  # pyright: ignore[reportArgumentType]
        placed.issued_at.append(issued_at)
        placed.reason.append(AT_ONCE)
    return placed


def held_out(work: Work, at_once: IntArray) -> IntArray:
    """Return those that run at once whatever is observed."""
    return at_once[np.isin(at_once, work.treated(Treatment.HELD_OUT))]


def due_s(work: Work, at_once: IntArray, home: Placed, due: IntArray) -> dict[str, list[float]]:
    """Return the grid seconds of what takes the next free slots: tickets, then what runs at once, then what is due."""
    ahead = work.due_s(np.concatenate([at_once, due]))
    duration = dict(zip(work.waiting.chunk_id, work.waiting.duration_s.tolist(), strict=True)) if home else {}
    for chunk_id, region in zip(home.chunk_id, home.region, strict=True):
        ahead.setdefault(region, []).append(duration[chunk_id] * work.world.factor)
    return ahead


def of(work: Work, free: IntArray, demand: Demand, made: Assignment, outlook: Outlook) -> Chosen:
    """Return the placements that differ from where the chunks are, with the rate and reason of each."""
    found = work.waiting
    end_s = made.start_s + demand.duration_s
    has_place = made.window >= 0
    # To the microsecond: times are stored so.
    is_late = has_place & (end_s - (found.deadline_s[free] - work.now_s) > 1e-5)
    is_there = found.is_placed[free] & (demand.current[:, 1] >= 0)
    is_there &= (demand.current[:, 0] == made.region) & (demand.current[:, 1] == made.window)
    changed = np.flatnonzero(has_place & ~is_there)
    starts = capacity.window_starts(work.world.now, outlook.windows)
    first = np.searchsorted(starts, np.maximum(demand.release_s, 0.0) - 1e-6)
    last = np.searchsorted(starts, demand.latest_s + 1e-6, side="right")
    has_choice = last - first > 1
    placed = Placed()
    windows = [outlook.window_at(window) for window in range(outlook.windows)]
    rates = {(row, window): outlook.rate(row, window) for row, window in _cells(made, changed)}
    rows = free[changed].tolist()
    columns = zip(rows, changed.tolist(), made.region[changed].tolist(), made.window[changed].tolist(), strict=True)
    for row, position, region, window in columns:
        rate = rates[region, window]
        placed.chunk_id.append(found.chunk_id[row])
        placed.region.append(outlook.regions[region])
        placed.window_at.append(windows[window])
        placed.g_per_kwh.append(rate)
        placed.issued_at.append(None if rate is None else outlook.issued_at[region])
        if is_late[position]:
            reason = Reason.LATE
        elif rate is None:
            reason = Reason.OVERLAY
        else:
            reason = Reason.CARBON if has_choice[position] else Reason.DEADLINE
        placed.reason.append(reason.value)
    return Chosen(placed, int(found.is_placed[free][changed].sum()), int(is_late.sum()))


def _cells(made: Assignment, rows: IntArray) -> set[tuple[int, int]]:
    return set(zip(made.region[rows].tolist(), made.window[rows].tolist(), strict=True))
