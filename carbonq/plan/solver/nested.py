"""The flow of lanes whose kinds rank cells alike, as with one sort of hardware everywhere: a smaller network. Pure.

In each window the kind that gains most from a clean cell has the cleanest ones, the next kind those after them, and so
on. So what a window costs follows from how many lanes the first kind, the first two, the first three ... take in it:
with kinds by falling cost, ``sum over k of (cost of k - cost of the next) on the cheapest lanes that kinds up to k
take``. That is a chain of nodes from kind to kind with an arc for each cell, and no cell needs a node of its own.

With one kind only the order of the cells counts, because lanes that can be taken together form a matroid: its least
basis is the same for all costs that rank alike (J. Edmonds, "Matroids and the greedy algorithm", 1971). So ranks are
costs there, with ties broken in full and no unit lost.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from carbonq.plan.demand import FloatArray, IntArray
from carbonq.plan.solver.network import Arcs, Classes, arrivals, grow, most_units, reach, share

if TYPE_CHECKING:
    from carbonq.plan.solver.flow import Offer

logger = logging.getLogger(__name__)

#: Up to so many lanes wanted, and beyond: the share of the cost that all the ties to earlier windows may cost together.
_FEW_LANES, _TIE_OF_FEW, _TIE = 500, 5e-7, 5e-4

#: The dearest single step has at most this many units.
_MOST_UNITS = 10**10

#: One unit more than there is room for costs as much as this many of the dearest placements (in prices only).
_BEYOND = 1000

#: Costs that differ by less than this part of the dearest one may rank otherwise: rounding.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Ranking:
    """Kinds by falling cost, and cells by window and rising cost: ``region``, ``window``, ``step[k, cell]`` in grams.

    ``step`` is what kind ``k`` costs more than the next one; of the last kind all that it costs.
    """

    kinds: IntArray
    region: IntArray
    window: IntArray
    step: FloatArray


def ranking(classes: Classes, offer: Offer) -> Ranking | None:
    """Return how all kinds rank the cells; None if they do not agree, or may use unlike cells."""
    kinds = np.flatnonzero(np.bincount(classes.kind))
    if offer.over_cap is not None or (len(kinds) > 1 and (offer.may[kinds] != offer.may[kinds[0]]).any()):
        return None
    region, window = np.nonzero(offer.may[kinds[0]][:, None] & (offer.slots > 0))
    cost = offer.cost[kinds][:, region, window]
    if len(kinds) > 1:
        by_cost = np.argsort(-cost.sum(axis=1), kind="stable")
        kinds, cost = kinds[by_cost], cost[by_cost]
    order = np.lexsort((region, offer.is_far[region], cost[0], window))
    region, window, cost = region[order], window[order], cost[:, order]
    step = cost
    if len(kinds) > 1:
        step = np.concatenate((cost[:-1] - cost[1:], cost[-1:]))
        rises = np.diff(step, axis=1) >= -_ROUNDING * float(np.abs(cost).max(initial=0.0))
        if not (rises | (window[1:] != window[:-1])).all():
            return None
    return Ranking(kinds, region, window, step)


class Nested:
    """Classes on cells that all their kinds rank alike."""

    def __init__(self, classes: Classes, offer: Offer, ranks: Ranking) -> None:
        """Take classes whose kinds are all among those of the ranking."""
        self.offer, self.ranks = offer, ranks
        self.kinds, self.windows = len(ranks.kinds), offer.slots.shape[1]
        place = np.zeros(offer.cost.shape[0], dtype=np.int64)
        place[ranks.kinds] = np.arange(self.kinds)
        self.classes = Classes(place[classes.kind], classes.first, classes.last, classes.count)
        self.free: IntArray = offer.slots[ranks.region, ranks.window]

    def run(self) -> bool:
        """Build the network and solve it; False where not everything can be in time."""
        if not len(self.free):
            return False
        classes, ranks = self.classes, self.ranks
        self.arcs = Arcs()
        self.tree = grow(self.arcs, classes, self.kinds, self.windows, first_class=0, base=len(classes))
        self.sink = self.tree.end
        self._weigh()
        low, high = reach(classes, self.kinds, self.windows)
        low, high = np.minimum.accumulate(low), np.maximum.accumulate(high)
        self.offered: list[tuple[IntArray, slice]] = []
        for k in range(self.kinds):
            cells = np.flatnonzero((ranks.window >= low[k]) & (ranks.window <= high[k]))
            leaf = self.tree.leaf + k * self.windows + ranks.window[cells]
            onward = leaf + self.windows if k < self.kinds - 1 else self.sink
            self.offered.append((cells, self.arcs.add(leaf, onward, self.free[cells], self.units[k, cells])))
        status, self.flows = self.arcs.solve(classes.count, self.sink)
        if status not in ("OPTIMAL", "INFEASIBLE"):
            logger.error("min-cost flow of %d lanes ended with status %s", int(classes.count.sum()), status)
        return status == "OPTIMAL"

    def _weigh(self) -> None:
        """Work out whole costs by [kind, cell], with the tie to earlier windows, and what they are in grams."""
        ranks = self.ranks
        if self.kinds == 1:
            cost = ranks.step[0]
            order = np.lexsort((ranks.window, cost))
            is_new = (np.diff(cost[order]) > 0) | (np.diff(ranks.window[order]) > 0)
            rank = np.zeros(len(order), dtype=np.int64)
            rank[order[1:]] = np.cumsum(is_new)
            self.units = rank[None]
            self.grams_of_rank = cost[order[np.append(True, is_new)]]
            return
        total = np.cumsum(ranks.step[::-1], axis=0)[::-1]
        least = np.abs(total).min(axis=1)[self.classes.kind] @ self.classes.count / self.classes.count.sum()
        dearest = float(np.abs(total).max())
        share = _TIE_OF_FEW if self.classes.count.sum() <= _FEW_LANES else _TIE
        wanted = _MOST_UNITS if least <= 0 else min(_MOST_UNITS, int(self.windows / share * dearest / least) + 1)
        self.unit = most_units(dearest, self.sink + 1, 0, wanted)
        self.units = np.rint(self.unit * ranks.step).astype(np.int64)
        self.units[-1] += ranks.window

    def lots(self) -> tuple[IntArray, IntArray, IntArray]:
        """Say how many of each class go to which cells: (class, cell, count)."""
        return share(arrivals(self.tree, self.flows), self._leaving())

    def _leaving(self) -> tuple[IntArray, IntArray, IntArray]:
        """Say what leaves each (kind of the chain, window): (kind x windows + window, cell, count).

        Of cells that cost the same in a window those take the next lane that are less full, the nearest of these first.
        """
        ranks, windows = self.ranks, self.windows
        taken = np.zeros((self.kinds + 1, windows), dtype=np.int64)
        for k, (cells, arcs) in enumerate(self.offered):
            taken[k + 1] = np.bincount(ranks.window[cells], self.flows[arcs], windows)
        window, cell, size = ranks.window, np.arange(len(ranks.window)), self.free
        alike = (window[1:] == window[:-1]) & (ranks.step[:, 1:] == ranks.step[:, :-1]).all(axis=0)
        if alike.any():
            # The first half of each such cell, then the second halves.
            group = np.concatenate(([0], np.cumsum(~alike)))
            cell, size = np.tile(cell, 2), np.concatenate(((size + 1) // 2, size // 2))
            order = np.lexsort((np.arange(len(cell)), group[cell]))
            cell, size = cell[order], size[order]
            window = ranks.window[cell]
        ends = np.cumsum(size)
        begins = ends - size
        begins_window = begins[np.searchsorted(window, window)]
        begins, ends = begins - begins_window, ends - begins_window
        count = np.minimum(ends, taken[1:, window]) - np.maximum(begins, taken[:-1, window])
        kind, piece = np.nonzero(count > 0)
        at = cell[piece]
        went = ranks.region[at] * windows + ranks.window[at]
        return kind * windows + window[piece], went, count[kind, piece]

    def prices(self) -> FloatArray:
        """Return what taking one more lane of each cell would cost all others together, in grams."""
        ranks, leaf = self.ranks, self.tree.leaf
        made = np.zeros(self.offer.slots.shape)
        if self.kinds == 1:
            beyond = len(self.grams_of_rank)
        else:
            dearest = float(np.abs(self.units).sum(axis=0).max())
            beyond = int(_BEYOND * dearest)
        starts = np.append(np.arange(leaf, leaf + self.kinds * self.windows), self.sink)
        cost = np.full(len(starts), beyond)
        cost[-1] = 0
        far = self.arcs.distances(self.flows, starts, cost)
        worth = np.zeros(len(self.free))
        if self.kinds == 1:
            cells, own = self.offered[0][0], self.ranks.step[0]
            grams = np.append(self.grams_of_rank, _BEYOND * np.abs(own).max())
            worth[cells] = grams[far[leaf + ranks.window[cells]]] - own[cells]
        elif self.unit > 0:
            own_units = np.cumsum(self.units[::-1], axis=0)[::-1]
            for k, (cells, _) in enumerate(self.offered):
                more = (far[leaf + k * self.windows + ranks.window[cells]] - own_units[k, cells]) / self.unit
                worth[cells] = np.maximum(worth[cells], more)
        made[ranks.region, ranks.window] = np.maximum(worth, 0.0)
        return made
