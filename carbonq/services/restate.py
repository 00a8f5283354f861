"""Restate the ledger: append a revision to each entry whose final rate the provider said anew. Old figures stay.

By command (``restate``) everything of a span is compared with what is final now: corrected observations, a preferred
source that came after a fallback had settled, what was given up or was missing. What sources corrected of windows that
are settled is noticed by itself (``restate_corrected``, called by the settlement's tick), each with the newest value of
the very source that the entries were settled with. Both are recorded with who, when and why, append only, and can be
run again: an entry that has the final value already is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal

from carbonq.errors import InvalidRequest, NotFound
from carbonq.model import EntryReason, Rate, RateStatus, Signal
from carbonq.ratebook import rate_row
from carbonq.services import settle
from carbonq.services.finals import Finals
from carbonq.store import admin_log, ledger, rates, restatements, revisions
from carbonq.store.admin_log import Action
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import machine_now, serialise
from carbonq.store.revisions import BOOKS, Change, NewRate, Stamp, Variant
from carbonq.store.unsettled import Part
from carbonq.units import WINDOW, iso, window_of

#: Entries looked at in one transaction.
_ENTRIES = 5_000

#: Rates whose baselines are looked for in one query, and corrections taken at once.
_RATES = 1_000

#: What a restated rate was before: settled by the provider's earlier word.
_SETTLED = frozenset({RateStatus.SETTLED.value, RateStatus.RESTATED.value})

#: What a restatement fills in: nothing was final when it was given up.
_GIVEN_UP = frozenset({RateStatus.UNSETTLEABLE.value, RateStatus.MISSING.value})


@dataclass(frozen=True, slots=True)
class Scope:
    """Rates of windows ``[start_at, end_at)``, of one signal and zone or of all."""

    start_at: datetime
    end_at: datetime
    signal: Signal | None = None
    zone: str | None = None

    def holds(self, signal: Signal, zone: str, window_at: datetime) -> bool:
        """Say whether a window's rate is meant."""
        is_meant = self.signal in {None, signal} and self.zone in {None, zone}
        return is_meant and self.start_at <= window_at < self.end_at


@dataclass(slots=True)
class Restated:
    """What a restatement did, or would do: revisions, and the sums of grams before and after by column.

    The sums are known of a dry run only. ``restatement_id`` is None where nothing had to be restated.
    """

    restatement_id: str | None = None
    revisions: int = 0
    sums: dict[str, tuple[Decimal | None, Decimal | None]] = field(
        default_factory=dict[str, tuple[Decimal | None, Decimal | None]]
    )

    def add(self, count: int, differences: Iterable[revisions.Difference]) -> None:
        """Take in what one transaction would do."""
        self.revisions += count
        for one in differences:
            before, after = self.sums.get(one.column, (None, None))
            self.sums[one.column] = (_plus(before, one.before_g), _plus(after, one.after_g))


def restate(
    db: Database,
    scope: Scope,
    *,
    reason: str,
    now: datetime,
    settle_after_s: float,
    recorded_by: str,
    actor: str | None = None,
    is_dry_run: bool = False,
) -> Restated:
    """Restate every entry whose rate in the scope is not the one that is final now; ``now`` is grid time.

    ``actor`` is who the log of admin actions names (None: it is not logged).
    Raises InvalidRequest for an empty span or reason, NotFound for a zone that never was, StoreUnavailable.
    """
    if not reason.strip():
        raise InvalidRequest("a restatement needs a reason; it is kept with the entries for good", param="reason")
    start_at, end_at = window_of(scope.start_at), scope.end_at
    if start_at >= end_at:
        raise InvalidRequest(f"from {scope.start_at} to {scope.end_at} holds no window", param="to")
    scope = Scope(start_at, end_at, scope.signal, scope.zone)
    with db.read() as tx:
        is_known = scope.zone is None or any(rates.is_observed(tx, signal, scope.zone) for signal in Signal)
    if not is_known:
        raise NotFound(f"nothing was ever observed of a zone {scope.zone!r}")
    finals = Finals(now, settle_after_s)
    work = _Work(
        db,
        scope,
        lambda tx, key, _old: finals.get(tx, key),
        recorded_by,
        reason,
        actor=actor,
        is_dry_run=is_dry_run,
    )
    work.by_windows()
    work.by_baselines(_stale(db, scope, finals))
    return work.done


