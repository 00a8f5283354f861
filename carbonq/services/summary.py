"""Sum the ledger up without mixing what must stay apart.

Clocks are never mixed; measured and estimated energy, methods, provisional and settled carbon, and the two books each
stand by themselves; a saving stands beside its baseline, on the same entries and so on the same energy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from carbonq.errors import InvalidRequest
from carbonq.model import EntryKind
from carbonq.services import score, tiers
from carbonq.store import figures
from carbonq.store.database import Database, Tx
from carbonq.store.figures import DIMENSIONS, Group, Scope
from carbonq.units import LEDGER_CONTEXT, plain

Json = dict[str, Any]


def summarize(db: Database, scope: Scope = Scope(), by: Sequence[str] = ()) -> Json:  # noqa: B008 - a frozen value
    """Return the sums of the entries in scope, grams as decimal text, with their SCI; ``by`` adds one for each group.

    ``smaller_models`` estimates what these saved, which is in no other saving.

    Raises InvalidRequest when they ran on more than one clock and ``clock`` does not choose, or for a dimension that
    is not one of ``figures.DIMENSIONS``; StoreUnavailable.
    """
    unknown = [name for name in by if name not in DIMENSIONS]
    if unknown or len(set(by)) < len(by):
        raise InvalidRequest(
            f"by is {', '.join(by)!r}; sums may be taken by {', '.join(DIMENSIONS)}, each once", param="by"
        )
    with db.read() as tx:
        groups = figures.groups(tx, scope, by)
        document = _document(groups)
        scope = replace(scope, clock=document["clock"])
        scores = score.scores(tx, scope, by)
        smaller = tiers.views(tiers.saved(tx, scope))
    document["sci"] = scores.of(None)
    document["smaller_models"] = smaller
    if by:
        document["by"] = list(by)
        document["groups"] = [
            dict(zip(by, key, strict=True)) | _document(members) | {"sci": scores.of(key)}
            for key, members in _split_by(groups)
        ]
    return document


def of_job(tx: Tx, job_id: str) -> Json | None:
    """Return a job's sums over its items; None before anything of it has run."""
    groups = figures.groups(tx, Scope(job_id=job_id))
    return _document(groups) if groups else None


def of_batch(tx: Tx, batch_id: str) -> Json | None:
    """Return the sums over the items of all jobs of a batch; None before anything of it has run."""
    groups = figures.groups(tx, Scope(batch_id=batch_id))
    return _document(groups) if groups else None


def _split_by(groups: Sequence[Group]) -> list[tuple[tuple[str | None, ...], list[Group]]]:
    found: dict[tuple[str | None, ...], list[Group]] = {}
    for group in groups:
        found.setdefault(group.by, []).append(group)
    return list(found.items())


def _document(groups: Sequence[Group]) -> Json:
    clocks = sorted({group.clock for group in groups})
    if len(clocks) > 1:
        counts = (f"{clock} ({sum(g.entries for g in groups if g.clock == clock)})" for clock in clocks)
        raise InvalidRequest(
            f"these entries ran on different clocks and are not added up: {', '.join(counts)}; choose one",
            param="clock",
        )
    items = [group for group in groups if group.kind == EntryKind.ITEM.value]
    compared = [group for group in groups if group.has_saving]
    return {
        "clock": clocks[0] if clocks else None,
        "entries": sum(group.entries for group in items),
        "overhead_entries": sum(group.entries for group in groups if group.kind != EntryKind.ITEM.value),
        "items": sum(group.items for group in groups),
        "methods": sorted({group.method for group in groups}),
        "prompt_tokens": sum(group.prompt_tokens for group in groups),
        "completion_tokens": sum(group.completion_tokens for group in groups),
        # Like ``entries`` the items' own figures; overhead (idle, wasted) is below, by kind.
        "energy_uj": sum(group.energy_uj for group in items),
        "energy_quality": sorted({group.quality for group in items}),
        "emission_g": _total(items, "emission_g"),
        "emission_status": sorted({group.moer_status for group in items}),
        "inventory_g": _total(items, "inventory_g"),
        "embodied_g": _total(items, "embodied_g"),
        "unmetered_entries": sum(group.unmetered for group in items),
        "unrated_entries": sum(group.unrated for group in items),
        **_comparison(compared),
        "energy": _split(groups, lambda g: {"kind": g.kind, "quality": g.quality}, _energy),
        "impact": _split(groups, lambda g: {"kind": g.kind, "status": g.moer_status, "method": g.method}, _impact),
        "inventory": _split(groups, lambda g: {"kind": g.kind, "status": g.aer_status, "method": g.method}, _inventory),
        "saving": _split(
            compared, lambda g: {"status": g.moer_status, "quality": g.quality, "method": g.method}, _comparison
        ),
    }


def _split(
    groups: Iterable[Group], key: Callable[[Group], dict[str, str]], describe: Callable[[Sequence[Group]], Json]
) -> list[Json]:
    found: dict[tuple[str, ...], list[Group]] = {}
    for group in groups:
        found.setdefault(tuple(key(group).values()), []).append(group)
    return [key(members[0]) | describe(members) for _, members in sorted(found.items())]


def _energy(groups: Sequence[Group]) -> Json:
    return {
        "entries": sum(group.entries for group in groups),
        "energy_uj": sum(group.energy_uj for group in groups),
        "unmetered_entries": sum(group.unmetered for group in groups),
    }


def _impact(groups: Sequence[Group]) -> Json:
    return {
        "entries": sum(group.entries for group in groups),
        "emission_g": _total(groups, "emission_g"),
        "unrated_entries": sum(group.unrated for group in groups),
    }


def _inventory(groups: Sequence[Group]) -> Json:
    return {
        "entries": sum(group.entries for group in groups),
        "inventory_g": _total(groups, "inventory_g"),
        "unrated_entries": sum(group.unrated_aer for group in groups),
    }


def _comparison(compared: Sequence[Group]) -> Json:
    """Say what was saved, on the entries that can be compared alone: their energy, emission and baseline."""
    return {
        "compared_entries": sum(group.entries for group in compared),
        "compared_energy_uj": sum(group.energy_uj for group in compared),
        "compared_emission_g": _total(compared, "emission_g"),
        "transfer_g": _total(compared, "transfer_g"),
        "baseline_g": _total(compared, "baseline_g"),
        "saved_g": _total(compared, "saved_g"),
    }


def _total(groups: Iterable[Group], name: str) -> str | None:
    known: list[Decimal] = [value for value in (getattr(group, name) for group in groups) if value is not None]
    total: Decimal | None = None
    for value in known:
        # Not sum(): the default context would round to 28 digits.
        total = value if total is None else LEDGER_CONTEXT.add(total, value)
    return None if total is None else plain(total)
