"""From microjoules to grams, exactly: whole-number fractions, rounded once. Pure; shared by booking and settling."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from carbonq.booking import Fact
from carbonq.methods import METHOD, may_compare
from carbonq.model import Rate, RateStatus
from carbonq.ratebook import Row
from carbonq.units import UJ_PER_KWH, from_quanta, quanta

#: A rate times a PUE as an exact fraction: grams for each microjoule. None where either is unknown.
Ratio = tuple[int, int] | None


def ratio_of(pue: Decimal | None, rate: Rate | None) -> Ratio:
    """Return grams for each microjoule; None where either is unknown."""
    if pue is None or rate is None:
        return None
    pue_num, pue_den = pue.as_integer_ratio()
    rate_num, rate_den = rate.g_per_kwh.as_integer_ratio()
    return pue_num * rate_num, UJ_PER_KWH * pue_den * rate_den


def _quanta(amount: int | None, ratio: Ratio) -> int | None:
    return None if amount is None or ratio is None else quanta(amount * ratio[0], ratio[1])


def _grams(count: int | None) -> Decimal | None:
    return None if count is None else from_quanta(count)


@dataclass(frozen=True, slots=True)
class Baseline:
    """What all items of one baseline (region, window) share."""

    columns: Row
    ratio: Ratio
    status: RateStatus | None


NO_BASELINE = Baseline({"baseline_fact_id": None, "baseline_rate_id": None, "baseline_moer_status": None}, None, None)


class Pricer:
    """Turns an entry's energy and share into its gram columns; alike items are computed once."""

    def __init__(self, impact: Ratio, inventory: Ratio, embodied: Ratio, moer_status: RateStatus) -> None:
        self._ratios = (impact, inventory, embodied)
        self._moer_status = moer_status
        self._known: dict[tuple[int | None, int, int], Row] = {}

    def grams(self, energy_uj: int | None, share_num: int, baseline: Baseline) -> Row:
        """Return the gram columns of one entry; None where an input is unknown."""
        key = (energy_uj, share_num, id(baseline))
        if key not in self._known:
            self._known[key] = self._grams(energy_uj, share_num, baseline)
        return self._known[key]

    def _grams(self, energy_uj: int | None, share_num: int, baseline: Baseline) -> Row:
        impact, inventory, embodied = self._ratios
        emission = _quanta(energy_uj, impact)
        alternative = _quanta(energy_uj, baseline.ratio)
        saved = None
        is_alike = may_compare(METHOD, self._moer_status, baseline.status)
        if emission is not None and alternative is not None and is_alike:
            saved = alternative - emission
        return {
            "emission_g": _grams(emission),
            "inventory_g": _grams(_quanta(energy_uj, inventory)),
            "embodied_g": _grams(_quanta(share_num, embodied)),
            "baseline_g": _grams(alternative),
            "saved_g": _grams(saved),
        }


def embodied_ratio(fact: Fact, duration_s: Decimal, share_den: int) -> Ratio:
    """Return embodied grams for each unit of ``share_num``: a slot's hardware over its life, for this part's time."""
    if fact.embodied_kg is None or fact.life_h is None:
        return None
    kg_num, kg_den = fact.embodied_kg.as_integer_ratio()
    s_num, s_den = duration_s.as_integer_ratio()
    life_num, life_den = fact.life_h.as_integer_ratio()
    return kg_num * 1000 * s_num * life_den, kg_den * s_den * life_num * 3600 * share_den
