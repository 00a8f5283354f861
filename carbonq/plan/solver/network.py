"""The flow network of a placement: arcs as arrays, solved by OR-Tools, and what its flows mean. Pure.

Flow runs from *classes* (lanes wanted, alike in kind, first and last window) over a tree of stretches of 4, 16, 64 ...
windows to one node for each (kind, window) and from there to cells and the sink. A class needs at most six arcs a level
of the tree, and a path has few steps, which is what the solver is fast on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ortools.graph.python import min_cost_flow

from carbonq.plan.demand import FloatArray, IntArray

#: Children of a node of the tree; measured: 2 and 8 take up to a third longer.
_BRANCH = 4

_FAR = np.int64(2**60)


@dataclass(frozen=True, slots=True)
class Classes:
    """Lanes wanted: ``count`` of a ``kind`` that may start in windows ``first`` to ``last`` (both included)."""

    kind: IntArray
    first: IntArray
    last: IntArray
    count: IntArray

    def __len__(self) -> int:
        """Count the classes."""
        return len(self.kind)

    def only(self, rows: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Classes:
        """Return some of the classes."""
        return Classes(self.kind[rows], self.first[rows], self.last[rows], self.count[rows])


@dataclass(slots=True)
class Arcs:
    """Arcs with capacities and whole costs, added by the array."""

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

    def columns(self) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Return tails, heads, capacities and costs."""
        tails, heads, caps, costs = (np.concatenate(c) for c in (self.tails, self.heads, self.caps, self.costs))
        return tails, heads, caps, costs

    def solve(self, supplies: IntArray, sink: int) -> tuple[str, IntArray]:
        """Send all supplies (of the first nodes) to the sink at the least cost; return the status and the flows.

        The status is ``OPTIMAL``, ``INFEASIBLE`` or what else the solver says; flows are empty unless it is optimal.
        """
        # The stubs of this binding contradict what it takes, hence Any.
        solver: Any = min_cost_flow.SimpleMinCostFlow()
        arcs = solver.add_arcs_with_capacity_and_unit_cost(*self.columns())
        nodes = np.append(np.flatnonzero(supplies), sink)
        solver.set_nodes_supplies(nodes, np.append(supplies[nodes[:-1]], -supplies.sum()))
        status = solver.solve()
        # Reading the flows of an unsolved network ends the process, so the status comes first.
        if status != solver.OPTIMAL:
            return str(getattr(status, "name", status)), np.zeros(0, dtype=np.int64)
        return "OPTIMAL", np.asarray(solver.flows(arcs), dtype=np.int64)

    def distances(self, flows: IntArray, starts: IntArray, start_cost: IntArray) -> IntArray:
        """Return the least cost of sending one unit more from each node to one of ``starts`` (the dual prices).

        ``start_cost`` is what ends there cost anyway. Shortest paths among the arcs that have room left.
        """
        tails, heads, caps, costs = self.columns()
        ahead, back = flows < caps, flows > 0
        tail = np.concatenate((tails[ahead], heads[back]))
        head = np.concatenate((heads[ahead], tails[back]))
        cost = np.concatenate((costs[ahead], -costs[back]))
        order = np.argsort(tail, kind="stable")
        tail, head, cost = tail[order], head[order], cost[order]
        begin = np.flatnonzero(np.append(True, tail[1:] != tail[:-1]))
        nodes = tail[begin]
        far = np.full(int(max(tails.max(), heads.max())) + 1, _FAR)
        far[starts] = start_cost
        for _ in range(len(far)):
            nearer = np.minimum(far[nodes], np.minimum.reduceat(cost + far[head], begin))
            if (nearer == far[nodes]).all():
                break
            far[nodes] = nearer
        return far


@dataclass(slots=True)
class Tree:
    """The part of a network from classes to (kind, window): nodes from ``base`` on, ``levels`` from the leaves up.

    Of each level: its first node, its width, the slice of the arcs from classes and the class and node of each, the
    slice of the arcs from the level above and the parent and child of each (numbered within their levels).
    """

    base: int
    windows: int
    end: int = 0
    leaf: int = 0
    levels: list[_Level] = field(default_factory=list["_Level"])


@dataclass(slots=True)
class _Level:
    width: int
    node: int
    of_class: IntArray
    to: IntArray
    arcs: slice
    parents: IntArray
    children: IntArray
    down: slice


_NONE = np.zeros(0, dtype=np.int64)


