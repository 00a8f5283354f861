"""Settle the ledger: append a revision to each entry whose observed rate has come.

Idempotent and restartable: each transaction appends revisions and takes what they settled off the work list
(``unsettled``), so a run that is cut off loses nothing and a run too many changes nothing.

What waited for longer than it is worth (``give_up_after_s``) is closed: its provisional rate, or a better one that was
observed and never became final, is all there will be, and it is ``unsettleable``. Then what sources corrected is
restated (``services/restate.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from carbonq.model import EntryReason, Rate, RateStatus, Signal
from carbonq.ratebook import OPEN_STATUSES, rate_row
from carbonq.services.apart import each, halved
from carbonq.services.finals import Finals
from carbonq.store import compute, ledger, rates, revisions, unsettled
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import serialise
from carbonq.store.revisions import BOOKS, Change, NewRate, Stamp, Variant
from carbonq.store.unsettled import Key, Part

#: Entries settled in one transaction: more would hold SQLite's lock for too long.
_ENTRIES = 5_000

#: Windows looked at in one query.
_WINDOWS = 1_000

#: Parts of one zone that may go wrong in one run before no more of it are tried.
MAX_DEFECTS = 20

#: What two transactions that append revisions wait for; both engines' guard against two next revisions of one entry.
LOCK = "settle"

_OPEN = frozenset(status.value for status in OPEN_STATUSES)


def settle(
    db: Database,
    now: datetime,
    *,
    settle_after_s: float,
    give_up_after_s: float | None = None,
    limit: int = 100_000,
    recorded_by: str = "settle",
) -> int:
    """Settle about ``limit`` entries and return how many revisions were appended; call again until it returns 0.

    ``now`` is grid time; a window's rate counts once the window is over for ``settle_after_s`` grid seconds, and is
    waited for until it is over for ``give_up_after_s`` (None: for ever). Marginal and average rates and the baseline's
    settle each when they come; an entry whose rate was missing is filled in. Raises StoreUnavailable, and the first of
    what else went wrong with some entries, once all others had their turn.
    """
    finals = Finals(now, settle_after_s)
    stamp = Stamp(EntryReason.SETTLED, recorded_by)
    appended = 0
    with db.read() as tx:
        waiting = unsettled.pairs(tx)
        # A book without a source waits for ever; its windows, more each day, are not walked through again and again.
        pairs = [pair for pair in waiting if rates.is_observed(tx, *pair)]
    turns: list[tuple[tuple[Signal, str], datetime, _Act]] = [(pair, now, _Settling(finals, stamp)) for pair in pairs]
    if give_up_after_s is not None:
        before = now - timedelta(seconds=give_up_after_s)
        turns += [(pair, before, _GivingUp(finals, stamp)) for pair in waiting]

    def walk(turn: tuple[tuple[Signal, str], datetime, _Act]) -> int:
        nonlocal appended
        count = _walk(db, *turn, limit - appended)
        appended += count
        return count

    return each(turns, walk)


def seconds(days: float | None) -> float | None:
    """Turn the setting ``settle_within_days`` into what ``settle`` takes."""
    return None if days is None else days * 86_400.0


def _walk(db: Database, pair: tuple[Signal, str], before: datetime, act: _Act, limit: int) -> int:
    """Let ``act`` look at all windows that are waited for, and at the parts that wait for those it takes."""
    signal, zone = pair
    appended = 0
    after: datetime | None = None
    defects: dict[Part, Exception] = {}
    while appended < limit:
        with db.read() as tx:
            windows = unsettled.windows(tx, signal, zone, after=after, before=before, limit=_WINDOWS)
            ready = [at for at in windows if act.is_ready(tx, (signal, zone, at))]
        if not windows:
            break
        after = windows[-1]
        while ready and appended < limit and len(defects) < MAX_DEFECTS:
            with db.read() as tx:
                parts = unsettled.parts(tx, signal, zone, ready, max_entries=_ENTRIES, without=defects)
            count, is_done = _settle(db, act, parts, before, defects)
            appended += count
            if not is_done:
                break
    if defects:
        raise next(iter(defects.values()))
    return appended


def _settle(
    db: Database, act: _Act, parts: Sequence[Part], before: datetime, defects: dict[Part, Exception]
) -> tuple[int, bool]:
    """Settle some parts, together where nothing goes wrong; return the revisions, and whether fewer parts wait now."""
    forgotten, known = 0, len(defects)

    def take(some: Sequence[Part]) -> int:
        nonlocal forgotten
        with db.write() as tx:
            # Two at once would append the same revision with different books settled, and one would be lost.
            serialise(tx, LOCK)
            count, done = act.settle(tx, some, before)
        forgotten += done
        return count

    return halved(parts, take, defects, most=MAX_DEFECTS), forgotten > 0 or len(defects) > known


class _Act:
    """What is done to the entries of parts that wait."""

    def __init__(self, finals: Finals, stamp: Stamp) -> None:
        self._finals = finals
        self._stamp = stamp

    def is_ready(self, tx: Tx, key: Key) -> bool:
        """Say whether a rate that is waited for can be dealt with."""
        raise NotImplementedError

    def new_rate(self, tx: Tx, key: Key, old: Rate | None) -> tuple[Rate, RateStatus] | None:
        """Return what becomes of a rate that can be dealt with; None: it stays as it is."""
        raise NotImplementedError

    def settle(self, tx: Tx, parts: Sequence[Part], before: datetime) -> tuple[int, int]:
        """Append revisions for some parts; return (revisions, rates that need not be waited for any more)."""
        ready = {key for key in unsettled.keys(tx, parts) if key[2] < before and self.is_ready(tx, key)}
        changes = self._changes(tx, parts, ready)
        return revisions.append(tx, parts, changes, self._stamp), unsettled.forget(tx, parts, ready)

    def _changes(self, tx: Tx, parts: Sequence[Part], ready: set[Key]) -> list[Change]:
        zones = ledger.zones_of_regions(tx)
        found = revisions.variants(tx, parts)
        awaited: dict[Part, set[Key]] | None = None
        if any(_fills(variant, ready) for variant in found):
            # A region that moved to another zone since: only the work list knows where it was.
            found, awaited = revisions.variants(tx, parts, one_by_one=True), unsettled.by_part(tx, parts)
        known = ledger.rates_of(tx, {rate_id for one in found for rate_id in _rate_ids(one)})
        pues = revisions.pues(tx, {fact for one in found for fact in (one.fact_id, one.baseline_fact_id) if fact})
        used: dict[str, Rate] = {}
        changes: list[Change] = []
        for variant in found:
            waits = ready if awaited is None else awaited[variant.engine_batch_id or "", variant.part or 0]
            new: dict[str, NewRate] = {}
            for book in BOOKS:
                rate_id, status = variant.rate_of(book)
                if status not in _OPEN:
                    continue
                old = None if rate_id is None else known[rate_id]
                key = _key(variant, book, old, zones, waits)
                made = None if key is None or key not in ready else self.new_rate(tx, key, old)
                if made is None:
                    continue
                used[made[0].rate_id] = made[0]
                new[book] = price(variant, book, *made, pues)
            if new:
                changes.append(Change(variant, new))
        ledger.insert_rates(tx, [rate_row(rate) for rate in used.values()])
        return changes


class _Settling(_Act):
    """A final rate takes the place of an open one."""

    def is_ready(self, tx: Tx, key: Key) -> bool:
        """Say whether the rate is final."""
        return self._finals.get(tx, key) is not None

    def new_rate(self, tx: Tx, key: Key, old: Rate | None) -> tuple[Rate, RateStatus] | None:
        """Return the final rate."""
        rate = self._finals.get(tx, key)
        return None if rate is None else (rate, RateStatus.SETTLED)


class _GivingUp(_Act):
    """What waited too long gets the best there is, and is not waited for any more; what is missing stays missing."""

    def is_ready(self, tx: Tx, key: Key) -> bool:
        """Say whether it is certain that no final rate is there."""
        return self._finals.get(tx, key) is None

    def new_rate(self, tx: Tx, key: Key, old: Rate | None) -> tuple[Rate, RateStatus] | None:
        """Return what was observed, though it is not final, else what the entry has."""
        rate = self._finals.best(tx, key)[0] or old
        return None if rate is None else (rate, RateStatus.UNSETTLEABLE)


def price(variant: Variant, book: str, rate: Rate, status: RateStatus, pues: Mapping[str, Decimal]) -> NewRate:
    """Return a book's new rate with what its grams are computed by."""
    fact_id = variant.baseline_fact_id if book == "baseline" else variant.fact_id
    return NewRate(rate.rate_id, status, compute.product(pues.get(fact_id or ""), rate.g_per_kwh))


