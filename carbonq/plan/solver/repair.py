"""Find room for a chunk whose cells are full by moving others along a chain, none of them out of its time. Pure arrays.

Breadth first: who is in the cells it could have, where else could they be, who is there, and so on, until a cell has a
lane to spare. With one lane each for all (no chunk shares or spans) a chunk is left without room only if no plan at
all could have it in time beside the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from carbonq.plan.demand import BoolArray, FloatArray, IntArray

#: Longest chain of moves that is looked for.
_MOST_MOVES = 64


@dataclass(slots=True)
class Occupants:
    """Who holds one lane of one cell each, by column; ``cell`` (region x windows + window) changes as they move.

    ``allowed[group, region]`` says where each ``group`` may run, ``first`` and ``last`` in which windows it may start.
    """

    cell: IntArray
    group: IntArray
    first: IntArray
    last: IntArray
    allowed: BoolArray


def make_room(occupants: Occupants, free: IntArray, wanted: BoolArray, cost: FloatArray) -> int | None:
    """Free a lane in one of the ``wanted`` cells ``[region, window]`` and return that cell; None if there is no way.

    Moves occupants and keeps ``free`` (lanes by [region, window]) up to date, the lane that was freed included. Among
    the cells that a shortest chain can end in, the one of least ``cost`` is taken.
    """
    regions, windows = free.shape
    seen = np.zeros((regions, windows), dtype=np.bool_)
    front = wanted.copy()
    levels: list[IntArray] = []
    for _ in range(_MOST_MOVES):
        open_ = front & (free > 0)
        if open_.any():
            cell = int(np.argmin(np.where(open_, cost, np.inf)))
            return _shift(occupants, free, levels, cell)
        seen |= front
        rows = np.flatnonzero(front.ravel()[occupants.cell])
        if not len(rows):
            return None
        levels.append(rows)
        edges = np.zeros((len(occupants.allowed), windows + 1), dtype=np.int64)
        np.add.at(edges, (occupants.group[rows], occupants.first[rows]), 1)
        np.add.at(edges, (occupants.group[rows], occupants.last[rows] + 1), -1)
        covered = np.cumsum(edges, axis=1)[:, :-1] > 0
        front = np.zeros_like(front)
        for group in np.flatnonzero(covered.any(axis=1)).tolist():
            front |= occupants.allowed[group][:, None] & covered[group]
        front &= ~seen
    return None


def _shift(occupants: Occupants, free: IntArray, levels: list[IntArray], cell: int) -> int:
    """Move the chain that ends in ``cell``, from its end on; return the cell where it leaves a lane."""
    windows = free.shape[1]
    free.ravel()[cell] -= 1
    for rows in reversed(levels):
        region, window = divmod(cell, windows)
        fits = occupants.allowed[occupants.group[rows], region]
        fits &= (occupants.first[rows] <= window) & (window <= occupants.last[rows])
        chosen = int(rows[np.flatnonzero(fits)[0]])
        cell, occupants.cell[chosen] = int(occupants.cell[chosen]), cell
    free.ravel()[cell] += 1
    return cell