def grow(arcs: Arcs, classes: Classes, kinds: int, windows: int, *, first_class: int, base: int) -> Tree:
    """Add the arcs from classes (nodes from ``first_class`` on) to the leaves; ``base`` is the first free node."""
    tree = Tree(base, windows, leaf=base)
    total = int(classes.count.sum())
    low, high = reach(classes, kinds, windows)
    of, left, right = np.arange(len(classes)), classes.first, classes.last + 1
    node, width, span = base, windows, 1
    while True:
        parent_width = -(-width // _BRANCH)
        up_left, up_right = -(-left // _BRANCH), right // _BRANCH
        goes_up = (up_right > up_left) & (width > _BRANCH)
        stays = ~goes_up
        pieces = [
            _ranges(of[stays], left[stays], right[stays]),
            _ranges(of[goes_up], left[goes_up], up_left[goes_up] * _BRANCH),
            _ranges(of[goes_up], up_right[goes_up] * _BRANCH, right[goes_up]),
        ]
        of_class = np.concatenate([piece[0] for piece in pieces])
        to = np.concatenate([piece[1] for piece in pieces]) + classes.kind[of_class] * width
        where = arcs.add(first_class + of_class, node + to, classes.count[of_class], 0)
        level = _Level(width, node, of_class, to, where, _NONE, _NONE, slice(0, 0))
        tree.levels.append(level)
        next_node = node + kinds * width
        of, left, right = of[goes_up], up_left[goes_up], up_right[goes_up]
        if not len(of):
            tree.end = next_node
            return tree
        # From stretches that lie wholly where their kind may be: no class uses another.
        kind, child = np.divmod(np.arange(kinds * width), width)
        parent = child // _BRANCH
        begin, end = parent * span * _BRANCH, (parent + 1) * span * _BRANCH
        used = (begin >= low[kind]) & (end <= high[kind] + 1)
        level.children = np.flatnonzero(used)
        level.parents = (kind * parent_width + parent)[used]
        level.down = arcs.add(next_node + level.parents, node + level.children, total, 0)
        node, width, span = next_node, parent_width, span * _BRANCH


def reach(classes: Classes, kinds: int, windows: int) -> tuple[IntArray, IntArray]:
    """Return the first and last window that any class of each kind may use."""
    low, high = np.full(kinds, windows), np.full(kinds, -1)
    np.minimum.at(low, classes.kind, classes.first)
    np.maximum.at(high, classes.kind, classes.last)
    return low, high


def _ranges(of: IntArray, begin: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
    """Return each range's number and its members, one after another."""
    sizes = np.maximum(end - begin, 0)
    numbers = np.repeat(np.arange(len(of)), sizes)
    steps = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return of[numbers], begin[numbers] + steps


def arrivals(tree: Tree, flows: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Say how many of each class arrive at each leaf: (leaf, class, count), leaves numbered kind x windows + window."""
    node, of, count = _NONE, _NONE, _NONE
    for height in range(len(tree.levels) - 1, -1, -1):
        level = tree.levels[height]
        node = np.concatenate((node, level.to))
        of = np.concatenate((of, level.of_class))
        count = np.concatenate((count, flows[level.arcs]))
        if height:
            below = tree.levels[height - 1]
            of, node, count = share((node, of, count), (below.parents, below.children, flows[below.down]))
    has = count > 0
    return node[has], of[has], count[has]


def share(
    given: tuple[IntArray, IntArray, IntArray], taken: tuple[IntArray, IntArray, IntArray]
) -> tuple[IntArray, IntArray, IntArray]:
    """Split what comes into nodes among what leaves them; return (what came, where it goes, count).

    Both are (node, name, count), with equal sums at each node; in each node in the order of the names (a flow has no
    names, so any split of it is as good).
    """
    sorted_: list[tuple[IntArray, IntArray]] = []
    for node, name, count in (given, taken):
        has = np.flatnonzero(count > 0)
        order = has[np.lexsort((name[has], node[has]))]
        sorted_.append((name[order], np.cumsum(count[order])))
    (came, came_to), (goes, goes_to) = sorted_
    if not len(came) or not len(goes):
        return _NONE, _NONE, _NONE
    marks = np.union1d(came_to, goes_to)
    marks = marks[marks <= min(came_to[-1], goes_to[-1])]
    return (
        came[np.searchsorted(came_to, marks)],
        goes[np.searchsorted(goes_to, marks)],
        np.diff(marks, prepend=0),
    )


def most_units(dearest: float, nodes: int, factor: int, wanted: int) -> float:
    """Return how many whole units a gram may have: ``wanted`` for the dearest cost, if the solver can count that far.

    The solver multiplies costs by the number of nodes; ``factor`` is how much larger than the dearest one a cost is.
    """
    most = min(wanted, 2**61 // ((nodes + 2) * (factor + 2)))
    return most / dearest if dearest > 0 else 0.0


def price_of(units: IntArray, unit: float) -> FloatArray:
    """Return whole units as grams."""
    return units / unit if unit > 0 else np.zeros(len(units))
