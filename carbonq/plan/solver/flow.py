"""The exact assignment of lanes wanted to cells as a min-cost flow. Pure.

Wanted lanes alike in kind, first and last window are one *class*, so that the size of the network (``network.py``)
follows the number of distinct classes and not of chunks. What is placed already forms *groups* by (class, cell), each
with an arc straight to its cell at a discount, the margin for staying. If all kinds rank the cells alike and nothing is
placed, the smaller network of ``nested.py`` is solved. If not everything can be in time, a first flow without any
carbon finds the fewest late and of these plans the least lateness, and the second one the least carbon for that. Costs
are whole numbers; ties go to the earlier window, the emptier cell, the nearer region.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from carbonq.plan.demand import BoolArray, FloatArray, IntArray
from carbonq.plan.solver.contiguous import rows_of
from carbonq.plan.solver.levelling import spread
from carbonq.plan.solver.nested import Nested, ranking
from carbonq.plan.solver.network import Arcs, Classes, Tree, arrivals, grow, most_units, price_of, reach, share

logger = logging.getLogger(__name__)

#: Weights of the ties, in units of the integer cost.
_TIE_WINDOW, _TIE_LOAD, _TIE_FAR, _TIE_MOVE = 5, 2, 1, 1

#: The dearest single placement has this many units, so that rounding and ties cost less than a millionth of it.
_MOST_UNITS = 10**10

#: Breaking a carbon cap costs as much as this many of the dearest placements.
_CAP_PENALTY = 100

#: One unit more than there is room for costs as much as this many of the dearest placements (in prices only).
_BEYOND = 1000


@dataclass(frozen=True, slots=True)
class Wanted:
    """Lanes wanted, by column: ``kind``, ``first`` and ``last`` window, ``current`` cell (-1: none), ``size``.

    Of a class the larger ``size`` gets the cheaper cells.
    """

    kind: IntArray
    first: IntArray
    last: IntArray
    current: IntArray
    size: FloatArray


@dataclass(frozen=True, slots=True)
class Offer:
    """What there is: ``cost[k, r, w]`` in grams, ``may[k, r]``, ``over_cap[k, r, w]``, free ``slots[r, w]``.

    ``is_near_first``: the nearest region is filled before others that cost the same, else all evenly.
    """

    cost: FloatArray
    may: BoolArray
    over_cap: BoolArray | None
    slots: IntArray
    is_far: BoolArray
    is_near_first: bool = False


@dataclass(frozen=True, slots=True)
class Solution:
    """The cell (region x windows + window) of each lane wanted, -1 without room; ``stays``: where it is already.

    ``prices[r, w]`` is what taking one more lane of a cell would cost all others together, in grams.
    """

    cell: IntArray
    stays: BoolArray
    prices: FloatArray


def solve(wanted: Wanted, offer: Offer, margin: float) -> Solution:
    """Place lanes of one window each; as many as can be are in time, then the least lateness, then the least cost.

    A present placement is kept unless leaving it gains more than ``margin`` of its cost.
    """
    windows = offer.slots.shape[1]
    cell = np.full(len(wanted.kind), -1, dtype=np.int64)
    stays = np.zeros(len(cell), dtype=np.bool_)
    prices = np.zeros(offer.slots.shape)
    rows = np.flatnonzero((wanted.first < windows) & np.any(offer.may, axis=1)[wanted.kind])
    if not len(rows) or not offer.slots.any():
        return Solution(cell, stays, prices)
    kind, first = wanted.kind[rows], np.maximum(wanted.first[rows], 0)
    last = np.minimum(wanted.last[rows], windows - 1)
    of, chosen = rows_of(kind, last, first)
    classes = Classes(kind[chosen], first[chosen], last[chosen], np.bincount(of, minlength=len(chosen)))
    current = _current(wanted.current[rows], classes, of, offer)
    parent = np.arange(len(classes))
    network = None if (classes.last < classes.first).any() else _solved(classes, parent, (of, current), offer, margin)
    if network is None:
        parts, parent = _least_late(classes, offer)
        is_whole = np.bincount(parent, weights=parts.count, minlength=len(classes)) >= classes.count
        is_whole &= np.bincount(parent, minlength=len(classes)) == 1
        is_whole &= classes.last >= classes.first
        current = np.where(is_whole[of], current, -1)
        network = _solved(parts, parent, (of, current), offer, margin) if len(parts) else None
    if network is None:
        return Solution(cell, stays, prices)
    if isinstance(network, _Network):
        cell[rows], stays[rows] = network.kept_in()
    part, went, count = spread(network.lots(), offer, cell[cell >= 0])
    cell[rows] = _hand_out((parent[part], went, count), classes.kind, of, (cell[rows], wanted.size[rows]), offer)
    return Solution(cell, stays, network.prices())


def _solved(
    classes: Classes, parent: IntArray, lanes: tuple[IntArray, IntArray], offer: Offer, margin: float
) -> _Network | Nested | None:
    """Return the solved network of classes (of lanes: parent, current); None where not everything can be in time."""
    of, current = lanes
    ranks = None if (current >= 0).any() else ranking(classes, offer)
    network = _Network(classes, parent, of, current, offer=offer, margin=margin) if ranks is None else None
    network = Nested(classes, offer, ranks) if network is None and ranks is not None else network
    return network if network is not None and network.run() else None


def _hand_out(
    lots: tuple[IntArray, IntArray, IntArray],
    kind: IntArray,
    of: IntArray,
    lanes: tuple[IntArray, FloatArray],
    offer: Offer,
) -> IntArray:
    """Return the cells of lanes (cell, -1 without one yet; size), ``lots`` of (class, cell, count) given out.

    ``kind`` is that of each class and ``of`` the class of each lane; of a class the larger lane gets the cheaper cell.
    """
    (lot_of, went, count), (cell, size) = lots, lanes
    region, window = np.divmod(went, offer.slots.shape[1])
    order = np.lexsort((region, window, offer.cost[kind[lot_of], region, window], lot_of))
    got, got_of = np.repeat(went[order], count[order]), np.repeat(lot_of[order], count[order])
    todo = np.flatnonzero(cell < 0)
    todo = todo[np.lexsort((todo, -size[todo], of[todo]))]
    rank = np.arange(len(todo)) - np.searchsorted(of[todo], of[todo])
    todo = todo[rank < np.bincount(got_of, minlength=len(kind))[of[todo]]]
    cell = cell.copy()
    cell[todo] = got
    return cell


def _current(current: IntArray, classes: Classes, of: IntArray, offer: Offer) -> IntArray:
    region, window = np.divmod(np.maximum(current, 0), offer.slots.shape[1])
    fits = (current >= 0) & (window >= classes.first[of]) & (window <= classes.last[of])
    fits &= offer.may[classes.kind[of], region] & (offer.slots[region, window] > 0)
    return np.where(fits, current, -1)


class _Network:
    """Classes (parts of what ``of`` numbers: ``parent``) and groups of what is placed, on an offer."""

    def __init__(
        self, classes: Classes, parent: IntArray, of: IntArray, current: IntArray, *, offer: Offer, margin: float
    ) -> None:
        self.classes, self.parent, self.of, self.current, self.offer = classes, parent, of, current, offer
        self.margin = margin
        self.kinds, self.regions, self.windows = offer.cost.shape
        placed = np.flatnonzero(current >= 0)
        group, members = rows_of(of[placed], current[placed])
        self.group_of = np.full(len(of), -1)
        self.group_of[placed] = group
        self.group_count = np.bincount(group, minlength=len(members)).astype(np.int64)
        # Only classes that are whole have groups, so the part of a group's class is the one with that parent.
        part_of = np.zeros(int(parent.max(initial=-1)) + 1, dtype=np.int64)
        part_of[parent] = np.arange(len(parent))
        self.group_class = part_of[of[placed[members]]] if len(members) else members
        self.group_cell = current[placed[members]]

    def run(self) -> bool:
        """Build the network and solve it; False where not everything can be in time."""
        classes, groups = self.classes, len(self.group_count)
        self.arcs = Arcs()
        self.tree = grow(self.arcs, classes, self.kinds, self.windows, first_class=groups, base=groups + len(classes))
        self.cell_node = self.tree.end
        self.sink = self.cell_node + self.regions * self.windows
        penalty = _CAP_PENALTY if self.offer.over_cap is not None else 0
        dearest = float(np.abs(self.offer.cost[self.offer.may]).max())
        self.unit = most_units(dearest, self.sink + 1, penalty, _MOST_UNITS)
        self.over_cap = round(penalty * self.unit * dearest)
        self.beyond = round(_BEYOND * (1 + penalty) * self.unit * dearest) + 16 * _TIE_WINDOW * self.windows
        self._add_groups()
        self._add_offers()
        rest = classes.count - np.bincount(self.group_class, self.group_count, len(classes)).astype(np.int64)
        status, self.flows = self.arcs.solve(np.concatenate((self.group_count, rest)), self.sink)
        if status not in ("OPTIMAL", "INFEASIBLE"):
            logger.error("min-cost flow of %d lanes ended with status %s", int(classes.count.sum()), status)
        return status == "OPTIMAL"

    def _add_groups(self) -> None:
        region, window = np.divmod(self.group_cell, self.windows)
        kind = self.classes.kind[self.group_class]
        groups = np.arange(len(self.group_cell))
        cost = self.offer.cost[kind, region, window]
        units = np.rint(self.unit * (cost - self.margin * np.abs(cost))).astype(np.int64)
        if self.offer.over_cap is not None:
            units += np.where(self.offer.over_cap[kind, region, window], self.over_cap, 0)
        self.arcs.add(groups, len(groups) + self.group_class, self.group_count, 0)
        self.kept = self.arcs.add(groups, self.cell_node + self.group_cell, self.group_count, units)

    def _add_offers(self) -> None:
        """From each (kind, window) to the cells that it may use, and from there to the sink."""
        offer, slots = self.offer, self.offer.slots
        low, high = reach(self.classes, self.kinds, self.windows)
        column = np.arange(self.windows)
        may = offer.may[:, :, None] & (slots > 0) & ((column >= low[:, None]) & (column <= high[:, None]))[:, None, :]
        kind, region, window = np.nonzero(may)
        cost = np.rint(self.unit * offer.cost[kind, region, window]).astype(np.int64)
        cost += _TIE_WINDOW * window + _TIE_FAR * offer.is_far[region] + _TIE_MOVE
        if offer.over_cap is not None:
            cost += np.where(offer.over_cap[kind, region, window], self.over_cap, 0)
        self.offer_leaf, self.offer_cell = kind * self.windows + window, region * self.windows + window
        free = slots[region, window]
        leaf = self.tree.leaf + self.offer_leaf
        # One more than there is: what limits is the cell, so that its price is all that a full one costs.
        self.offered = self.arcs.add(leaf, self.cell_node + self.offer_cell, free + 1, cost)
        region, window = np.nonzero(slots > 0)
        free, node = slots[region, window], self.cell_node + region * self.windows + window
        self.arcs.add(node, self.sink, (free + 1) // 2, 0)
        self.arcs.add(node, self.sink, free // 2, _TIE_LOAD)

    def kept_in(self) -> tuple[IntArray, BoolArray]:
        """Return the cell of each lane that stays where it was (-1 for others), and which ones those are."""
        cell = np.full(len(self.of), -1, dtype=np.int64)
        stays = np.zeros(len(cell), dtype=np.bool_)
        if len(self.group_count):
            placed = np.flatnonzero(self.group_of >= 0)
            order = placed[np.lexsort((placed, self.group_of[placed]))]
            begin = np.cumsum(self.group_count) - self.group_count
            rank = np.arange(len(order)) - begin[self.group_of[order]]
            staying = order[rank < self.flows[self.kept][self.group_of[order]]]
            cell[staying], stays[staying] = self.current[staying], True
        return cell, stays

    def lots(self) -> tuple[IntArray, IntArray, IntArray]:
        """Say how many of each class go to which cells: (class, cell, count)."""
        return share(arrivals(self.tree, self.flows), (self.offer_leaf, self.offer_cell, self.flows[self.offered]))

    def prices(self) -> FloatArray:
        """Return what taking one more lane of each cell would cost all others together, in grams."""
        made = np.zeros((self.regions, self.windows))
        starts = np.append(np.unique(self.cell_node + self.offer_cell), self.sink)
        cost = np.full(len(starts), self.beyond)
        cost[-1] = 0
        far = self.arcs.distances(self.flows, starts, cost)
        region, window = np.divmod(self.offer_cell, self.windows)
        made[region, window] = np.maximum(price_of(far[self.cell_node + self.offer_cell], self.unit), 0.0)
        return made


def _least_late(classes: Classes, offer: Offer) -> tuple[Classes, IntArray]:
    """Return the classes in parts that can all be placed, each by its own last window, and the class of each part.

    As many lanes as possible are in time, then as few as possible have no room at all, then the windows by which the
    others are late are as few as possible in sum. Kinds that may use the same regions are one here.
    """
    same, chosen = rows_of(*offer.may.T.astype(np.int64)) if offer.may.shape[1] else (classes.kind, classes.kind)
    kind, kinds, windows = same[classes.kind], len(chosen), offer.slots.shape[1]
    hard = Classes(kind, classes.first, classes.last, classes.count)
    timely = np.flatnonzero(classes.last >= classes.first)
    arcs, count = Arcs(), len(classes)
    tree = _timely(arcs, hard, timely, kinds, windows)
    late_node = tree.end
    cell_node = late_node + kinds * windows
    sink = cell_node + offer.slots.size
    # A path passes each (kind, window) and each class at most once: so much is worth more than all it may gain.
    homeless = kinds * windows + windows + 1
    late = homeless * (count + 2)
    entry = np.maximum(classes.last + 1, classes.first)
    delay = np.maximum(entry - np.maximum(classes.last, 0), 0)
    can_wait = np.flatnonzero(entry < windows)
    waits = arcs.add(
        can_wait, late_node + (kind * windows + entry)[can_wait], classes.count[can_wait], late + delay[can_wait]
    )
    total = int(classes.count.sum())
    spot = np.arange(kinds * windows)
    onward = spot[spot % windows < windows - 1]
    arcs.add(late_node + onward, late_node + onward + 1, total, 1)
    ends = arcs.add(late_node + spot, tree.leaf + spot, total, 0)
    may = offer.may[chosen][:, :, None] & (offer.slots > 0)
    row, region, window = np.nonzero(may)
    arcs.add(tree.leaf + row * windows + window, cell_node + region * windows + window, total, 0)
    region, window = np.nonzero(offer.slots > 0)
    arcs.add(cell_node + region * windows + window, sink, offer.slots[region, window], 0)
    left_out = arcs.add(np.arange(count), sink, classes.count, late + homeless)
    status, flows = arcs.solve(classes.count, sink)
    if status != "OPTIMAL":
        logger.error("flow of least lateness of %d lanes ended with status %s", total, status)
        none = np.zeros(0, dtype=np.int64)
        return Classes(none, none, none, none), none
    waiting = np.zeros(count, dtype=np.int64)
    waiting[can_wait] = flows[waits]
    # First in, first out: whoever began to wait earlier starts earlier.
    order = np.lexsort((classes.last, entry))
    rank = np.empty(count, dtype=np.int64)
    rank[order] = np.arange(count)
    came, until, size = share((kind, rank, waiting), (spot // windows, spot % windows, flows[ends]))
    in_time = classes.count - waiting - flows[left_out]
    parent = np.concatenate((np.flatnonzero(in_time > 0), order[came]))
    last = np.concatenate((classes.last[in_time > 0], until))
    parts = Classes(classes.kind[parent], classes.first[parent], last, np.concatenate((in_time[in_time > 0], size)))
    return parts, parent


def _timely(arcs: Arcs, hard: Classes, timely: IntArray, kinds: int, windows: int) -> Tree:
    """Grow the tree for the classes that can be in time at all; their nodes keep the numbers of all classes."""
    is_timely = np.zeros(len(hard), dtype=np.bool_)
    is_timely[timely] = True
    cut = Classes(hard.kind, hard.first, np.where(is_timely, hard.last, hard.first - 1), hard.count)
    return grow(arcs, cut, kinds, windows, first_class=0, base=len(hard))
