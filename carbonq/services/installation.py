"""Keep the installation's shared settings in the database, and say how far a host's clock is from the database's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from carbonq import __version__
from carbonq.errors import ConfigError
from carbonq.store import installation
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import machine_now

#: Questions to the database's clock; the one that was answered fastest tells most.
_QUESTIONS = 5

#: Share of the allowed clock offset from which it is worth a warning.
WARN_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Shared:
    """What a host would have the installation keep: ``settings`` as JSON, and of these the ones that must be alike."""

    settings: Mapping[str, Any]
    compared: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """The digest of what must be alike."""
        return digest(self.compared)


def digest(compared: Mapping[str, Any]) -> str:
    """Return the SHA-256 of settings in canonical JSON, in hex."""
    text = json.dumps(compared, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def put(tx: Tx, shared: Shared) -> list[str]:
    """Make settings the installation's; return what changed in half sentences (empty: nothing; also the first time)."""
    before = installation.load(tx)
    if before is not None and before.settings == shared.settings and before.settings_digest == shared.digest:
        return []
    installation.put(tx, shared.settings, shared.digest, software_version=__version__)
    return [] if before is None else changes(before.settings, shared.settings)


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Say which settings differ, by name; one that is at its default is not kept, and called so."""
    old, new = dict(_flat(before)), dict(_flat(after))
    names = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    return [f"{name}: {old.get(name, 'the default')} -> {new.get(name, 'the default')}" for name in names]


def _flat(value: Any, name: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        table = cast(Mapping[str, Any], value)
        return [pair for key, one in table.items() for pair in _flat(one, f"{name}.{key}" if name else key)]
    if isinstance(value, list) and any(isinstance(one, Mapping) for one in cast(list[Any], value)):
        items = cast(list[Any], value)
        return [pair for index, one in enumerate(items) for pair in _flat(one, f"{name}.{index}")]
    return [(name, value)]


def clock_offset_s(db: Database, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> float:
    """Return this host's clock minus the database's in seconds; half the fastest round trip is its uncertainty.

    Raises StoreUnavailable.
    """
    best: tuple[float, float] | None = None
    with db.read() as tx:
        for _ in range(_QUESTIONS):
            before = now()
            theirs = machine_now(tx)
            trip_s = (now() - before).total_seconds()
            offset_s = (before - theirs).total_seconds() + trip_s / 2
            if best is None or trip_s < best[0]:
                best = (trip_s, offset_s)
    assert best is not None
    return best[1]


def check_clock(offset_s: float, *, limit_s: float) -> str | None:
    """Return a warning where the offset is worth one. Raises ConfigError where it is beyond the limit."""
    side = "ahead of" if offset_s > 0 else "behind"
    what = f"this host's clock is {abs(offset_s):.3g} s {side} the database's"
    if abs(offset_s) > limit_s:
        raise ConfigError(
            f"{what}; max_clock_offset_s allows {limit_s:g} s: set the clock of the host that is wrong "
            "(chrony or ntpd keeps it right), because windows, deadlines and meter readings are stamped with it"
        )
    return f"{what}; beyond {limit_s:g} s it would not start" if abs(offset_s) > limit_s * WARN_SHARE else None
