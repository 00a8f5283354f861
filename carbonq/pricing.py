"""From microjoules to grams, exactly: whole-number fractions, rounded once. Pure; shared by booking and settling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from carbonq.booking import Fact
from carbonq.methods import METHOD, may_compare
from carbonq.model import Rate, RateStatus
from carbonq.ratebook import Row
from carbonq.units import QUANTA_PER_GRAM, UJ_PER_KWH

#: A rate times a PUE as an exact fraction: grams for each microjoule. None where either is unknown.
Ratio = tuple[int, int] | None


def ratio_of(pue: Decimal | None, rate: Rate | None) -> Ratio:
    """Return grams for each microjoule; None where either is unknown."""
    if pue is None or rate is None:
        return None
    pue_num, pue_den = pue.as_integer_ratio()
    rate_num, rate_den = rate.g_per_kwh.as_integer_ratio()
    return pue_num * rate_num, UJ_PER_KWH * pue_den * rate_den


@dataclass(frozen=True, slots=True)
class Baseline:
    """What all items of one baseline (region, window) share."""

    columns: Row
    ratio: Ratio
    status: RateStatus | None


NO_BASELINE = Baseline({"baseline_fact_id": None, "baseline_rate_id": None, "baseline_moer_status": None}, None, None)


def quanta_of(amounts: Sequence[int | None], ratio: Ratio) -> list[int | None]:
    """Return ``units.quanta`` of each amount times a ratio; None where an amount or the ratio is unknown."""
    if ratio is None:
        return [None] * len(amounts)
    # In lowest terms, so that the products stay small.
    num, den = Fraction(ratio[0] * QUANTA_PER_GRAM, ratio[1]).as_integer_ratio()
    found: list[int | None] = []
    for amount in amounts:
        if amount is None:
            found.append(None)
            continue
        quotient, remainder = divmod(amount * num, den)
        twice = 2 * remainder
        found.append(quotient + 1 if twice > den or (twice == den and quotient & 1) else quotient)
    return found


def savings(
    baselines: Sequence[Baseline],
    alternatives: Sequence[int | None],
    emissions: Sequence[int | None],
    moer_status: RateStatus,
) -> list[int | None]:
    """Return what each item saved in quanta; None where a figure is unknown or the two may not be compared."""
    may = {id(one): may_compare(METHOD, moer_status, one.status) for one in baselines}
    return [
        None if alternative is None or emission is None or not may[id(baseline)] else alternative - emission
        for baseline, alternative, emission in zip(baselines, alternatives, emissions, strict=True)
    ]


def embodied_ratio(fact: Fact, duration_s: Decimal, share_den: int) -> Ratio:
    """Return embodied grams for each unit of ``share_num``: a slot's hardware over its life, for this part's time."""
    if fact.embodied_kg is None or fact.life_h is None:
        return None
    kg_num, kg_den = fact.embodied_kg.as_integer_ratio()
    s_num, s_den = duration_s.as_integer_ratio()
    life_num, life_den = fact.life_h.as_integer_ratio()
    return kg_num * 1000 * s_num * life_den, kg_den * s_den * life_num * 3600 * share_den
