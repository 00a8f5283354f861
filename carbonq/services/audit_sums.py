"""Sums of an audit file, taken from the entries that it shows; the same figures as ``ledger summary``, exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from carbonq.model import EntryKind
from carbonq.units import grams_text

#: What must be alike in entries that are added up.
KEYS = ("clock", "kind", "quality", "method", "moer_status", "aer_status")

#: Counts in the order of the file. ``items`` counts each item once, whatever windows it ran in.
COUNTS = ("entries", "items", "unmetered", "unrated", "unrated_aer", "no_embodied")

TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens")
ENERGIES = ("gpu_uj", "cpu_uj", "dram_uj", "energy_uj")
GRAMS = ("emission_g", "inventory_g", "embodied_g", "transfer_g", "baseline_g", "saved_g")


@dataclass(slots=True)
class _Group:
    """Sums of entries alike in ``KEYS``; None where no entry has the figure. Grams are whole 1e-15 g."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*COUNTS, *TOKENS), 0))
    sums: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys((*ENERGIES, *GRAMS)))

    def add(self, row: Mapping[str, Any]) -> None:
        counts = self.counts
        counts["entries"] += 1
        counts["items"] += row["kind"] == EntryKind.ITEM.value and row["part"] == 1
        for name, column in (
            ("unmetered", "energy_uj"),
            ("unrated", "emission_g"),
            ("unrated_aer", "inventory_g"),
            ("no_embodied", "embodied_g"),
        ):
            counts[name] += row.get(column) is None
        for name in TOKENS:
            counts[name] += row[name]
        for name in (*ENERGIES, *GRAMS):
            value = row.get(name)
            if value is not None:
                # Grams have 15 decimals, always.
                amount = value if name in ENERGIES else int(value.replace(".", "", 1))
                self.sums[name] = (self.sums[name] or 0) + amount

    def document(self) -> dict[str, Any]:
        grams = {name: None if (value := self.sums[name]) is None else grams_text(value) for name in GRAMS}
        return self.counts | {name: self.sums[name] for name in ENERGIES} | grams


class Sums:
    """Sums for each API key, and for the customer over all of them; the newest revision of each entry counts."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._groups: dict[str | None, dict[tuple[Any, ...], _Group]] = {}
        self._entries = self._revisions = self._unsealed = 0
        self._reasons: dict[str, int] = {}

    def add(self, batch: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], *, unsealed: int) -> None:
        """Add the entries of one part of an engine batch, all revisions of each."""
        newest: dict[int, Mapping[str, Any]] = {}
        for row in rows:
            self._reasons[row["reason"]] = self._reasons.get(row["reason"], 0) + 1
            if row["position"] not in newest or newest[row["position"]]["revision"] < row["revision"]:
                newest[row["position"]] = row
        self._entries += len(newest)
        self._revisions += len(rows)
        self._unsealed += unsealed
        for row in newest.values():
            one = {"clock": batch["clock"], "quality": batch["quality"], "part": batch["part"], **row}
            key = (*(one[name] for name in KEYS), one.get("saved_g") is not None)
            self._groups.setdefault(row.get("api_key_id"), {}).setdefault(key, _Group()).add(one)

    def document(self, api_key_id: str | None) -> dict[str, Any]:
        """Return the file's member ``sums``."""
        total: dict[tuple[Any, ...], _Group] = {}
        for groups in self._groups.values():
            for key, group in groups.items():
                _merge(total.setdefault(key, _Group()), group)
        keys = sorted(self._groups.items(), key=lambda pair: (pair[0] is None, pair[0] or ""))
        return {
            "api_key_id": api_key_id,
            "entries": self._entries,
            "revisions": self._revisions,
            "unsealed_revisions": self._unsealed,
            "reasons": dict(sorted(self._reasons.items())),
            "customer": _listed(total),
            "keys": [{"api_key_id": key, "groups": _listed(groups)} for key, groups in keys],
        }


def _merge(into: _Group, more: _Group) -> None:
    for name, count in more.counts.items():
        into.counts[name] += count
    for name, value in more.sums.items():
        if value is not None:
            into.sums[name] = (into.sums[name] or 0) + value


def _listed(groups: Mapping[tuple[Any, ...], _Group]) -> list[dict[str, Any]]:
    names = (*KEYS, "has_saving")
    return [dict(zip(names, key, strict=True)) | group.document() for key, group in sorted(groups.items())]
