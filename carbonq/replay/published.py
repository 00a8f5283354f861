"""What published tables are rebuilt from: series of intensities from a person's own copy of the data; and their lines.

Such files tell times in their own way: the first column may be called anything, and a time without a zone is taken as
the clock time it shows, because the published settings are in clock time. Values are g/kWh.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from carbonq.errors import InvalidRequest
from carbonq.plan.forecaster import FloatArray
from carbonq.replay.rows import Source, opened


@dataclass(frozen=True, slots=True)
class Clocked:
    """Values at a regular step from a clock time on; nothing is missing."""

    name: str
    start_at: datetime
    step_min: int
    values: FloatArray

    def from_time(self, at: datetime) -> Clocked:
        """Return the part from a clock time on. Raises InvalidRequest where it begins later."""
        gone = (at - self.start_at) // timedelta(minutes=self.step_min)
        if gone < 0:
            raise InvalidRequest(f"{self.name} begins at {self.start_at:%F %R}, after {at:%F %R}")
        return Clocked(self.name, at, self.step_min, self.values[gone:])

    def every(self, minutes: int) -> Clocked:
        """Return the values at each multiple of so many minutes. Raises InvalidRequest for a step that does not fit."""
        if minutes % self.step_min or self.start_at.minute % minutes:
            raise InvalidRequest(f"{self.name} has a value every {self.step_min} minutes; every {minutes} are needed")
        return Clocked(self.name, self.start_at, minutes, self.values[:: minutes // self.step_min])


@dataclass(frozen=True, slots=True)
class Line:
    """One figure beside what was published (None: for other data, or not at all)."""

    what: str
    value: float
    unit: str
    published: float | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """A scenario's inputs; ``jobs`` is a file, ``first_row`` the row (from 0) its hours begin with."""

    series: Sequence[Clocked]
    jobs: Source | None = None
    first_row: int = 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A published table: its name here, what it is, where it was published, and how it is rebuilt."""

    name: str
    what: str
    source: str
    run: Callable[[Given], list[Line]]


def read_clocked(source: Source) -> list[Clocked]:
    """Read the value columns of a file (``FILE:COLUMN=NAME`` chooses). Raises InvalidRequest naming file and line."""
    times: list[datetime] = []
    rows: list[list[float]] = []
    with opened(source) as reader:
        chosen = source.chosen or tuple((name, name) for name in reader.columns[1:])
        places = [reader.place(column) for column, _ in chosen]
        for line, cells in reader.rows():
            try:
                times.append(datetime.fromisoformat(cells[0]).replace(tzinfo=None))
            except ValueError as error:
                raise source.error(f"{cells[0]!r} in the first column is no time", line) from error
            rows.append(
                [reader.rate(cells[place], line, column) for place, (column, _) in zip(places, chosen, strict=True)]
            )
            if any(np.isnan(rows[-1])):
                raise source.error("a value is missing; a published table cannot be rebuilt with gaps", line)
            if len(times) > 2 and times[-1] - times[-2] != times[1] - times[0]:
                raise source.error(f"{times[-1]:%F %R} does not follow {times[-2]:%F %R} at the file's step", line)
    if len(times) < 2 or not chosen:
        raise source.error("holds no series of values")
    step = int((times[1] - times[0]) / timedelta(minutes=1))
    if step < 1:
        raise source.error("its times do not rise", 3)
    table = np.array(rows)
    return [Clocked(name, times[0], step, table[:, place]) for place, (_, name) in enumerate(chosen)]


def lowest_run(values: FloatArray, length: int) -> int:
    """Return where the run of so many neighbours with the lowest sum begins; the first of equal ones."""
    sums = np.cumsum(np.concatenate(([0.0], values)))
    # Sums of like values may differ in their last digits: a tenth of a millionth of a gram is no difference.
    return int(np.argmin(np.round(sums[length:] - sums[:-length], 7)))
