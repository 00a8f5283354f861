"""What ran of late, summed by what must stay apart: the figures of ``/metrics``. Pure.

Sums are floats: these are figures to watch, the exact ones are the ledger's. What is not known is None and stays it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import fmean
from typing import NamedTuple

from carbonq.model import EntryKind, WorkClass

#: The periods that figures are shown for, in grid time; those of a day and more begin with a whole hour.
PERIODS: Mapping[str, timedelta] = {
    "1h": timedelta(hours=1),
    "24h": timedelta(days=1),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}


class Key(NamedTuple):
    """What entries must be alike in to be added up; ``regions`` is JSON, the regions their chunk might use."""

    region: str
    model: str | None
    work_class: str | None
    kind: str
    outcome: str | None
    quality: str
    moer_status: str
    aer_status: str
    regions: str | None


class Sums(NamedTuple):
    """Sums of entries; None where none of them has the figure. Energies in uJ, carbon in grams.

    ``items`` and ``tokens`` count those of items that succeeded; the ``rated_`` ones those whose emission is known.
    """

    items: int
    rated_items: int
    tokens: int
    rated_tokens: int
    energy_uj: float | None
    emission_g: float | None
    inventory_g: float | None
    baseline_g: float | None
    saved_g: float | None
    cost: float | None


Groups = dict[Key, Sums]


def merge(into: Groups, more: Mapping[Key, Sums]) -> None:
    """Add sums to those of the same keys."""
    for key, sums in more.items():
        known = into.get(key)
        into[key] = sums if known is None else _add(known, sums)


def _add(one: Sums, other: Sums) -> Sums:
    return Sums._make(b if a is None else a if b is None else a + b for a, b in zip(one, other, strict=True))


@dataclass(frozen=True, slots=True)
class Figure:
    """One series of a gauge: its labels' values in order, and its value."""

    labels: tuple[str, ...]
    value: float


def totals(
    groups: Mapping[Key, Sums], labels: Callable[[Key], tuple[str, ...]], value: Callable[[Sums], float | None]
) -> list[Figure]:
    """Return sums by labels; those of which nothing is known are left out."""
    found: dict[tuple[str, ...], float] = {}
    for key, sums in groups.items():
        known = value(sums)
        if known is not None:
            found[labels(key)] = found.get(labels(key), 0.0) + known
    return [Figure(names, total) for names, total in found.items()]


def ratios(
    groups: Mapping[Key, Sums],
    labels: Callable[[Key], tuple[str, ...]],
    part: Callable[[Sums], float | None],
    whole: Callable[[Sums], float | None],
) -> list[Figure]:
    """Return ``part`` / ``whole`` by labels, over the groups that know both; left out where ``whole`` is nothing."""
    sums: dict[tuple[str, ...], tuple[float, float]] = {}
    for key, group in groups.items():
        above, below = part(group), whole(group)
        if above is not None and below is not None:
            before = sums.get(labels(key), (0.0, 0.0))
            sums[labels(key)] = (before[0] + above, before[1] + below)
    return [Figure(names, above / below) for names, (above, below) in sums.items() if below > 0]


def wasted_shares(groups: Mapping[Key, Sums]) -> list[Figure]:
    """Return the share of wasted energy in that of items and wasted attempts, by quality of the energy."""
    both = (EntryKind.ITEM.value, EntryKind.WASTED.value)
    work = {key: sums for key, sums in groups.items() if key.kind in both}
    wasted = {key: sums for key, sums in work.items() if key.kind == EntryKind.WASTED.value}
    above = {figure.labels: figure.value for figure in totals(wasted, lambda key: (key.quality,), _energy)}
    below = totals(work, lambda key: (key.quality,), _energy)
    return [Figure(one.labels, above.get(one.labels, 0.0) / one.value) for one in below if one.value > 0]


def shares_below_mean(
    ran: Iterable[tuple[datetime, Mapping[Key, Sums]]],
    windows: Sequence[datetime],
    region_set: Callable[[Key], Collection[str]],
    moer: Callable[[str, datetime], float | None],
) -> list[Figure]:
    """Return the share of items' energy that ran below its region set's mean MOER, by class; realtime work has none.

    The mean is over all ``windows`` and all regions that the work might have used, so that a place and a time are both
    worth something. Energy whose MOER is not known counts on neither side.
    """
    means: dict[frozenset[str], float | None] = {}
    found: dict[str, tuple[float, float]] = {}
    for window_at, groups in ran:
        for key, sums in groups.items():
            if key.kind != EntryKind.ITEM.value or key.work_class in (None, WorkClass.REALTIME.value):
                continue
            among = frozenset(region_set(key))
            if among not in means:
                known = [rate for name in among for at in windows if (rate := moer(name, at)) is not None]
                means[among] = fmean(known) if known else None
            mean, here = means[among], moer(key.region, window_at)
            if mean is None or here is None or not sums.energy_uj:
                continue
            below, whole = found.get(str(key.work_class), (0.0, 0.0))
            found[str(key.work_class)] = (below + (sums.energy_uj if here < mean else 0.0), whole + sums.energy_uj)
    return [Figure((name,), below / whole) for name, (below, whole) in found.items()]


def _energy(sums: Sums) -> float | None:
    return sums.energy_uj
