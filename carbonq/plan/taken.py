"""How many lanes of each cell accepted work takes where it is placed now. Pure.

Short chunks run one after another on a lane, up to ``BUNDLE_FILL`` of its window; a chunk longer than a window takes a
lane in each window it reaches into.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import numpy.typing as npt

from carbonq.plan.policy import OVERRUN_SHARE
from carbonq.plan.solver.bundles import BUNDLE_FILL
from carbonq.units import WINDOW_S, window_index

#: Chunks above this many grid seconds do not share a lane: two of them would not fit.
SHARED_UP_TO_S = BUNDLE_FILL * WINDOW_S / 2


@dataclass(frozen=True, slots=True)
class Held:
    """What is placed in one cell: chunks that have a lane to themselves, and the summed grid seconds of the others."""

    region: str
    window_at: datetime
    alone: int
    shared_s: float


@dataclass(frozen=True, slots=True)
class LongChunk:
    """A chunk of more than a window that is placed to start in a cell; grid seconds."""

    region: str
    window_at: datetime
    duration_s: float


def lanes_taken(
    held: Sequence[Held], long: Sequence[LongChunk], regions: Sequence[str], first_window: int, windows: int
) -> npt.NDArray[np.int64]:
    """Return the lanes taken by ``[region, window]``; what lies outside is left out."""
    taken = np.zeros((len(regions), windows), dtype=np.int64)
    rows = {name: row for row, name in enumerate(regions)}
    for one in held:
        column = window_index(one.window_at) - first_window
        if one.region in rows and 0 <= column < windows:
            taken[rows[one.region], column] += one.alone + math.ceil(one.shared_s / (BUNDLE_FILL * WINDOW_S) - 1e-9)
    for one in long:
        column = window_index(one.window_at) - first_window
        end = column + span(one.duration_s)
        if one.region in rows and end > 0 and column < windows:
            taken[rows[one.region], max(column, 0) : end] += 1
    return taken


def span(duration_s: float) -> int:
    """Return how many windows a chunk holds its lane in; it may reach a fifth of a window into one more."""
    return max(1, math.ceil((duration_s - OVERRUN_SHARE * WINDOW_S) / WINDOW_S))