def _stale(db: Database, scope: Scope, finals: Finals) -> list[str]:
    """Return the ids of marginal rates that are not what is final now in some window of the scope."""
    if scope.signal is Signal.AER:
        return []
    found: list[str] = []
    with db.read() as tx:
        known = restatements.used_rates(
            tx, signal=Signal.MOER, zone=scope.zone, start_at=scope.start_at, end_at=scope.end_at
        )
        for rate in known:
            for window_at in _windows(rate, scope):
                final = finals.get(tx, (rate.signal, rate.zone, window_at))
                if final is not None and final.rate_id != rate.rate_id:
                    found.append(rate.rate_id)
                    break
    return found


def _windows(rate: Rate, scope: Scope) -> list[datetime]:
    count = max(1, rate.step_s // int(WINDOW.total_seconds()))
    windows = (window_of(rate.window_at) + number * WINDOW for number in range(count))
    return [at for at in windows if scope.start_at <= at < scope.end_at]


def restate_corrected(
    db: Database, now: datetime, *, settle_after_s: float, limit: int = 100_000, recorded_by: str = "settle"
) -> int:
    """Restate what sources corrected of settled windows; return how many revisions. Raises StoreUnavailable.

    Each source and run of windows is a restatement of its own. Call again until it returns 0.
    """
    appended = 0
    finals = Finals(now, settle_after_s)
    while appended < limit:
        with db.read() as tx:
            # What is not final yet has settled nothing: settlement will take the newest value.
            corrected = restatements.corrected(tx, before=now, limit=_RATES)
        if not corrected:
            break
        groups: dict[tuple[Signal, str, str], list[datetime]] = {}
        for signal, zone, source, window_at in corrected:
            groups.setdefault((signal, zone, source), []).append(window_at)
        for (signal, zone, source), windows in sorted(groups.items()):
            appended += _restate_source(db, finals, (signal, zone, source), windows, recorded_by)
        with db.write() as tx:
            restatements.forget_corrections(tx, corrected)
    return appended


def _restate_source(
    db: Database, finals: Finals, key: tuple[Signal, str, str], windows: Sequence[datetime], recorded_by: str
) -> int:
    signal, zone, source = key
    with db.read() as tx:
        used = restatements.used_rates(
            tx, signal=signal, zone=zone, start_at=min(windows), end_at=max(windows) + WINDOW
        )
    wanted = set(windows)
    stale = [rate for rate in used if rate.source == source and rate.window_at in wanted]
    if not stale:
        return 0
    ends = [rate.window_at + timedelta(seconds=rate.step_s) for rate in stale]
    scope = Scope(min(rate.window_at for rate in stale), max(ends), signal, zone)

    def choose(tx: Tx, at: tuple[Signal, str, datetime], old: Rate | None) -> Rate | None:
        is_its = old is not None and old.source == source and old.window_at in wanted
        return finals.get(tx, at, source=source) if is_its else None

    reason = f"{source} corrected {signal.value} of {zone}"
    work = _Work(db, scope, choose, recorded_by, reason, is_automatic=True)
    work.by_windows()
    if signal is Signal.MOER:
        work.by_baselines([rate.rate_id for rate in stale])
    return work.done.revisions


#: Returns the rate that is final now for a key, given the one that the entry has.
Choose = Callable[[Tx, tuple[Signal, str, datetime], Rate | None], Rate | None]


class _Work:
    """One restatement on its way through the ledger."""

    def __init__(
        self,
        db: Database,
        scope: Scope,
        choose: Choose,
        recorded_by: str,
        reason: str,
        *,
        is_automatic: bool = False,
        actor: str | None = None,
        is_dry_run: bool = False,
    ) -> None:
        self._db = db
        self._scope = scope
        self._choose = choose
        self._is_dry_run = is_dry_run
        self._actor = actor
        with db.read() as tx:
            began_at = machine_now(tx)
        self._record = restatements.make(
            recorded_at=began_at,
            recorded_by=recorded_by,
            reason=reason,
            is_automatic=is_automatic,
            signal=scope.signal,
            zone=scope.zone,
            start_at=scope.start_at,
            end_at=scope.end_at,
        )
        self._seen: set[Part] = set()  # of a dry run, which changes nothing that would tell
        self.done = Restated()

    def by_windows(self) -> None:
        """Restate the parts that ran in the scope's windows."""
        after: tuple[datetime, str, int] | None = None
        while True:
            with self._db.read() as tx:
                rows = restatements.parts_between(
                    tx, self._scope.start_at, self._scope.end_at, after=after, limit=_ENTRIES
                )
            if not rows:
                return
            chosen: list[Part] = []
            size = 0
            for row in rows:
                if chosen and size + row[3] > _ENTRIES:
                    break
                chosen.append((row[1], row[2]))
                size += row[3]
                after = row[:3]
            self._take(chosen)

    def by_baselines(self, rate_ids: Sequence[str]) -> None:
        """Restate the parts whose baselines used these rates, wherever they ran."""
        for start in range(0, len(rate_ids), _RATES):
            after: Part | None = None
            while True:
                with self._db.read() as tx:
                    parts = restatements.parts_with_baselines(
                        tx, rate_ids[start : start + _RATES], after=after, limit=_ENTRIES // 50
                    )
                if not parts:
                    break
                after = parts[-1]
                self._take(parts)

    def _take(self, parts: Sequence[Part]) -> None:
        with self._db.read() as tx:
            changes, _ = self._changes(tx, parts)
        if not changes:
            return
        if self._is_dry_run:
            parts = [part for part in parts if part not in self._seen]
            self._seen.update(parts)
            with self._db.read() as tx:
                self.done.add(*revisions.preview(tx, parts, changes))
            return
        with self._db.write() as tx:
            serialise(tx, settle.LOCK)
            # Again, now that nobody else revises.
            changes, used = self._changes(tx, parts)
            ledger.insert_rates(tx, [rate_row(rate) for rate in used.values()])
            own = self._record
            stamp = Stamp(EntryReason.RESTATED, own.recorded_by, own.restatement_id)
            count = revisions.append(tx, parts, changes, stamp)
            if count:
                self.done.restatement_id = own.restatement_id
                restatements.record(tx, own)
                self._log(tx)
        self.done.revisions += count

    def _log(self, tx: Tx) -> None:
        """Leave one line in the log of admin actions, with the first entries that are restated."""
        if self._actor is not None:
            own = self._record
            said = {"reason": own.reason, "start_at": iso(own.start_at), "end_at": iso(own.end_at), "zone": own.zone}
            admin_log.append(tx, Action(self._actor, "ledger.restated", own.restatement_id, after=said))
            self._actor = None

    def _changes(self, tx: Tx, parts: Sequence[Part]) -> tuple[list[Change], dict[str, Rate]]:
        found = revisions.variants(tx, parts)
        known = ledger.rates_of(tx, {rate_id for one in found for book in BOOKS if (rate_id := one.rate_of(book)[0])})
        zones = ledger.zones_of_regions(tx)
        pues = revisions.pues(tx, {fact for one in found for fact in (one.fact_id, one.baseline_fact_id) if fact})
        used: dict[str, Rate] = {}
        changes: list[Change] = []
        for variant in found:
            new: dict[str, NewRate] = {}
            for book in BOOKS:
                rate_id, _ = variant.rate_of(book)
                old = None if rate_id is None else known[rate_id]
                made = self._new_rate(tx, variant, book, old, zones)
                if made is not None:
                    used[made[0].rate_id] = made[0]
                    new[book] = settle.price(variant, book, *made, pues)
            if new:
                changes.append(Change(variant, new))
        return changes, used

    def _new_rate(
        self, tx: Tx, variant: Variant, book: str, old: Rate | None, zones: dict[str, str]
    ) -> tuple[Rate, RateStatus] | None:
        signal, region, window_at = settle.place_of(variant, book)
        if region is None or window_at is None:
            return None
        zone = zones.get(region, "") if old is None else old.zone
        if not self._scope.holds(signal, zone, window_at):
            return None
        _, status = variant.rate_of(book)
        if status in _GIVEN_UP:
            final = self._choose(tx, (signal, zone, window_at), old)
            return None if final is None else (final, RateStatus.SETTLED)
        if status not in _SETTLED:
            return None  # settlement's own
        final = self._choose(tx, (signal, zone, window_at), old)
        if final is None or old is None or final.g_per_kwh == old.g_per_kwh:
            return None
        return final, RateStatus.RESTATED


def _plus(one: Decimal | None, other: Decimal | None) -> Decimal | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other
