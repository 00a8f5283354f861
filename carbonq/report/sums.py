"""Sums of ledger entries alike, and how they are added up by what a section asks for. Pure.

Energies are whole uJ, grams whole quanta of 1e-15 g, so that adding is exact. A figure that entries lack is 0 in the
sum, and how many entries lack it is counted beside.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from decimal import Decimal
from operator import add
from typing import Generic, NamedTuple, TypeVar

from carbonq.model import RateStatus
from carbonq.report.document import Grams
from carbonq.units import from_quanta

K = TypeVar("K", bound=Hashable)


class Sums(NamedTuple):
    """Sums of some entries.

    ``items`` counts each item once, whatever windows it ran in. The ``rated_`` ones have an emission, the ``aer_`` one
    an inventory figure, the ``metered_`` one energy. ``unmetered``, ``unrated``, ``unrated_aer``, ``no_embodied`` and
    ``no_transfer`` count entries without energy, emission, inventory, embodied and transfer carbon.
    """

    entries: int = 0
    items: int = 0
    unmetered: int = 0
    unrated: int = 0
    unrated_aer: int = 0
    no_embodied: int = 0
    no_transfer: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    rated_items: int = 0
    rated_tokens: int = 0
    aer_tokens: int = 0
    metered_tokens: int = 0
    energy_uj: int = 0
    emission: int = 0
    inventory: int = 0
    embodied: int = 0
    transfer: int = 0
    baseline: int = 0
    saved: int = 0

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens, as SCI counts them."""
        return self.prompt_tokens + self.completion_tokens

    def plus(self, other: Sums) -> Sums:
        """Return the sums of both."""
        return Sums._make(map(add, self, other))


class Cell(NamedTuple):
    """Entries alike in all that sections tell apart, of one hour; ``sums`` are theirs.

    ``is_saving`` says whether they have a saving; ids are None where an entry has no such thing.
    """

    region: str
    fact_id: str
    model: str | None
    quality: str
    software_version: str
    gpu_meter: str
    cpu_meter: str
    dram_meter: str
    tenant: str | None
    product_line: str | None
    workload: str | None
    job_id: str | None
    kind: str
    method: str
    moer_status: str
    aer_status: str
    moer_rate_id: str | None
    aer_rate_id: str | None
    baseline_region: str | None
    placement_id: str | None
    is_saving: bool
    sums: Sums


class Tally(Generic[K]):
    """Sums by a key; adding costs one look-up and one addition of each figure."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._lists: dict[K, list[int]] = {}

    def add(self, key: K, sums: Sums) -> None:
        """Add sums to those of a key."""
        known = self._lists.get(key)
        if known is None:
            self._lists[key] = list(sums)
        else:
            known[:] = map(add, known, sums)

    def items(self) -> Iterator[tuple[K, Sums]]:
        """Return keys and their sums, in the order in which keys came."""
        return ((key, Sums._make(values)) for key, values in self._lists.items())

    def __bool__(self) -> bool:
        return bool(self._lists)


#: Which part of ``Grams`` a status belongs to; what is missing has no grams.
_PROVISIONAL, _UNSETTLEABLE = RateStatus.PROVISIONAL.value, RateStatus.UNSETTLEABLE.value


class Book:
    """One book's grams of entries of several statuses, added up one status at a time."""

    __slots__ = ("_entries", "_provisional", "_settled", "_unknown", "_unsettleable")

    def __init__(self) -> None:
        """Begin with nothing."""
        self._entries = self._unknown = self._provisional = self._settled = self._unsettleable = 0

    def add(self, status: str, quanta: int, entries: int, unknown: int) -> None:
        """Add entries of one status: their grams in quanta, how many they are and how many of them have no figure."""
        self._entries += entries
        self._unknown += unknown
        if status == _PROVISIONAL:
            self._provisional += quanta
        elif status == _UNSETTLEABLE:
            self._unsettleable += quanta
        else:
            self._settled += quanta

    def include(self, other: Book) -> None:
        """Add what another one has of the same book."""
        self._entries += other._entries
        self._unknown += other._unknown
        self._provisional += other._provisional
        self._settled += other._settled
        self._unsettleable += other._unsettleable

    @property
    def grams(self) -> Grams:
        """What was added up."""
        known = self._provisional + self._settled + self._unsettleable
        return Grams(
            known_g=from_quanta(known) if self._entries > self._unknown else None,
            provisional_g=from_quanta(self._provisional),
            settled_g=from_quanta(self._settled),
            unsettleable_g=from_quanta(self._unsettleable),
            unknown_entries=self._unknown,
        )


class Books:
    """Both books of some entries, side by side, with all their sums; the books are never added."""

    __slots__ = ("_impact", "_inventory", "sums")

    def __init__(self) -> None:
        """Begin with nothing."""
        self._impact, self._inventory = Book(), Book()
        self.sums = Sums()

    def add(self, moer_status: str, aer_status: str, sums: Sums) -> None:
        """Add entries alike in both statuses."""
        self._impact.add(moer_status, sums.emission, sums.entries, sums.unrated)
        self._inventory.add(aer_status, sums.inventory, sums.entries, sums.unrated_aer)
        self.sums = self.sums.plus(sums)

    def include(self, other: Books) -> None:
        """Add other entries, book by book."""
        self._impact.include(other._impact)
        self._inventory.include(other._inventory)
        self.sums = self.sums.plus(other.sums)

    @property
    def impact(self) -> Grams:
        """The marginal book."""
        return self._impact.grams

    @property
    def inventory(self) -> Grams:
        """The average book."""
        return self._inventory.grams


def known(quanta: int, entries: int, unknown: int) -> Decimal | None:
    """Return quanta as grams; None where none of the entries has the figure."""
    return from_quanta(quanta) if entries > unknown else None
