"""The exact assignment of bundles to lanes as a min-cost flow. Pure.

Network: bundles alike in everything are a *group*; groups alike but for their present placement are a *class* (same
choice of windows, same costs). Flow runs group -> class -> (window, cost class) -> cell -> sink, by way of blocks of
windows where a class may use all of one; a group also has an arc
straight to the cell it is placed in, at a discount; a class has an arc to the sink for what cannot be in time, dearer
than everything else together, so that the number in time is the largest possible. The size follows the number of
distinct classes, not of chunks. Costs are integers; ties go to the earlier window, the emptier cell, the nearer region.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from ortools.graph.python import min_cost_flow

from carbonq.plan.bundles import Bundle
from carbonq.plan.lanes import EPSILON_S, FloatArray, Lanes
from carbonq.units import UJ_PER_KWH

logger = logging.getLogger(__name__)

IntArray = npt.NDArray[np.int64]
Cell = tuple[int, int]

#: Distinct energies that are kept apart; more are put into as many geometric classes, costed at their lower edge.
ENERGY_CLASSES = 8

#: Windows that share a node on the way from a class, so that a class with a late deadline needs few arcs.
BLOCK = 16

#: Weights of the ties, in units of the integer cost.
_TIE_WINDOW, _TIE_LOAD, _TIE_FAR, _TIE_MOVE = 5, 2, 1, 1

#: The dearest single placement is at most this many units, so that rounding costs at most 1e-9 of it.
_MOST_UNITS = 10**10

#: Breaking a carbon cap costs as much as this many of the dearest placements.
_CAP_PENALTY = 100


@dataclass(frozen=True, slots=True)
class Solution:
    """Where bundles go, by position; None for one that cannot be in time.

    No plan of these bundles costs less than ``bound_g`` (None when some are late, or when the solver gave up).
    """

    cells: list[Cell | None]
    bound_g: float | None


@dataclass(slots=True)
class _Arcs:
    tails: list[IntArray] = field(default_factory=list[IntArray])
    heads: list[IntArray] = field(default_factory=list[IntArray])
    caps: list[IntArray] = field(default_factory=list[IntArray])
    costs: list[IntArray] = field(default_factory=list[IntArray])
    size: int = 0

    def add(self, tails: object, heads: object, caps: object, costs: object) -> slice:
        """Add arcs (arrays or numbers, broadcast); return where their flows will be."""
        columns = [np.asarray(column, dtype=np.int64) for column in (tails, heads, caps, costs)]
        tail, head, cap, cost = (np.atleast_1d(column) for column in np.broadcast_arrays(*columns))
        self.tails.append(tail)
        self.heads.append(head)
        self.caps.append(cap)
        self.costs.append(cost)
        self.size += len(tail)
        return slice(self.size - len(tail), self.size)


def energy_floors(energies: Sequence[int]) -> dict[int, int]:
    """Map each energy to the lower edge of its class; to itself where there are few distinct ones."""
    distinct = sorted(set(energies))
    if len(distinct) <= ENERGY_CLASSES:
        return {energy: energy for energy in distinct}
    low = max(1, distinct[0])
    ratio = (max(distinct[-1], low + 1) / low) ** (1 / ENERGY_CLASSES)
    floors: dict[int, int] = {}
    for energy in distinct:
        step = min(ENERGY_CLASSES - 1, int(math.log(max(energy, 1) / low) / math.log(ratio)))
        floors[energy] = min(energy, math.floor(low * ratio**step))
    return floors


def solve(bundles: Sequence[Bundle], lanes: Lanes, rates: FloatArray, near: Sequence[int], margin: float) -> Solution:
    """Place bundles of at most one window each on the empty lanes.

    ``rates`` is rate x PUE by ``[region, window]``, without gaps; ``near`` ranks the regions, 0 nearest. A present
    placement is kept unless leaving it gains more than ``margin`` of its cost.
    """
    if not bundles:
        return Solution([], 0.0)
    return _Network(bundles, lanes, rates, near, margin).solve()


class _Network:
    def __init__(
        self, bundles: Sequence[Bundle], lanes: Lanes, rates: FloatArray, near: Sequence[int], margin: float
    ) -> None:
        self.bundles, self.lanes, self.rates, self.margin = bundles, lanes, rates, margin
        self.near = np.minimum(np.asarray(near, dtype=np.int64), 1)
        self.floors = energy_floors([bundle.energy_uj for bundle in bundles])
        self.kinds: dict[tuple[tuple[int, ...], int, float], int] = {}  # cost classes
        self.classes: dict[tuple[int, int, int], int] = {}  # (kind, first window, last window)
        self.groups: defaultdict[tuple[int, Cell | None], list[int]] = defaultdict(list)
        self.hopeless: list[int] = []
        for position, bundle in enumerate(bundles):
            self._sort_in(position, bundle)

    def _sort_in(self, position: int, bundle: Bundle) -> None:
        starts, lanes = self.lanes.starts_s, self.lanes
        first = int(np.searchsorted(starts, bundle.release_s - EPSILON_S))
        if first == 0 and bundle.duration_s > lanes.length_s[0] + EPSILON_S:
            first = 1
        last = int(np.searchsorted(starts, bundle.latest_s + EPSILON_S, side="right")) - 1
        if last < first or not bundle.regions:
            self.hopeless.append(position)
            return
        kind = self.kinds.setdefault((bundle.regions, self.floors[bundle.energy_uj], bundle.max_rate), len(self.kinds))
        index = self.classes.setdefault((kind, first, last), len(self.classes))
        current = bundle.current
        if current is not None and not (
            first <= current[1] <= last and current[0] in bundle.regions and lanes.free[current] > 0
        ):
            current = None
        self.groups[index, current].append(position)

    def solve(self) -> Solution:
        """Build the network, solve it and read the cells off its flows."""
        self.cells: list[Cell | None] = [None] * len(self.bundles)
        self.count = len(self.bundles) - len(self.hopeless)
        if self.count == 0:
            return Solution(self.cells, None)
        self._number()
        self._scale()
        self.arcs = _Arcs()
        self._add_groups()
        self._add_classes()
        self._add_blocks()
        self._add_offers()
        self._add_cells()
        solved = self._run()
        if solved is None:
            return Solution(self.cells, None)
        flows, total = solved
        self._read(flows)
        if any(cell is None for cell in self.cells):
            return Solution(self.cells, None)
        # The ties are in the total but not in the grams; taking off their most keeps the bound a bound.
        bound = (total - self.count * self.most_tie) / self.unit if self.unit > 0 else 0.0
        return Solution(self.cells, max(0.0, bound))

    def _number(self) -> None:
        """Number the nodes: groups, classes, (kind, block), (kind, window), (region, window), sink."""
        self.regions, self.windows = self.lanes.free.shape
        self.blocks = -(-self.windows // BLOCK)
        self.kind_list, self.class_list, self.group_list = list(self.kinds), list(self.classes), list(self.groups)
        self.class_node = len(self.group_list)
        self.block_node = self.class_node + len(self.class_list)
        self.kind_node = self.block_node + len(self.kind_list) * self.blocks
        self.cell_node = self.kind_node + len(self.kind_list) * self.windows
        self.sink = self.cell_node + self.regions * self.windows

    def _scale(self) -> None:
        """Choose how many integer units a gram has."""
        self.worth = np.array([energy / UJ_PER_KWH for _, energy, _ in self.kind_list])
        dearest = float(self.worth.max() * self.rates.max())
        penalty = _CAP_PENALTY if any(math.isfinite(cap) for *_, cap in self.kind_list) else 0
        # The solver multiplies costs by the number of nodes; all of it must stay below 2^63.
        most = min(_MOST_UNITS, 2**61 // ((self.sink + 2) * (self.count + 1) * (penalty + 2)))
        self.unit = most / dearest if dearest > 0 else 0.0
        self.most_tie = _TIE_WINDOW * self.windows + _TIE_LOAD + _TIE_FAR + _TIE_MOVE
        self.over_cap = penalty * most
        self.late = (self.count + 1) * (most + self.over_cap + self.most_tie)

    def _add_groups(self) -> None:
        self.kept: list[tuple[int, slice]] = []
        for node, (index, current) in enumerate(self.group_list):
            size = len(self.groups[index, current])
            self.arcs.add(node, self.class_node + index, size, 0)
            if current is None:
                continue
            kind = self.class_list[index][0]
            cost = round(self.unit * self.worth[kind] * self.rates[current] * (1 - self.margin))
            cost += self.over_cap if self.rates[current] > self.kind_list[kind][2] else 0
            head = self.cell_node + current[0] * self.windows + current[1]
            self.kept.append((node, self.arcs.add(node, head, size, cost)))

    def _add_classes(self) -> None:
        sizes: Counter[int] = Counter()
        for (index, _), members in self.groups.items():
            sizes[index] += len(members)
        self.choices: list[tuple[slice, IntArray]] = []
        self.reach: dict[int, tuple[int, int]] = {}
        for index, (kind, first, last) in enumerate(self.class_list):
            whole = np.arange(-(-first // BLOCK), (last + 1) // BLOCK)
            single = np.arange(first, last + 1)
            if len(whole):
                single = single[(single < whole[0] * BLOCK) | (single >= (whole[-1] + 1) * BLOCK)]
            blocks = self.block_node + kind * self.blocks + whole
            heads = np.concatenate((blocks, self.kind_node + kind * self.windows + single))
            where = self.arcs.add(self.class_node + index, heads, sizes[index], 0)
            # Blocks are told from windows by their sign.
            self.choices.append((where, np.concatenate((-1 - whole, single))))
            low, high = self.reach.get(kind, (first, last))
            self.reach[kind] = (min(low, first), max(high, last))
            self.arcs.add(self.class_node + index, self.sink, sizes[index], self.late)

    def _add_blocks(self) -> None:
        self.spread: list[tuple[int, int, slice]] = []
        for kind, (low, high) in self.reach.items():
            span = np.arange(-(-low // BLOCK) * BLOCK, (high + 1) // BLOCK * BLOCK)
            if len(span):
                tails = self.block_node + kind * self.blocks + span // BLOCK
                heads = self.kind_node + kind * self.windows + span
                self.spread.append((kind, int(span[0]), self.arcs.add(tails, heads, self.count, 0)))

    def _add_offers(self) -> None:
        """From each (kind, window) to the cells that its bundles may use."""
        self.offers: list[tuple[int, slice, IntArray]] = []
        for kind, (low, high) in self.reach.items():
            rows = np.asarray(self.kind_list[kind][0])
            row, window = np.nonzero(self.lanes.free[rows, low : high + 1] > 0)
            row, window = rows[row], window + low
            rate = self.rates[row, window]
            cost = np.rint(self.unit * self.worth[kind] * rate).astype(np.int64)
            cost += _TIE_WINDOW * window + _TIE_FAR * self.near[row] + _TIE_MOVE
            cost += np.where(rate > self.kind_list[kind][2], self.over_cap, 0)
            tails = self.kind_node + kind * self.windows + window
            numbers = row * self.windows + window
            where = self.arcs.add(tails, self.cell_node + numbers, self.lanes.free[row, window], cost)
            self.offers.append((kind, where, numbers))

    def _add_cells(self) -> None:
        row, window = np.nonzero(self.lanes.free > 0)
        free = self.lanes.free[row, window]
        nodes = self.cell_node + row * self.windows + window
        self.arcs.add(nodes, self.sink, (free + 1) // 2, 0)
        self.arcs.add(nodes, self.sink, free // 2, _TIE_LOAD)

    def _run(self) -> tuple[IntArray, int] | None:
        # The stubs of this binding contradict what it takes, hence Any.
        solver: Any = min_cost_flow.SimpleMinCostFlow()
        columns = (self.arcs.tails, self.arcs.heads, self.arcs.caps, self.arcs.costs)
        arcs = solver.add_arcs_with_capacity_and_unit_cost(*(np.concatenate(column) for column in columns))
        supplies = [len(self.groups[key]) for key in self.group_list]
        nodes = np.array([*range(len(supplies)), self.sink], dtype=np.int64)
        solver.set_nodes_supplies(nodes, np.array([*supplies, -self.count], dtype=np.int64))
        status = solver.solve()
        # Reading the flows of an unsolved network ends the process, so the status comes first.
        if status != solver.OPTIMAL:
            logger.error("min-cost flow of %d bundles ended with status %s; planning serially", self.count, status)
            return None
        return np.asarray(solver.flows(arcs), dtype=np.int64), int(solver.optimal_cost())

    def _read(self, flows: IntArray) -> None:
        """Turn flows into cells: any split of a node's flow is as good, so dear bundles get the cleaner cells."""
        staying = {node: int(flows[where][0]) for node, where in self.kept}
        pools: defaultdict[int, list[int]] = defaultdict(list)
        for node, (index, current) in enumerate(self.group_list):
            members = self.groups[index, current]
            stay = staying.get(node, 0)
            for position in members[:stay]:
                self.cells[position] = current
            pools[index].extend(members[stay:])
        shelves = self._shelves(flows)
        for index, (kind, _, _) in enumerate(self.class_list):
            where, targets = self.choices[index]
            got: list[Cell] = []
            for step in np.flatnonzero(flows[where]):
                shelf = shelves[kind, int(targets[step])]
                got.extend(shelf.pop() for _ in range(int(flows[where][step])))
            got.sort(key=lambda cell: (self.rates[cell], cell[1], cell[0]))
            pool = sorted(pools[index], key=lambda position: -self.bundles[position].energy_uj)
            for position, cell in zip(pool, got, strict=False):  # the rest of the pool is late
                self.cells[position] = cell

    def _shelves(self, flows: IntArray) -> dict[tuple[int, int], list[Cell]]:
        """Return the cells that the flow gives to each (kind, window) and (kind, -1 - block)."""
        shelves: defaultdict[tuple[int, int], list[Cell]] = defaultdict(list)
        for kind, where, numbers in self.offers:
            used = flows[where]
            for offer in np.flatnonzero(used):
                row, window = divmod(int(numbers[offer]), self.windows)
                shelves[kind, window].extend([(row, window)] * int(used[offer]))
        for kind, first, where in self.spread:
            used = flows[where]
            for step in np.flatnonzero(used):
                window = first + int(step)
                shelf = shelves[kind, window]
                shelves[kind, -1 - window // BLOCK].extend(shelf.pop() for _ in range(int(used[step])))
        return shelves
