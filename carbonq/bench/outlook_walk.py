"""Walk through recorded forecasts as the outlook would have seen them: predict a day, then learn it, then the next.

Nothing is predicted from what came later: a moment knows the forecasts issued by then and the observations published by
then, and its skill knows windows that were published before the day began.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from carbonq.bench.outlook_files import Issued
from carbonq.plan.blend import Pairs, Skill, blend, learn, origins_of
from carbonq.plan.evidence import FEATURES, ISSUE_AGES, Evidence, IntArray, Known, evidence
from carbonq.plan.forecaster import EMPTY, HISTORY_DAYS, WINDOWS_A_DAY, FloatArray, Series

#: How long before a day a window must be over to be learned for it: an hour, or the publication delay if longer.
_SETTLED = 12


@dataclass(frozen=True, slots=True)
class Table:
    """What was known at each origin (row) of the windows ``leads`` ahead of it (column), and what came."""

    origins: IntArray
    leads: IntArray
    delay: int
    base: FloatArray
    kind: IntArray
    differences: npt.NDArray[np.float32]
    cap: FloatArray
    truth: FloatArray
    provider: FloatArray
    hold: FloatArray

    def rows(self, start: int, end: int) -> IntArray:
        """Return the rows of the origins in ``[start, end)``."""
        return np.arange(np.searchsorted(self.origins, start), np.searchsorted(self.origins, end))


def gather(issued: Issued, observed: Series, origins: IntArray, leads: IntArray, delay: int) -> Table:
    """Put together what was known; the newest window known at an origin is ``origin - 1 - delay``.

    ``delay`` -1 is the generous reading, in which the window that has just begun is known already: told as what is
    known one window later, with the forecasts of now.
    """
    shift = 1 if delay < 0 else 0
    shape = (len(origins), len(leads))
    base, kind, provider = np.full(shape, np.nan), np.zeros(shape, dtype=np.int64), np.full(shape, np.nan)
    differences = np.zeros((*shape, len(FEATURES)), dtype=np.float32)
    cap, hold = np.full(len(origins), np.inf), np.full(len(origins), np.nan)
    for row, origin in enumerate(origins.tolist()):
        windows = origin + leads
        issues = [issued.at(origin - age) or EMPTY for age in ISSUE_AGES]
        seen = observed.slice(origin - HISTORY_DAYS * WINDOWS_A_DAY, origin - delay)
        known = evidence(Known(origin + shift, issues, seen), windows)
        base[row], kind[row], differences[row] = known.base, known.kind, known.differences
        provider[row] = issues[0].at(windows)
        cap[row] = known.cap
        newest = seen.last()
        hold[row] = np.nan if newest is None else newest[1]
    truth = observed.at((origins[:, None] + leads).ravel()).reshape(shape)
    return Table(origins, leads, delay, base, kind, differences, cap, truth, provider, hold)


def predict(skill: Skill, table: Table, rows: IntArray) -> FloatArray:
    """Return the outlook of some rows with one skill."""
    columns = len(table.leads)
    shift = 1 if table.delay < 0 else 0
    lead = np.tile(table.leads - shift, len(rows))
    known = Evidence(
        windows=lead,
        lead=lead,
        base=table.base[rows].ravel(),
        kind=table.kind[rows].ravel(),
        differences=table.differences[rows].reshape(len(lead), len(FEATURES)).astype(np.float64),
        is_held=np.zeros(len(lead), dtype=np.bool_),
        is_tied_to_forecast=False,
        cap=np.repeat(table.cap[rows], columns),
    )
    return blend(skill, known).values.reshape(len(rows), columns)


def pairs(table: Table, windows: IntArray) -> Pairs | None:
    """Return the pairs that the learning tick would take from newly observed windows."""
    step = int(table.leads[1] - table.leads[0])
    place_of = {origin: place for place, origin in enumerate(table.origins.tolist())}
    column_of = {lead: place for place, lead in enumerate(table.leads.tolist())}
    rows: list[int] = []
    columns: list[int] = []
    for window in windows.tolist():
        for origin in origins_of(window, int(table.leads[-1])):
            at = origin - origin % step
            row, column = place_of.get(at), column_of.get(window - at)
            if row is not None and column is not None:
                rows.append(row)
                columns.append(column)
    if not rows:
        return None
    shift = 1 if table.delay < 0 else 0
    return Pairs(
        lead=table.leads[columns] - shift,
        kind=table.kind[rows, columns],
        base=table.base[rows, columns],
        differences=table.differences[rows, columns].astype(np.float64),
        truth=table.truth[rows, columns],
    )


def walk(table: Table, days: Sequence[int], skill: Skill | None = None) -> tuple[FloatArray, Skill]:
    """Predict each day (number since the epoch) with what was learned before it; return the outlook and the skill."""
    outlook = np.full(table.truth.shape, np.nan)
    skill = skill or Skill()
    late = max(_SETTLED, table.delay)
    for day in days:
        start = day * WINDOWS_A_DAY
        rows = table.rows(start, start + WINDOWS_A_DAY)
        outlook[rows] = predict(skill, table, rows)
        skill = learn_days(skill, table, [day], late)
    return outlook, skill


def learn_days(skill: Skill, table: Table, days: Sequence[int], late: int = 0) -> Skill:
    """Return the skill after the windows of some days, each taken ``late`` windows earlier."""
    step = int(table.leads[1] - table.leads[0])
    for day in days:
        start = day * WINDOWS_A_DAY - late
        start += -start % step
        taken = pairs(table, np.arange(start, day * WINDOWS_A_DAY - late + WINDOWS_A_DAY, step))
        if taken is not None:
            skill = learn(skill, taken, (day + 1) * WINDOWS_A_DAY)
    return skill
