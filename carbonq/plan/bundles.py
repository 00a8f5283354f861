"""Put short chunks together so that a lane of a cell is full. Pure.

A *bundle* is what occupies one lane of one cell: one chunk, or several short ones that run one after another. All of
a bundle's deadlines hold if it starts by its own latest start. Seconds are grid seconds from now.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from carbonq.units import WINDOW_S

#: Share of a window that bundled chunks may fill by estimate; the rest absorbs the time between chunks.
BUNDLE_FILL = 0.75

#: Deadlines that lie within this ratio of each other (counted from now) may share a bundle.
DEADLINE_RATIO = 1.1


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk as the planner's insides see it; ``regions`` and ``current`` are rows and columns of the arrays.

    ``max_rate`` is the carbon cap as the highest rate x PUE (gCO2e/kWh) within it.
    """

    duration_s: float
    energy_uj: int
    release_s: float
    due_s: float
    regions: tuple[int, ...]
    max_rate: float = math.inf
    current: tuple[int, int] | None = None

    @property
    def latest_s(self) -> float:
        """The latest start."""
        return self.due_s - self.duration_s


@dataclass(frozen=True, slots=True)
class Bundle:
    """What is planned as one; ``members`` are positions of pieces, in the order in which they run."""

    members: tuple[int, ...]
    duration_s: float
    energy_uj: int
    release_s: float
    latest_s: float
    regions: tuple[int, ...]
    max_rate: float
    current: tuple[int, int] | None


def bundle(pieces: Sequence[Piece], positions: Sequence[int], *, is_tight: bool) -> list[Bundle]:
    """Make bundles of the pieces at ``positions``.

    ``is_tight`` merges whatever may run in the same regions, for when lanes are scarce; otherwise only pieces with
    alike deadlines and the same present placement share a lane, so that nothing loses its choice of windows.
    """
    groups: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for position in positions:
        piece = pieces[position]
        if piece.duration_s * 2 > BUNDLE_FILL * WINDOW_S:
            groups[(position,)].append(position)
            continue
        release = math.ceil(max(piece.release_s, 0.0) / WINDOW_S)
        key: tuple[object, ...] = (piece.regions, piece.max_rate, release)
        if not is_tight:
            key += (_deadline_bucket(piece.due_s), piece.current)
        groups[key].append(position)
    bundles: list[Bundle] = []
    for group in groups.values():
        group.sort(key=lambda position: pieces[position].due_s)
        bundles.extend(_cut(pieces, group))
    return bundles


def _deadline_bucket(due_s: float) -> int:
    windows = max(1.0, due_s // WINDOW_S)
    return int(windows) if windows < 10 else 10 + int(math.log(windows / 10) / math.log(DEADLINE_RATIO))


def _cut(pieces: Sequence[Piece], group: Sequence[int]) -> list[Bundle]:
    bundles: list[Bundle] = []
    start, total = 0, 0.0
    for end, position in enumerate(group):
        if total and total + pieces[position].duration_s > BUNDLE_FILL * WINDOW_S:
            bundles.append(_join(pieces, group[start:end]))
            start, total = end, 0.0
        total += pieces[position].duration_s
    bundles.append(_join(pieces, group[start:]))
    return bundles


def _join(pieces: Sequence[Piece], members: Sequence[int]) -> Bundle:
    ends, latest = 0.0, math.inf
    for position in members:
        ends += pieces[position].duration_s
        latest = min(latest, pieces[position].due_s - ends)
    first = pieces[members[0]]
    places = {pieces[position].current for position in members}
    return Bundle(
        members=tuple(members),
        duration_s=ends,
        energy_uj=sum(pieces[position].energy_uj for position in members),
        release_s=max(pieces[position].release_s for position in members),
        latest_s=latest,
        regions=first.regions,
        max_rate=min(pieces[position].max_rate for position in members),
        current=places.pop() if len(places) == 1 else None,
    )
