"""Grid time and machine time.

*Grid time* (windows, deadlines, forecasts) may run faster than the wall, or begin elsewhere; its anchor is kept in the
database so that all processes share it. *Machine time* (leases, heartbeats) is the database's ``now()``; durations use
the monotonic clock. Imports nothing of carbonq but words.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Protocol


class ClockKind(StrEnum):
    """How grid time runs; every ledger entry carries it and summaries refuse to mix kinds."""

    REAL = "real"
    ACCELERATED = "accelerated"
    SIMULATED = "simulated"


class Clock(Protocol):
    """A source of grid time."""

    @property
    def kind(self) -> ClockKind:
        """How this clock runs."""
        ...

    @property
    def factor(self) -> float:
        """Grid seconds that pass in one machine second."""
        ...

    def now(self) -> datetime:
        """Return the current grid time, aware UTC."""
        ...


@dataclass(frozen=True, slots=True)
class GridClock:
    """Grid time = ``grid_epoch`` + (machine time - ``machine_epoch``) x ``factor``."""

    machine_epoch: datetime
    grid_epoch: datetime
    factor: float
    kind: ClockKind

    @classmethod
    def real(cls) -> GridClock:
        """Grid time is machine time."""
        epoch = datetime(2020, 1, 1, tzinfo=UTC)
        return cls(machine_epoch=epoch, grid_epoch=epoch, factor=1.0, kind=ClockKind.REAL)

    @classmethod
    def accelerated(cls, grid_epoch: datetime, factor: float) -> GridClock:
        """Grid time begins at ``grid_epoch`` now and runs ``factor`` times as fast as the machine's."""
        return cls(datetime.now(UTC), grid_epoch, factor, ClockKind.ACCELERATED)

    def now(self) -> datetime:
        """Return the current grid time, aware UTC."""
        return self.at(datetime.fromtimestamp(time.time(), UTC))

    def at(self, machine: datetime) -> datetime:
        """Return the grid time at a machine time."""
        return self.grid_epoch + (machine - self.machine_epoch) * self.factor

    def machine(self, grid: datetime) -> datetime:
        """Return the machine time at a grid time."""
        return self.machine_epoch + (grid - self.grid_epoch) / self.factor


def grid_s(clock: Clock, machine_s: float) -> float:
    """Return how many grid seconds pass in ``machine_s`` machine seconds."""
    return machine_s * clock.factor


def machine_s(clock: Clock, grid: timedelta) -> float:
    """Return how many machine seconds a span of grid time lasts."""
    return grid.total_seconds() / clock.factor