def _rate_ids(variant: Variant) -> list[str]:
    found = (variant.rate_of(book)[0] for book in BOOKS)
    return [rate_id for rate_id in found if rate_id is not None]


def _fills(variant: Variant, ready: set[Key]) -> bool:
    """Say whether a rate that is missing may be among those that are ready."""
    for book in BOOKS:
        rate_id, status = variant.rate_of(book)
        signal, _, window_at = place_of(variant, book)
        if rate_id is None and status in _OPEN and any((key[0], key[2]) == (signal, window_at) for key in ready):
            return True
    return False


def place_of(variant: Variant, book: str) -> tuple[Signal, str | None, datetime | None]:
    """Return signal, region and window that a book's rate is of."""
    if book == "baseline":
        return Signal.MOER, variant.baseline_region, variant.baseline_window_at
    return Signal.AER if book == "aer" else Signal.MOER, variant.region, variant.window_at


def _key(variant: Variant, book: str, old: Rate | None, zones: Mapping[str, str], awaited: set[Key]) -> Key | None:
    """Return the rate that a book of a variant waits for; None if it waits for none."""
    signal, region, window_at = place_of(variant, book)
    if region is None or window_at is None:
        return None
    key = (signal, zones.get(region, "") if old is None else old.zone, window_at)
    if key in awaited:
        return key
    # The region moved to another zone in the settings since; the zone it was in then is the one waited for.
    then = [other for other in awaited if (other[0], other[2]) == (signal, window_at)]
    return then[0] if old is None and len(then) == 1 else None
