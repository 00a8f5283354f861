"""Pause, drain and resume regions, tenants and models; see ``Hold`` for what each means.

Who did it, when and why stays in the events. Work that is paused past its deadline ends as its late policy says.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from carbonq.clock import Clock
from carbonq.errors import InvalidRequest, NotFound
from carbonq.model import HeldKind, Hold, RegionState
from carbonq.store import admin_log, chunks, events, holds, regions
from carbonq.store.admin_log import Action
from carbonq.store.database import Database, Tx

#: Longest reason and name of who acts, in characters.
MAX_CHARS = 500

_DONE = {RegionState.ACTIVE: "resumed", RegionState.PAUSED: "paused", RegionState.DRAINING: "draining"}


def set_state(
    db: Database,
    clock: Clock,
    kind: HeldKind,
    name: str,
    state: RegionState,
    *,
    reason: str | None = None,
    acted_by: str | None = None,
    actor: str | None = None,
    known: Collection[str] | None = None,
) -> RegionState:
    """Say what becomes of a region, tenant or model, and return what it was before. Idempotent.

    ``known`` are the names there are (None: any goes; regions are always looked up); ``actor`` is who the log of admin
    actions names (None: ``acted_by``). Raises NotFound, InvalidRequest naming the field, StoreUnavailable.
    """
    for field, value in (("reason", reason), ("by", acted_by)):
        if value is not None and (len(value) > MAX_CHARS or not value.isprintable()):
            raise InvalidRequest(f"{field} must be printable text of at most {MAX_CHARS} characters", param=field)
    if known is not None and name not in known:
        raise NotFound(f"there is no {kind.value} {name!r}; known: {', '.join(sorted(known)) or 'none'}")
    now = clock.now()
    with db.write() as tx:
        before = _before(tx, kind, name)
        holds.put(tx, kind, name, state, reason=reason, held_by=acted_by)
        if kind is HeldKind.REGION:
            regions.set_state(tx, name, state)
        elif state is RegionState.PAUSED:
            chunks.shrink(tx, holds.set_aside(tx), at=now)
            holds.withdraw(tx)
        data = {"name": name, "before": before.value, "reason": reason, "by": acted_by}
        tenant = name if kind is HeldKind.TENANT else None
        said = {"state": state.value, "reason": reason, "by": acted_by}
        done = f"{kind.value}.{_DONE[state]}"
        was = {"state": before.value}
        admin_log.append(tx, Action(actor or acted_by or "unknown", done, name, tenant, before=was, after=said))
        events.append_many(tx, [events.NewEvent(f"{kind.value}.{_DONE[state]}", now, tenant, data=data)])
    return before


def _before(tx: Tx, kind: HeldKind, name: str) -> RegionState:
    if kind is not HeldKind.REGION:
        return holds.state_of(tx, kind, name)
    region = regions.find(tx, name)
    if region is None:
        names = ", ".join(one.name for one in regions.load_all(tx, worker_alive_s=0.0)) or "none"
        raise NotFound(f"there is no region {name!r}; known: {names}")
    return region.state


def sweep(db: Database, clock: Clock) -> int:
    """Set aside what paused tenants and models still have in chunks that came back; return how many chunks.

    Raises StoreUnavailable.
    """
    with db.read() as tx:
        if not any(one.kind is not HeldKind.REGION for one in holds.get_all(tx)):
            return 0
    with db.write() as tx:
        touched = holds.set_aside(tx)
        chunks.shrink(tx, touched, at=clock.now())
        return len(touched) + holds.withdraw(tx)


def refusal(tx: Tx, tenant: str, model: str) -> InvalidRequest | None:
    """Return why a new job is not accepted: its tenant or model is draining; None if it may come."""
    return refusal_of(holds.get_all(tx), tenant, model)


def refusal_of(held: Sequence[Hold], tenant: str, model: str) -> InvalidRequest | None:
    """Return the same by holds that were looked up before."""
    for one in held:
        is_meant = (one.kind, one.name) in {(HeldKind.TENANT, tenant), (HeldKind.MODEL, model)}
        if is_meant and one.state is RegionState.DRAINING:
            said = "" if one.reason is None else f" ({one.reason})"
            return InvalidRequest(
                f"{one.kind.value} {one.name!r} is draining{said}: what was accepted is finished, and no new job is "
                "taken",
                param=one.kind.value,
                code=f"{one.kind.value}_draining",
            )
    return None
