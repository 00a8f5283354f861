"""Spread lanes over regions that are alike in a window, so that all are equally full. Pure; what it costs stays.

A flow that is free to choose fills one of two such cells before the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from carbonq.plan.demand import IntArray

if TYPE_CHECKING:
    from carbonq.plan.solver.flow import Offer

#: Classes, the cells (region x windows + window) they go to, and how many.
Lots = tuple[IntArray, IntArray, IntArray]


def spread(lots: Lots, offer: Offer, kept: IntArray) -> Lots:
    """Return the lots with each window's lanes spread evenly over its cells that are alike to all kinds.

    ``kept`` are the cells of lanes that stay where they are: they count as load and are not moved.
    """
    of, went, count = lots
    groups = None if offer.is_near_first else _alike(offer)
    if groups is None or not len(went):
        return lots
    windows = offer.slots.shape[1]
    held = np.bincount(kept, minlength=offer.slots.size).reshape(offer.slots.shape)
    region, window = np.divmod(went, windows)
    group = groups[region, window] * windows + window
    order = np.argsort(group, kind="stable")
    moved: list[Lots] = []
    stays = np.ones(len(went), dtype=np.bool_)
    begin = np.flatnonzero(np.append(True, np.diff(group[order]) != 0))
    for rows in np.split(order, begin[1:]):
        leader, column = divmod(int(group[rows[0]]), windows)
        members = np.flatnonzero((groups[:, column] == leader) & (offer.slots[:, column] > 0))
        if len(members) < 2:
            continue
        stays[rows] = False
        share = _shares(int(count[rows].sum()), offer, held, members, column)
        moved.append(_cut(of[rows], count[rows], members * windows + column, share))
    if not moved:
        return lots
    kept_lots = (of[stays], went[stays], count[stays])
    parts = [kept_lots, *moved]
    return (
        np.concatenate([part[0] for part in parts]),
        np.concatenate([part[1] for part in parts]),
        np.concatenate([part[2] for part in parts]),
    )


def _alike(offer: Offer) -> IntArray | None:
    """Return by [region, window] the first region that is alike to all kinds there; None where none is like another."""
    regions, windows = offer.slots.shape
    leader = np.repeat(np.arange(regions)[:, None], windows, axis=1)
    is_any = False
    for later in range(1, regions):
        for first in range(later):
            if (offer.may[:, first] != offer.may[:, later]).any():
                continue
            same = (offer.cost[:, first] == offer.cost[:, later]).all(axis=0) & (leader[first] == first)
            if offer.over_cap is not None:
                same &= (offer.over_cap[:, first] == offer.over_cap[:, later]).all(axis=0)
            same &= leader[later] == later
            leader[later][same] = first
            is_any = is_any or bool(same.any())
    return leader if is_any else None


def _shares(total: int, offer: Offer, held: IntArray, members: IntArray, column: int) -> IntArray:
    """Divide lanes so that each cell is filled to the same part of its slots, as far as what is held there allows."""
    slots, held = offer.slots[members, column], held[members, column]
    # Each free lane of a cell by how full the cell is with it; the emptiest first, of equals the nearest region's.
    level = [
        (np.arange(have + 1, can + 1) / can, cell) for cell, (can, have) in enumerate(zip(slots, held, strict=True))
    ]
    fullness = np.concatenate([lanes for lanes, _ in level])
    cell = np.repeat([number for _, number in level], [len(lanes) for lanes, _ in level])
    taken = cell[np.lexsort((cell, offer.is_far[members[cell]], fullness))[:total]]
    return np.bincount(taken, minlength=len(slots)).astype(np.int64)


def _cut(of: IntArray, count: IntArray, cells: IntArray, share: IntArray) -> Lots:
    """Give lots out anew: the first ones to the first cell until it has its share, and so on."""
    came, goes = np.cumsum(count), np.cumsum(share)
    marks = np.union1d(came, goes)
    marks = marks[marks > 0]
    return of[np.searchsorted(came, marks)], cells[np.searchsorted(goes, marks)], np.diff(marks, prepend=0)
