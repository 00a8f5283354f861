"""Settle the ledger: append a revision to each entry whose observed rate has come.

Idempotent and restartable: each transaction appends revisions and takes what they settled off the work list
(``unsettled``), so a run that is cut off loses nothing and a run too many changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from carbonq.model import EntryReason, Rate, RateStatus, Signal
from carbonq.ratebook import OPEN_STATUSES, RateBook, Row, rate_row
from carbonq.store import ledger, rates, sources
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import machine_now, serialise
from carbonq.units import WINDOW, grams

#: Entries settled in one transaction: more would hold SQLite's lock for too long.
_ENTRIES = 2_000

#: Windows looked at in one query.
_WINDOWS = 1_000

Key = tuple[Signal, str, datetime]
Part = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _When:
    """When a rate is final: ``now`` is grid time."""

    now: datetime
    settle_after_s: float


def settle(
    db: Database, now: datetime, *, settle_after_s: float, limit: int = 5000, recorded_by: str = "settle"
) -> int:
    """Settle about ``limit`` entries and return how many revisions were appended; call again until it returns 0.

    ``now`` is grid time; a window's rate counts once the window is over for ``settle_after_s`` grid seconds. Marginal
    and average rates and the baseline's settle each when they come; an entry whose rate was missing is filled in.
    Raises StoreUnavailable.
    """
    when = _When(now, settle_after_s)
    appended = 0
    with db.read() as tx:
        # A book without a source waits for ever; its windows, more each day, are not walked through again and again.
        pairs = [pair for pair in ledger.awaited_pairs(tx) if rates.is_observed(tx, *pair)]
    for signal, zone in pairs:
        after: datetime | None = None
        while appended < limit:
            with db.read() as tx:
                windows = ledger.awaited_windows(tx, signal, zone, after=after, before=now, limit=_WINDOWS)
                final = _final_rates(tx, {(signal, zone, at) for at in windows}, when)
            if not windows:
                break
            after = windows[-1]
            ready = [at for _, _, at in final]
            while ready and appended < limit:
                with db.write() as tx:
                    # Two at once would append the same revision with different books settled, and one would be lost.
                    serialise(tx, "settle")
                    parts = ledger.waiting_parts(tx, signal, zone, ready, max_entries=_ENTRIES)
                    count, settled = _settle_parts(tx, parts, when, recorded_by)
                appended += count
                if not settled:
                    break
    return appended


def _final_rates(tx: Tx, keys: Collection[Key], when: _When) -> dict[Key, Rate]:
    """Return the settled rate of each key that has one."""
    found: dict[Key, Rate] = {}
    for signal, zone in {(signal, zone) for signal, zone, _ in keys}:
        windows = [at for of_signal, of_zone, at in keys if (of_signal, of_zone) == (signal, zone)]
        span = rates.Span(min(windows), max(windows) + WINDOW)
        known = rates.observed(tx, [zone], span, signal)
        standings = sources.standings(tx, [zone])
        book = RateBook.of({}, known, now=when.now, settle_after_s=when.settle_after_s, standings=standings)
        for at in windows:
            rate, status = book.lookup(signal, zone, at)
            if rate is not None and status is RateStatus.SETTLED:
                found[signal, zone, at] = rate
    return found


def _settle_parts(tx: Tx, parts: Sequence[Part], when: _When, recorded_by: str) -> tuple[int, int]:
    """Append revisions for some parts; return (revisions, keys that need not be waited for any more)."""
    waiting = ledger.load_waiting(tx, parts)
    final = _final_rates(tx, {key for part in waiting.values() for key in part.awaited}, when)
    everything = [entry for part in waiting.values() for entry in part.entries]
    used = _ids(everything, "moer_rate_id", "aer_rate_id", "baseline_rate_id")
    reviser = _Reviser(
        final,
        zones=ledger.zones_of_regions(tx),
        rate_zones=ledger.zones_of_rates(tx, used),
        pues=ledger.pues_of(tx, _ids(everything, "baseline_fact_id")),
        constants={"recorded_at": machine_now(tx), "recorded_by": recorded_by, "restatement_id": None},
    )
    revisions: list[Row] = []
    settled = 0
    for key, part in waiting.items():
        revised = (reviser.revise(entry, part) for entry in part.entries)
        revisions += (entry for entry in revised if entry is not None)
        done = part.awaited & final.keys()
        settled += len(done)
        ledger.forget_awaited(tx, key, done)
    ledger.append_revisions(tx, [rate_row(rate) for rate in reviser.used.values()], revisions)
    return len(revisions), settled


def _ids(entries: Iterable[Row], *columns: str) -> set[str]:
    return {entry[column] for entry in entries for column in columns if entry[column] is not None}


class _Reviser:
    """Makes the next revision of an entry from the rates that are final now."""

    def __init__(
        self,
        final: dict[Key, Rate],
        *,
        zones: dict[str, str],
        rate_zones: dict[str, str],
        pues: dict[str, Decimal],
        constants: Row,
    ) -> None:
        self._final = final
        self._zones = zones
        self._rate_zones = rate_zones
        self._pues = pues
        self._constants = constants
        self.used: dict[str, Rate] = {}

    def revise(self, entry: Row, part: ledger.WaitingPart) -> Row | None:
        """Return the next revision; None where nothing about the entry has become final."""
        changed: Row = {}
        energy_uj: int | None = entry["energy_uj"]
        moer = self._find(entry, "moer", part, (Signal.MOER, part.region, entry["window_at"]))
        aer = self._find(entry, "aer", part, (Signal.AER, part.region, entry["window_at"]))
        base = self._find(entry, "baseline", part, (Signal.MOER, entry["baseline_region"], entry["baseline_window_at"]))
        if moer is not None:
            changed |= {"moer_rate_id": moer.rate_id, "moer_status": RateStatus.SETTLED.value}
            changed["emission_g"] = _grams(energy_uj, part.pue, moer)
        if aer is not None:
            changed |= {"aer_rate_id": aer.rate_id, "aer_status": RateStatus.SETTLED.value}
            changed["inventory_g"] = _grams(energy_uj, part.pue, aer)
        if base is not None:
            changed |= {"baseline_rate_id": base.rate_id, "baseline_moer_status": RateStatus.SETTLED.value}
            changed["baseline_g"] = _grams(energy_uj, self._pues.get(entry["baseline_fact_id"]), base)
        if not changed:
            return None
        revision = entry["revision"]
        revised = entry | self._constants | changed
        revised["revision"] = revision + 1
        revised["supersedes"] = f"{entry['entry_id']}#{revision}"
        revised["reason"] = EntryReason.SETTLED.value
        revised["saved_g"] = _saved(revised)
        return revised

    def _find(
        self, entry: Row, book: str, part: ledger.WaitingPart, place: tuple[Signal, str | None, datetime | None]
    ) -> Rate | None:
        """Return the final rate that replaces a book's open one, if the part waits for it and it is there."""
        signal, region, window_at = place
        status = entry["baseline_moer_status" if book == "baseline" else f"{book}_status"]
        if region is None or window_at is None or status not in OPEN_STATUSES:
            return None
        rate_id = entry[f"{book}_rate_id"]
        zone = self._zones.get(region, "") if rate_id is None else self._rate_zones[rate_id]
        key = (signal, zone, window_at)
        if key not in part.awaited:
            # The region moved to another zone in the settings since; the zone it was in then is the one waited for.
            then = [other for other in part.awaited if (other[0], other[2]) == (signal, window_at)]
            if rate_id is not None or len(then) != 1:
                return None
            (key,) = then
        rate = self._final.get(key)
        if rate is not None:
            self.used[rate.rate_id] = rate
        return rate


def _grams(energy_uj: int | None, pue: Decimal | None, rate: Rate) -> Decimal | None:
    return None if energy_uj is None or pue is None else grams(energy_uj, pue, rate.g_per_kwh)


def _saved(entry: Row) -> Decimal | None:
    """Return the saving of an entry, only where both statuses are alike."""
    emission, baseline = entry["emission_g"], entry["baseline_g"]
    if emission is None or baseline is None or entry["moer_status"] != entry["baseline_moer_status"]:
        return None
    saved: Decimal = baseline - emission - (entry["transfer_g"] or 0)
    return saved
