"""What smaller models saved: an estimate with a line of its own, in no other saving.

The ledger's ``saved_g`` compares the same energy elsewhere and at another time; here the energy itself would have been
another one. So the two are never added up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from carbonq.model import Throughput
from carbonq.store import figures, throughputs
from carbonq.store.database import Tx
from carbonq.store.figures import Scope, Smaller
from carbonq.units import GRAM_QUANTUM, LEDGER_CONTEXT, plain

#: What was asked for, what ran, why, and the clock.
_Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Saved:
    """Items that ran on a smaller model for one reason, and what the one that was asked for is estimated to emit.

    Grams of the impact book. ``emission_g`` is the ledger's, of all ``items`` that have a rate (None: none has).
    ``requested_g`` is an estimate: the same tokens at the same place and time on the model that was asked for.
    ``compared_g`` is the part of ``emission_g`` that it stands beside, and ``saved_g`` their difference, negative where
    the smaller model took more; all three are None where nothing was learned of either model on the hardware.
    ``unknown_items`` are in none of them. ``statuses`` are those of the marginal rates.
    """

    requested_model: str
    model: str
    reason: str
    clock: str
    items: int
    tokens: int
    energy_uj: int
    statuses: tuple[str, ...]
    emission_g: Decimal | None
    compared_g: Decimal | None
    requested_g: Decimal | None
    saved_g: Decimal | None
    unknown_items: int


def saved(tx: Tx, scope: Scope) -> list[Saved]:
    """Return what smaller models saved of the entries in scope, by what was asked for, what ran, why, and the clock.

    Of each hardware: ``requested_g = compared_g x (learned uJ per token of the model asked for / that of the one that
    ran)``. Both are learned per estimated token, so that what is wrong with the estimate cancels; window, rate and PUE
    are the entries' own. What was learned is that of today: the figures move a little as learning goes on.
    """
    learned = throughputs.get_all(tx)
    found: dict[_Key, list[Smaller]] = {}
    for group in figures.smaller(tx, scope):
        found.setdefault((group.requested_model, group.model, group.downgraded, group.clock), []).append(group)
    return [_saved(key, groups, learned) for key, groups in sorted(found.items())]


def views(rows: Sequence[Saved]) -> list[dict[str, Any]]:
    """Return them as JSON, grams as decimal text."""
    return [
        {
            name: plain(value) if isinstance(value := getattr(row, name), Decimal) else value
            for name in Saved.__dataclass_fields__
        }
        | {"statuses": list(row.statuses), "is_estimated": True}
        for row in rows
    ]


def _saved(key: _Key, groups: Sequence[Smaller], learned: Mapping[tuple[str, str], Throughput]) -> Saved:
    requested_model, model, reason, clock = key
    emission = compared = requested = None
    unknown = 0
    for group in groups:
        if group.emission_g is None:
            unknown += group.items
            continue
        emission = _plus(emission, group.emission_g)
        unknown += group.unrated
        ratio = _ratio(learned, requested_model, model, group.hardware)
        if ratio is None:
            unknown += group.items - group.unrated
            continue
        compared = _plus(compared, group.emission_g)
        there = LEDGER_CONTEXT.multiply(group.emission_g, ratio).quantize(GRAM_QUANTUM, context=LEDGER_CONTEXT)
        requested = _plus(requested, there)
    return Saved(
        requested_model=requested_model,
        model=model,
        reason=reason,
        clock=clock,
        items=sum(group.items for group in groups),
        tokens=sum(group.tokens for group in groups),
        energy_uj=sum(group.energy_uj for group in groups),
        statuses=tuple(sorted({group.moer_status for group in groups})),
        emission_g=emission,
        compared_g=compared,
        requested_g=requested,
        saved_g=None if requested is None or compared is None else LEDGER_CONTEXT.subtract(requested, compared),
        unknown_items=unknown,
    )


def _ratio(learned: Mapping[tuple[str, str], Throughput], requested: str, model: str, hardware: str) -> Decimal | None:
    asked, ran = learned.get((requested, hardware)), learned.get((model, hardware))
    if asked is None or ran is None or asked.uj_per_token <= 0 or ran.uj_per_token <= 0:
        return None
    return LEDGER_CONTEXT.divide(Decimal(asked.uj_per_token), Decimal(ran.uj_per_token))


def _plus(total: Decimal | None, more: Decimal) -> Decimal:
    # Not sum(): the default context would round to 28 digits.
    return more if total is None else LEDGER_CONTEXT.add(total, more)
