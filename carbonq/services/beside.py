"""Say when few new chunks are placed beside many that stay, and read what these hold, summed up by the database.

A plan of everything reads and arranges each chunk that waits. Where nothing but new work has come, and little of it,
what others hold of each cell is enough to place it in what they leave. The next window or forecast plans all anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np

from carbonq.model import Region
from carbonq.plan import capacity
from carbonq.plan.capacity import Capacity
from carbonq.plan.taken import Held, LongChunk, lanes_taken
from carbonq.services.free import read_held
from carbonq.services.trigger import COUNTED, NEW_WORK, Look
from carbonq.store import placements, shadows
from carbonq.store.database import Tx
from carbonq.units import WINDOW

#: New chunks are few if there are at least so many times as many that have a place.
TIMES = 10

#: With fewer chunks in place a plan of everything takes no time worth sparing.
LEAST_PLACED = 2_000

#: How far ahead it is read what others hold, in windows: a week, like the longest horizon of a plan.
_AHEAD = 2016


@dataclass(frozen=True, slots=True)
class Beside:
    """What the ``count`` chunks that have a place hold of the windows to come."""

    count: int
    held: tuple[Held, ...]
    long: tuple[LongChunk, ...]

    def lanes(
        self,
        regions: Sequence[Region],
        now: datetime,
        windows: int,
        running_s: Mapping[str, Sequence[float]],
        due_s: Mapping[str, Sequence[float]],
    ) -> Capacity:
        """Return the lanes that they leave; what runs and what is due is given as in ``capacity.build``."""
        made = capacity.build(regions, now=now, windows=windows, running_s=running_s, due_s=due_s)
        taken = lanes_taken(self.held, self.long, made.regions, made.first_window, windows)
        return replace(made, slots=np.maximum(made.slots - taken, 0))


def read(tx: Tx, seen: Look, factor: float) -> Beside | None:
    """Return what others hold, or None where everything is to be planned; ``factor`` is grid for machine seconds."""
    if seen.trigger != NEW_WORK or len(seen.waiting) > COUNTED or shadows.is_any_movable(tx, seen.now):
        return None
    count = placements.count_placed(tx)
    if count < max(LEAST_PLACED, TIMES * len(seen.waiting)):
        return None
    held, long = read_held(tx, seen.now + timedelta(microseconds=1), seen.now + _AHEAD * WINDOW, factor)
    return Beside(count, held, long)
