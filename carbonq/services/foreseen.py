"""What a token is expected to emit: at the best cell that is foreseen before a deadline, or at a planned one.

Whole picograms of gCO2e a token, rounded up, by book; None where no rate is known, and never 0 for it. The books have
outlooks of their own: an average rate says nothing of the impact book, nor a marginal one of the inventory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import numpy as np
import numpy.typing as npt

from carbonq import estimate
from carbonq.budget import PG_PER_G, Book, Budget
from carbonq.model import Model, Region, RegionState, Signal, Throughput
from carbonq.plan.outlook import Outlook
from carbonq.services.outlook import load_outlook
from carbonq.store.database import Database
from carbonq.units import UJ_PER_KWH, window_index

#: Picograms a token, by book.
Rates = Mapping[Book, int | None]

#: The signal that tells of each book.
SIGNALS: Mapping[Book, Signal] = {Book.IMPACT: Signal.MOER, Book.INVENTORY: Signal.AER}

UNKNOWN: Rates = {Book.IMPACT: None, Book.INVENTORY: None}

#: How far ahead is looked, in windows: a week, as in planning; of a later deadline that is all that counts.
HORIZON = 2016


class Foreseen:
    """The outlooks of the books, over the same regions; a book that is not given is unknown."""

    def __init__(
        self,
        regions: Sequence[Region],
        models: Mapping[str, Model],
        learned: Mapping[tuple[str, str], Throughput],
        outlooks: Mapping[Book, Outlook],
    ) -> None:
        """Take what is known at a moment."""
        self.regions, self._models, self._learned = regions, models, learned
        self._outlooks = outlooks
        self._lowest: dict[Book, npt.NDArray[np.float64]] = {}
        self._uj: dict[tuple[str, str], int | None] = {}
        self._cells: dict[tuple[str, str, int], Rates] = {}
        self._best: dict[tuple[str, tuple[str, ...] | None, int], Rates] = {}

    @property
    def books(self) -> list[Book]:
        """The books of which any rate is known."""
        return [book for book, outlook in self._outlooks.items() if not outlook.is_down]

    def best(self, model: str, allowed: Sequence[str] | None, deadline_at: datetime) -> Rates:
        """Return the least that a token can be expected to emit in any cell that begins before a deadline."""
        names = None if allowed is None else tuple(sorted(allowed))
        key = (model, names, window_index(deadline_at))
        found = self._best.get(key)
        if found is None:
            found = self._best[key] = {book: self._least(book, *key) for book in Book}
        return found

    def _least(self, book: Book, model: str, allowed: tuple[str, ...] | None, window: int) -> int | None:
        outlook = self._outlooks.get(book)
        if outlook is None or not outlook.windows:
            return None
        if book not in self._lowest:
            self._lowest[book] = np.fmin.accumulate(outlook.g_per_kwh, axis=1)
        column = min(max(window - outlook.first_window, 0), outlook.windows - 1)
        usable = estimate.allowed_regions(self.regions, allowed, model)
        usable = [region for region in usable if region.state is RegionState.ACTIVE] or usable
        found = [
            pg
            for region in usable
            if region.name in outlook.regions
            and (pg := self._pg(model, region, float(self._lowest[book][outlook.regions.index(region.name), column])))
            is not None
        ]
        return min(found, default=None)

    def at(self, model: str, region: str, window_at: datetime) -> Rates:
        """Return what a token is expected to emit in a cell."""
        key = (model, region, window_index(window_at))
        found = self._cells.get(key)
        if found is None:
            found = self._cells[key] = {book: self._cell(book, *key) for book in Book}
        return found

    def _cell(self, book: Book, model: str, name: str, window: int) -> int | None:
        outlook = self._outlooks.get(book)
        region = next((one for one in self.regions if one.name == name), None)
        if outlook is None or region is None or name not in outlook.regions:
            return None
        column = max(window - outlook.first_window, 0)
        if column >= outlook.windows:
            return None
        return self._pg(model, region, float(outlook.g_per_kwh[outlook.regions.index(name), column]))

    def _pg(self, model: str, region: Region, g_per_kwh: float) -> int | None:
        key = (model, region.hardware)
        if key not in self._uj:
            known = self._models.get(model)
            self._uj[key] = None if known is None else estimate.speed(known, key[1], self._learned).uj_per_token
        uj_per_token = self._uj[key]
        if uj_per_token is None or math.isnan(g_per_kwh):
            return None
        return math.ceil(uj_per_token * float(region.pue) * g_per_kwh * (PG_PER_G / UJ_PER_KWH))


def books_of(found: Iterable[Budget]) -> frozenset[Book]:
    """Return the books that anybody asks for: the impact book, and the inventory where a budget counts it."""
    return frozenset({Book.IMPACT, *(one.book for one in found)})


def load(
    db: Database,
    regions: Sequence[Region],
    models: Mapping[str, Model],
    learned: Mapping[tuple[str, str], Throughput],
    *,
    now: datetime,
    max_stale_s: float,
    books: frozenset[Book],
) -> Foreseen:
    """Read the outlooks of some books from a grid time on. Raises StoreUnavailable."""
    outlooks = {
        book: load_outlook(db, regions, now, HORIZON, max_stale_s, signal=SIGNALS[book]) for book in sorted(books)
    }
    return Foreseen(regions, models, learned, outlooks)
