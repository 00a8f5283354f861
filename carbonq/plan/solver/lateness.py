"""Flows of what wants one slot in a range of windows: the fewest late with the least lateness, and the most work. Pure.

Units alike in their range and regions are a class. Flow runs class -> (set of regions, window) -> cell -> sink, by way
of blocks of windows where a range holds all of one. What is late enters, at a price above all lateness together, a
chain along the windows after its range that costs the seconds between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ortools.graph.python import max_flow, min_cost_flow

from carbonq.plan.demand import FloatArray, IntArray
from carbonq.plan.solver.grouping import rows_of

#: Windows that share a node on the way from a class.
_BLOCK = 16

#: Up to so many classes the least total lateness is found exactly.
MOST_EXACT = 300

#: Work is counted in whole parts of a slot window.
_PARTS = 1000


@dataclass(frozen=True, slots=True)
class Ranges:
    """Units by column: the set of regions (``where``, an index into ``sets``) and the windows ``first`` to ``last``."""

    sets: Sequence[tuple[int, ...]]
    where: IntArray
    first: IntArray
    last: IntArray


class _Network:
    """Arcs from classes to cells; the arcs of each kind are numbered in the order in which they were added."""

    def __init__(self, sets: Sequence[tuple[int, ...]], slots: IntArray, classes: int) -> None:
        self.slots, self.sets, self.classes = slots, sets, classes
        self.windows = slots.shape[1]
        self.blocks = -(-self.windows // _BLOCK)
        self.block_node = classes
        self.link_node = self.block_node + len(sets) * self.blocks
        self.chain_node = self.link_node + len(sets) * self.windows
        self.cell_node = self.chain_node + len(sets) * self.windows
        self.sink = self.cell_node + slots.size
        self.source = self.sink + 1
        self.columns: list[list[IntArray]] = [[], [], [], []]
        self.size = 0

    def add(self, tails: object, heads: object, caps: object, costs: object) -> slice:
        """Add arcs (arrays or numbers, broadcast); return where their flows will be."""
        made = np.broadcast_arrays(*(np.atleast_1d(np.asarray(c, dtype=np.int64)) for c in (tails, heads, caps, costs)))
        for column, part in zip(self.columns, made, strict=True):
            column.append(part)
        self.size += len(made[0])
        return slice(self.size - len(made[0]), self.size)

    def joined(self) -> list[IntArray]:
        """Return tails, heads, capacities and costs of all arcs."""
        return [np.concatenate(column) if column else np.zeros(0, dtype=np.int64) for column in self.columns]

    def add_ranges(self, where: IntArray, first: IntArray, last: IntArray, amount: IntArray) -> None:
        """Let each class into the windows of its range, as far as they are within the horizon."""
        end = np.minimum(last, self.windows - 1)
        low, high = -(-first // _BLOCK), np.maximum((end + 1) // _BLOCK, -(-first // _BLOCK))
        has_whole = high > low
        k, block = _spans(low, np.where(has_whole, high, low))
        self.add(k, self.block_node + where[k] * self.blocks + block, amount[k], 0)
        edges = (np.where(has_whole, low * _BLOCK, end + 1), np.where(has_whole, high * _BLOCK, end + 1))
        for begin, stop in ((first, edges[0]), (edges[1], end + 1)):
            k, window = _spans(begin, stop)
            self.add(k, self.link_node + where[k] * self.windows + window, amount[k], 0)

    def add_cells(self, scale: int) -> None:
        """Lead blocks to windows, windows to the cells of their regions and cells to the sink."""
        window = np.arange(self.windows)
        for row, regions in enumerate(self.sets):
            link = self.link_node + row * self.windows + window
            self.add(self.block_node + row * self.blocks + window // _BLOCK, link, int(self.slots.sum()) * scale, 0)
            for region in regions:
                self.add(link, self.cell_node + region * self.windows + window, self.slots[region] * scale, 0)
        cells = np.arange(self.slots.size)
        self.add(self.cell_node + cells, self.sink, self.slots.ravel() * scale, 0)


def _spans(begin: IntArray, stop: IntArray) -> tuple[IntArray, IntArray]:
    """Return the numbers from each ``begin`` to before its ``stop``, and which span each belongs to."""
    length = np.maximum(stop - begin, 0)
    owner = np.repeat(np.arange(len(begin)), length)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(length) - length, length) + begin[owner]


def most_work(ranges: Ranges, work: FloatArray, slots: IntArray) -> float:
    """Return an upper bound on the slot windows of ``work`` that can be done within its ranges, if it may be split.

    Each unit is rounded up to a thousandth of a slot window, so that the answer is never too low.
    """
    of, members = rows_of(ranges.where, ranges.first, ranges.last)
    amount = np.ceil(np.bincount(of, work, minlength=len(members)) * _PARTS - 1e-6).astype(np.int64)
    network = _Network(ranges.sets, slots, len(members))
    network.add_ranges(ranges.where[members], ranges.first[members], ranges.last[members], amount)
    network.add_cells(_PARTS)
    network.add(network.source, np.arange(len(members)), amount, 0)
    tails, heads, caps, _ = network.joined()
    solver: Any = max_flow.SimpleMaxFlow()
    solver.add_arcs_with_capacity(tails, heads, caps)
    status = solver.solve(network.source, network.sink)
    # What the solver cannot say is no limit.
    return solver.optimal_flow() / _PARTS if status == solver.OPTIMAL else float(work.sum())


def fewest_late(ranges: Ranges, latest_s: FloatArray, slots: IntArray, starts_s: FloatArray) -> FloatArray:
    """Return when each unit starts so that as few as possible start after their range, and these as little as possible.

    ``latest_s`` are the latest starts in seconds, from which lateness counts. Starts in time are given as the unit's
    latest start (which window it has does not matter here); inf where there is no room within the horizon. The number
    late is always the least; their total lateness is up to ``MOST_EXACT`` classes, to the second, and for more each in
    turn takes the earliest window that is left, the earliest latest start first.
    """
    of, members = rows_of(ranges.where, ranges.first, ranges.last)
    classes = Ranges(ranges.sets, ranges.where[members], ranges.first[members], ranges.last[members])
    if len(members) > MOST_EXACT:
        return _by_turns(classes, of, latest_s, slots, starts_s)
    return _least_lateness(classes, of, latest_s, slots, starts_s)


def _ranks(of: IntArray, latest_s: FloatArray) -> IntArray:
    """Number the units of each class, the one with the latest latest start 0: if any are late, then the first ones."""
    order = np.lexsort((-latest_s, of))
    rank = np.empty(len(of), dtype=np.int64)
    rank[order] = np.arange(len(of)) - np.searchsorted(of[order], of[order])
    return rank


def _by_turns(classes: Ranges, of: IntArray, latest_s: FloatArray, slots: IntArray, starts_s: FloatArray) -> FloatArray:
    count = np.bincount(of)
    network = _Network(classes.sets, slots, len(count))
    network.add_ranges(classes.where, classes.first, classes.last, count)
    network.add_cells(1)
    entering = network.add(network.source, np.arange(len(count)), count, 0)
    tails, heads, caps, _ = network.joined()
    solver: Any = max_flow.SimpleMaxFlow()
    arcs = solver.add_arcs_with_capacity(tails, heads, caps)
    if solver.solve(network.source, network.sink) != solver.OPTIMAL:
        return np.full(len(of), np.inf)
    flows = np.asarray(solver.flows(arcs), dtype=np.int64)
    late = count - flows[entering]
    free = slots - flows[entering.start - slots.size : entering.start].reshape(slots.shape)
    rank = _ranks(of, latest_s)
    start = np.where(rank < late[of], np.inf, latest_s)
    rows = np.flatnonzero(rank < late[of])
    rows = rows[np.lexsort((latest_s[rows], of[rows]))]
    begin = np.searchsorted(of[rows], np.arange(len(count) + 1))
    for k in np.lexsort((classes.first, classes.last)).tolist():
        units = rows[begin[k] : begin[k + 1]]
        if not len(units):
            continue
        entry = max(int(classes.first[k]), int(classes.last[k]) + 1)
        allowed = list(classes.sets[int(classes.where[k])])
        there = free[allowed, entry:].sum(axis=0)
        taken = np.clip(len(units) - (np.cumsum(there) - there), 0, there)
        found = np.repeat(starts_s[entry:], taken)
        start[units[: len(found)]] = found
        for row in allowed:
            here = np.minimum(taken, free[row, entry:])
            free[row, entry:] -= here
            taken = taken - here
    return start


def _least_lateness(
    classes: Ranges, of: IntArray, latest_s: FloatArray, slots: IntArray, starts_s: FloatArray
) -> FloatArray:
    windows = slots.shape[1]
    where, first, last = classes.where, classes.first, classes.last
    count = np.bincount(of)
    network = _Network(classes.sets, slots, len(count))
    network.add_ranges(where, first, last, count)
    network.add_cells(1)
    # Late: at least from the first window after the range on, each unit counted from its own latest start.
    entry = np.maximum(last + 1, first)[of]
    at = np.rint(starts_s).astype(np.int64)
    seconds = np.maximum(0, at[np.minimum(entry, windows - 1)] - np.floor(latest_s).astype(np.int64))
    beyond = max(0, int(at[-1] - np.floor(latest_s).min())) + 1
    too_late = (len(of) + 1) * (beyond + 1)
    can_enter = entry < windows
    pair, distinct = rows_of(of[can_enter], seconds[can_enter])
    chosen = np.flatnonzero(can_enter)[distinct]
    entries = network.add(
        of[chosen],
        network.chain_node + where[of[chosen]] * windows + entry[chosen],
        np.bincount(pair, minlength=len(distinct)),
        too_late + seconds[chosen],
    )
    chain = network.chain_node + np.arange(len(classes.sets))[:, None] * windows + np.arange(windows)
    total = int(count.sum())
    network.add(chain[:, :-1].ravel(), chain[:, 1:].ravel(), total, np.tile(np.diff(at), len(classes.sets)))
    out = network.add(chain.ravel(), chain.ravel() - network.chain_node + network.link_node, total, 0)
    nowhere = network.add(np.arange(len(count)), network.sink, count, too_late + beyond)
    flows = _solve(network, count)
    if flows is None:
        return np.full(len(of), np.inf)
    entered = np.bincount(of[chosen], flows[entries], minlength=len(count)).astype(np.int64)
    rank = _ranks(of, latest_s)
    start = np.where(rank < (entered + flows[nowhere])[of], np.inf, latest_s)
    leaving = flows[out].reshape(len(classes.sets), windows)
    for row in range(len(classes.sets)):
        waiting = np.flatnonzero((rank < entered[of]) & (where[of] == row))
        # Those that came first into the chain leave it first; each is there when the flow lets as many out.
        waiting = waiting[np.lexsort((latest_s[waiting], entry[waiting]))]
        start[waiting] = np.repeat(starts_s, leaving[row])[: len(waiting)]
    return start


def _solve(network: _Network, count: IntArray) -> IntArray | None:
    """Return the flow of least cost that sends ``count[k]`` from each class to the sink; None if the solver gave up."""
    solver: Any = min_cost_flow.SimpleMinCostFlow()
    arcs = solver.add_arcs_with_capacity_and_unit_cost(*network.joined())
    nodes = np.append(np.arange(len(count)), network.sink)
    solver.set_nodes_supplies(nodes, np.append(count, -count.sum()).astype(np.int64))
    # Reading the flows of an unsolved network ends the process, so the status comes first.
    if solver.solve() != solver.OPTIMAL:
        return None
    return np.asarray(solver.flows(arcs), dtype=np.int64)
