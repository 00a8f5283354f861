"""What a slot is worth in each (region, window) when many chunks want it, and the bound that follows. Pure arrays.

Take the slots' limits into the objective at a price for each cell (Lagrangian relaxation): chunks then choose freely,
each the start that is cheapest with the prices of all windows it holds, and whatever the prices are, the sum of those
choices less ``prices x slots`` is a lower bound on the cost of any plan (weak duality). ``Prices.solve`` raises the
bound. A hard minimum makes all chunks of a class jump from one start to the next, so the minimum is softened (its
entropic smoothing: A. Nesterov, "Smooth minimization of non-smooth functions", Mathematical Programming 103, 2005) with
a temperature that falls from step to step, and the ascent is Nesterov's with restarts (O'Donoghue and Candes,
"Adaptive restart for accelerated gradient schemes", 2015). The softened choices are a nearly feasible fractional plan.

One evaluation takes prefix sums over windows for each start, and a table of minima over 1, 2, 4, ... windows for the
range of each class: its time is that of ``shapes x regions x windows`` numbers plus classes, however many the chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

#: Temperatures of the softened minimum, in shares of the mean cost of a chunk, and the most steps taken at each.
TEMPERATURES = (1e-1, 2e-2, 2e-3, 2e-4, 2e-5)
STEPS = (300, 300, 300, 300, 300)

#: Prices are settled when no more than this share of the slots and of the cost is out of place.
_SETTLED = 1e-4

#: At all temperatures but the last it will do if after some steps at most this share of the slots is out of place: for
#: each start, as steps are cheap where there are few, and at most.
_NEARLY, _MOST_NEARLY, _LEAST_STEPS = 5e-7, 3e-3, 40


@dataclass(frozen=True, slots=True)
class Classes:
    """Chunks alike in shape (costs and length) and in the windows where they may start.

    ``cost[s, r, t]`` is that of a chunk of shape ``s`` started in window ``t`` of region ``r``, inf where it may not
    start. It holds one slot in windows ``t`` to ``ends[s, t] - 1``. A class has ``count`` chunks of one ``shape`` that
    may start in windows ``first`` to ``last``, both included.
    """

    cost: FloatArray  # [shape, region, window]
    ends: IntArray  # [shape, window]
    shape: IntArray  # [class]
    first: IntArray  # [class]
    last: IntArray  # [class]
    count: IntArray  # [class]

    def only(self, chosen: BoolArray | IntArray, count: IntArray | None = None) -> Classes:
        """Return the chosen classes, with other counts if given (those of the chosen)."""
        counts = self.count[chosen] if count is None else count
        return Classes(self.cost, self.ends, self.shape[chosen], self.first[chosen], self.last[chosen], counts)


def startable(cost: FloatArray, ends: IntArray, slots: IntArray) -> FloatArray:
    """Return ``cost`` with inf where a start would leave the horizon or meet a window without any slot."""
    windows = slots.shape[1]
    empty = _before(slots <= 0)
    inside = np.minimum(ends, windows)
    blocked = empty[:, inside].swapaxes(0, 1) - empty[None, :, :-1] > 0
    return np.where(blocked | (ends > windows)[:, None, :], np.inf, cost)


def _before(values: FloatArray | BoolArray) -> FloatArray:
    """Return the sums over all windows before each, with one column more than ``values``."""
    sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    np.cumsum(values, axis=-1, out=sums[..., 1:])
    return sums


class Prices:
    """Prices by ``[region, window]`` for classes that want slots; every class must have a start of finite cost."""

    def __init__(self, classes: Classes, slots: IntArray, start: FloatArray | None = None) -> None:
        """Begin with prices of ``start``, else with none."""
        self.classes, self.slots = classes, slots
        shapes, self.regions, self.windows = classes.cost.shape
        self.cell = np.zeros((self.regions, self.windows)) if start is None else start
        self._inside = np.minimum(classes.ends, self.windows)
        span = classes.last - classes.first + 1
        # Two blocks of a power of two cover a range: one from its first window on, one up to its last.
        level = np.frexp(span.astype(np.float64))[1] - 1
        self._levels = int(level.max(initial=0)) + 1
        row = (level * shapes + classes.shape) * self.windows
        self._left, self._right = row + classes.first, row + classes.last + 1 - (1 << level)
        self._longest = int((classes.ends - np.arange(self.windows)).max(initial=1))
        finite = np.isfinite(classes.cost)
        mean = np.where(finite, classes.cost, 0.0).sum((1, 2)) / np.maximum(finite.sum((1, 2)), 1)
        weights = np.bincount(classes.shape, classes.count, minlength=shapes)
        self.scale = float(mean @ weights / max(1, weights.sum())) or 1.0

    def reduced(self, cell: FloatArray | None = None) -> FloatArray:
        """Return cost plus the prices of the windows held, for each (shape, region, start)."""
        before = _before(self.cell if cell is None else cell)
        return self.classes.cost + (before[:, self._inside].swapaxes(0, 1) - before[None, :, :-1])

    def least(self) -> FloatArray:
        """Return the least reduced cost that each class can have."""
        table = self.reduced().min(axis=1)
        tables = [table]
        for level in range(1, self._levels):
            half = 1 << (level - 1)
            table = np.minimum(table, _ahead(table, half, np.inf))
            tables.append(table)
        every = np.concatenate(tables, axis=None)
        return np.minimum(every[self._left], every[self._right])

    def bound(self) -> float:
        """Return what any plan that places all of these chunks costs at least."""
        return float(self.classes.count @ self.least() - (self.cell * self.slots).sum())

    def use(self, starts: FloatArray) -> FloatArray:
        """Return the slots held by ``starts[shape, region, window]`` in each cell."""
        change = np.zeros((self.regions, self.windows + 1))
        change[:, :-1] = starts.sum(axis=0)
        for shape, ends in enumerate(self._inside):
            # From the second window on all starts of a shape hold as many windows.
            change[:, ends[0]] -= starts[shape, :, 0]
            if self.windows > 1:
                first = int(ends[1])
                change[:, first:-1] -= starts[shape, :, 1 : 1 + self.windows - first]
        held: FloatArray = np.cumsum(change, axis=1)[:, :-1]
        return held

    def soft(self, cell: FloatArray, temperature: float) -> tuple[FloatArray, FloatArray, float]:
        """Return each start's expected chunks, the slots they hold, and the softened bound at prices ``cell``."""
        shapes = self.classes.cost.shape[0]
        reduced = self.reduced(cell)
        least = reduced.min(axis=1)
        may = np.isfinite(least)
        weight = np.exp((np.where(may, least, 0.0)[:, None] - reduced) / temperature)
        total = np.maximum(weight.sum(axis=1), 1e-300)
        table = np.where(may, np.log(total) - np.where(may, least, 0.0) / temperature, -np.inf)
        tables = np.empty((self._levels, shapes, self.windows))
        tables[0] = table
        for level in range(1, self._levels):
            table = tables[level - 1]
            tables[level] = np.logaddexp(table, _ahead(table, 1 << (level - 1), -np.inf))
        every = tables.ravel()
        left, right = every[self._left], every[self._right]
        value = np.logaddexp(left, right)
        count = self.classes.count
        mass = np.bincount(self._left, count * np.exp(left - value), minlength=every.size)
        mass += np.bincount(self._right, count * np.exp(right - value), minlength=every.size)
        mass = mass.reshape(tables.shape)
        for level in range(self._levels - 1, 0, -1):
            # The mass of a block goes to its two halves by their weights.
            half, log = 1 << (level - 1), tables[level]
            log = np.where(np.isfinite(log), log, 0.0)
            below = tables[level - 1]
            mass[level - 1] += mass[level] * np.exp(below - log)
            mass[level - 1, :, half:] += (mass[level] * np.exp(_ahead(below, half, -np.inf) - log))[:, :-half]
        starts = (mass[0] / total)[:, None] * weight
        softened = -temperature * float(count @ value) - float((cell * self.slots).sum())
        return starts, self.use(starts), softened

    def solve(self, temperatures: tuple[float, ...] = TEMPERATURES, steps: tuple[int, ...] = STEPS) -> FloatArray:
        """Raise the bound; return the expected starts by ``[shape, region, window]`` at the last temperature."""
        starts = np.zeros_like(self.classes.cost)
        floor = np.maximum(self.slots, 1)
        nearly = min(_MOST_NEARLY, _NEARLY * self.classes.cost.size)
        for share, count in zip(temperatures, steps, strict=True):
            is_last = share == temperatures[-1]
            temperature = share * self.scale
            ahead, inertia = self.cell, 1.0
            for taken in range(count):
                starts, use, _ = self.soft(ahead, temperature)
                excess = use - self.slots
                over = float(np.maximum(excess, 0.0).sum() / max(use.sum(), 1e-9))
                if taken >= _LEAST_STEPS and over < nearly and not is_last:
                    break
                if over < _SETTLED and self._is_settled(ahead, excess):
                    self.cell = ahead
                    break
                # Scaled by the cell's own use, the softened bound bends by at most longest / temperature.
                excess /= np.maximum(use, floor)
                now = np.maximum(0.0, ahead + temperature / self._longest * excess)
                step = now - self.cell
                if (step * excess).sum() < 0:
                    inertia = 1.0
                following = (1 + np.sqrt(1 + 4 * inertia**2)) / 2
                ahead = np.maximum(0.0, now + (inertia - 1) / following * step)
                self.cell, inertia = now, following
        return starts

    def _is_settled(self, cell: FloatArray, excess: FloatArray) -> bool:
        """Say whether hardly a slot is idle that has a price."""
        return float((cell * np.abs(excess)).sum()) <= _SETTLED * self.scale * float(self.classes.count.sum())


def _ahead(table: FloatArray, by: int, beyond: float) -> FloatArray:
    """Return the values ``by`` windows later."""
    moved = np.full_like(table, beyond)
    moved[..., :-by] = table[..., by:]
    return moved
